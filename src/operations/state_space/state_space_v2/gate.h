/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both directions of the gate and norm of state_space_v2 share: a row is read head by head into floats that follow
 * each other, whatever lies between its heads in memory, so that groups of the norm may begin and end inside of a head.
 * Include after a vec_*.h.
 */
#ifndef EJKI_STATE_SPACE_V2_GATE_H
#define EJKI_STATE_SPACE_V2_GATE_H

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kernels/simd/vec_element.h"
#include "kernels/simd/vec_math.h"
#include "operations/state_space/state_space_v2/problem.cuh"

#define INLINE static inline __attribute__((always_inline))

/* Floats of a row and what vectors write behind it, in whole lines. */
INLINE int64_t row_room(const ssd_problem *p) {
    return ejki_round_up(ssd_width(p) + VL, 16);
}

INLINE int64_t row_count(const ssd_problem *p) {
    return p->recurrence.batch * p->recurrence.tokens;
}

/* VL elements of a row from p on, of which `left` count. */
INLINE vf take(const rec_view *v, int64_t at, int64_t left) {
    return v_widen_some((ejk_dtype)v->dtype, element_at((ejk_dtype)v->dtype, v->data, at), left);
}
INLINE void give(const rec_view *v, int64_t at, vf value, int64_t left) {
    if (v->present)
        v_narrow_some((ejk_dtype)v->dtype, element_at((ejk_dtype)v->dtype, v->data, at), value,
                      left);
}

/* A row that is no token of a sequence. */
INLINE void clear_row(const ssd_problem *p, const rec_view *v, int64_t n) {
    const int64_t size = p->recurrence.value_size;
    for (int64_t h = 0; h < p->recurrence.heads; h++)
        for (int64_t i = 0; i < size; i += VL) give(v, ssd_at(p, v, n, h) + i, v_zero(), size - i);
}

/* Weights as floats, ones where there are none. */
static inline void take_weights(const ssd_problem *p, float *weights) {
    for (int64_t d = 0; d < ssd_width(p); d++)
        weights[d] =
            p->weight.present ? element_load((ejk_dtype)p->weight.dtype, p->weight.data, d) : 1.0f;
}

/* 1 / sqrt(mean of squares + eps) of a group. */
INLINE float scale_of(const ssd_problem *p, float squares) {
    return 1.0f / sqrtf(squares / (float)p->group + (float)p->eps);
}

/* one_row(), by gate_row() of the direction, or its read_row(), norm_groups() and write_row(); others are cleared. */
#define SSD_ONE_ROW(cleared)                                                                       \
    static void one_row(const ssd_problem *p, const row *r, int64_t n) {                           \
        if (!ssd_counts(p, n)) {                                                                   \
            clear_row(p, &p->cleared, n);                                                          \
        } else if (!p->has_norm) {                                                                 \
            gate_row(p, n);                                                                        \
        } else if (p->norm_first) {                                                                \
            read_row(p, true, r, n);                                                               \
            norm_groups(p, r);                                                                     \
            write_row(p, true, r, n);                                                              \
        } else {                                                                                   \
            read_row(p, false, r, n);                                                              \
            norm_groups(p, r);                                                                     \
            write_row(p, false, r, n);                                                             \
        }                                                                                          \
    }

#endif
