/* SPDX-License-Identifier: Apache-2.0 */
/* JSON texts from elsewhere, read by jansson and written again as stable JSON. */
#include "ops/identity/write.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static ejk_status write_value(FILE *stream, const json_t *value);

static ejk_status write_array(FILE *stream, const json_t *array) {
    size_t count = json_array_size(array);
    putc('[', stream);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) putc(',', stream);
        EJKI_TRY(write_value(stream, json_array_get(array, i)));
    }
    putc(']', stream);
    return EJK_OK;
}

static int compare_keys(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ejk_status write_members(FILE *stream, const json_t *object, const char **keys,
                                size_t count) {
    void *at = json_object_iter((json_t *)object);
    for (size_t i = 0; i < count; i++, at = json_object_iter_next((json_t *)object, at))
        keys[i] = json_object_iter_key(at);
    qsort(keys, count, sizeof *keys, compare_keys); /* UTF-8 sorts as its code points do */
    for (size_t i = 0; i < count; i++) {
        if (i > 0) putc(',', stream);
        EJKI_TRY(ejki_write_string(stream, keys[i], strlen(keys[i]), "key"));
        putc(':', stream);
        EJKI_TRY(write_value(stream, json_object_get(object, keys[i])));
    }
    return EJK_OK;
}

static ejk_status write_object(FILE *stream, const json_t *object) {
    size_t count = json_object_size(object);
    const char **keys = malloc((count + 1) * sizeof *keys);
    if (keys == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %zu keys could not be had", count);
    putc('{', stream);
    ejk_status status = write_members(stream, object, keys, count);
    putc('}', stream);
    free(keys);
    return status;
}

static ejk_status write_value(FILE *stream, const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return write_object(stream, value);
    case JSON_ARRAY: return write_array(stream, value);
    case JSON_STRING:
        return ejki_write_string(stream, json_string_value(value), json_string_length(value),
                                 "text");
    case JSON_INTEGER:
        fprintf(stream, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return EJK_OK;
    case JSON_REAL: {
        char text[EJKI_FLOAT_SIZE];
        ejki_float_text(json_real_value(value), text);
        fputs(text, stream);
        return EJK_OK;
    }
    case JSON_TRUE: fputs("true", stream); return EJK_OK;
    case JSON_FALSE: fputs("false", stream); return EJK_OK;
    case JSON_NULL: fputs("null", stream); return EJK_OK;
    }
    return EJK_OK;
}

ejk_status ejki_write_json(FILE *stream, const char *json, const char *name) {
    json_error_t error;
    json_t *root =
        json_loads(json, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (root == NULL) {
        if (error.text[0] == '\0') /* the parser has no words for want of memory */
            return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory to read %s could not be had", name);
        return ejki_fail(EJK_STATUS_MALFORMED, "%s: JSON line %d, column %d: %s", name, error.line,
                         error.column, error.text);
    }
    ejk_status status = write_value(stream, root);
    json_decref(root);
    return status;
}

ejk_status ejk_stable_json_text(const char *json, char **out) {
    if (json == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_stable_json_text: json or out is NULL");
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    return ejki_text_close(&text, ejki_write_json(text.stream, json, "json"), out);
}
