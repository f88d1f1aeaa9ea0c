/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both directions of rwkv4 share. A slab is some channels of all sequences, as rows of floats: a vector holds VL
 * channels, and nothing is summed across lanes. Include after a vec_*.h.
 */
#ifndef EJKI_RWKV4_WKV_H
#define EJKI_RWKV4_WKV_H

#include "base/base.h"
#include "kernels/simd/vec_element.h"
#include "kernels/simd/vec_math.h"
#include "operations/state_space/rwkv4/problem.cuh"

/* Channels first to first + channels - 1: rates e^w, bonuses and states, in rows of `stride` floats. */
typedef struct slab {
    const wkv_problem *p;
    int64_t first, channels, stride;
    float *rate, *bonus, *states; /* states: [STATE_NUMBERS][stride] */
} slab;

static inline int64_t slab_floats(int64_t stride) {
    return (2 + STATE_NUMBERS) * stride;
}
static inline int64_t slabs_of(const wkv_problem *p, int64_t stride) {
    return ejki_cdiv(p->channels, stride);
}

static inline vf list_at(const slab *s, const wkv_states *list, int64_t entry, int number,
                         int64_t c) {
    const int64_t at = wkv_state_at(list, entry, number) + s->first + c;
    const ejk_dtype dtype = (ejk_dtype)list->dtype;
    return v_widen_some(dtype, element_at(dtype, list->data, at), s->channels - c);
}
static inline void put_list(const slab *s, const wkv_states *list, int64_t entry, int number,
                            int64_t c, vf value) {
    if (!list->data) return;
    const int64_t at = wkv_state_at(list, entry, number) + s->first + c;
    const ejk_dtype dtype = (ejk_dtype)list->dtype;
    v_narrow_some(dtype, element_at(dtype, list->data, at), value, s->channels - c);
}

static inline void slab_open(slab *s, const wkv_problem *p, int64_t index, int64_t stride,
                             float *memory) {
    *s = (slab){.p = p, .first = index * stride, .stride = stride, .rate = memory};
    s->channels = ejki_min(p->channels - s->first, stride);
    s->bonus = s->rate + stride;
    s->states = s->bonus + stride;
    for (int64_t c = 0; c < s->channels; c += VL) {
        v_store(s->rate + c, v_exp(list_at(s, &p->w, 0, 0, c)));
        v_store(s->bonus + c, list_at(s, &p->u, 0, 0, c));
    }
}

/* The states of a sequence; `slot` -1: those it begins at. */
static inline void take_states(const slab *s, int64_t slot) {
    const vf least = v_set1((float)LEAST_SHIFT);
    for (int64_t c = 0; c < s->channels; c += VL)
        for (int i = 0; i < STATE_NUMBERS; i++) {
            vf value = v_set1(i == SHIFT ? (float)FIRST_SHIFT : 0.0f);
            if (slot >= 0) value = list_at(s, &s->p->before, slot, i, c);
            v_store(s->states + i * s->stride + c, i == SHIFT ? v_max(least, value) : value);
        }
}

INLINE void *channel_at(const ejk_dtype dtype, const slab *s, const wkv_rows *rows, seq_range range,
                        int64_t t, int64_t c) {
    return element_at(dtype, rows->data, wkv_at(s->p, rows, range, t) + s->first + c);
}
INLINE vf channels_of(const ejk_dtype dtype, const slab *s, const wkv_rows *rows, seq_range range,
                      int64_t t, int64_t c) {
    return v_widen_some(dtype, channel_at(dtype, s, rows, range, t, c), s->channels - c);
}

/* Weights of what was before and of the token itself, one of them 1; `excess` is how much more the former's logarithm
 * is. */
typedef struct weights {
    vf before, own, excess;
} weights;
INLINE weights weigh(vf before, vf own) {
    const vf excess = v_sub(before, own), one = v_set1(1.0f);
    const vf less = v_exp(v_sub(v_zero(), v_abs(excess)));
    return (weights){v_select_gt(excess, v_zero(), one, less),
                     v_select_gt(excess, v_zero(), less, one), excess};
}
/* What a weight does not hide. */
INLINE vf seen(vf weight, vf value) {
    return v_select_gt(weight, v_zero(), value, v_zero());
}

/* A token before its state changes: what it reads, and the weights of the state after it. */
typedef struct token {
    vf out, sum; /* sum: of the weights */
    weights read, kept;
} token;
INLINE token token_of(vf values, vf sums, vf shift, vf rate, vf bonus, vf k, vf v) {
    token a = {.read = weigh(shift, v_add(bonus, k)),
               .kept = weigh(v_max(v_set1((float)LEAST_SHIFT), v_sub(shift, rate)), k)};
    a.sum = v_fma(a.read.before, sums, a.read.own);
    const vf above = v_fma(a.read.before, values, v_mul(a.read.own, seen(a.read.own, v)));
    a.out = v_select_gt(v_abs(a.sum), v_zero(), v_div(above, a.sum), a.sum);
    return a;
}

/* The state after a token. */
INLINE void advance(float *to, int64_t stride, vf values, vf sums, vf shift, vf rate, vf k, vf v,
                    const weights *kept) {
    const vf faded = v_max(v_set1((float)LEAST_SHIFT), v_sub(shift, rate));
    v_store(to + SUM_VALUES * stride,
            v_fma(kept->before, values, v_mul(kept->own, seen(kept->own, v))));
    v_store(to + SUM_WEIGHTS * stride, v_fma(kept->before, sums, kept->own));
    v_store(to + SHIFT * stride, v_max(faded, k));
}

/* Tokens of no sequence, of a slab's channels. */
static inline void clear(const slab *s, const wkv_rows *rows) {
    const sequences *q = &s->p->sequences;
    const ejk_dtype dtype = (ejk_dtype)s->p->dtype;
    const size_t bytes = (size_t)(s->channels * element_size(dtype));
    for (int64_t t = q->packed ? seq_end(q, q->count) : q->tokens; rows->data && t < q->tokens; t++)
        memset(element_at(dtype, rows->data, t * rows->step + s->first), 0, bytes);
}

/* Everything that these kernels read and write is of a type that they have. */
static inline bool types_apply(const void *problem) {
    const wkv_problem *p = problem;
    const wkv_states *lists[] = {&p->w, &p->u, &p->before, &p->d_w, &p->d_u, &p->d_before};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i]->dtype == EJK_DTYPE_F64) return false;
    return true;
}

#endif
