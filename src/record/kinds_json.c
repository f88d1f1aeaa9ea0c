/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of each kind as JSON. Readers say only yes or no; json_read.c has one sentence for all. A
 * constructor of jansson answers NULL for want of memory, and json_object_set_new() and its kin answer that
 * with -1; so NULL travels until there, and only there is it looked at. What a value cannot say in JSON
 * (NaN, a dtype that is none, broken UTF-8) is an error of its own before.
 */
#include "record/field.h"
#include "record/kinds.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

/* ---- Reading ------------------------------------------------------------------------------------------ */

bool ejki_read_bool(const json_t *value, void *place) {
    *(bool *)place = json_is_true(value);
    return json_is_boolean(value);
}

bool ejki_read_int(const json_t *value, void *place) {
    *(int64_t *)place = json_integer_value(value);
    return json_is_integer(value);
}

bool ejki_read_float(const json_t *value, void *place) {
    *(double *)place = json_number_value(value);
    return json_is_number(value);
}

bool ejki_read_opt_bool(const json_t *value, void *place) {
    *(ejk_opt_bool *)place = json_is_true(value) ? EJK_TRUE : EJK_FALSE;
    return json_is_boolean(value);
}

bool ejki_read_opt_int(const json_t *value, void *place) {
    ejk_opt_int *number = place;
    number->set = !json_is_null(value);
    return !number->set || ejki_read_int(value, &number->value);
}

bool ejki_read_opt_float(const json_t *value, void *place) {
    ejk_opt_float *number = place;
    number->set = true;
    return ejki_read_float(value, &number->value);
}

bool ejki_read_window(const json_t *value, void *place) {
    ejk_window *window = place;
    return json_is_array(value) && json_array_size(value) == 2 &&
           ejki_read_opt_int(json_array_get(value, 0), &window->left) &&
           ejki_read_opt_int(json_array_get(value, 1), &window->right);
}

bool ejki_read_ints(const json_t *value, void *place) {
    ejk_ints *ints = place;
    const size_t count = json_array_size(value);
    if (!json_is_array(value) || count == 0 || count > EJK_MAX_INTS) return false;
    for (size_t i = 0; i < count; i++)
        if (!ejki_read_int(json_array_get(value, i), &ints->value[i])) return false;
    ints->count = (int32_t)count;
    return true;
}

bool ejki_read_name(const json_t *value, void *place) {
    if (!json_is_string(value) || json_string_length(value) >= EJK_NAME_SIZE) return false;
    memcpy(place, json_string_value(value), json_string_length(value));
    return true;
}

bool ejki_read_dtype(const json_t *value, void *place) {
    return json_is_string(value) && ejk_dtype_from_name(json_string_value(value), place) == EJK_OK;
}

/* Lengths whose strides, and the bytes they span, fit in 63 bits even where an axis is empty. */
static bool read_shape(const json_t *value, ejk_dtype dtype, int64_t *shape) {
    if (!json_is_array(value) || json_array_size(value) > EJK_MAX_RANK) return false;
    int64_t bytes = ejki_max((int64_t)ejk_dtype_bits(dtype) / 8, 1);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!ejki_read_int(json_array_get(value, i), &shape[i]) || shape[i] < 0 ||
            !ejki_mul(bytes, ejki_max(shape[i], 1), &bytes))
            return false;
    return true;
}

bool ejki_read_tensor(const json_t *value, void *place) {
    ejk_dtype dtype;
    int64_t shape[EJK_MAX_RANK];
    const json_t *lengths = json_object_get(value, "shape");
    if (json_object_size(value) != 2 || !ejki_read_dtype(json_object_get(value, "dtype"), &dtype) ||
        !read_shape(lengths, dtype, shape))
        return false;
    *(ejk_tensor *)place =
        ejk_tensor_contiguous(NULL, dtype, (int32_t)json_array_size(lengths), shape);
    return true;
}

bool ejki_read_tensors(const json_t *value, void *place) {
    ejk_tensors *list = place;
    const size_t count = json_array_size(value); /* 0 for what is no array */
    if (count == 0 || count > EJK_MAX_TENSORS) return false;
    for (size_t i = 0; i < count; i++)
        if (!ejki_read_tensor(json_array_get(value, i), &list->value[i])) return false;
    list->count = (int32_t)count;
    return true;
}

/* ---- Writing ------------------------------------------------------------------------------------------ */

/* The field with its prefix, as every sentence here begins. */
#define REFUSE(prefix, field, format, ...)                                                         \
    ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s%s: " format, prefix, (field)->name, __VA_ARGS__)

static ejk_status out_of_memory(void) {
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a record's JSON could not be had");
}

ejk_status ejki_write_bool(const ejk_field *field, const void *place, const char *prefix,
                           json_t **out) {
    (void)field;
    (void)prefix;
    *out = json_boolean(*(const bool *)place);
    return EJK_OK;
}

ejk_status ejki_write_int(const ejk_field *field, const void *place, const char *prefix,
                          json_t **out) {
    (void)field;
    (void)prefix;
    *out = json_integer(*(const int64_t *)place);
    return EJK_OK;
}

