/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#undef ejki_fail

static _Thread_local char last_error[1024];

static const ejki_named statuses[] = {EJK_STATUS_LIST(EJKI_NAMED)};

const char *ejk_status_name(ejk_status status) {
    return EJKI_NAMED_OF(statuses, status, "UNKNOWN").name;
}

const char *ejk_status_message(ejk_status status) {
    return EJKI_NAMED_OF(statuses, status, "not a status of this library").text;
}

const char *ejk_last_error(void) {
    return last_error;
}

ejk_status ejki_fail(ejk_status status, const char *format, ...) {
    /* Built apart first: an argument may be the previous sentence itself. */
    char text[sizeof last_error];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(last_error, sizeof last_error, "%s", text);
    return status;
}

void ejk_free(void *pointer) {
    free(pointer);
}

const char *ejk_version(void) {
    return EJKI_VERSION;
}

const char *ejk_build_flags(void) {
    return EJKI_BUILD_FLAGS;
}
