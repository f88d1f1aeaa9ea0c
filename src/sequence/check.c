/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the arguments of this room. */
#include "sequence/sequence.h"

#include <inttypes.h>
#include <stdlib.h>

ejk_status ejki_sequence_input(const ejk_tensor *tensor, const char *name, unsigned dtypes) {
    EJKI_TRY(ejki_argument_input(tensor, name));
    if (ejki_dtype_in(tensor->dtype, dtypes)) return EJK_OK;
    const char *wanted = dtypes == EJKI_INDICES    ? "int32 or int64"
                         : dtypes == EJKI_FLOATING ? "a floating type"
                         : dtypes == EJKI_INTEGERS ? "an integer type"
                                                   : "another type";
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s has element type %s, expected %s", name,
                     ejk_dtype_name(tensor->dtype), wanted);
}

ejk_status ejki_sequence_output(const ejk_tensor *tensor, const char *name, unsigned dtypes,
                                int32_t rank, const int64_t *shape) {
    EJKI_TRY(ejki_sequence_input(tensor, name, dtypes));
    EJKI_TRY(ejki_tensor_expect_shape(tensor, name, rank, shape));
    return ejki_argument_output(tensor, name);
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
