/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of a state that lies as [Dv][Dk]: its keys are in the lanes. A column is read, summed up and written before
 * the next one, so that the state passes by once and in its order. On Zen 4, 2048 states of 128 x 128: sums of 2 or
 * 4 columns at a time take 2 to 3 times as long, since the prefetcher loses the stream, and sums of 16 columns
 * before their updates 1.1 times.
 */
#ifndef EJKI_RECURRENT_TURNED_BODY_H
#define EJKI_RECURRENT_TURNED_BODY_H

#include "operations/recurrent/cpu/scan/token_body.h"

INLINE void sum_column(const bool has_x, const prefetching *how, const token *t, rec_size rows,
                       const float *from, float *x, float *y) {
    vf xs = v_zero(), ys = v_zero();
    rec_size i = 0;
    for (; i + VL <= rows; i += VL) {
        const vf s = v_load(from + i);
        prefetch_state(how, from + i, i);
        if (has_x) xs = v_fma(v_load(t->x + i), s, xs);
        ys = v_fma(v_load(t->y + i), s, ys);
    }
    if (i < rows) {
        const vf s = v_load_first(from + i, rows - i);
        if (has_x) xs = v_fma(v_load(t->x + i), s, xs);
        ys = v_fma(v_load(t->y + i), s, ys);
    }
    *x = has_x ? v_sum(xs) : 0;
    *y = v_sum(ys);
}

INLINE vf updated(const bool has_a, const bool has_dv, const token *t, rec_size i, vf s, vf u, vf x,
                  vf dv) {
    s = v_mul(v_load(t->d + i), s);
    if (has_dv) s = v_mul(s, dv);
    s = v_fma(v_load(t->k + i), u, s);
    return has_a ? v_fma(v_load(t->a + i), x, s) : s;
}

INLINE void update_column(const bool has_a, const bool has_dv, const token *t, rec_size rows,
                          const float *from, float *to, float u, float x, float dv) {
    const vf us = v_set1(u), xs = v_set1(x), decay = v_set1(dv);
    rec_size i = 0;
    for (; i + VL <= rows; i += VL)
        v_store(to + i, updated(has_a, has_dv, t, i, v_load(from + i), us, xs, decay));
    if (i < rows)
        v_store_first(to + i,
                      updated(has_a, has_dv, t, i, v_load_first(from + i, rows - i), us, xs, decay),
                      rows - i);
}

/* VL columns from c on, or as many as there are. */
INLINE void step_columns(const rec_problem *p, const prefetching *how, const int update,
                         const bool has_dv, const rec_sequence *q, rec_size h, const token *t,
                         rec_size c, rec_size n, const float *from, rec_size stride, float *to,
                         rec_size to_stride) {
    const rec_view *value = &p->view[REC_VALUE], *gv = &p->view[REC_GV], *out = &p->view[REC_OUT];
    const rec_size own = rec_at(value, q->batch, t->t, rec_head(p, h, p->value_heads));
    float v[VL], dv[VL], result[VL];
    v_store(v, view_part(value, own, c, p->value_size));
    if (has_dv)
        v_store(dv, gate_exp(view_part(gv, rec_at(gv, q->batch, t->t, h), c, p->value_size)));
    for (rec_size g = 0; g < n; g++, from += stride, to += to_stride) {
        float x, y, u = v[g];
        const float decay = has_dv ? dv[g] : 1;
        sum_column(update != REC_ADD, how, t, p->key_size, from, &x, &y);
        if (has_dv && update == REC_DELTA) x *= decay;
        if (has_dv && p->read != REC_BEFORE) y *= decay;
        if (update == REC_ADD) u *= t->beta;
        if (update == REC_DELTA) u = t->beta * (u - x);
        result[g] = y + t->own * v[g] + t->qk * u + (update == REC_RANK_ONE ? t->qa * x : 0);
        update_column(update == REC_RANK_ONE, has_dv, t, p->key_size, from, to, u, x, decay);
    }
    const rec_size place = rec_at(out, q->batch, t->t, h) + c;
    v_narrow_some((ejk_dtype)out->dtype, element_at((ejk_dtype)out->dtype, out->data, place),
                  v_load_first(result, n), n);
}

/* Columns first to last - 1; column 0 is at `from`, and goes to `to`. */
static void step_turned(const rec_problem *p, const prefetching *how, const rec_sequence *q,
                        rec_size h, const token *t, rec_size first, rec_size last,
                        const float *from, rec_size stride, float *to, rec_size to_stride) {
    for (rec_size c = first; c < last; c += VL) {
        const rec_size n = ejki_min(last - c, VL);
        const float *source = from + c * stride;
        float *target = to + c * to_stride;
        if (p->value_decay)
            step_columns(p, how, p->update, true, q, h, t, c, n, source, stride, target, to_stride);
        else if (p->update == REC_ADD)
            step_columns(p, how, REC_ADD, false, q, h, t, c, n, source, stride, target, to_stride);
        else if (p->update == REC_DELTA)
            step_columns(p, how, REC_DELTA, false, q, h, t, c, n, source, stride, target,
                         to_stride);
        else
            step_columns(p, how, REC_RANK_ONE, false, q, h, t, c, n, source, stride, target,
                         to_stride);
    }
}

#endif
