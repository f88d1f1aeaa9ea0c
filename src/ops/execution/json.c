/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/execution/json.h"
#include "base/base.h"

#include <ejkernel/record.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *ejki_json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *ejki_json_words(const char *text) {
    json_t *words = json_string(text);
    if (words != NULL) return words;
    char *plain = strdup(text);
    if (plain == NULL) return NULL;
    for (char *c = plain; *c != '\0'; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    words = json_string(plain);
    free(plain);
    return words;
}

bool ejki_json_set(json_t *object, const char *name, json_t *value) {
    return json_object_set_new(object, name, value) == 0;
}

json_t *ejki_json_whole(json_t *json, bool whole) {
    if (whole) return json;
    json_decref(json);
    return NULL;
}

/* Through a stream of our own: jansson's allocator may be the application's, ejk_free() is free(). */
static bool print(const json_t *json, int flags, char **out) {
    size_t size = 0, layout = (flags & EJK_JSON_INDENT) != 0 ? JSON_INDENT(2) : JSON_COMPACT;
    FILE *stream = open_memstream(out, &size);
    if (stream == NULL) return false;
    bool written = json_dumpf(json, stream,
                              JSON_SORT_KEYS | JSON_ENSURE_ASCII | JSON_ENCODE_ANY | layout) == 0;
    if (fclose(stream) == 0 && written) return true;
    free(*out);
    return false;
}

ejk_status ejki_json_print(json_t *json, bool complete, int flags, char **out) {
    char *text = NULL;
    bool printed = json != NULL && complete && print(json, flags, &text);
    json_decref(json);
    if (!printed)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a result's JSON could not be had");
    *out = text;
    return EJK_OK;
}
