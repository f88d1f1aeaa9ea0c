/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the arguments of this room. */
#include "sequence/sequence.h"

#include <inttypes.h>
#include <stdlib.h>

ejk_status ejki_sequence_input(const ejk_tensor *tensor, const char *name, unsigned dtypes) {
    EJKI_TRY(ejk_tensor_check(tensor, name));
    if (tensor->device_type != EJK_DEVICE_CPU) {
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "%s lies on a device of type %" PRId32 ", expected the memory of the CPU",
                         name, tensor->device_type);
    }
    if (ejki_dtype_in(tensor->dtype, dtypes)) return EJK_OK;
    const char *wanted = dtypes == EJKI_INDICES    ? "int32 or int64"
                         : dtypes == EJKI_FLOATING ? "a floating type"
                         : dtypes == EJKI_INTEGERS ? "an integer type"
                                                   : "another type";
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s has element type %s, expected %s", name,
                     ejk_dtype_name(tensor->dtype), wanted);
}

static int64_t magnitude(int64_t step) {
    return step < 0 ? -step : step;
}

/* True if each axis, in the order of their steps, steps over all that the smaller ones reach. */
static bool elements_apart(const ejk_tensor *tensor) {
    int32_t order[EJK_MAX_RANK], rank = 0;
    if (ejk_tensor_count(tensor) == 0) return true;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        if (tensor->shape[axis] == 1) continue;
        int32_t at = rank++;
        for (;
             at > 0 && magnitude(tensor->strides[order[at - 1]]) > magnitude(tensor->strides[axis]);
             at--) {
            order[at] = order[at - 1];
        }
        order[at] = axis;
    }
    int64_t reach = 1;
    for (int32_t i = 0; i < rank; i++) {
        int64_t step = magnitude(tensor->strides[order[i]]);
        if (step < reach) return false;
        reach += (tensor->shape[order[i]] - 1) * step;
    }
    return true;
}

ejk_status ejki_sequence_output(const ejk_tensor *tensor, const char *name, unsigned dtypes,
                                int32_t rank, const int64_t *shape) {
    EJKI_TRY(ejki_sequence_input(tensor, name, dtypes));
    if (tensor->rank != rank) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %" PRId32 ", expected %" PRId32,
                         name, tensor->rank, rank);
    }
    for (int32_t axis = 0; axis < rank; axis++) {
        if (tensor->shape[axis] == shape[axis]) continue;
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "axis %" PRId32 " of %s is %" PRId64 " long, expected %" PRId64, axis,
                         name, tensor->shape[axis], shape[axis]);
    }
    if (elements_apart(tensor)) return EJK_OK;
    return ejki_fail(
        EJK_STATUS_INVALID_LAYOUT,
        "%s has elements that overlap or interleave by its strides, expected each at a "
        "place of its own",
        name);
}

ejk_status ejki_sequence_apart(const ejk_tensor *out, const char *out_name, const ejk_tensor *other,
                               const char *other_name) {
    int64_t out_low, out_high, low, high;
    ejk_tensor_span(out, &out_low, &out_high);
    ejk_tensor_span(other, &low, &high);
    if (out_low == out_high || low == high) return EJK_OK;
    uintptr_t out_at = (uintptr_t)out->data, at = (uintptr_t)other->data;
    if (out_at + (uintptr_t)out_low >= at + (uintptr_t)high ||
        at + (uintptr_t)low >= out_at + (uintptr_t)out_high) {
        return EJK_OK;
    }
    return ejki_fail(
        EJK_STATUS_INVALID_LAYOUT,
        "%s at %p lies within the bytes that %s at %p spans, expected memories that do "
        "not overlap",
        out_name, out->data, other_name, other->data);
}

ejk_status ejki_sequence_fits(const ejk_tensor *out, const char *name, int64_t largest) {
    if (out->dtype != EJK_DTYPE_I32 || largest <= INT32_MAX) return EJK_OK;
    return ejki_fail(EJK_STATUS_OVERFLOW, "%s is int32 but has to hold %" PRId64 ", expected int64",
                     name, largest);
}

ejk_status ejki_sequence_first_id(int64_t first_id) {
    if (first_id == 0 || first_id == 1) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "first_id is %" PRId64 ", expected 0 or 1",
                     first_id);
}

void *ejki_sequence_alloc(int64_t count, size_t size) {
    return calloc((size_t)ejki_max(count, 1), size);
}

ejk_tensor ejki_tensor_at(ejk_tensor tensor, int64_t index) {
    int64_t bytes = index * tensor.strides[0] * (int64_t)ejk_dtype_size(tensor.dtype);
    if (tensor.data) tensor.data = (void *)((uintptr_t)tensor.data + (uintptr_t)bytes);
    tensor.rank--;
    for (int32_t axis = 0; axis < tensor.rank; axis++) {
        tensor.shape[axis] = tensor.shape[axis + 1];
        tensor.strides[axis] = tensor.strides[axis + 1];
    }
    return tensor;
}
