/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <stdarg.h>
#include <stdio.h>

bool report_error(const char *format, ...) {
    va_list values;
    va_start(values, format);
    fputs("ejk: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    return false;
}

bool succeeded(ejk_status status) {
    return status == EJK_OK || report_error("%s", ejk_last_error());
}

bool print_json(json_t *value) {
    bool written = value != NULL &&
                   json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 &&
                   putchar('\n') != EOF;
    json_decref(value);
    return written || report_error("the result could not be written as JSON");
}

bool open_catalogue(ejk_context **out) {
    const ejk_context_options options = {.threads = 1, .isa = "scalar"};
    return succeeded(ejk_context_create(&options, out));
}
