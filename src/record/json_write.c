/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records to JSON. A constructor of jansson answers NULL for want of memory, and json_object_set_new()
 * and its kin answer that with -1; so NULL travels until there, and only there is it looked at. What a
 * value cannot say in JSON (NaN, a dtype that is none, broken UTF-8) is an error of its own before.
 */
#include "record/field.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static ejk_status write_record(const ejk_record *record, const void *object, const char *prefix,
                               int flags, json_t **out);

static ejk_status out_of_memory(void) {
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a record's JSON could not be had");
}

/* The field with its prefix, as every sentence here begins. */
#define REFUSE(prefix, field, format, ...)                                                         \
    ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s%s: " format, prefix, (field)->name, __VA_ARGS__)

static ejk_status write_float(const ejk_field *field, double value, const char *prefix,
                              json_t **out) {
    if (!isfinite(value)) return REFUSE(prefix, field, "%g given, expected a finite number", value);
    *out = json_real(value + 0.0); /* equal records, equal texts: -0.0 is written 0.0 */
    return EJK_OK;
}

static ejk_status write_name(const ejk_field *field, const char *name, const char *prefix,
                             json_t **out) {
    size_t length = strnlen(name, EJK_NAME_SIZE);
    if (length == EJK_NAME_SIZE)
        return REFUSE(prefix, field, "no closing zero within %d bytes", EJK_NAME_SIZE);
    *out = json_stringn(name, length);
    if (*out != NULL) return EJK_OK;
    json_t *unchecked = json_stringn_nocheck(name, length);
    if (unchecked == NULL) return out_of_memory();
    json_decref(unchecked);
    return REFUSE(prefix, field, "%zu bytes given that are not UTF-8", length);
}

static ejk_status write_dtype(const ejk_field *field, ejk_dtype dtype, const char *prefix,
                              json_t **out) {
    if (ejk_dtype_size(dtype) == 0)
        return REFUSE(prefix, field, "element type %d does not exist", (int)dtype);
    *out = json_string(ejk_dtype_name(dtype));
    return EJK_OK;
}

static ejk_status write_tensor(const ejk_field *field, const ejk_tensor *tensor, const char *prefix,
                               json_t **out) {
    json_t *dtype = NULL;
    if (tensor->rank < 0 || tensor->rank > EJK_MAX_RANK)
        return REFUSE(prefix, field, "rank %d given, expected 0 to %d", (int)tensor->rank,
                      EJK_MAX_RANK);
    for (int32_t i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] < 0)
            return REFUSE(prefix, field, "axis %d has the negative length %lld", (int)i,
                          (long long)tensor->shape[i]);
    EJKI_TRY(write_dtype(field, tensor->dtype, prefix, &dtype));
    json_t *shape = json_array(), *object = json_object();
    bool failed = false;
    for (int32_t i = 0; i < tensor->rank; i++)
        failed |= json_array_append_new(shape, json_integer(tensor->shape[i])) != 0;
    failed |= json_object_set_new(object, "dtype", dtype) != 0;
    failed |= json_object_set_new(object, "shape", shape) != 0;
    if (failed) {
        json_decref(object);
        return out_of_memory();
    }
    *out = object;
    return EJK_OK;
}

static json_t *side_of(const ejk_opt_int *side) {
    return side->set ? json_integer(side->value) : json_null();
}

static ejk_status write_window(const ejk_window *window, json_t **out) {
    json_t *pair = json_array();
    if (json_array_append_new(pair, side_of(&window->left)) != 0 ||
        json_array_append_new(pair, side_of(&window->right)) != 0) {
        json_decref(pair);
        return out_of_memory();
    }
    *out = pair;
    return EJK_OK;
}

