/* SPDX-License-Identifier: Apache-2.0 */
/* Masks are made and given back. */
#include "mask/mask.h"

#include <stdlib.h>
#include <string.h>

#define NEED(pointer)                                                                              \
    do {                                                                                           \
        if ((pointer) == NULL)                                                                     \
            return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "%s: " #pointer " is NULL",          \
                          __func__);                                                               \
    } while (0)

static ejk_status out_of_memory(void) {
    return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory for a mask could not be had");
}

static ejk_status create(ejk_splash_mask_kind kind, int64_t q, int64_t kv, ejk_splash_mask **out) {
    ejk_splash_mask *mask = calloc(1, sizeof *mask);
    if (mask == NULL) return out_of_memory();
    atomic_init(&mask->references, 1);
    mask->kind = kind;
    mask->depth = 1;
    mask->leaves = 1;
    mask->q = q;
    mask->kv = kv;
    *out = mask;
    return EJK_OK;
}

ejk_splash_mask *ejk_splash_mask_retain(const ejk_splash_mask *mask) {
    ejk_splash_mask *counted = (ejk_splash_mask *)mask; /* the count is not the mask's value */
    if (counted != NULL) atomic_fetch_add_explicit(&counted->references, 1, memory_order_relaxed);
    return counted;
}

void ejk_splash_mask_release(ejk_splash_mask *mask) {
    if (mask == NULL) return;
    if (atomic_fetch_sub_explicit(&mask->references, 1, memory_order_acq_rel) != 1) return;
    for (int64_t i = 0; i < mask->part_count; i++)
        ejk_splash_mask_release((ejk_splash_mask *)mask->parts[i]);
    free(mask->parts);
    free(mask->q_sequence);
    free(mask->owned);
    free(mask);
}

/* ---- Computable masks ------------------------------------------------------------------------------ */

static ejk_status check_shape(const int64_t *shape) {
    if (shape[0] >= 1 && shape[1] >= 1) return EJK_OK;
    return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                  "shape is (%lld, %lld), expected lengths of at least 1", (long long)shape[0],
                  (long long)shape[1]);
}

/* Whether shard_count² divides q, which it does not if it is too large to be written. */
static bool squared_divides(int64_t shard_count, int64_t q) {
    int64_t square;
    if (q == 0) return shard_count != 0;
    return ejki_mul(shard_count, shard_count, &square) && square != 0 && q % square == 0;
}

static ejk_status check_options(const int64_t *shape, const ejk_computable_mask_options *options) {
    if (options != NULL && options->shard_count.set &&
        !squared_divides(options->shard_count.value, shape[0]))
        return REFUSE(INVALID_ARGUMENT, SHARD_COUNT,
                      "shard_count is %lld, expected a number whose square divides the query "
                      "length, %lld",
                      (long long)options->shard_count.value, (long long)shape[0]);
    EJKI_TRY(check_shape(shape));
    if (options != NULL && options->q_sequence != NULL && options->q_sequence_length != shape[0])
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "q_sequence has %lld entries, expected one per query row, %lld",
                      (long long)options->q_sequence_length, (long long)shape[0]);
    return EJK_OK;
}

static bool is_identity(const int32_t *sequence, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (sequence[i] != i) return false;
    return true;
}

/* A computable mask with its positions; the numbers of its class are filled in by the caller. */
static ejk_status create_computable(ejk_splash_mask_kind kind, const int64_t *shape,
                                    const ejk_computable_mask_options *options,
                                    ejk_splash_mask **out) {
    EJKI_TRY(check_options(shape, options));
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(create(kind, shape[0], shape[1], &mask));
    if (options != NULL && options->q_sequence != NULL &&
        !is_identity(options->q_sequence, shape[0])) {
        size_t bytes = (size_t)shape[0] * sizeof(int32_t);
        mask->q_sequence = malloc(bytes);
        if (mask->q_sequence == NULL) {
            ejk_splash_mask_release(mask);
            return out_of_memory();
        }
        memcpy(mask->q_sequence, options->q_sequence, bytes);
    }
    *out = mask;
    return EJK_OK;
}

ejk_status ejk_full_mask_create(const int64_t *shape, ejk_splash_mask **out) {
    NEED(shape);
    NEED(out);
    EJKI_TRY(check_shape(shape));
    return create(EJK_SPLASH_MASK_FULL, shape[0], shape[1], out);
}

ejk_status ejk_causal_mask_create(const int64_t *shape, int64_t offset,
                                  const ejk_computable_mask_options *options,
                                  ejk_splash_mask **out) {
    NEED(shape);
    NEED(out);
    EJKI_TRY(create_computable(EJK_SPLASH_MASK_CAUSAL, shape, options, out));
    (*out)->offset = offset;
    return EJK_OK;
}

ejk_status ejk_local_mask_create(const int64_t *shape, ejk_window window_size, int64_t offset,
                                 const ejk_computable_mask_options *options,
                                 ejk_splash_mask **out) {
    NEED(shape);
    NEED(out);
    EJKI_TRY(create_computable(EJK_SPLASH_MASK_LOCAL, shape, options, out));
    (*out)->window = window_size;
    (*out)->offset = offset;
    return EJK_OK;
}

