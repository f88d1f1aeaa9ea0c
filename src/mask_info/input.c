/* SPDX-License-Identifier: Apache-2.0 */
/* What callers give, checked and copied. */
#include "mask_info/info.h"

#include <inttypes.h>
#include <stdlib.h>

ejk_status ejki_read_numbers(const ejk_tensor *tensor, const char *name, int64_t **out) {
    switch (tensor->dtype) {
    case EJK_DTYPE_I64:
    case EJK_DTYPE_I32:
    case EJK_DTYPE_I16:
    case EJK_DTYPE_I8:
    case EJK_DTYPE_U8: break;
    default:
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s has type %s, expected whole numbers", name,
                         ejk_dtype_name(tensor->dtype));
    }
    int64_t count = ejk_tensor_count(tensor);
    int64_t *numbers = calloc((size_t)ejki_max(count, 1), sizeof *numbers);
    if (numbers == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a copy of %s", name);
    ejk_tensor copy = ejk_tensor_contiguous(numbers, EJK_DTYPE_I64, tensor->rank, tensor->shape);
    ejk_status status = ejk_tensor_copy(tensor, &copy);
    if (status != EJK_OK) {
        free(numbers);
        return status;
    }
    *out = numbers;
    return EJK_OK;
}

static ejk_status narrow(const int64_t *numbers, const char *name, ejki_info_array *array) {
    int64_t count = ejk_tensor_count(&array->owned.tensor);
    int32_t *ids = ejki_ids(array);
    for (int64_t i = 0; i < count; i++) {
        if (numbers[i] < INT32_MIN || numbers[i] > INT32_MAX)
            return ejki_fail(EJK_STATUS_OVERFLOW,
                             "element %" PRId64 " of %s is %" PRId64 ", expected a number of int32",
                             i, name, numbers[i]);
        ids[i] = (int32_t)numbers[i];
    }
    return EJK_OK;
}

ejk_status ejki_read_ids(const ejk_tensor *tensor, const char *name, ejki_info_array **out) {
    int64_t *numbers = NULL;
    ejki_info_array *array = NULL;
    EJKI_TRY(ejki_read_numbers(tensor, name, &numbers));
    ejk_status status = ejki_info_array_create(EJK_DTYPE_I32, tensor->rank, tensor->shape, &array);
    if (status == EJK_OK) status = narrow(numbers, name, array);
    free(numbers);
    if (status != EJK_OK) {
        ejki_info_array_release(array);
        return status;
    }
    *out = array;
    return EJK_OK;
}

ejk_status ejki_read_truth(const ejk_tensor *tensor, const char *name, ejki_info_array **out) {
    int64_t shape[4] = {0};
    if (tensor->rank > 4)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %" PRId32 ", expected at most 4",
                         name, tensor->rank);
    for (int32_t i = 0; i < tensor->rank; i++) shape[i] = tensor->shape[i];
    bool heads = tensor->rank == 3;
    int64_t wide[4] = {shape[0], 1, shape[1], shape[2]};
    ejki_info_array *array = NULL;
    EJKI_TRY(ejki_info_array_create(EJK_DTYPE_BOOL, heads ? 4 : tensor->rank, heads ? wide : shape,
                                    &array));
    ejk_tensor flat = ejk_tensor_contiguous(ejki_bytes(array), EJK_DTYPE_BOOL, tensor->rank, shape);
    ejk_status status = ejk_tensor_copy(tensor, &flat);
    if (status != EJK_OK) {
        ejki_info_array_release(array);
        return status;
    }
    /* A bool that is neither 0 nor 1 is copied as it is. */
    uint8_t *bytes = ejki_bytes(array);
    int64_t count = ejk_tensor_count(&flat);
    for (int64_t i = 0; i < count; i++) bytes[i] = bytes[i] != 0;
    *out = array;
    return EJK_OK;
}

ejk_status ejki_read_per_batch(const ejk_tensor *tensor, const char *name, int64_t batch,
                               int64_t **out) {
    int64_t *given = NULL;
    int64_t *numbers = calloc((size_t)ejki_max(batch, 1), sizeof *numbers);
    if (numbers == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a copy of %s", name);
    ejk_status status = EJK_OK;
    if (tensor != NULL && ejk_tensor_present(tensor)) {
        status = ejki_argument_of_rank(tensor, name, tensor->rank == 0 ? 0 : 1);
        int64_t length = tensor->rank == 0 ? 1 : tensor->shape[0];
        if (status == EJK_OK && length != 1 && length != batch)
            status = ejki_fail(EJK_STATUS_INVALID_SHAPE,
                               "%s has %" PRId64 " elements, expected 1 or %" PRId64
                               ", the batch of info",
                               name, length, batch);
        if (status == EJK_OK) status = ejki_read_numbers(tensor, name, &given);
        for (int64_t b = 0; status == EJK_OK && b < batch; b++)
            numbers[b] = given[length == 1 ? 0 : b];
        free(given);
    }
    if (status != EJK_OK) {
        free(numbers);
        return status;
    }
    *out = numbers;
    return EJK_OK;
}
