/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a token of a head brings to the recurrence, as rows of floats: loaded, normalised and with its gates applied
 * once, then used for all columns of the state. Forms of the recurrence become the same few rows:
 *
 *     X = Σ x_i s_i,  Y = Σ y_i s_i  of a column s;   s_i ← d_i s_i + k_i u + a_i X;   out = Y + qk u + qa X + own v
 *
 * where x = d k and u = β (v − X) for delta rules, x = b and u = v for rank-one updates, u = β v for sums, y = d q, or
 * q if the old state is read.
 */
#ifndef EJKI_RECURRENT_TOKEN_BODY_H
#define EJKI_RECURRENT_TOKEN_BODY_H

#include "base/base.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/vec_element.h"
#include "operations/recurrent/cpu/scan/gates.h"
#include "operations/recurrent/shared/problem.cuh"

#include <math.h>

/* Rows of a token; each has pitch floats, those behind key_size are 0. */
typedef struct token {
    float *x, *y, *k, *a, *d; /* of the scan */
    float *q, *b;      /* q scaled and normalised, b of rank-one updates: of the gradients, too */
    float qk, qa, own; /* of u, X and v in out */
    float beta, q_norm, k_norm; /* what q and k were multiplied by */
    rec_size t;                 /* its place in the tensors */
    int resets;
} token;

enum { TOKEN_ROWS = 7 };

INLINE rec_size row_pitch(const rec_problem *p) {
    return ejki_round_up(ejki_max(p->key_size, 1), VL);
}

INLINE token token_in(float *memory, rec_size pitch) {
    return (token){.x = memory,
                   .y = memory + pitch,
                   .k = memory + 2 * pitch,
                   .a = memory + 3 * pitch,
                   .d = memory + 4 * pitch,
                   .q = memory + 5 * pitch,
                   .b = memory + 6 * pitch};
}

INLINE const void *view_at(const rec_view *v, rec_size index) {
    return element_at((ejk_dtype)v->dtype, v->data, index);
}
INLINE float view_load(const rec_view *v, rec_size index) {
    return element_load((ejk_dtype)v->dtype, v->data, index);
}

/*
 * What a step prefetches of a state before it reads what is at `at`, once for each line; behind a state the next one
 * lies, mostly. 8 KiB ahead, 2048 states of 128 x 128 on Zen 5 took 4.5 instead of 5.2 ms as [Dv,Dk], 5.5 instead of
 * 5.6 as [Dk,Dv]. Prefetching the next state beside the updates, which read nothing from memory, took up to 1.2 times
 * as long.
 */
enum { LINE = 16 };
INLINE void prefetch_state(const prefetching *how, const float *at, rec_size n) {
    if (n % LINE == 0) prefetch_behind(*how, at);
}

/* VL elements from index + c on, of a row of `size`; those behind it are 0. */
INLINE vf view_part(const rec_view *v, rec_size index, rec_size c, rec_size size) {
    return v_widen_some((ejk_dtype)v->dtype, view_at(v, index + c), size - c);
}

INLINE void load_row(const rec_view *v, rec_size index, rec_size size, float *to) {
    for (rec_size c = 0; c < size; c += VL) v_store(to + c, view_part(v, index, c, size));
}

INLINE float dot(const float *x, const float *y, rec_size pitch) {
    vf sum = v_zero();
    for (rec_size c = 0; c < pitch; c += VL) sum = v_fma(v_load(x + c), v_load(y + c), sum);
    return v_sum(sum);
}

/* Becomes a unit vector, if it is to be; the factor. */
INLINE float normalise_row(const rec_problem *p, float *x, rec_size pitch) {
    if (!p->normalise) return 1;
    const float factor = 1 / sqrtf(dot(x, x, pitch) + (float)REC_EPSILON);
    for (rec_size c = 0; c < pitch; c += VL) v_store(x + c, v_mul(v_load(x + c), v_set1(factor)));
    return factor;
}

