/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views: making them, checking them, cutting them. Everything else in the library trusts a view only
 * after ejk_tensor_check(), so the arithmetic here is the one place that meets hostile lengths and strides.
 */
#include "tensor/view.h"

#include "base/base.h"

#include <inttypes.h>

/* The mark of a view that could not be made: no check lets a negative rank pass. */
static ejk_tensor refused(ejk_tensor tensor) {
    tensor.rank = -1;
    return tensor;
}

static bool rank_in_range(int32_t rank) {
    return rank >= 0 && rank <= EJK_MAX_RANK;
}

ejk_tensor ejk_tensor_contiguous(void *data, ejk_dtype dtype, int32_t rank, const int64_t *shape) {
    ejk_tensor tensor = {.data = data, .dtype = dtype, .rank = rank};
    if (!rank_in_range(rank) || (rank > 0 && shape == NULL)) return refused(tensor);
    /* An empty axis counts as one for the strides: they stay as distinct as those of any other shape. A
       product that does not fit is noticed by the check, whatever the stride says. */
    int64_t stride = 1;
    for (int32_t axis = rank - 1; axis >= 0; axis--) {
        tensor.shape[axis] = shape[axis];
        tensor.strides[axis] = stride;
        if (!ejki_mul(stride, ejki_max(shape[axis], 1), &stride)) stride = INT64_MAX;
        if (ejki_is_packed(dtype) && !ejki_add(stride, stride & 1, &stride)) stride = INT64_MAX;
    }
    return tensor;
}

ejk_tensor ejk_tensor_4d(void *data, ejk_dtype dtype, int64_t n0, int64_t n1, int64_t n2,
                         int64_t n3) {
    return ejk_tensor_contiguous(data, dtype, 4, (const int64_t[]){n0, n1, n2, n3});
}

ejk_tensor ejk_tensor_3d(void *data, ejk_dtype dtype, int64_t n0, int64_t n1, int64_t n2) {
    return ejk_tensor_contiguous(data, dtype, 3, (const int64_t[]){n0, n1, n2});
}

ejk_tensor ejk_tensor_2d(void *data, ejk_dtype dtype, int64_t n0, int64_t n1) {
    return ejk_tensor_contiguous(data, dtype, 2, (const int64_t[]){n0, n1});
}

ejk_tensor ejk_tensor_1d(void *data, ejk_dtype dtype, int64_t n0) {
    return ejk_tensor_contiguous(data, dtype, 1, &n0);
}

bool ejk_tensor_present(const ejk_tensor *tensor) {
    return tensor != NULL && tensor->dtype != EJK_DTYPE_UNSET;
}

int64_t ejk_tensor_count(const ejk_tensor *tensor) {
    int64_t count = 1;
    for (int32_t axis = 0; axis < tensor->rank; axis++) count *= tensor->shape[axis];
    return count;
}

static bool is_empty(const ejk_tensor *tensor) {
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        if (tensor->shape[axis] == 0) return true;
    }
    return false;
}

/* Bytes from the lowest element's first to the highest element's last; false if they do not fit. */
static bool span(const ejk_tensor *tensor, int64_t *low, int64_t *high) {
    *low = *high = 0;
    if (is_empty(tensor)) return true;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        int64_t reach;
        if (!ejki_mul(tensor->shape[axis] - 1, tensor->strides[axis], &reach)) return false;
        int64_t *end = reach < 0 ? low : high;
        if (!ejki_add(*end, reach, end)) return false;
    }
    int64_t size = (int64_t)ejk_dtype_size(tensor->dtype), width;
    if (ejki_is_packed(tensor->dtype)) {
        *low = *low / 2 - (*low % 2 != 0);
        *high = *high / 2 + 1;
        return true;
    }
    return ejki_mul(*low, size, low) && ejki_add(*high, 1, high) && ejki_mul(*high, size, high) &&
           !__builtin_sub_overflow(*high, *low, &width);
}

void ejk_tensor_span(const ejk_tensor *tensor, int64_t *low, int64_t *high) {
    if (!span(tensor, low, high)) *low = *high = 0;
}

/* Rows of packed elements begin at bytes. */
static ejk_status check_packed(const ejk_tensor *tensor, const char *name) {
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        const int64_t stride = tensor->strides[axis];
        const bool last = axis == tensor->rank - 1;
        if (tensor->shape[axis] < 2 || (last ? stride == 1 : stride % 2 == 0)) continue;
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                         "axis %" PRId32 " of %s, of %s, has stride %" PRId64 ", expected %s", axis,
                         name, ejk_dtype_name(tensor->dtype), stride, last ? "1" : "an even one");
    }
    return EJK_OK;
}

