/* SPDX-License-Identifier: Apache-2.0 */
/* What a token's gradients are collected in, and their way to tensors; for kernels of either form. */
#ifndef EJKI_RECURRENT_GRADIENT_PUT_BODY_H
#define EJKI_RECURRENT_GRADIENT_PUT_BODY_H

#include "operations/recurrent/cpu/scan/token_body.h"

/* Sums over columns that a token has collected; rows as in a token. */
typedef struct gradient {
    float *q, *k, *g, *a, *b; /* g: of log decays of key channels */
    float beta, head;         /* head: of log decays, over all channels */
    float along_u, along_x;   /* of d_out, with the scale */
    float qk, qa, own;        /* as in the token, without the scale */
} gradient;

enum { GRADIENT_ROWS = 5 };

/*
 * The head of a sequence that is worked on. What is added up over the heads that share a query, key or value is added
 * to sums of floats, [tokens of the sequence][shared][pitch]; other gradients go straight to their tensors. `unit`
 * neighbouring heads are worked on together, and what these share has been added up by then; `span` heads, one unit or
 * several, take turns.
 */
typedef struct head_work {
    const rec_problem *p;
    rec_sequence q;
    rec_size h, pitch, value_pitch;
    rec_size groups, in_group, unit, span; /* groups of heads that share something, heads of one */
    rec_size shared[3]; /* of query, key and value: how many of a group are added up, 0 for none */
    float *sum[3];
    float *partial; /* [sequences][heads][partial_size]: gamma, A_log, dt_bias, bonus, skip */
} head_work;

static rec_size partial_size(const rec_problem *p) {
    return 3 + 2 * row_pitch(p);
}