/* Log decay of a head but for its tensor of gates. */
INLINE float constant_gate(const rec_problem *p, const rec_sequence *s, rec_size h) {
    const rec_view *gamma = &p->view[REC_GAMMA];
    const float own = p->slope == 0 ? 0 : (float)(p->slope * (double)h);
    return gamma->present
               ? own + view_load(gamma, s->index * gamma->stride[0] + h * gamma->stride[2])
               : own;
}

INLINE float rate_factor(const rec_problem *p, rec_size h) {
    const rec_view *rate = &p->view[REC_A_LOG];
    return -expf(view_load(rate, h * rate->stride[2]));
}

/* Gates of raw numbers: -exp(A_log) softplus(x). */
INLINE vf raw_gate(const rec_problem *p, rec_size h, vf x) {
    if (!p->view[REC_A_LOG].present) return x;
    return v_mul(v_set1(rate_factor(p, h)), gate_softplus(x));
}

/* Elements of the tensor of gates from c on, before softplus: with their bias. */
INLINE vf raw_part(const rec_problem *p, rec_size b, rec_size t, rec_size h, rec_size c) {
    const rec_view *g = &p->view[REC_G], *bias = &p->view[REC_DT_BIAS];
    const rec_size size = p->g_is_wide ? p->key_size : 1;
    const vf x = view_part(g, rec_at(g, b, t, h), c, size);
    if (!bias->present) return x;
    return v_add(x, view_part(bias, h * bias->stride[2], c, size));
}

/* Step sizes of raw numbers. */
INLINE vf step_size(const rec_problem *p, vf x) {
    if (p->softplus) x = gate_softplus(x);
    return v_min(v_set1((float)p->most), v_max(v_set1((float)p->least), x));
}

/* Log decay of a head for a step of size 1. */
INLINE float step_rate(const rec_problem *p, rec_size h) {
    return view_load(&p->view[REC_A_LOG], h * p->view[REC_A_LOG].stride[2]);
}

/* How often a value is in the output besides the state. */
INLINE float skip_of(const rec_problem *p, rec_size h) {
    const rec_view *skip = &p->view[REC_SKIP];
    return skip->present ? view_load(skip, h * skip->stride[2]) : 0;
}

/* Log decay of a head; beta is the token's. */
INLINE float head_gate(const rec_problem *p, const rec_sequence *s, rec_size t, rec_size h,
                       float beta) {
    float lane[VL];
    const float constant = constant_gate(p, s, h);
    if (p->by_step) return constant + beta * step_rate(p, h);
    if (!p->view[REC_G].present || p->g_is_wide) return constant;
    v_store(lane, raw_gate(p, h, raw_part(p, s->batch, t, h, 0)));
    return constant + lane[0];
}

/* `is_short`: as products in bf16 take them. */
INLINE void load_decays(const bool is_short, const rec_problem *p, const rec_sequence *s,
                        rec_size t, rec_size h, rec_size pitch, float beta, float *d) {
    const rec_view *gk = &p->view[REC_GK];
    const vf head = v_set1(head_gate(p, s, t, h, beta));
    if (!p->key_decay) {
        const vf all = p->head_decay ? gate_exp(head) : v_set1(1);
        for (rec_size c = 0; c < pitch; c += VL) v_store(d + c, all);
        return;
    }
    /* Read once: the rows that are written might be any of it, as far as a compiler can tell. */
    const rec_view *g = &p->view[REC_G], *bias = &p->view[REC_DT_BIAS], *rate = &p->view[REC_A_LOG];
    const rec_size size = p->key_size, g_at = rec_at(g, s->batch, t, h);
    const rec_size gk_at = rec_at(gk, s->batch, t, h), bias_at = h * bias->stride[2];
    const bool wide = p->g_is_wide, biased = bias->present, rated = rate->present;
    const bool own = gk->present;
    const vf factor = v_set1(rated ? rate_factor(p, h) : 1);
    for (rec_size c = 0; c < size; c += VL) {
        vf gate = head;
        if (wide) {
            vf x = view_part(g, g_at, c, size);
            if (biased) x = v_add(x, view_part(bias, bias_at, c, size));
            gate = v_add(gate, rated ? v_mul(factor, gate_softplus(x)) : x);
        }
        if (own) gate = v_add(gate, view_part(gk, gk_at, c, size));
        v_store(d + c, is_short ? gate_exp_short(gate) : gate_exp(gate));
    }
}

