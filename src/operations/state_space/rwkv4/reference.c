/* SPDX-License-Identifier: Apache-2.0 */
/* rwkv4 and its gradient as the formulas read, token by token, in double precision. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/state_space/rwkv4/problem.cuh"
#include "tensor/access.h"

/* A channel of a sequence, and room for its states. */
typedef struct line {
    const wkv_problem *p;
    seq_range range;
    seq_size n, c, length;
    double rate, bonus;              /* e^w, u */
    double (*states)[STATE_NUMBERS]; /* [length + 1] */
} line;

static double load(const line *l, const wkv_rows *r, seq_size t) {
    return ejki_load_f64((ejk_dtype)l->p->dtype, r->data, wkv_at(l->p, r, l->range, t) + l->c);
}
static void store(const line *l, const wkv_rows *r, seq_size t, double value) {
    if (r->data)
        ejki_store_f64((ejk_dtype)l->p->dtype, r->data, wkv_at(l->p, r, l->range, t) + l->c, value);
}
static double load_list(const wkv_states *s, seq_size entry, int number, seq_size c) {
    return ejki_load_f64((ejk_dtype)s->dtype, s->data, wkv_state_at(s, entry, number) + c);
}
static void store_list(const wkv_states *s, seq_size entry, int number, seq_size c, double value) {
    if (s->data)
        ejki_store_f64((ejk_dtype)s->dtype, s->data, wkv_state_at(s, entry, number) + c, value);
}

/* Weights of what was before and of the token itself, one of them 1. */
typedef struct weights {
    double before, own;
} weights;
static weights weigh(double before, double own) {
    return before > own ? (weights){1, exp(own - before)} : (weights){exp(before - own), 1};
}
/* What a weight does not hide. */
static double seen(double weight, double value) {
    return weight > 0 ? value : 0;
}

typedef struct token {
    double v, out, sum; /* sum: of the weights */
    weights read, kept;
} token;

static token token_at(const line *l, seq_size t) {
    const double *s = l->states[t], k = load(l, &l->p->k, t);
    token a = {.v = load(l, &l->p->v, t),
               .read = weigh(s[SHIFT], l->bonus + k),
               .kept = weigh(fmax(s[SHIFT] - l->rate, LEAST_SHIFT), k)};
    a.sum = a.read.before * s[SUM_WEIGHTS] + a.read.own;
    a.out = a.read.before * s[SUM_VALUES] + a.read.own * seen(a.read.own, a.v);
    a.out = a.sum == 0 ? 0 : a.out / a.sum;
    return a;
}

static void walk(const line *l) {
    const wkv_problem *p = l->p;
    const seq_size slot = wkv_slot(p, p->has_before, l->n);
    for (int i = 0; i < STATE_NUMBERS; i++)
        l->states[0][i] = slot >= 0    ? load_list(&p->before, slot, i, l->c)
                          : i == SHIFT ? FIRST_SHIFT
                                       : 0;
    l->states[0][SHIFT] = fmax(l->states[0][SHIFT], LEAST_SHIFT);
    for (seq_size t = 0; t < l->length; t++) {
        const double *s = l->states[t];
        const token a = token_at(l, t);
        double *next = l->states[t + 1];
        next[SUM_VALUES] = a.kept.before * s[SUM_VALUES] + a.kept.own * seen(a.kept.own, a.v);
        next[SUM_WEIGHTS] = a.kept.before * s[SUM_WEIGHTS] + a.kept.own;
        next[SHIFT] = fmax(fmax(s[SHIFT] - l->rate, LEAST_SHIFT), load(l, &p->k, t));
    }
}

static void forward(const line *l) {
    const wkv_problem *p = l->p;
    walk(l);
    for (seq_size t = 0; t < l->length; t++) store(l, &p->y, t, token_at(l, t).out);
    const seq_size slot = wkv_slot(p, p->has_after, l->n);
    for (int i = 0; slot >= 0 && i < STATE_NUMBERS; i++)
        store_list(&p->after, slot, i, l->c, l->states[l->length][i]);
}

/*
 * What later tokens read of a state does not change if ε grows and the sums shrink as much: only final_state's own ε
 * does. So cotangents of the sums alone go back in time, and beside them what final_state adds to that of ε, until the
 * token whose key was the maximum takes it.
 */
