/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both directions of state_space_v1 share. A slab is SLAB channels of a group, in tiles of VL: a vector holds one
 * number of the states of VL channels, so that b and c are the same for all lanes, and nothing is summed across lanes.
 * Include after a vec_*.h.
 */
#ifndef EJKI_STATE_SPACE_V1_SCAN_H
#define EJKI_STATE_SPACE_V1_SCAN_H

#include "base/base.h"
#include "kernels/simd/unroll.h"
#include "kernels/simd/vec_element.h"
#include "kernels/simd/vec_math.h"
#include "operations/state_space/state_space_v1/problem.cuh"

/* BLOCK: numbers of a state that stay in registers, with their decays, while time runs. */
enum { BLOCK = 8, LINE = 64 };

#define LOG2_E 1.4426950408889634f

/* A slab of a group, and floats of it: rows of `stride` channels, zeros behind the last. */
typedef struct slab {
    const scan_problem *p;
    int64_t group, first, channels, stride, states; /* states: rounded up to vectors */
    float *a, *d, *bias;                            /* a: times log2(e), [states][stride] */
} slab;

static inline int64_t states_of(const scan_problem *p) {
    return ejki_round_up(ejki_max(p->states, 1), VL);
}
static inline int64_t slab_floats(const scan_problem *p, int64_t stride) {
    return (states_of(p) + 2) * stride;
}

static inline float list_at(const scan_states *s, int64_t channel, int64_t k) {
    return element_load((ejk_dtype)s->dtype, s->data, scan_state_at(s, 0, channel) + k);
}

static inline void slab_open(slab *s, const scan_problem *p, int64_t index, int64_t stride,
                             float *memory) {
    const int64_t width = p->channels / p->groups, slabs = ejki_cdiv(width, stride);
    *s = (slab){.p = p, .group = index / slabs, .stride = stride, .states = states_of(p)};
    s->first = s->group * width + index % slabs * stride;
    s->channels = ejki_min((s->group + 1) * width - s->first, stride);
    s->a = memory;
    s->d = memory + s->states * stride;
    s->bias = s->d + stride;
    memset(memory, 0, (size_t)slab_floats(p, stride) * sizeof *memory);
    for (int64_t e = 0; e < s->channels; e++) {
        for (int64_t k = 0; k < p->states; k++)
            s->a[k * stride + e] = list_at(&p->a, s->first + e, k) * LOG2_E;
        if (p->has_d) s->d[e] = list_at(&p->d, s->first + e, 0);
        if (p->has_bias) s->bias[e] = list_at(&p->dt_bias, s->first + e, 0);
    }
}

static inline int64_t slabs_of(const scan_problem *p, int64_t stride) {
    return p->groups * ejki_cdiv(p->channels / p->groups, stride);
}

/* ---- States ------------------------------------------------------------------------------------------ */

/* States of VL channels, of which `left` count, from [E,K] to [states][stride]; `slot` -1: zeros. Those of `next` are
 * prefetched. */
static inline void take_states(const slab *s, const scan_states *from, int64_t slot, int64_t next,
                               int64_t e, float *to) {
    const int64_t left = s->channels - e, states = s->p->states;
    for (int64_t k = 0; k < s->states; k += VL) {
        vf rows[VL];
        for (int64_t i = 0; i < VL; i++) {
            rows[i] = v_zero();
            if (next >= 0 && i < left)
                __builtin_prefetch(element_at((ejk_dtype)from->dtype, from->data,
                                              scan_state_at(from, next, s->first + e + i) + k),
                                   0, 2);
            if (slot < 0 || i >= left || k >= states) continue;
            const int64_t at = scan_state_at(from, slot, s->first + e + i) + k;
            const ejk_dtype dtype = (ejk_dtype)from->dtype;
            rows[i] = v_widen_some(dtype, element_at(dtype, from->data, at),
                                   states - k < VL ? states - k : VL);
        }
        v_transpose(rows);
        for (int64_t i = 0; i < VL; i++) v_store(to + (k + i) * s->stride + e, rows[i]);
    }
}

