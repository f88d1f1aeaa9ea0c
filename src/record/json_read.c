/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON to records. A struct is filled aside and copied when all of it was read, so that a failure
 * leaves the caller's as it was. Readers of single kinds say only yes or no; one sentence serves them.
 */
#include "record/field.h"
#include "record/line.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHOWN = 60 }; /* bytes of a wrong value that a sentence shows */

/* Takes the pieces of a value's JSON until enough is there; -1 ends the writing. */
static int take_piece(const char *piece, size_t size, void *line) {
    ejki_line *given = line;
    ejki_line_add(given, "%.*s", size > SHOWN ? SHOWN + 1 : (int)size, piece);
    return given->used > SHOWN ? -1 : 0;
}

/* "<path>: <value> given, expected <what the kind takes>" */
static ejk_status refuse(const ejk_field *field, const json_t *value, const char *prefix) {
    ejki_line given = {.used = 0};
    json_dump_callback(value, take_piece, &given,
                       JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    return ejki_fail(EJK_STATUS_MALFORMED, "%s%s: %.*s%s given, expected %s", prefix, field->name,
                     (int)SHOWN, given.text, given.used > SHOWN ? "…" : "",
                     ejki_kind_of(field->kind)->expected);
}

static bool read_int(const json_t *value, int64_t *out) {
    *out = json_integer_value(value);
    return json_is_integer(value);
}

static bool read_float(const json_t *value, double *out) {
    *out = json_number_value(value);
    return json_is_number(value);
}

static bool read_side(const json_t *value, ejk_opt_int *out) {
    out->set = !json_is_null(value);
    return !out->set || read_int(value, &out->value);
}

static bool read_window(const json_t *value, ejk_window *out) {
    return json_is_array(value) && json_array_size(value) == 2 &&
           read_side(json_array_get(value, 0), &out->left) &&
           read_side(json_array_get(value, 1), &out->right);
}

static bool read_name(const json_t *value, char *out) {
    if (!json_is_string(value) || json_string_length(value) >= EJK_NAME_SIZE) return false;
    memcpy(out, json_string_value(value), json_string_length(value));
    return true;
}

static bool read_dtype(const json_t *value, ejk_dtype *out) {
    return json_is_string(value) && ejk_dtype_from_name(json_string_value(value), out) == EJK_OK;
}

/* Lengths whose strides, and the bytes they span, fit in 63 bits even where an axis is empty. */
static bool read_shape(const json_t *value, ejk_dtype dtype, int64_t *shape) {
    if (!json_is_array(value) || json_array_size(value) > EJK_MAX_RANK) return false;
    int64_t bytes = (int64_t)ejk_dtype_size(dtype);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!read_int(json_array_get(value, i), &shape[i]) || shape[i] < 0 ||
            !ejki_mul(bytes, ejki_max(shape[i], 1), &bytes))
            return false;
    return true;
}

static bool read_tensor(const json_t *value, ejk_tensor *out) {
    ejk_dtype dtype;
    int64_t shape[EJK_MAX_RANK];
    const json_t *lengths = json_object_get(value, "shape");
    if (json_object_size(value) != 2 || !read_dtype(json_object_get(value, "dtype"), &dtype) ||
        !read_shape(lengths, dtype, shape))
        return false;
    *out = ejk_tensor_contiguous(NULL, dtype, (int32_t)json_array_size(lengths), shape);
    return true;
}

static ejk_status read_record(const ejk_record *record, json_t *value, const char *prefix,
                              void *object) {
    const char *key;
    json_t *member;
    json_object_foreach(value, key, member) {
        const ejk_field *field = ejki_own_field(record, key, strlen(key));
        if (field == NULL) {
            char path[EJKI_PREFIX_SIZE];
            snprintf(path, sizeof path, "%s%s", prefix, key);
            return ejki_fail_unknown(EJK_STATUS_MALFORMED, record, path);
        }
        EJKI_TRY(ejki_json_read(field, member, prefix, (char *)object + field->offset));
    }
    return EJK_OK;
}

ejk_status ejki_json_read(const ejk_field *field, json_t *value, const char *prefix, void *place) {
    if (json_is_null(value)) return EJK_OK;
    bool read = false;
    switch (field->kind) {
    case EJK_FIELD_BOOL:
        *(bool *)place = json_is_true(value);
        read = json_is_boolean(value);
        break;
    case EJK_FIELD_INT: read = read_int(value, place); break;
    case EJK_FIELD_FLOAT: read = read_float(value, place); break;
    case EJK_FIELD_OPT_BOOL:
        *(ejk_opt_bool *)place = json_is_true(value) ? EJK_TRUE : EJK_FALSE;
        read = json_is_boolean(value);
        break;
    case EJK_FIELD_OPT_INT: read = read_side(value, place); break;
    case EJK_FIELD_OPT_FLOAT: {
        ejk_opt_float *number = place;
        number->set = true;
        read = read_float(value, &number->value);
        break;
    }
    case EJK_FIELD_WINDOW: read = read_window(value, place); break;
    case EJK_FIELD_NAME: read = read_name(value, place); break;
    case EJK_FIELD_DTYPE: read = read_dtype(value, place); break;
    case EJK_FIELD_TENSOR: read = read_tensor(value, place); break;
    case EJK_FIELD_RECORD:
        if (json_is_object(value)) {
            char inner[EJKI_PREFIX_SIZE];
            snprintf(inner, sizeof inner, "%s%s.", prefix, field->name);
            return read_record(field->record, value, inner, place);
        }
        break;
    }
    return read ? EJK_OK : refuse(field, value, prefix);
}

ejk_status ejk_record_from_json(const ejk_record *record, const char *json, void *object) {
    if (record == NULL || json == NULL || object == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_record_from_json: record, json or object is NULL");
    json_error_t error;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        /* The parser has no words for want of memory, where it does not take it for a wrong token. */
        if (error.text[0] == '\0')
            return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %s's JSON could not be had",
                             record->name);
        return ejki_fail(EJK_STATUS_MALFORMED, "%s: JSON line %d, column %d: %s", record->name,
                         error.line, error.column, error.text);
    }
    ejk_status status;
    void *aside = ejki_aside(record->size);
    if (aside == NULL)
        status = ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "%zu bytes for a %s could not be had",
                           record->size, record->name);
    else if (!json_is_object(root))
        status =
            ejki_fail(EJK_STATUS_MALFORMED, "%s: an array given, expected an object", record->name);
    else
        status = read_record(record, root, "", aside);
    if (status == EJK_OK) memcpy(object, aside, record->size);
    free(aside);
    json_decref(root);
    return status;
}