ejk_status ejki_tensor_extent(const ejk_tensor *tensor, const char *name, int64_t *low,
                              int64_t *high) {
    if (tensor->dtype == EJK_DTYPE_UNSET) {
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s has no element type: it is no tensor", name);
    }
    if (ejk_dtype_bits(tensor->dtype) == 0) {
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s has element type %d, which is unknown", name,
                         (int)tensor->dtype);
    }
    if (!rank_in_range(tensor->rank)) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %" PRId32 ", expected 0 to %d",
                         name, tensor->rank, EJK_MAX_RANK);
    }
    /* Empty axes count as one here, so that no product of some of the lengths can overflow later. */
    int64_t count = 1;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        int64_t length = tensor->shape[axis];
        if (length < 0) {
            return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                             "axis %" PRId32 " of %s is %" PRId64 " long, expected 0 or more", axis,
                             name, length);
        }
        if (!ejki_mul(count, ejki_max(length, 1), &count)) {
            return ejki_fail(EJK_STATUS_OVERFLOW,
                             "%s has more elements than 63 bits count (at axis %" PRId32
                             ", %" PRId64 " long)",
                             name, axis, length);
        }
    }
    if (!span(tensor, low, high)) {
        return ejki_fail(EJK_STATUS_OVERFLOW, "%s spans more bytes than 63 bits count", name);
    }
    return ejki_is_packed(tensor->dtype) ? check_packed(tensor, name) : EJK_OK;
}

ejk_status ejki_tensor_expect_countable(const ejk_tensor *tensor, const char *name, int64_t each) {
    int64_t bytes;
    if (ejki_mul(ejk_tensor_count(tensor), each, &bytes)) return EJK_OK;
    return ejki_fail(EJK_STATUS_OVERFLOW,
                     "%" PRId64 " bytes for each element of %s cannot be counted", each, name);
}

ejk_status ejk_tensor_check(const ejk_tensor *tensor, const char *name) {
    if (name == NULL) name = "tensor";
    if (tensor == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", name);
    int64_t low, high;
    EJKI_TRY(ejki_tensor_extent(tensor, name, &low, &high));
    if (high == 0) return EJK_OK;
    if (tensor->data == NULL) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s has %" PRId64 " elements but its data is NULL", name,
                         ejk_tensor_count(tensor));
    }
    uintptr_t address = (uintptr_t)tensor->data;
    if (address < 0 - (uintptr_t)low || (uintptr_t)high > UINTPTR_MAX - address) {
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "%s at %p touches bytes %" PRId64 " to %" PRId64
                         " from there, beyond the ends of memory",
                         name, tensor->data, low, high);
    }
    return EJK_OK;
}

ejk_status ejki_tensor_require_cpu(const ejk_tensor *tensor, const char *name) {
    if (tensor->device_type == EJK_DEVICE_CPU) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNAVAILABLE,
                     "%s lies on device type %" PRId32 ", expected %d (the CPU)", name,
                     tensor->device_type, EJK_DEVICE_CPU);
}

bool ejk_tensor_is_contiguous(const ejk_tensor *tensor) {
    if (is_empty(tensor)) return true;
    int64_t expected = 1;
    for (int32_t axis = tensor->rank - 1; axis >= 0; axis--) {
        if (tensor->shape[axis] != 1) {
            if (tensor->strides[axis] != expected) return false;
            expected *= tensor->shape[axis];
        }
        if (ejki_is_packed(tensor->dtype)) expected += expected & 1; /* rows begin at bytes */
    }
    return true;
}

/* Counts a negative axis from the end; false if there is no such axis. */
static bool find_axis(const ejk_tensor *tensor, int32_t *axis) {
    if (!rank_in_range(tensor->rank)) return false;
    if (*axis < 0) *axis += tensor->rank;
    return *axis >= 0 && *axis < tensor->rank;
}

static void exchange(int64_t *values, int32_t a, int32_t b) {
    int64_t kept = values[a];
    values[a] = values[b];
    values[b] = kept;
}

ejk_tensor ejk_tensor_transpose(ejk_tensor tensor, int32_t axis_a, int32_t axis_b) {
    if (!find_axis(&tensor, &axis_a) || !find_axis(&tensor, &axis_b)) return refused(tensor);
    exchange(tensor.shape, axis_a, axis_b);
    exchange(tensor.strides, axis_a, axis_b);
    return tensor;
}

ejk_tensor ejk_tensor_slice(ejk_tensor tensor, int32_t axis, int64_t start, int64_t length) {
    if (!find_axis(&tensor, &axis) || start < 0 || length < 0 || start > tensor.shape[axis] ||
        length > tensor.shape[axis] - start) {
        return refused(tensor);
    }
    tensor.shape[axis] = length;
    /* Nothing is read through an empty view: its address may stay where it is, NULL included. */
    if (is_empty(&tensor)) return tensor;
    int64_t offset;
    if (!ejki_mul(start, tensor.strides[axis], &offset)) return refused(tensor);
    if (ejki_is_packed(tensor.dtype)) {
        if (offset % 2 != 0) return refused(tensor);
        offset /= 2;
    } else if (!ejki_mul(offset, (int64_t)ejk_dtype_size(tensor.dtype), &offset)) {
        return refused(tensor);
    }
    if (tensor.data != NULL) tensor.data = (void *)((uintptr_t)tensor.data + (uintptr_t)offset);
    return tensor;
}

ejk_status ejki_tensor_expect_shape(const ejk_tensor *tensor, const char *name, int32_t rank,
                                    const int64_t *shape) {
    if (tensor->rank != rank)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %d, expected %d", name,
                         (int)tensor->rank, (int)rank);
    for (int32_t i = 0; i < rank; i++)
        if (tensor->shape[i] != shape[i])
            return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                             "%s has length %lld on axis %d, expected %lld", name,
                             (long long)tensor->shape[i], (int)i, (long long)shape[i]);
    return EJK_OK;
}
