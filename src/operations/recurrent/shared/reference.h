/* SPDX-License-Identifier: Apache-2.0 */
/* What a token of a head brings to the recurrence, in double precision, element by element: for the references. */
#ifndef EJKI_RECURRENT_REFERENCE_H
#define EJKI_RECURRENT_REFERENCE_H

#include <math.h>

#include "operations/recurrent/shared/problem.cuh"
#include "tensor/access.h"

/* Vectors of a token and a head; q and k are normalised if they are to be. */
typedef struct rec_step {
    double *q, *k, *v, *a, *b;
    double *key_decay, *value_decay; /* factors; those of the head are in key_decay */
    double beta, q_factor, k_factor; /* what q and k were multiplied by */
    double d_beta;                   /* d beta / d its tensor, or what it is a step size of */
} rec_step;

/* How many numbers the vectors of a step are. */
static inline rec_size rec_step_size(const rec_problem *p) {
    return 5 * p->key_size + 2 * p->value_size;
}
static inline rec_step rec_step_in(const rec_problem *p, double *memory) {
    const rec_size k = p->key_size;
    return (rec_step){.q = memory,
                      .k = memory + k,
                      .a = memory + 2 * k,
                      .b = memory + 3 * k,
                      .key_decay = memory + 4 * k,
                      .v = memory + 5 * k,
                      .value_decay = memory + 5 * k + p->value_size};
}

static inline double rec_load(const rec_view *v, rec_size index) {
    return ejki_load_f64((ejk_dtype)v->dtype, v->data, index);
}
static inline void rec_add(const rec_view *v, rec_size index, double value) {
    ejki_store_f64((ejk_dtype)v->dtype, v->data, index, value);
}

static inline void rec_row(const rec_view *v, rec_size at, rec_size size, double *out) {
    for (rec_size i = 0; i < size; i++) out[i] = rec_load(v, at + i);
}

static inline double rec_softplus(double x) {
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}
static inline double rec_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* Element i of the tensor of gates, made a log decay of what is raw; *raw is the sum in softplus. */
static inline double rec_gate(const rec_problem *p, rec_size b, rec_size t, rec_size h, rec_size i,
                              double *raw) {
    const rec_view *g = &p->view[REC_G], *bias = &p->view[REC_DT_BIAS], *rate = &p->view[REC_A_LOG];
    if (!g->present) return 0;
    double x = rec_load(g, rec_at(g, b, t, h) + i * g->stride[3]);
    if (!rate->present) return x;
    if (bias->present) x += rec_load(bias, h * bias->stride[2] + i * bias->stride[3]);
    *raw = x;
    return -exp(rec_load(rate, h * rate->stride[2])) * rec_softplus(x);
}

/* Log decay of a head but for its tensor of gates. */
static inline double rec_constant_gate(const rec_problem *p, const rec_sequence *s, rec_size h) {
    const rec_view *gamma = &p->view[REC_GAMMA];
    const double own = p->slope == 0 ? 0 : p->slope * (double)h;
    return own + (gamma->present
                      ? rec_load(gamma, s->index * gamma->stride[0] + h * gamma->stride[2])
                      : 0);
}

/* A step size, and its slope over what it is made of. */
static inline double rec_step_size_of(const rec_problem *p, rec_size b, rec_size t, rec_size h,
                                      double *slope) {
    const rec_view *g = &p->view[REC_G], *bias = &p->view[REC_DT_BIAS];
    double x = rec_load(g, rec_at(g, b, t, h));
    if (bias->present) x += rec_load(bias, h * bias->stride[2]);
    *slope = p->softplus ? rec_sigmoid(x) : 1;
    if (p->softplus) x = rec_softplus(x);
    if (x < p->least || x > p->most) *slope = 0;
    return x < p->least ? p->least : x > p->most ? p->most : x;
}

/* Of a head: log decay for a step of size 1; what of a value passes by the state. */
static inline double rec_rate(const rec_problem *p, rec_size h) {
    return rec_load(&p->view[REC_A_LOG], h * p->view[REC_A_LOG].stride[2]);
}
static inline double rec_skip(const rec_problem *p, rec_size h) {
    const rec_view *skip = &p->view[REC_SKIP];
    return skip->present ? rec_load(skip, h * skip->stride[2]) : 0;
}

