/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of JSON requests: nested lists, or base64. */
#include "mask/json.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

static ejk_status out_of_memory(void) {
    return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for an array could not be had");
}

/* ---- Nested lists ---------------------------------------------------------------------------------- */

/* Axes and lengths by the first entry of every level; that the others agree is seen when they are read. */
static ejk_status measure(const json_t *json, ejk_tensor *tensor) {
    for (tensor->rank = 0; json_is_array(json); json = json_array_get(json, 0)) {
        if (tensor->rank == EJK_MAX_RANK)
            return BAD_FORM("an array has more than %d axes", EJK_MAX_RANK);
        tensor->shape[tensor->rank++] = (int64_t)json_array_size(json);
        if (json_array_size(json) == 0) break;
    }
    return EJK_OK;
}

static ejk_status read_element(const json_t *json, ejk_dtype dtype, uint8_t **to) {
    bool truth = json_is_boolean(json);
    if (!json_is_integer(json) && !(truth && dtype == EJK_DTYPE_BOOL))
        return BAD_FORM("an element of an array of %s is no whole number", ejk_dtype_name(dtype));
    int64_t value = truth ? json_is_true(json) : json_integer_value(json);
    int64_t bits = 8 * (int64_t)ejk_dtype_size(dtype) - 1, limit = (int64_t)1 << bits;
    bool fits =
        dtype == EJK_DTYPE_BOOL ? value == 0 || value == 1 : value >= -limit && value < limit;
    if (!fits)
        return BAD_FORM("the element %lld of an array is not of %s", (long long)value,
                        ejk_dtype_name(dtype));
    /* The low bytes of a little-endian number are the narrower number. */
    for (size_t i = 0; i < ejk_dtype_size(dtype); i++) *(*to)++ = (uint8_t)(value >> (8 * i));
    return EJK_OK;
}

static ejk_status read_list(const json_t *json, const ejk_tensor *tensor, int32_t axis,
                            uint8_t **to) {
    if (axis == tensor->rank) return read_element(json, tensor->dtype, to);
    if (!json_is_array(json) || (int64_t)json_array_size(json) != tensor->shape[axis])
        return BAD_FORM("axis %d of an array is not everywhere a list of %lld entries", (int)axis,
                        (long long)tensor->shape[axis]);
    for (size_t i = 0; i < json_array_size(json); i++)
        EJKI_TRY(read_list(json_array_get(json, i), tensor, axis + 1, to));
    return EJK_OK;
}

/* ---- base64 ---------------------------------------------------------------------------------------- */

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* libcrypto decodes pieces of four characters; what it would overlook is refused before. */
static ejk_status read_base64(const char *text, size_t length, int64_t bytes, uint8_t *to) {
    size_t plain = strspn(text, alphabet), padding = length - plain;
    if (strlen(text) != length || strspn(text + plain, "=") != padding || padding > 2 ||
        length % 4 != 0 || (int64_t)(length / 4 * 3 - padding) != bytes)
        return BAD_FORM("data is not base64 of the %lld bytes that shape and dtype ask for",
                        (long long)bytes);
    for (size_t i = 0; i < length; i += 4) {
        uint8_t three[3];
        if (EVP_DecodeBlock(three, (const uint8_t *)text + i, 4) != 3)
            return BAD_FORM("data is not base64");
        size_t count = i + 4 == length ? 3 - padding : 3;
        memcpy(to, three, count);
        to += count;
    }
    return EJK_OK;
}

static ejk_status check_truths(const ejk_tensor *tensor) {
    const uint8_t *bytes = tensor->data;
    for (int64_t i = 0; tensor->dtype == EJK_DTYPE_BOOL && i < ejk_tensor_count(tensor); i++)
        if (bytes[i] > 1)
            return BAD_FORM("byte %lld of an array of bool is %d, expected 0 or 1", (long long)i,
                            bytes[i]);
    return EJK_OK;
}