ejk_status ejk_chunked_causal_mask_create(const int64_t *shape, int64_t chunk_size,
                                          const ejk_computable_mask_options *options,
                                          ejk_splash_mask **out) {
    NEED(shape);
    NEED(out);
    if (chunk_size < 1)
        return REFUSE(INVALID_ARGUMENT, CHUNK_SIZE, "chunk_size is %lld, expected at least 1",
                      (long long)chunk_size);
    EJKI_TRY(create_computable(EJK_SPLASH_MASK_CHUNKED_CAUSAL, shape, options, out));
    (*out)->chunk_size = chunk_size;
    return EJK_OK;
}

ejk_status ejk_function_mask_create(const int64_t *shape, ejk_splash_mask_fn function, void *user,
                                    const ejk_computable_mask_options *options,
                                    ejk_splash_mask **out) {
    NEED(shape);
    NEED(function);
    NEED(out);
    EJKI_TRY(create_computable(EJK_SPLASH_MASK_FUNCTION, shape, options, out));
    (*out)->function = function;
    (*out)->user = user;
    return EJK_OK;
}

/* ---- Elements -------------------------------------------------------------------------------------- */

static ejk_status check_array(const ejk_tensor *array) {
    if (array->rank != 2)
        return REFUSE(INVALID_SHAPE, ARRAY_NOT_2D, "array has %d axes, expected 2",
                      (int)array->rank);
    if (array->dtype != EJK_DTYPE_BOOL)
        return REFUSE(INVALID_DTYPE, ARRAY_NOT_BOOL, "array is of %s, expected bool",
                      ejk_dtype_name(array->dtype));
    ejki_splash_reason_set(EJK_SPLASH_REASON_INVALID_ARGUMENT);
    EJKI_TRY(ejk_tensor_check(array, "array"));
    if (array->device_type != EJK_DEVICE_CPU)
        return REFUSE(UNAVAILABLE, INVALID_ARGUMENT,
                      "array lies on device type %d, expected the CPU", (int)array->device_type);
    return check_shape(array->shape);
}

ejk_status ejk_numpy_mask_borrow(const ejk_tensor *array, ejk_splash_mask **out) {
    NEED(array);
    NEED(out);
    EJKI_TRY(check_array(array));
    if (array->shape[1] != 1 && array->strides[1] != 1)
        return REFUSE(INVALID_LAYOUT, INVALID_ARGUMENT,
                      "array has a step of %lld within its rows, expected 1",
                      (long long)array->strides[1]);
    EJKI_TRY(create(EJK_SPLASH_MASK_NUMPY, array->shape[0], array->shape[1], out));
    (*out)->elements = array->data;
    (*out)->row_stride = array->strides[0];
    return EJK_OK;
}

/* A numpy mask over memory of its own, not yet filled. */
static ejk_status create_dense(int64_t q, int64_t kv, ejk_splash_mask **out) {
    int64_t bytes;
    if (!ejki_mul(q, kv, &bytes))
        return REFUSE(OVERFLOW, INVALID_ARGUMENT, "the elements of (%lld, %lld) cannot be counted",
                      (long long)q, (long long)kv);
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(create(EJK_SPLASH_MASK_NUMPY, q, kv, &mask));
    mask->owned = malloc((size_t)bytes);
    if (mask->owned == NULL) {
        ejk_splash_mask_release(mask);
        return out_of_memory();
    }
    mask->elements = mask->owned;
    mask->row_stride = kv;
    *out = mask;
    return EJK_OK;
}

ejk_status ejk_numpy_mask_create(const ejk_tensor *array, ejk_splash_mask **out) {
    NEED(array);
    NEED(out);
    EJKI_TRY(check_array(array));
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(create_dense(array->shape[0], array->shape[1], &mask));
    const uint8_t *from = array->data;
    uint8_t *to = mask->owned;
    for (int64_t i = 0; i < mask->q; i++)
        for (int64_t j = 0; j < mask->kv; j++)
            *to++ = from[i * array->strides[0] + j * array->strides[1]] != 0;
    *out = mask;
    return EJK_OK;
}

ejk_status ejk_numpy_mask_of(const ejk_splash_mask *mask, ejk_splash_mask **out) {
    NEED(mask);
    NEED(out);
    if (mask->kind == EJK_SPLASH_MASK_MULTI_HEAD)
        return REFUSE(INVALID_SHAPE, ARRAY_NOT_2D, "mask has 3 axes, expected 2");
    ejk_splash_mask *dense = NULL;
    EJKI_TRY(create_dense(mask->q, mask->kv, &dense));
    ejki_mask_block(mask, 0, 0, mask->q, mask->kv, dense->owned);
    *out = dense;
    return EJK_OK;
}

/* ---- Masks of masks -------------------------------------------------------------------------------- */

