/* SPDX-License-Identifier: Apache-2.0 */
/* A list inside an error sentence, put together piece by piece; what does not fit is cut. */
#ifndef EJKI_RECORD_LINE_H
#define EJKI_RECORD_LINE_H

#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct ejki_line {
    char text[400];
    size_t used;
} ejki_line;

EJKI_PRINTF(2, 3) static inline void ejki_line_add(ejki_line *line, const char *format, ...) {
    size_t room = sizeof line->text - line->used;
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(line->text + line->used, room, format, arguments);
    va_end(arguments);
    if (wanted > 0) line->used += (size_t)wanted < room ? (size_t)wanted : room - 1;
}

/* `separator` between pieces: nothing before the first one. */
static inline void ejki_line_separate(ejki_line *line, const char *separator) {
    if (line->used > 0) ejki_line_add(line, "%s", separator);
}

#endif