/* The value of a field that is set. */
static ejk_status write_value(const ejk_field *field, const void *place, const char *prefix,
                              int flags, json_t **out) {
    switch (field->kind) {
    case EJK_FIELD_BOOL: *out = json_true(); return EJK_OK;
    case EJK_FIELD_INT: *out = json_integer(*(const int64_t *)place); return EJK_OK;
    case EJK_FIELD_FLOAT: return write_float(field, *(const double *)place, prefix, out);
    case EJK_FIELD_OPT_BOOL: {
        ejk_opt_bool value = *(const ejk_opt_bool *)place;
        if (value != EJK_TRUE && value != EJK_FALSE)
            return REFUSE(prefix, field, "%d given, expected EJK_UNSET, EJK_TRUE or EJK_FALSE",
                          (int)value);
        *out = json_boolean(value == EJK_TRUE);
        return EJK_OK;
    }
    case EJK_FIELD_OPT_INT: *out = json_integer(((const ejk_opt_int *)place)->value); return EJK_OK;
    case EJK_FIELD_OPT_FLOAT:
        return write_float(field, ((const ejk_opt_float *)place)->value, prefix, out);
    case EJK_FIELD_WINDOW: return write_window(place, out);
    case EJK_FIELD_NAME: return write_name(field, place, prefix, out);
    case EJK_FIELD_DTYPE: return write_dtype(field, *(const ejk_dtype *)place, prefix, out);
    case EJK_FIELD_TENSOR: return write_tensor(field, place, prefix, out);
    case EJK_FIELD_RECORD: {
        char inner[EJKI_PREFIX_SIZE];
        snprintf(inner, sizeof inner, "%s%s.", prefix, field->name);
        return write_record(field->record, place, inner, flags, out);
    }
    }
    return EJK_OK;
}

/* What stands for a field that is not set: kinds that cannot be unset have a zero of their own. */
static json_t *zero_of(const ejk_field *field) {
    switch (field->kind) {
    case EJK_FIELD_BOOL: return json_false();
    case EJK_FIELD_INT: return json_integer(0);
    case EJK_FIELD_FLOAT: return json_real(0.0);
    default: return json_null();
    }
}

static ejk_status write_record(const ejk_record *record, const void *object, const char *prefix,
                               int flags, json_t **out) {
    json_t *result = json_object();
    ejk_status status = EJK_OK;
    for (int32_t i = 0; i < record->count && status == EJK_OK; i++) {
        const ejk_field *field = &record->fields[i];
        bool set = ejk_record_is_set(field, object);
        if (!set && (flags & EJK_JSON_SET_ONLY) != 0) continue;
        json_t *value = NULL;
        if (set || field->kind == EJK_FIELD_RECORD)
            status = write_value(field, ejki_place(field, object), prefix, flags, &value);
        else
            value = zero_of(field);
        if (status == EJK_OK && json_object_set_new(result, field->name, value) != 0)
            status = out_of_memory();
    }
    if (status == EJK_OK && result == NULL) status = out_of_memory();
    if (status == EJK_OK)
        *out = result;
    else
        json_decref(result);
    return status;
}

/* Through a stream of our own: jansson's allocator may be the application's, ejk_free() is free(). */
static ejk_status print(const json_t *json, int flags, char **out) {
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (stream == NULL) return out_of_memory();
    size_t layout = (flags & EJK_JSON_INDENT) != 0 ? JSON_INDENT(2) : JSON_COMPACT;
    bool written = json_dumpf(json, stream, JSON_SORT_KEYS | JSON_ENSURE_ASCII | layout) == 0;
    if (fclose(stream) != 0 || !written) {
        free(text);
        return out_of_memory();
    }
    *out = text;
    return EJK_OK;
}

ejk_status ejk_record_to_json(const ejk_record *record, const void *object, int flags, char **out) {
    if (record == NULL || object == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_record_to_json: record, object or out is NULL");
    json_t *json = NULL;
    EJKI_TRY(write_record(record, object, "", flags, &json));
    ejk_status status = print(json, flags, out);
    json_decref(json);
    return status;
}
