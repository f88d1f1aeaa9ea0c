/* SPDX-License-Identifier: Apache-2.0 */
#include "numeric/array.h"

#include "base/base.h"

#include <inttypes.h>

bool ejki_dtype_is_floating(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F64 || dtype == EJK_DTYPE_F32 || dtype == EJK_DTYPE_BF16 ||
           dtype == EJK_DTYPE_F16;
}

ejk_status ejki_array_input(const ejk_tensor *tensor, const char *name) {
    EJKI_TRY(ejk_tensor_check(tensor, name));
    if (tensor->device_type == EJK_DEVICE_CPU) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNAVAILABLE,
                     "%s lies on a device of type %" PRId32 ", expected memory of the CPU", name,
                     tensor->device_type);
}

static int64_t magnitude(int64_t step) {
    return step < 0 ? -step : step;
}

/* True if each axis, by the size of its steps, steps over all that those below it reach. */
static bool elements_apart(const ejk_tensor *tensor) {
    bool taken[EJK_MAX_RANK] = {false};
    int64_t reach = 1;
    for (int32_t round = 0; round < tensor->rank; round++) {
        int32_t least = -1;
        for (int32_t i = 0; i < tensor->rank; i++) {
            if (taken[i] || tensor->shape[i] == 1) continue;
            if (least < 0 || magnitude(tensor->strides[i]) < magnitude(tensor->strides[least])) {
                least = i;
            }
        }
        if (least < 0) return true;
        int64_t step = magnitude(tensor->strides[least]);
        if (step < reach) return false;
        reach += (tensor->shape[least] - 1) * step;
        taken[least] = true;
    }
    return true;
}

ejk_status ejki_array_output(const ejk_tensor *tensor, const char *name) {
    EJKI_TRY(ejki_array_input(tensor, name));
    if (ejk_tensor_count(tensor) == 0 || elements_apart(tensor)) return EJK_OK;
    return ejki_fail(
        EJK_STATUS_INVALID_LAYOUT,
        "%s has elements that overlap or interleave by its strides, expected each at a "
        "place of its own",
        name);
}

ejk_status ejki_array_floating_output(const ejk_tensor *tensor, const char *name) {
    EJKI_TRY(ejki_array_output(tensor, name));
    if (ejki_dtype_is_floating(tensor->dtype)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                     "%s is %s, expected float64, float32, bfloat16 or float16", name,
                     ejk_dtype_name(tensor->dtype));
}

ejk_status ejki_array_apart(const ejk_tensor *output, const char *output_name,
                            const ejk_tensor *input, const char *input_name) {
    int64_t out_low, out_high, in_low, in_high;
    ejk_tensor_span(output, &out_low, &out_high);
    ejk_tensor_span(input, &in_low, &in_high);
    if (out_low == out_high || in_low == in_high) return EJK_OK;
    uintptr_t out_at = (uintptr_t)output->data, in_at = (uintptr_t)input->data;
    if (out_at + (uintptr_t)out_low >= in_at + (uintptr_t)in_high ||
        in_at + (uintptr_t)in_low >= out_at + (uintptr_t)out_high) {
        return EJK_OK;
    }
    return ejki_fail(
        EJK_STATUS_INVALID_LAYOUT,
        "%s at %p lies within the bytes that %s at %p spans, expected memories that do "
        "not overlap",
        output_name, output->data, input_name, input->data);
}

ejk_status ejki_array_shape(const ejk_tensor *tensor, const char *name, int32_t rank,
                            const int64_t *wanted, const char *what) {
    if (tensor->rank != rank) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %" PRId32 ", expected %s %" PRId32,
                         name, tensor->rank, what, rank);
    }
    for (int32_t i = 0; i < rank; i++) {
        if (tensor->shape[i] == wanted[i]) continue;
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "axis %" PRId32 " of %s is %" PRId64 " long, expected %s %" PRId64, i,
                         name, tensor->shape[i], what, wanted[i]);
    }
    return EJK_OK;
}

ejk_status ejki_array_axis(int32_t axis, int32_t rank, int32_t *out) {
    if (axis < -rank || axis >= rank) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "axis is %" PRId32 ", expected one of a tensor of rank %" PRId32, axis,
                         rank);
    }
    *out = axis < 0 ? axis + rank : axis;
    return EJK_OK;
}

ejk_tensor ejki_array_flat(const ejk_tensor *tensor) {
    if (!ejk_tensor_is_contiguous(tensor)) return *tensor;
    return ejk_tensor_1d(tensor->data, tensor->dtype, ejk_tensor_count(tensor));
}

/*
 * The elements from number `at` in row-major order that lie in one row, at most `most`, as a view of one
 * axis; gives how many they are.
 */
static int64_t array_run(const ejk_tensor *tensor, int64_t at, int64_t most, ejk_tensor *run) {
    int32_t last = tensor->rank - 1;
    int64_t length = last < 0 ? 1 : tensor->shape[last];
    int64_t rest = at / length, offset = 0, column = at % length;
    for (int32_t i = last - 1; i >= 0; i--) {
        offset += rest % tensor->shape[i] * tensor->strides[i];
        rest /= tensor->shape[i];
    }
    int64_t step = last < 0 ? 1 : tensor->strides[last];
    int64_t count = ejki_min(most, length - column);
    /* One element is never stepped from, and then the step may be anything. */
    if (length > 1) offset += column * step;
    *run = ejk_tensor_1d((char *)tensor->data + offset * (int64_t)ejk_dtype_size(tensor->dtype),
                         tensor->dtype, count);
    run->strides[0] = step;
    return count;
}

/* Runs are parts of views that were checked, and our memory is apart from them: copies cannot be refused. */
static void move(const ejk_tensor *source, const ejk_tensor *target) {
    ejk_status status = ejk_tensor_copy(source, target);
    (void)status;
}

void ejki_array_load(const ejk_tensor *tensor, int64_t at, int64_t count, ejk_dtype dtype,
                     void *values) {
    char *to = values;
    for (int64_t done = 0; done < count;) {
        ejk_tensor run;
        int64_t length = array_run(tensor, at + done, count - done, &run);
        ejk_tensor target = ejk_tensor_1d(to, dtype, length);
        move(&run, &target);
        to += (size_t)length * ejk_dtype_size(dtype);
        done += length;
    }
}

void ejki_array_store(const ejk_tensor *tensor, int64_t at, int64_t count, ejk_dtype dtype,
                      void *values) {
    char *from = values;
    for (int64_t done = 0; done < count;) {
        ejk_tensor run;
        int64_t length = array_run(tensor, at + done, count - done, &run);
        ejk_tensor source = ejk_tensor_1d(from, dtype, length);
        move(&source, &run);
        from += (size_t)length * ejk_dtype_size(dtype);
        done += length;
    }
}

void ejki_array_index(const ejk_tensor *tensor, int64_t at, int64_t *index_out) {
    for (int32_t i = tensor->rank - 1; i >= 0; i--) {
        index_out[i] = at % tensor->shape[i];
        at /= tensor->shape[i];
    }
}