ejk_status ejki_write_float(const ejk_field *field, const void *place, const char *prefix,
                            json_t **out) {
    const double value = *(const double *)place;
    if (!isfinite(value)) return REFUSE(prefix, field, "%g given, expected a finite number", value);
    *out = json_real(value + 0.0); /* equal records, equal texts: -0.0 is written 0.0 */
    return EJK_OK;
}

ejk_status ejki_write_opt_bool(const ejk_field *field, const void *place, const char *prefix,
                               json_t **out) {
    const ejk_opt_bool value = *(const ejk_opt_bool *)place;
    if (value != EJK_TRUE && value != EJK_FALSE)
        return REFUSE(prefix, field, "%d given, expected EJK_UNSET, EJK_TRUE or EJK_FALSE",
                      (int)value);
    *out = json_boolean(value == EJK_TRUE);
    return EJK_OK;
}

ejk_status ejki_write_opt_int(const ejk_field *field, const void *place, const char *prefix,
                              json_t **out) {
    return ejki_write_int(field, &((const ejk_opt_int *)place)->value, prefix, out);
}

ejk_status ejki_write_opt_float(const ejk_field *field, const void *place, const char *prefix,
                                json_t **out) {
    return ejki_write_float(field, &((const ejk_opt_float *)place)->value, prefix, out);
}

ejk_status ejki_write_list(const ejk_field *field, const void *place, const char *prefix,
                           json_t **out) {
    (void)prefix;
    ejk_opt_int each[EJKI_MOST_LISTED];
    const int32_t count = ejki_kind_of(field->kind)->list(place, each);
    json_t *array = json_array();
    for (int32_t i = 0; i < count; i++)
        if (json_array_append_new(array, each[i].set ? json_integer(each[i].value) : json_null()) !=
            0) {
            json_decref(array);
            return out_of_memory();
        }
    *out = array;
    return EJK_OK;
}

ejk_status ejki_write_name(const ejk_field *field, const void *place, const char *prefix,
                           json_t **out) {
    const char *name = place;
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

ejk_status ejki_write_dtype(const ejk_field *field, const void *place, const char *prefix,
                            json_t **out) {
    const ejk_dtype dtype = *(const ejk_dtype *)place;
    if (ejk_dtype_bits(dtype) == 0)
        return REFUSE(prefix, field, "element type %d does not exist", (int)dtype);
    *out = json_string(ejk_dtype_name(dtype));
    return EJK_OK;
}

ejk_status ejki_write_tensor_shape(const ejk_field *field, const void *place, const char *prefix,
                                   json_t **out) {
    const ejk_tensor *tensor = place;
    json_t *dtype = NULL;
    if (tensor->rank < 0 || tensor->rank > EJK_MAX_RANK)
        return REFUSE(prefix, field, "rank %d given, expected 0 to %d", (int)tensor->rank,
                      EJK_MAX_RANK);
    for (int32_t i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] < 0)
            return REFUSE(prefix, field, "axis %d has the negative length %lld", (int)i,
                          (long long)tensor->shape[i]);
    EJKI_TRY(ejki_write_dtype(field, &tensor->dtype, prefix, &dtype));
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

ejk_status ejki_write_tensors(const ejk_field *field, const void *place, const char *prefix,
                              json_t **out) {
    const ejk_tensors *list = place;
    json_t *array = json_array();
    ejk_status status = array ? EJK_OK : out_of_memory();
    for (int32_t i = 0; i < ejki_tensors_count(list) && status == EJK_OK; i++) {
        json_t *member = NULL;
        if (ejk_tensor_present(&list->value[i]))
            status = ejki_write_tensor_shape(field, &list->value[i], prefix, &member);
        else
            member = json_null();
        if (status == EJK_OK && json_array_append_new(array, member) != 0) status = out_of_memory();
    }
    if (status == EJK_OK)
        *out = array;
    else
        json_decref(array);
    return status;
}

/* ---- Texts of a command line -------------------------------------------------------------------------- */

static json_t *parse(const char *text) {
    return json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
}

json_t *ejki_parse_truth(const char *text) {
    return *text == '\0' ? json_true() : parse(text);
}

json_t *ejki_parse_string(const char *text) {
    return json_string(text);
}

/* "127,0", "127", "127," or ",0" as a pair. */
json_t *ejki_parse_window(const char *text) {
    char pair[96];
    size_t left = strcspn(text, ",");
    if (left >= sizeof pair) return NULL;
    const char *right = text[left] == ',' ? text + left + 1 : text;
    if (left == 0 && *right == '\0') return NULL;
    int length = snprintf(pair, sizeof pair, "[%.*s,%s]", left > 0 ? (int)left : 4,
                          left > 0 ? text : "null", *right != '\0' ? right : "null");
    return length < (int)sizeof pair ? parse(pair) : NULL;
}

/* "1,2,3" as an array. */
json_t *ejki_parse_ints(const char *text) {
    char list[EJK_MAX_INTS * 24];
    int length = snprintf(list, sizeof list, "[%s]", text);
    return length < (int)sizeof list ? parse(list) : NULL;
}
