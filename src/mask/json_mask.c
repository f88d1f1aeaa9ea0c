/* SPDX-License-Identifier: Apache-2.0 */
/* Masks from JSON. */
#include "mask/json.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ejk_status ejki_json_parse(const char *text, size_t length, json_t **out) {
    json_error_t error;
    json_t *json = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL)
        return BAD_FORM("line %d, column %d is not JSON: %.120s", error.line, error.column,
                        error.text);
    *out = json;
    return EJK_OK;
}

ejk_status ejki_json_members(const json_t *json, const char *what, const char *const *names) {
    const char *key;
    json_t *value;
    if (!json_is_object(json)) return BAD_FORM("%s is no object", what);
    json_object_foreach((json_t *)json, key, value) {
        size_t i = 0;
        while (names[i] != NULL && strcmp(names[i], key) != 0) i++;
        if (names[i] == NULL) return BAD_FORM("%s has no field '%.60s'", what, key);
    }
    return EJK_OK;
}

ejk_status ejki_json_integer(const json_t *json, const char *what, int64_t *out) {
    if (!json_is_integer(json)) return BAD_FORM("%s is missing, or no whole number", what);
    *out = json_integer_value(json);
    return EJK_OK;
}

ejk_status ejki_json_pair(const json_t *json, const char *what, int64_t out[2]) {
    if (!json_is_array(json) || json_array_size(json) != 2)
        return BAD_FORM("%s is missing, or no list of two numbers", what);
    for (size_t i = 0; i < 2; i++)
        EJKI_TRY(ejki_json_integer(json_array_get(json, i), what, &out[i]));
    return EJK_OK;
}

static ejk_status optional_integer(const json_t *json, const char *name, int64_t *out) {
    const json_t *value = json_object_get(json, name);
    return value == NULL ? EJK_OK : ejki_json_integer(value, name, out);
}

/* ---- Computable masks ------------------------------------------------------------------------------ */

static ejk_status read_window(const json_t *json, ejk_window *out) {
    const json_t *pair = json_object_get(json, "window_size");
    ejk_opt_int *sides[2] = {&out->left, &out->right};
    if (!json_is_array(pair) || json_array_size(pair) != 2)
        return BAD_FORM("window_size is missing, or no list of two");
    for (size_t i = 0; i < 2; i++) {
        const json_t *side = json_array_get(pair, i);
        *sides[i] = (ejk_opt_int){0, false};
        if (json_is_null(side)) continue;
        EJKI_TRY(ejki_json_integer(side, "a side of window_size", &sides[i]->value));
        sides[i]->set = true;
    }
    return EJK_OK;
}

static ejk_status read_options(const json_t *json, ejk_computable_mask_options *out,
                               ejki_json_array *sequence) {
    const json_t *shards = json_object_get(json, "shard_count");
    const json_t *order = json_object_get(json, "q_sequence");
    if (shards != NULL) {
        EJKI_TRY(ejki_json_integer(shards, "shard_count", &out->shard_count.value));
        out->shard_count.set = true;
    }
    if (order == NULL) return EJK_OK;
    EJKI_TRY(ejki_json_array_read(order, EJK_DTYPE_I32, sequence));
    if (sequence->tensor.dtype != EJK_DTYPE_I32)
        return BAD_FORM("q_sequence is of %s, expected int32",
                        ejk_dtype_name(sequence->tensor.dtype));
    out->q_sequence = sequence->tensor.data;
    out->q_sequence_length = sequence->tensor.rank == 1 ? sequence->tensor.shape[0] : -1;
    return EJK_OK;
}