static ejk_status create_of(ejk_splash_mask_kind kind, const ejk_splash_mask *const *parts,
                            int64_t count, ejk_splash_mask **out) {
    int32_t depth = 0;
    for (int64_t i = 0; i < count; i++) depth = depth > parts[i]->depth ? depth : parts[i]->depth;
    if (depth >= EJKI_MASK_DEPTH)
        return REFUSE(OVERFLOW, INVALID_ARGUMENT, "masks are nested %d deep, expected at most %d",
                      (int)depth + 1, EJKI_MASK_DEPTH);
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(create(kind, parts[0]->q, parts[0]->kv, &mask));
    mask->parts = calloc((size_t)count, sizeof(ejk_splash_mask *));
    if (mask->parts == NULL) {
        ejk_splash_mask_release(mask);
        return out_of_memory();
    }
    mask->depth = depth + 1;
    mask->leaves = 0;
    for (int64_t i = 0; i < count; i++) {
        mask->parts[i] = ejk_splash_mask_retain(parts[i]);
        if (!ejki_add(mask->leaves, parts[i]->leaves, &mask->leaves)) mask->leaves = INT64_MAX;
    }
    mask->part_count = count;
    *out = mask;
    return EJK_OK;
}

static bool same_shape(const ejk_splash_mask *a, const ejk_splash_mask *b) {
    bool heads = a->kind == EJK_SPLASH_MASK_MULTI_HEAD || b->kind == EJK_SPLASH_MASK_MULTI_HEAD;
    bool planes = !heads || (a->kind == b->kind && a->part_count == b->part_count);
    return planes && a->q == b->q && a->kv == b->kv;
}

static ejk_status create_pair(ejk_splash_mask_kind kind, const ejk_splash_mask *left,
                              const ejk_splash_mask *right, ejk_splash_mask **out) {
    NEED(left);
    NEED(right);
    NEED(out);
    if (!same_shape(left, right))
        return REFUSE(INVALID_SHAPE, SHAPE_MISMATCH,
                      "masks must have the same shape: left is (%lld, %lld), right (%lld, %lld)",
                      (long long)left->q, (long long)left->kv, (long long)right->q,
                      (long long)right->kv);
    if (left->kind == EJK_SPLASH_MASK_MULTI_HEAD)
        return REFUSE(INVALID_SHAPE, NESTED_MULTI_HEAD,
                      "left and right have 3 axes, expected masks of one head");
    return create_of(kind, (const ejk_splash_mask *const[]){left, right}, 2, out);
}

ejk_status ejk_logical_and_create(const ejk_splash_mask *left, const ejk_splash_mask *right,
                                  ejk_splash_mask **out) {
    return create_pair(EJK_SPLASH_MASK_LOGICAL_AND, left, right, out);
}

ejk_status ejk_logical_or_create(const ejk_splash_mask *left, const ejk_splash_mask *right,
                                 ejk_splash_mask **out) {
    return create_pair(EJK_SPLASH_MASK_LOGICAL_OR, left, right, out);
}

ejk_status ejk_logical_not_create(const ejk_splash_mask *mask, ejk_splash_mask **out) {
    NEED(mask);
    NEED(out);
    if (mask->kind == EJK_SPLASH_MASK_MULTI_HEAD)
        return REFUSE(INVALID_SHAPE, NESTED_MULTI_HEAD,
                      "mask has 3 axes, expected a mask of one head");
    return create_of(EJK_SPLASH_MASK_LOGICAL_NOT, &mask, 1, out);
}

ejk_status ejk_multi_head_mask_create(const ejk_splash_mask *const *masks, int64_t count,
                                      ejk_splash_mask **out) {
    NEED(out);
    if (masks == NULL || count < 1)
        return REFUSE(INVALID_ARGUMENT, NO_MASKS, "masks has %lld entries, expected at least 1",
                      (long long)(masks == NULL ? 0 : count));
    for (int64_t i = 0; i < count; i++)
        if (masks[i] == NULL)
            return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                          "masks[%lld] is NULL, expected a mask", (long long)i);
    for (int64_t i = 1; i < count; i++)
        if (!same_shape(masks[0], masks[i]))
            return REFUSE(INVALID_SHAPE, SHAPE_MISMATCH,
                          "masks[%lld] has the shape (%lld, %lld) and %d axes, expected that of "
                          "masks[0], (%lld, %lld) and %d axes",
                          (long long)i, (long long)masks[i]->q, (long long)masks[i]->kv,
                          masks[i]->kind == EJK_SPLASH_MASK_MULTI_HEAD ? 3 : 2,
                          (long long)masks[0]->q, (long long)masks[0]->kv,
                          masks[0]->kind == EJK_SPLASH_MASK_MULTI_HEAD ? 3 : 2);
    if (masks[0]->kind == EJK_SPLASH_MASK_MULTI_HEAD)
        return REFUSE(INVALID_ARGUMENT, NESTED_MULTI_HEAD,
                      "masks[0] is a multi-head mask, expected masks of one head");
    return create_of(EJK_SPLASH_MASK_MULTI_HEAD, masks, count, out);
}
