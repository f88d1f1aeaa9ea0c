/* SPDX-License-Identifier: Apache-2.0 */
#include "numeric/array.h"

#include "base/base.h"

#include <inttypes.h>

bool ejki_dtype_is_floating(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F64 || dtype == EJK_DTYPE_F32 || dtype == EJK_DTYPE_BF16 ||
           dtype == EJK_DTYPE_F16;
}

ejk_status ejki_array_floating_output(const ejk_tensor *tensor, const char *name) {
    EJKI_TRY(ejki_argument_output(tensor, name));
    if (ejki_dtype_is_floating(tensor->dtype)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                     "%s is %s, expected float64, float32, bfloat16 or float16", name,
                     ejk_dtype_name(tensor->dtype));
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