INLINE void load_rank_one(const rec_problem *p, const rec_sequence *s, rec_size t, rec_size h,
                          rec_size pitch, token *to) {
    const rec_view *a = &p->view[REC_A], *b = &p->view[REC_B];
    load_row(a, rec_at(a, s->batch, t, h), p->key_size, to->a);
    load_row(b, rec_at(b, s->batch, t, h), p->key_size, to->b);
    if (!p->multiply) return;
    for (rec_size c = 0; c < pitch; c += VL) {
        const vf kk = v_load(to->b + c);
        v_store(to->a + c, v_mul(v_load(to->a + c), kk));
        v_store(to->b + c, v_sub(v_zero(), kk));
    }
}

INLINE float load_beta(const rec_problem *p, const rec_sequence *s, rec_size t, rec_size h) {
    const rec_view *beta = &p->view[REC_BETA];
    if (p->by_step) {
        float lane[VL];
        v_store(lane, step_size(p, raw_part(p, s->batch, t, h, 0)));
        return lane[0];
    }
    const float x = beta->present ? view_load(beta, rec_at(beta, s->batch, t, h)) : 1;
    return p->beta_logits ? 1 / (1 + expf(-x)) : x;
}

/* Sum of q u k. */
INLINE float bonus_of(const rec_problem *p, rec_size h, const token *to) {
    const rec_view *u = &p->view[REC_BONUS];
    vf sum = v_zero();
    for (rec_size c = 0; c < p->key_size && u->present; c += VL)
        sum = v_fma(v_mul(v_load(to->q + c), v_load(to->k + c)),
                    view_part(u, h * u->stride[2], c, p->key_size), sum);
    return v_sum(sum);
}

/* Rows of token t; rows that its form does not need are left as they are. */
static inline void load_token(const rec_problem *p, const rec_sequence *s, rec_size t, rec_size h,
                              rec_size pitch, token *to) {
    const rec_view *q = &p->view[REC_QUERY], *k = &p->view[REC_KEY];
    const bool before = p->read == REC_BEFORE, rank = p->update == REC_RANK_ONE;
    load_row(q, rec_at(q, s->batch, t, rec_head(p, h, p->query_heads)), p->key_size, to->q);
    load_row(k, rec_at(k, s->batch, t, rec_head(p, h, p->key_heads)), p->key_size, to->k);
    to->beta = load_beta(p, s, t, h);
    load_decays(false, p, s, t, h, pitch, to->beta, to->d);
    to->q_norm = normalise_row(p, to->q, pitch);
    to->k_norm = normalise_row(p, to->k, pitch);
    to->t = t;
    if (rank) load_rank_one(p, s, t, h, pitch, to);
    const float scale = (float)p->scale;
    for (rec_size c = 0; c < pitch; c += VL) {
        const vf d = v_load(to->d + c), own = v_mul(v_load(to->q + c), v_set1(scale));
        v_store(to->y + c, before ? own : v_mul(own, d));
        if (p->update != REC_ADD)
            v_store(to->x + c, rank ? v_load(to->b + c) : v_mul(v_load(to->k + c), d));
    }
    to->qk = before ? 0 : scale * dot(to->q, to->k, pitch);
    to->qa = rank && !before ? scale * dot(to->q, to->a, pitch) : 0;
    to->own = before ? scale * bonus_of(p, h, to) : skip_of(p, h);
}

#endif