static rec_size common_divisor(rec_size a, rec_size b) {
    while (b > 0) {
        const rec_size rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Heads of a tensor of tokens. */
INLINE rec_size heads_of(const rec_problem *p, int role) {
    return role == REC_QUERY   ? p->query_heads
           : role == REC_KEY   ? p->key_heads
           : role == REC_VALUE ? p->value_heads
                               : p->heads;
}

/* Groups of heads; columns of a value are rounded up to `columns`. */
static void measure_heads(const rec_problem *p, rec_size columns, rec_size unit, head_work *w) {
    w->p = p;
    w->unit = w->span = unit;
    w->value_pitch = ejki_round_up(p->value_size, columns);
    w->groups = p->heads == 0
                    ? 1
                    : common_divisor(common_divisor(p->query_heads, p->key_heads), p->value_heads);
    w->in_group = p->heads / w->groups;
    for (int role = REC_QUERY; role <= REC_VALUE; role++) {
        const rec_size heads = heads_of(p, role);
        const bool apart = heads * (role == REC_VALUE ? 1 : unit) == p->heads;
        w->shared[role] = apart ? 0 : heads / w->groups;
    }
}

static rec_size sum_pitch(const head_work *w, int role) {
    return w->shared[role] * (role == REC_VALUE ? w->value_pitch : w->pitch);
}

/* Floats of the sums of a role over a sequence, and of all. */
static rec_size sum_size(const head_work *w, int role) {
    return ejki_round_up(w->p->tokens * sum_pitch(w, role), 16);
}
static rec_size sum_floats(const head_work *w) {
    return sum_size(w, REC_QUERY) + sum_size(w, REC_KEY) + sum_size(w, REC_VALUE);
}
static void place_sums(head_work *w, float *memory) {
    w->sum[REC_QUERY] = memory;
    w->sum[REC_KEY] = memory + sum_size(w, REC_QUERY);
    w->sum[REC_VALUE] = w->sum[REC_KEY] + sum_size(w, REC_KEY);
}

/* ---- To tensors -------------------------------------------------------------------------------------- */

/* VL elements of a gradient from c on, of a row of `size`; nothing if it is not wanted. */
INLINE void put_part(const rec_problem *p, int role, rec_size index, rec_size c, rec_size size,
                     vf value) {
    const rec_view *v = &p->view[REC_D(role)];
    if (!v->present || c >= size) return;
    v_narrow_some((ejk_dtype)v->dtype, element_at((ejk_dtype)v->dtype, v->data, index + c), value,
                  size - c);
}

/* The head of a tensor that the head at hand reads; mostly each has its own, and divisions take long. */
INLINE rec_size head_of(const head_work *w, int role) {
    const rec_size heads = heads_of(w->p, role);
    return rec_head(w->p, w->h, heads);
}

INLINE rec_size gradient_at(const head_work *w, int role, rec_size t) {
    return rec_at(&w->p->view[REC_D(role)], w->q.batch, t, head_of(w, role));
}

static void put_row(const head_work *w, int role, rec_size t, rec_size size, const float *row) {
    if (!w->p->view[REC_D(role)].present) return;
    const rec_size index = gradient_at(w, role, t);
    for (rec_size c = 0; c < size; c += VL)
        put_part(w->p, role, index, c, size, row ? v_load(row + c) : v_zero());
}

static void put_number(const head_work *w, int role, rec_size t, float value) {
    put_part(w->p, role, gradient_at(w, role, t), 0, 1, v_set1(value));
}

/* Of a token that counts for nothing, but for what is added up: sums are 0 to begin with. */
static void put_nothing(const head_work *w, rec_size t) {
    const rec_problem *p = w->p;
    for (int role = REC_QUERY; role <= REC_VALUE; role++)
        if (w->shared[role] == 0)
            put_row(w, role, t, role == REC_VALUE ? p->value_size : p->key_size, NULL);
    put_row(w, REC_A, t, p->key_size, NULL);
    put_row(w, REC_B, t, p->key_size, NULL);
    put_row(w, REC_GK, t, p->key_size, NULL);
    put_row(w, REC_G, t, p->g_is_wide ? p->key_size : 1, NULL);
    put_row(w, REC_GV, t, p->value_size, NULL);
    put_number(w, REC_BETA, t, 0);
}

/* Where gradients of query, key or value go, of the head that h reads: to sums, or else to their tensor. */
typedef struct places {
    float *sum; /* of the sequence's first token */
    rec_size begin, pitch, size;
    const rec_view *view;
    rec_size first; /* index of the row of token 0 */
} places;

INLINE places places_of(const head_work *w, int role) {
    const rec_size head = head_of(w, role);
    const rec_view *v = &w->p->view[REC_D(role)];
    places to = {.begin = w->q.begin,
                 .size = role == REC_VALUE ? w->p->value_size : w->p->key_size,
                 .view = v,
                 .first = rec_at(v, w->q.batch, 0, head)};
    if (w->shared[role] == 0) return to;
    to.pitch = sum_pitch(w, role);
    to.sum =
        w->sum[role] + head % w->shared[role] * (role == REC_VALUE ? w->value_pitch : w->pitch);
    return to;
}

/* VL elements of a token's gradient, from c on. */
INLINE void add_part(const places *to, rec_size t, rec_size c, vf value) {
    if (to->sum) {
        float *sum = to->sum + (t - to->begin) * to->pitch + c;
        v_store(sum, v_add(v_load(sum), value));
        return;
    }
    if (!to->view->present || c >= to->size) return;
    const ejk_dtype dtype = (ejk_dtype)to->view->dtype;
    const rec_size index = to->first + t * to->view->stride[1] + c;
    v_narrow_some(dtype, element_at(dtype, to->view->data, index), value, to->size - c);
}

/* From the gradient of what is normalised to that of the tensor: norm (d - x <x, d>). */
INLINE void add_vector(const head_work *w, const places *to, rec_size t, const float *d,
                       const float *x, float norm) {
    const vf along = v_set1(w->p->normalise ? -dot(d, x, w->pitch) : 0), factor = v_set1(norm);
    for (rec_size c = 0; c < w->pitch; c += VL) {
        const vf own = v_fma(v_load(x + c), along, v_load(d + c));
        add_part(to, t, c, v_mul(factor, own));
    }
}

/* Gradients of a step size, made that of its tensor, and of the head's rate. */
static void put_step(const head_work *w, const token *t, const gradient *g, float *part) {
    const rec_problem *p = w->p;
    float raw[VL], size[VL];
    const vf x = raw_part(p, w->q.batch, t->t, w->h, 0);
    v_store(raw, x);
    v_store(size, p->softplus ? gate_softplus(x) : x);
    const bool bounded = size[0] < (float)p->least || size[0] > (float)p->most;
    const float slope = bounded ? 0 : p->softplus ? 1 / (1 + expf(-raw[0])) : 1;
    const float d = slope * (g->head * fmaxf(step_rate(p, w->h), -3e38f) + g->beta);
    part[1] += g->head * t->beta;
    part[2] += d;
    part[2 + 2 * row_pitch(p)] += g->along_x;
    put_number(w, REC_G, t->t, d);
}

/* Gradients of gates, made those of raw numbers; `part` is the head's part of what is summed over tokens. */
static void put_gates(const head_work *w, const token *t, const gradient *g, float *part) {
    const rec_problem *p = w->p;
    const rec_view *rate = &p->view[REC_A_LOG];
    const rec_size size = p->g_is_wide ? p->key_size : 1;
    put_row(w, REC_GK, t->t, p->key_size, g->g);
    part[0] += g->head;
    for (rec_size c = 0; c < size && p->view[REC_G].present; c += VL) {
        vf d = p->g_is_wide ? v_load(g->g + c) : v_set1(g->head);
        if (size - c < VL) {
            float lane[VL];
            v_store(lane, d);
            d = v_load_first(lane, size - c);
        }
        if (rate->present) {
            const vf raw = raw_part(p, w->q.batch, t->t, w->h, c), gate = raw_gate(p, w->h, raw);
            const float factor = -expf(view_load(rate, w->h * rate->stride[2]));
            part[1] += v_sum(v_mul(d, v_max(gate, v_set1(-3e38f))));
            d = v_mul(d, v_mul(v_set1(factor), gate_sigmoid(raw)));
            v_store(part + 2 + c, v_add(v_load(part + 2 + c), d));
        }
        put_part(p, REC_G, gradient_at(w, REC_G, t->t), c, size, d);
    }
}

static float *part_of(const head_work *w) {
    return w->partial + (w->q.index * w->p->heads + w->h) * partial_size(w->p);
}

static void put_numbers(const head_work *w, const token *t, const gradient *g) {
    const rec_problem *p = w->p;
    if (p->by_step)
        put_step(w, t, g, part_of(w));
    else
        put_gates(w, t, g, part_of(w));
    put_number(w, REC_BETA, t->t, p->beta_logits ? g->beta * t->beta * (1 - t->beta) : g->beta);
}

#endif