/* ---- Both ------------------------------------------------------------------------------------------ */

/* What `shape` and `dtype` say. */
static ejk_status read_head(const json_t *json, ejk_tensor *tensor) {
    static const char *const names[] = {"dtype", "shape", "data", NULL};
    EJKI_TRY(ejki_json_members(json, "an array", names));
    const json_t *shape = json_object_get(json, "shape"), *data = json_object_get(json, "data");
    const char *dtype = json_string_value(json_object_get(json, "dtype"));
    const ejk_dtype known[] = {EJK_DTYPE_BOOL, EJK_DTYPE_I8, EJK_DTYPE_I16, EJK_DTYPE_I32};
    tensor->dtype = EJK_DTYPE_UNSET;
    for (int i = 0; dtype != NULL && i < 4; i++)
        if (strcmp(dtype, ejk_dtype_name(known[i])) == 0) tensor->dtype = known[i];
    if (tensor->dtype == EJK_DTYPE_UNSET)
        return BAD_FORM("dtype of an array is '%.40s', expected bool, int8, int16 or int32",
                        dtype != NULL ? dtype : "(no text)");
    if (!json_is_array(shape) || json_array_size(shape) > EJK_MAX_RANK || data == NULL)
        return BAD_FORM("an array has no data, or no shape of at most %d lengths", EJK_MAX_RANK);
    int64_t bytes = (int64_t)ejk_dtype_size(tensor->dtype);
    tensor->rank = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < tensor->rank; i++) {
        int64_t *length = &tensor->shape[i];
        EJKI_TRY(ejki_json_integer(json_array_get(shape, (size_t)i), "a length of shape", length));
        if (*length < 0 || !ejki_mul(bytes, ejki_max(*length, 1), &bytes))
            return BAD_FORM("shape of an array has the length %lld, which no array has",
                            (long long)*length);
    }
    return EJK_OK;
}

/* Whether lists are nested as `tensor` says, as far as their first entries tell. */
static ejk_status check_lists(const json_t *data, const ejk_tensor *tensor) {
    ejk_tensor found = {0};
    EJKI_TRY(measure(data, &found));
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (i >= found.rank || found.shape[i] != tensor->shape[i])
            return BAD_FORM("data does not fill axis %d of shape", (int)i);
        if (tensor->shape[i] == 0) return EJK_OK;
    }
    return EJK_OK;
}

ejk_status ejki_json_array_read(const json_t *json, ejk_dtype bare, ejki_json_array *out) {
    ejk_tensor tensor = {.dtype = bare};
    const json_t *data = json;
    if (json_is_object(json)) {
        EJKI_TRY(read_head(json, &tensor));
        data = json_object_get(json, "data");
        if (!json_is_string(data)) EJKI_TRY(check_lists(data, &tensor));
    } else if (json_is_array(json)) {
        EJKI_TRY(measure(json, &tensor));
    } else {
        return BAD_FORM("an array is neither a list nor an object");
    }
    tensor = ejk_tensor_contiguous(NULL, tensor.dtype, tensor.rank, tensor.shape);
    int64_t bytes = ejk_tensor_count(&tensor) * (int64_t)ejk_dtype_size(tensor.dtype);
    /* So that no shape asks for more memory than its text holds elements. */
    if (json_is_string(data) && (uint64_t)bytes > json_string_length(data))
        return BAD_FORM("data does not fill shape");
    tensor.data = malloc((size_t)ejki_max(bytes, 1));
    if (tensor.data == NULL) return out_of_memory();
    uint8_t *to = tensor.data;
    ejk_status status = json_is_string(data) ? read_base64(json_string_value(data),
                                                           json_string_length(data), bytes, to)
                                             : read_list(data, &tensor, 0, &to);
    if (status == EJK_OK) status = check_truths(&tensor);
    if (status == EJK_OK)
        out->tensor = tensor;
    else
        free(tensor.data);
    return status;
}
