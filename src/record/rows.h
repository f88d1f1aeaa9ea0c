/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor as rows along its last axis, one after the other; a tensor of rank 0 is one row of one element. */
#ifndef EJKI_RECORD_ROWS_H
#define EJKI_RECORD_ROWS_H

#include <ejkernel/tensor.h>

typedef struct ejki_rows {
    const ejk_tensor *tensor;
    int64_t at[EJK_MAX_RANK]; /* of the row; the last is not used */
    int64_t start;            /* of the row, in elements from the first */
    int64_t count, stride;    /* of a row */
    bool more;
} ejki_rows;

static inline ejki_rows ejki_rows_of(const ejk_tensor *tensor) {
    const int32_t last = tensor->rank - 1;
    return (ejki_rows){.tensor = tensor,
                       .count = last < 0 ? 1 : tensor->shape[last],
                       .stride = last < 0 ? 0 : tensor->strides[last],
                       .more = ejk_tensor_count(tensor) > 0};
}

static inline void ejki_rows_next(ejki_rows *rows) {
    const ejk_tensor *t = rows->tensor;
    for (int32_t i = t->rank - 2; i >= 0; i--) {
        rows->start += t->strides[i];
        if (++rows->at[i] < t->shape[i]) return;
        rows->start -= rows->at[i] * t->strides[i];
        rows->at[i] = 0;
    }
    rows->more = false;
}

#endif