static inline void put_states(const slab *s, const scan_states *to, int64_t slot, int64_t e,
                              const float *from) {
    const int64_t left = s->channels - e, states = s->p->states;
    for (int64_t k = 0; k < states; k += VL) {
        vf rows[VL];
        for (int64_t i = 0; i < VL; i++) rows[i] = v_load(from + (k + i) * s->stride + e);
        v_transpose(rows);
        for (int64_t i = 0; i < VL && i < left; i++) {
            const int64_t at = scan_state_at(to, slot, s->first + e + i) + k;
            const ejk_dtype dtype = (ejk_dtype)to->dtype;
            v_narrow_some(dtype, element_at(dtype, to->data, at), rows[i],
                          states - k < VL ? states - k : VL);
        }
    }
}

/* ---- Tokens ------------------------------------------------------------------------------------------ */

/* Rows of b or c of some tokens as floats, [tokens][states of the call]. */
INLINE void take_rows_of(const ejk_dtype dtype, const slab *s, const scan_rows *rows, int64_t row,
                         int64_t token, int64_t count, float *to) {
    const int64_t states = s->p->states;
    const char *from = element_at(dtype, rows->data, scan_at(rows, row, token, s->group));
    for (int64_t t = 0; t < count; t++, to += states) {
        int64_t k = 0;
        for (; k + VL <= states; k += VL)
            v_store(to + k, v_widen(dtype, element_at(dtype, from, k)));
        if (k < states)
            v_store_first(to + k, v_widen_first(dtype, element_at(dtype, from, k), states - k),
                          states - k);
        from = element_at(dtype, from, rows->step);
    }
}
static inline void take_rows(const slab *s, const scan_rows *rows, int64_t row, int64_t token,
                             int64_t count, float *to) {
    if (s->p->dtype == EJK_DTYPE_F32)
        take_rows_of(EJK_DTYPE_F32, s, rows, row, token, count, to);
    else if (s->p->dtype == EJK_DTYPE_BF16)
        take_rows_of(EJK_DTYPE_BF16, s, rows, row, token, count, to);
    else
        take_rows_of(EJK_DTYPE_F16, s, rows, row, token, count, to);
}

/* The type is a constant where time counts. */
INLINE void *channel_at(const ejk_dtype dtype, const slab *s, const scan_rows *rows, int64_t row,
                        int64_t token, int64_t e) {
    return element_at(dtype, rows->data, scan_at(rows, row, token, 0) + s->first + e);
}
/* VL channels of a token; a hint for another one, `ahead` tokens on. */
INLINE vf channels_of(const ejk_dtype dtype, const slab *s, const scan_rows *rows, int64_t row,
                      int64_t token, int64_t e, int64_t ahead) {
    if (ahead && e * element_size(dtype) % LINE == 0)
        __builtin_prefetch(channel_at(dtype, s, rows, row, token + ahead, e), 0, 2);
    return v_widen_some(dtype, channel_at(dtype, s, rows, row, token, e), s->channels - e);
}

/* dt as it enters softplus, and the step size. */
INLINE vf raw_step(const ejk_dtype dtype, const slab *s, int64_t row, int64_t token, int64_t e,
                   int64_t ahead) {
    return v_add(channels_of(dtype, s, &s->p->dt, row, token, e, ahead), v_load(s->bias + e));
}
INLINE vf step_of(const scan_problem *p, vf raw) {
    if (p->softplus) raw = v_softplus(raw);
    return v_min(v_set1((float)p->most), v_max(v_set1((float)p->least), raw));
}

/* Everything that these kernels read and write is of a type that they have. */
static inline bool types_apply(const void *problem) {
    const scan_problem *p = problem;
    const scan_states *lists[] = {&p->a,   &p->d,   &p->dt_bias,   &p->before,
                                  &p->d_a, &p->d_d, &p->d_dt_bias, &p->d_before};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i]->dtype == EJK_DTYPE_F64) return false;
    return true;
}

#endif
