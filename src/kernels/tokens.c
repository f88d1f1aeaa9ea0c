/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/tokens.cuh"

#include "base/base.h"

#include <stdlib.h>

/* A product of lengths can be counted in every tensor that was checked. */
void ejki_runs_of(const ejk_tensor *x, const ejk_tensor *y, int32_t trailing, ejki_runs *runs,
                  ejki_tokens *x_tokens, ejki_tokens *y_tokens) {
    int32_t place = 3;
    ejki_size *length = &runs->width, x_step = 1, y_step = 1;
    *runs = (ejki_runs){{1, 1, 1}, 1};
    for (int32_t i = 1; i <= trailing; i++) {
        const int32_t x_axis = x->rank - i, y_axis = y->rank - i;
        const int64_t size = x->shape[x_axis];
        if (size == 0) {
            *runs = (ejki_runs){{1, 1, 1}, 0};
            return;
        }
        if (size == 1) continue;
        if (x->strides[x_axis] != x_step * *length || y->strides[y_axis] != y_step * *length) {
            length = &runs->outer[--place];
            x_tokens->outer[place] = x_step = x->strides[x_axis];
            y_tokens->outer[place] = y_step = y->strides[y_axis];
        }
        *length *= size;
    }
}

ejk_status ejki_expect_one_row(const ejk_tensor *ends, int64_t batch) {
    if (!ejk_tensor_present(ends) || batch == 1) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "batch is %lld, expected 1: with cu_seqlens sequences are packed",
                     (long long)batch);
}

/* A bit for each slot; those of small pools are on the stack. */
ejk_status ejki_expect_distinct(const char *name, const void *list, int wide, ejki_size count,
                                ejki_size slots) {
    uint8_t few[4096];
    const size_t bytes = (size_t)(slots / 8 + 1);
    uint8_t *taken = bytes <= sizeof few ? memset(few, 0, bytes) : calloc(bytes, 1);
    ejk_status status = EJK_OK;
    if (!taken)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory to compare %lld %s", count, name);
    for (ejki_size n = 0; n < count && status == EJK_OK; n++) {
        const ejki_size slot = ejki_number(list, wide, n);
        if (slot < 0) continue;
        if (taken[slot / 8] >> slot % 8 & 1)
            status = ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                               "%s is %lld at element %lld, expected a slot of no other sequence",
                               name, slot, n);
        taken[slot / 8] |= (uint8_t)(1U << slot % 8);
    }
    if (taken != few) free(taken);
    return status;
}

ejk_status ejki_chunk_size(const ejk_opt_int *given, int64_t *out) {
    *out = given->set ? given->value : 0;
    if (!given->set || given->value >= 1) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "chunk_size is %lld, expected at least 1",
                     (long long)given->value);
}