static void backward(const line *l, double *d_w, double *d_u) {
    const wkv_problem *p = l->p;
    const seq_size slot = wkv_slot(p, p->has_after, l->n);
    const double *last = l->states[l->length], *first = l->states[0];
    double d[STATE_NUMBERS] = {0};
    walk(l);
    for (int i = 0; slot >= 0 && i < STATE_NUMBERS; i++) d[i] = load_list(&p->after, slot, i, l->c);
    d[SHIFT] -= last[SUM_VALUES] * d[SUM_VALUES] + last[SUM_WEIGHTS] * d[SUM_WEIGHTS];
    for (seq_size t = l->length - 1; t >= 0; t--) {
        const double *s = l->states[t];
        const token a = token_at(l, t);
        const double d_above = a.sum == 0 ? 0 : load(l, &p->y, t) / a.sum, d_sum = -d_above * a.out;
        const double own = a.read.own * (seen(a.read.own, a.v) * d_above + d_sum);
        const double kept = a.kept.own * (seen(a.kept.own, a.v) * d[SUM_VALUES] + d[SUM_WEIGHTS]);
        const double faded =
            a.kept.before * (s[SUM_VALUES] * d[SUM_VALUES] + s[SUM_WEIGHTS] * d[SUM_WEIGHTS]);
        const bool is_key = a.kept.own == 1;
        store(l, &p->d_k, t, own + kept + (is_key ? d[SHIFT] : 0));
        store(l, &p->d_v, t, a.read.own * d_above + a.kept.own * d[SUM_VALUES]);
        if (is_key) d[SHIFT] = 0;
        *d_u += own;
        if (faded + d[SHIFT] != 0) *d_w -= l->rate * (faded + d[SHIFT]);
        d[SUM_VALUES] = a.read.before * d_above + a.kept.before * d[SUM_VALUES];
        d[SUM_WEIGHTS] = a.read.before * d_sum + a.kept.before * d[SUM_WEIGHTS];
    }
    d[SHIFT] += first[SUM_VALUES] * d[SUM_VALUES] + first[SUM_WEIGHTS] * d[SUM_WEIGHTS];
    for (int i = 0; i < STATE_NUMBERS; i++) store_list(&p->d_before, l->n, i, l->c, d[i]);
}

static void channel(const wkv_problem *p, seq_size c, double (*states)[STATE_NUMBERS]) {
    double d_w = 0, d_u = 0;
    for (seq_size n = 0; n < p->sequences.count; n++) {
        line l = {.p = p, .range = seq_of(&p->sequences, n), .n = n, .c = c, .states = states};
        l.length = l.range.end - l.range.begin;
        l.rate = exp(load_list(&p->w, 0, 0, c));
        l.bonus = load_list(&p->u, 0, 0, c);
        if (p->gradient)
            backward(&l, &d_w, &d_u);
        else
            forward(&l);
    }
    store_list(&p->d_w, 0, 0, c, d_w);
    store_list(&p->d_u, 0, 0, c, d_u);
}

/* Tokens of no sequence. */
static void clear(const wkv_problem *p, const wkv_rows *rows) {
    const sequences *s = &p->sequences;
    for (seq_size t = s->packed ? seq_end(s, s->count) : s->tokens; rows->data && t < s->tokens;
         t++)
        for (seq_size c = 0; c < p->channels; c++)
            ejki_store_f64((ejk_dtype)p->dtype, rows->data, t * rows->step + c, 0);
}

static ejk_status run(const ejk_run *run) {
    const wkv_problem *p = run->problem;
    double(*states)[STATE_NUMBERS] = calloc((size_t)p->sequences.tokens + 1, sizeof *states);
    if (!states) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for states");
    for (seq_size c = 0; c < p->channels; c++) channel(p, c, states);
    if (p->gradient) {
        clear(p, &p->d_k);
        clear(p, &p->d_v);
    } else {
        clear(p, &p->y);
    }
    free(states);
    return EJK_OK;
}

EJKI_DECLARE(rwkv4_reference, .version = 1, .run = run)
EJKI_DECLARE(rwkv4_vjp_reference, .version = 1, .run = run)