static inline void rec_decays(const rec_problem *p, const rec_sequence *s, rec_size t, rec_size h,
                              rec_step *step) {
    const rec_view *gk = &p->view[REC_GK], *gv = &p->view[REC_GV];
    double raw, head = rec_constant_gate(p, s, h);
    if (p->by_step)
        head += step->beta * rec_rate(p, h);
    else if (!p->g_is_wide)
        head += rec_gate(p, s->batch, t, h, 0, &raw);
    for (rec_size i = 0; i < p->key_size; i++) {
        double own = head;
        if (p->g_is_wide) own += rec_gate(p, s->batch, t, h, i, &raw);
        if (gk->present) own += rec_load(gk, rec_at(gk, s->batch, t, h) + i);
        step->key_decay[i] = exp(own);
    }
    for (rec_size j = 0; j < p->value_size; j++)
        step->value_decay[j] = gv->present ? exp(rec_load(gv, rec_at(gv, s->batch, t, h) + j)) : 1;
}

static inline double rec_normalise(const rec_problem *p, double *x) {
    double sum = REC_EPSILON;
    if (!p->normalise) return 1;
    for (rec_size i = 0; i < p->key_size; i++) sum += x[i] * x[i];
    for (rec_size i = 0; i < p->key_size; i++) x[i] /= sqrt(sum);
    return 1 / sqrt(sum);
}

static inline void rec_read_step(const rec_problem *p, const rec_sequence *s, rec_size t,
                                 rec_size h, rec_step *step) {
    const rec_view *view = p->view, *beta = &view[REC_BETA];
    const rec_size b = s->batch;
    rec_row(&view[REC_QUERY], rec_at(&view[REC_QUERY], b, t, rec_head(p, h, p->query_heads)),
            p->key_size, step->q);
    rec_row(&view[REC_KEY], rec_at(&view[REC_KEY], b, t, rec_head(p, h, p->key_heads)), p->key_size,
            step->k);
    rec_row(&view[REC_VALUE], rec_at(&view[REC_VALUE], b, t, rec_head(p, h, p->value_heads)),
            p->value_size, step->v);
    step->q_factor = rec_normalise(p, step->q);
    step->k_factor = rec_normalise(p, step->k);
    step->beta = beta->present ? rec_load(beta, rec_at(beta, b, t, h)) : 1;
    step->d_beta = 1;
    if (p->by_step) step->beta = rec_step_size_of(p, b, t, h, &step->d_beta);
    if (p->beta_logits) {
        step->beta = rec_sigmoid(step->beta);
        step->d_beta = step->beta * (1 - step->beta);
    }
    if (p->update == REC_RANK_ONE) {
        rec_row(&view[REC_A], rec_at(&view[REC_A], b, t, h), p->key_size, step->a);
        rec_row(&view[REC_B], rec_at(&view[REC_B], b, t, h), p->key_size, step->b);
        for (rec_size i = 0; i < p->key_size && p->multiply; i++) {
            step->a[i] *= step->b[i];
            step->b[i] = -step->b[i];
        }
    }
    rec_decays(p, s, t, h, step);
}

/* Sum of scale q u k, what a bonus makes of a value. */
static inline double rec_bonus(const rec_problem *p, rec_size h, const rec_step *step) {
    const rec_view *u = &p->view[REC_BONUS];
    double sum = 0;
    for (rec_size i = 0; i < p->key_size && u->present; i++)
        sum += step->q[i] * rec_load(u, h * u->stride[2] + i) * step->k[i];
    return sum * p->scale;
}

/* The state after a token, [Dk][Dv]; column j of it sees only column j of the one before. */
static inline void rec_advance(const rec_problem *p, const rec_step *step, double *state) {
    for (rec_size j = 0; j < p->value_size; j++) {
        double *s = state + j, seen = 0, read = 0;
        for (rec_size i = 0; i < p->key_size; i++) {
            double *at = s + i * p->value_size;
            if (p->update == REC_RANK_ONE) read += step->b[i] * *at;
            *at *= step->key_decay[i] * step->value_decay[j];
            seen += step->k[i] * *at;
        }
        const double v = p->update == REC_DELTA ? step->beta * (step->v[j] - seen)
                         : p->update == REC_ADD ? step->beta * step->v[j]
                                                : step->v[j];
        for (rec_size i = 0; i < p->key_size; i++) {
            s[i * p->value_size] += step->k[i] * v;
            if (p->update == REC_RANK_ONE) s[i * p->value_size] += step->a[i] * read;
        }
    }
}

#endif