static ejk_status read_computable(const json_t *json, ejk_splash_mask_kind kind,
                                  const ejki_mask_reader *reader, ejki_json_array *sequence,
                                  ejk_splash_mask **out) {
    static const char *const names[][8] = {
        {"type", "shape", "offset", "shard_count", "q_sequence", NULL},
        {"type", "shape", "window_size", "offset", "shard_count", "q_sequence", NULL},
        {"type", "shape", "chunk_size", "shard_count", "q_sequence", NULL}};
    int64_t shape[2], offset = 0, chunk_size = 0;
    ejk_window window = {{0, false}, {0, false}};
    ejk_computable_mask_options options = {0};
    EJKI_TRY(ejki_json_members(json, ejk_splash_mask_kind_name(kind),
                               names[kind - EJK_SPLASH_MASK_CAUSAL]));
    EJKI_TRY(ejki_json_pair(json_object_get(json, "shape"), "shape", shape));
    if (kind == EJK_SPLASH_MASK_CHUNKED_CAUSAL)
        EJKI_TRY(ejki_json_integer(json_object_get(json, "chunk_size"), "chunk_size", &chunk_size));
    else
        EJKI_TRY(optional_integer(json, "offset", &offset));
    if (kind == EJK_SPLASH_MASK_LOCAL) EJKI_TRY(read_window(json, &window));
    EJKI_TRY(read_options(json, &options, sequence));
    if (reader->stage == EJKI_READ_FORM) return EJK_OK;
    if (kind == EJK_SPLASH_MASK_CAUSAL) return ejk_causal_mask_create(shape, offset, &options, out);
    if (kind == EJK_SPLASH_MASK_LOCAL)
        return ejk_local_mask_create(shape, window, offset, &options, out);
    return ejk_chunked_causal_mask_create(shape, chunk_size, &options, out);
}

/* ---- Other masks ----------------------------------------------------------------------------------- */

static ejk_status read_full(const json_t *json, const ejki_mask_reader *reader,
                            ejk_splash_mask **out) {
    static const char *const names[] = {"type", "shape", NULL};
    int64_t shape[2];
    EJKI_TRY(ejki_json_members(json, "full", names));
    EJKI_TRY(ejki_json_pair(json_object_get(json, "shape"), "shape", shape));
    return reader->stage == EJKI_READ_FORM ? EJK_OK : ejk_full_mask_create(shape, out);
}

static ejk_status elements_of(const ejk_splash_mask *mask, ejki_mask_reader *reader,
                              ejki_json_array *out) {
    int64_t shape[3], start[3] = {0, 0, 0}, bytes = 1;
    int32_t rank = ejk_splash_mask_shape(mask, shape);
    bool fits = true;
    for (int32_t i = 0; i < rank; i++) fits = fits && ejki_mul(bytes, shape[i], &bytes);
    if (!fits || bytes > reader->max_bytes)
        return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                      "a dense mask of (%lld, %lld) has more elements than the limit, %lld",
                      (long long)mask->q, (long long)mask->kv, (long long)reader->max_bytes);
    EJKI_TRY(ejki_mask_expect_work(mask, mask->q, mask->kv, reader->max_bytes));
    ejk_tensor tensor = ejk_tensor_contiguous(NULL, EJK_DTYPE_BOOL, rank, shape);
    if (reader->stage == EJKI_READ_SHAPES) {
        reader->stood_in = true;
        out->tensor = tensor;
        return EJK_OK;
    }
    void *data = tensor.data = malloc((size_t)bytes);
    if (data == NULL)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory of %lld bytes could not be had",
                      (long long)bytes);
    ejk_status status = ejk_splash_mask_read(mask, start, shape, &tensor);
    if (status == EJK_OK)
        out->tensor = tensor;
    else
        free(data);
    return status;
}

ejk_status ejki_json_elements(const json_t *json, ejki_mask_reader *reader, ejki_json_array *out) {
    static const char *const names[] = {"type", "array", "of", NULL};
    const json_t *array = json_object_get(json, "array"), *of = json_object_get(json, "of");
    EJKI_TRY(ejki_json_members(json, "dense", names));
    if ((array != NULL) == (of != NULL))
        return BAD_FORM("dense has %s of array and of, expected one",
                        array != NULL ? "both" : "neither");
    if (array != NULL) return ejki_json_array_read(array, EJK_DTYPE_BOOL, out);
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(ejki_json_mask(of, reader, &mask));
    ejk_status status = mask != NULL ? elements_of(mask, reader, out) : EJK_OK;
    ejk_splash_mask_release(mask);
    return status;
}

static ejk_status read_dense(const json_t *json, ejki_mask_reader *reader, ejk_splash_mask **out) {
    ejki_json_array array = {0};
    EJKI_TRY(ejki_json_elements(json, reader, &array));
    ejk_status status = EJK_OK;
    if (reader->stage == EJKI_READ_FORM)
        status = EJK_OK;
    else if (array.tensor.data != NULL)
        status = ejk_numpy_mask_create(&array.tensor, out);
    else if (array.tensor.rank == 2)
        status = ejk_full_mask_create(array.tensor.shape, out);
    else
        status = REFUSE(INVALID_SHAPE, ARRAY_NOT_2D, "array has %d axes, expected 2",
                        (int)array.tensor.rank);
    free(array.tensor.data);
    return status;
}

