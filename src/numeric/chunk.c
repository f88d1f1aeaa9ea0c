/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks are another view of the same elements: both ways are copies between views, in two parts. */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "device/copy.h"
#include "numeric/array.h"

#include <inttypes.h>

static ejk_status check_pair(const ejk_tensor *in, const char *in_name, const ejk_tensor *out) {
    EJKI_TRY(ejki_argument_input(in, in_name));
    EJKI_TRY(ejki_argument_output(out, "out"));
    if (in->dtype != out->dtype) {
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "out is %s, expected %s as %s",
                         ejk_dtype_name(out->dtype), ejk_dtype_name(in->dtype), in_name);
    }
    return ejki_argument_apart(out, "out", in, in_name);
}

/* Chunks number `from` on, of which each gives `length` elements, at one place of a plain view. */
typedef struct part {
    int64_t from, chunks, length;
} part;

/* The elements of a part in the chunks, and in the plain view, in the shape of chunks. */
static ejk_tensor chunked_part(ejk_tensor chunks, int32_t axis, part which) {
    chunks = ejk_tensor_slice(chunks, axis, which.from, which.chunks);
    return ejk_tensor_slice(chunks, axis + 1, 0, which.length);
}

static ejk_tensor plain_part(ejk_tensor plain, int32_t axis, int64_t chunk_size, part which) {
    int64_t step = plain.strides[axis];
    /* Where the part starts; what lies within the tensor fits. */
    plain = ejk_tensor_slice(plain, axis, which.from * chunk_size,
                             (which.chunks - 1) * chunk_size + which.length);
    for (int32_t i = plain.rank++; i > axis + 1; i--) {
        plain.shape[i] = plain.shape[i - 1];
        plain.strides[i] = plain.strides[i - 1];
    }
    plain.shape[axis] = which.chunks;
    /* A single chunk is never stepped from. */
    plain.strides[axis] = which.chunks > 1 ? step * chunk_size : 0;
    plain.shape[axis + 1] = which.length;
    plain.strides[axis + 1] = step;
    return plain;
}

/* The chunks that are full, and the last one if it is not. */
static int32_t parts_of(int64_t length, int64_t chunk_size, part parts[2]) {
    int32_t count = 0;
    int64_t full = length / chunk_size, rest = length % chunk_size;
    if (full > 0) parts[count++] = (part){0, full, chunk_size};
    if (rest > 0) parts[count++] = (part){full, 1, rest};
    return count;
}

ejk_status ejk_chunk_array(const ejk_tensor *array, int64_t chunk_size, int32_t axis,
                           double pad_value, ejk_threads *threads, const ejk_tensor *out) {
    EJKI_TRY(check_pair(array, "array", out));
    if (array->rank < 1 || array->rank >= EJK_MAX_RANK) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "array has rank %" PRId32 ", expected 1 to %d: chunks take one axis more",
                         array->rank, EJK_MAX_RANK - 1);
    }
    EJKI_TRY(ejki_array_axis(axis, array->rank, &axis));
    if (chunk_size < 1) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "chunk_size is %" PRId64 ", expected at least 1", chunk_size);
    }
    int64_t shape[EJK_MAX_RANK], length = array->shape[axis];
    for (int32_t i = 0; i < array->rank; i++) shape[i + (i > axis)] = array->shape[i];
    shape[axis] = ejki_cdiv(length, chunk_size);
    shape[axis + 1] = chunk_size;
    EJKI_TRY(ejki_tensor_expect_shape(out, "out", array->rank + 1, shape));

    part parts[2];
    int32_t count = parts_of(length, chunk_size, parts);
    for (int32_t i = 0; i < count; i++) {
        ejk_tensor source = plain_part(*array, axis, chunk_size, parts[i]);
        ejk_tensor target = chunked_part(*out, axis, parts[i]);
        EJKI_TRY(ejki_copy(threads, &source, &target));
    }
    int64_t rest = length % chunk_size;
    if (rest == 0) return EJK_OK;
    ejk_tensor target = ejk_tensor_slice(*out, axis, length / chunk_size, 1);
    target = ejk_tensor_slice(target, axis + 1, rest, chunk_size - rest);
    ejk_tensor source = ejk_tensor_contiguous(&pad_value, EJK_DTYPE_F64, target.rank, target.shape);
    for (int32_t i = 0; i < source.rank; i++) source.strides[i] = 0;
    return ejki_copy(threads, &source, &target);
}

ejk_status ejk_unchunk_array(const ejk_tensor *chunks, int64_t original_length, int32_t axis,
                             ejk_threads *threads, const ejk_tensor *out) {
    EJKI_TRY(check_pair(chunks, "chunks", out));
    if (chunks->rank < 2) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "chunks has rank %" PRId32 ", expected at least 2", chunks->rank);
    }
    EJKI_TRY(ejki_array_axis(axis, chunks->rank - 1, &axis));
    int64_t held = chunks->shape[axis] * chunks->shape[axis + 1];
    if (original_length < 0 || original_length > held) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "original_length is %" PRId64 ", expected 0 to %" PRId64
                         ", which the chunks hold",
                         original_length, held);
    }
    int64_t shape[EJK_MAX_RANK];
    for (int32_t i = 0; i < chunks->rank - 1; i++) shape[i] = chunks->shape[i + (i > axis)];
    shape[axis] = original_length;
    EJKI_TRY(ejki_tensor_expect_shape(out, "out", chunks->rank - 1, shape));
    if (held == 0) return EJK_OK;

    part parts[2];
    int64_t chunk_size = chunks->shape[axis + 1];
    int32_t count = parts_of(original_length, chunk_size, parts);
    for (int32_t i = 0; i < count; i++) {
        ejk_tensor source = chunked_part(*chunks, axis, parts[i]);
        ejk_tensor target = plain_part(*out, axis, chunk_size, parts[i]);
        EJKI_TRY(ejki_copy(threads, &source, &target));
    }
    return EJK_OK;
}
