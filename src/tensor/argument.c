/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/argument.h"

#include "base/base.h"

ejk_status ejki_argument_input(const ejk_tensor *tensor, const char *name) {
    if (tensor == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", name);
    EJKI_TRY(ejk_tensor_check(tensor, name));
    return ejki_tensor_require_cpu(tensor, name);
}

ejk_status ejki_argument_of_rank(const ejk_tensor *tensor, const char *name, int32_t rank) {
    EJKI_TRY(ejki_argument_input(tensor, name));
    if (tensor->rank == rank) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %d, expected %d", name,
                     (int)tensor->rank, (int)rank);
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
            if (least < 0 || magnitude(tensor->strides[i]) < magnitude(tensor->strides[least]))
                least = i;
        }
        if (least < 0) return true;
        const int64_t step = magnitude(tensor->strides[least]);
        if (step < reach) return false;
        reach += (tensor->shape[least] - 1) * step;
        taken[least] = true;
    }
    return true;
}

ejk_status ejki_argument_output(const ejk_tensor *tensor, const char *name) {
    EJKI_TRY(ejki_argument_input(tensor, name));
    if (ejk_tensor_count(tensor) == 0 || elements_apart(tensor)) return EJK_OK;
    return ejki_fail(
        EJK_STATUS_INVALID_LAYOUT,
        "%s has elements that overlap or interleave by its strides, expected each at a "
        "place of its own",
        name);
}

ejk_status ejki_argument_apart(const ejk_tensor *output, const char *output_name,
                               const ejk_tensor *other, const char *other_name) {
    int64_t out_low, out_high, low, high;
    ejk_tensor_span(output, &out_low, &out_high);
    ejk_tensor_span(other, &low, &high);
    if (out_low == out_high || low == high) return EJK_OK;
    const uintptr_t out_at = (uintptr_t)output->data, at = (uintptr_t)other->data;
    if (out_at + (uintptr_t)out_low >= at + (uintptr_t)high ||
        at + (uintptr_t)low >= out_at + (uintptr_t)out_high)
        return EJK_OK;
    return ejki_fail(
        EJK_STATUS_INVALID_LAYOUT,
        "%s at %p lies within the bytes that %s at %p spans, expected memories that do "
        "not overlap",
        output_name, output->data, other_name, other->data);
}