static ejk_status read_pair(const json_t *json, ejki_mask_reader *reader, bool both,
                            ejk_splash_mask **out) {
    static const char *const names[] = {"type", "left", "right", NULL};
    ejk_splash_mask *left = NULL, *right = NULL;
    EJKI_TRY(ejki_json_members(json, both ? "logical_and" : "logical_or", names));
    ejk_status status = ejki_json_mask(json_object_get(json, "left"), reader, &left);
    if (status == EJK_OK) status = ejki_json_mask(json_object_get(json, "right"), reader, &right);
    if (status == EJK_OK && reader->stage != EJKI_READ_FORM)
        status = (both ? ejk_logical_and_create : ejk_logical_or_create)(left, right, out);
    ejk_splash_mask_release(left);
    ejk_splash_mask_release(right);
    return status;
}

static ejk_status read_heads(const json_t *json, ejki_mask_reader *reader, ejk_splash_mask **out) {
    static const char *const names[] = {"type", "masks", NULL};
    const json_t *list = json_object_get(json, "masks");
    EJKI_TRY(ejki_json_members(json, "multi_head", names));
    if (!json_is_array(list)) return BAD_FORM("masks is missing, or no list");
    size_t count = json_array_size(list);
    ejk_splash_mask **masks = calloc(count + 1, sizeof(ejk_splash_mask *));
    if (masks == NULL)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for %zu masks could not be had",
                      count);
    ejk_status status = EJK_OK;
    for (size_t i = 0; i < count && status == EJK_OK; i++)
        status = ejki_json_mask(json_array_get(list, i), reader, &masks[i]);
    if (status == EJK_OK && reader->stage != EJKI_READ_FORM)
        status =
            ejk_multi_head_mask_create((const ejk_splash_mask *const *)masks, (int64_t)count, out);
    for (size_t i = 0; i < count; i++) ejk_splash_mask_release(masks[i]);
    free(masks);
    return status;
}

ejk_status ejki_json_mask(const json_t *json, ejki_mask_reader *reader, ejk_splash_mask **out) {
    if (!json_is_object(json)) return BAD_FORM("a mask is missing, or no object");
    const char *type = json_string_value(json_object_get(json, "type"));
    if (type == NULL) return BAD_FORM("type of a mask is missing, or no text");
    ejk_splash_mask_kind kind = EJK_SPLASH_MASK_FULL;
    while (kind <= EJK_SPLASH_MASK_MULTI_HEAD && strcmp(type, ejk_splash_mask_kind_name(kind)) != 0)
        kind++;
    switch (kind) {
    case EJK_SPLASH_MASK_FULL: return read_full(json, reader, out);
    case EJK_SPLASH_MASK_NUMPY: return read_dense(json, reader, out);
    case EJK_SPLASH_MASK_LOGICAL_AND: return read_pair(json, reader, true, out);
    case EJK_SPLASH_MASK_LOGICAL_OR: return read_pair(json, reader, false, out);
    case EJK_SPLASH_MASK_MULTI_HEAD: return read_heads(json, reader, out);
    case EJK_SPLASH_MASK_CAUSAL:
    case EJK_SPLASH_MASK_LOCAL:
    case EJK_SPLASH_MASK_CHUNKED_CAUSAL: {
        ejki_json_array sequence = {0};
        ejk_status status = read_computable(json, kind, reader, &sequence, out);
        free(sequence.tensor.data);
        return status;
    }
    default:
        return BAD_FORM("type of a mask is '%.40s', expected full, causal, local, chunked_causal, "
                        "dense, logical_and, logical_or or multi_head",
                        type);
    }
}

/* A short text must not take all the memory there is. */
static int64_t half_of_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (int64_t)pages / 2 * size : INT64_MAX;
}

ejk_status ejk_splash_mask_from_json(const char *text, size_t length, ejk_splash_mask **out) {
    if (text == NULL || out == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "ejk_splash_mask_from_json: text or out is NULL");
    json_t *json = NULL;
    ejki_mask_reader reader = {.stage = EJKI_READ_FORM, .max_bytes = half_of_memory()};
    EJKI_TRY(ejki_json_parse(text, length, &json));
    ejk_status status = ejki_json_mask(json, &reader, NULL);
    reader.stage = EJKI_READ_ALL;
    if (status == EJK_OK) status = ejki_json_mask(json, &reader, out);
    json_decref(json);
    return status;
}
