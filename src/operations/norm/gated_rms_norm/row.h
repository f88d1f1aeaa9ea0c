/* SPDX-License-Identifier: Apache-2.0 */
/* What both directions of gated_rms_norm share: addresses of rows, and the gate. Include after a vec_*.h. */
#ifndef EJKI_GATED_RMS_NORM_ROW_H
#define EJKI_GATED_RMS_NORM_ROW_H

#include <math.h>

#include "base/base.h"
#include "kernels/simd/unroll.h"
#include "kernels/simd/vec_element.h"
#include "kernels/simd/vec_math.h"
#include "operations/norm/gated_rms_norm/problem.cuh"

/* Bytes of a row, or of several short ones, between what is read and what is asked for. */
enum { AHEAD = 16384, LINE = 64 };

INLINE void *row_at(const ejk_dtype dtype, const norm_problem *p, const norm_rows *rows,
                    int64_t row) {
    return element_at(dtype, rows->data, norm_at(p, rows, row));
}

/* The row to ask for beside a row. */
static inline int64_t row_ahead(const norm_problem *p, int64_t row) {
    const int64_t bytes = ejki_max(p->width * element_size((ejk_dtype)p->dtype), 1);
    return ejki_min(row + ejki_cdiv(AHEAD, bytes), p->rows - 1);
}

/* Asks for a line at its first element. */
INLINE void ask(const ejk_dtype dtype, const void *row, int64_t d) {
    if (d * element_size(dtype) % LINE == 0) __builtin_prefetch(element_at(dtype, row, d), 0, 2);
}

/* 1 / sqrt(mean + eps). */
static inline float scale_of(const norm_problem *p, float sum) {
    return 1.0f / sqrtf(sum / (float)p->group + p->eps);
}

/* Weights as floats, ones where there are none; `width` of them and room for a vector. */
static inline void take_weights(const norm_problem *p, float *weights) {
    for (int64_t d = 0; d < p->width; d++)
        weights[d] = p->has_weight ? element_load((ejk_dtype)p->dtype, p->weight, d) : 1.0f;
}

#endif
