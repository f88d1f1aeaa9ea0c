/* SPDX-License-Identifier: Apache-2.0 */
/* state_space_v1 and its gradient as the formulas read, token by token, in double precision. */
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/state_space/state_space_v1/problem.cuh"
#include "tensor/access.h"

static double load(const scan_problem *p, const scan_rows *r, seq_range range, seq_size t,
                   seq_size group, seq_size i) {
    return ejki_load_f64((ejk_dtype)p->dtype, r->data,
                         scan_at(r, range.row, range.begin + t, group) + i);
}
static void store(const scan_problem *p, const scan_rows *r, seq_range range, seq_size t,
                  seq_size group, seq_size i, double value) {
    if (r->data)
        ejki_store_f64((ejk_dtype)p->dtype, r->data,
                       scan_at(r, range.row, range.begin + t, group) + i, value);
}
static double load_state(const scan_states *s, seq_size entry, seq_size e, seq_size k) {
    return ejki_load_f64((ejk_dtype)s->dtype, s->data, scan_state_at(s, entry, e) + k);
}
static void store_state(const scan_states *s, seq_size entry, seq_size e, seq_size k,
                        double value) {
    if (s->data)
        ejki_store_f64((ejk_dtype)s->dtype, s->data, scan_state_at(s, entry, e) + k, value);
}

/* A channel of a sequence, and room for its states. */
typedef struct line {
    const scan_problem *p;
    seq_range range;
    seq_size n, e, group, length;
    double *h; /* [length + 1][states] */
} line;

/* The step size of a token, and its slope over dt. */
static double delta_at(const line *l, seq_size t, double *slope) {
    const scan_problem *p = l->p;
    double u = load(p, &p->dt, l->range, t, 0, l->e);
    if (p->has_bias) u += load_state(&p->dt_bias, 0, l->e, 0);
    *slope = p->softplus ? 1 / (1 + exp(-u)) : 1;
    if (p->softplus) u = fmax(u, 0) + log1p(exp(-fabs(u)));
    if (u < p->least || u > p->most) *slope = 0;
    return u < p->least ? p->least : u > p->most ? p->most : u;
}

static double skip_of(const line *l) {
    return l->p->has_d ? load_state(&l->p->d, 0, l->e, 0) : 0;
}

/* The states after each token; returns the last. */
static const double *walk(const line *l) {
    const scan_problem *p = l->p;
    const seq_size slot = scan_slot(p, p->has_before, l->n);
    for (seq_size k = 0; k < p->states; k++)
        l->h[k] = slot < 0 ? 0 : load_state(&p->before, slot, l->e, k);
    for (seq_size t = 0; t < l->length; t++) {
        double slope;
        const double delta = delta_at(l, t, &slope), x = load(p, &p->x, l->range, t, 0, l->e);
        for (seq_size k = 0; k < p->states; k++)
            l->h[(t + 1) * p->states + k] =
                exp(load_state(&p->a, 0, l->e, k) * delta) * l->h[t * p->states + k] +
                delta * x * load(p, &p->b, l->range, t, l->group, k);
    }
    return l->h + l->length * p->states;
}

/* What a token reads, without its gate. */
static double read_at(const line *l, seq_size t) {
    const scan_problem *p = l->p;
    double y = skip_of(l) * load(p, &p->x, l->range, t, 0, l->e);
    for (seq_size k = 0; k < p->states; k++)
        y += l->h[(t + 1) * p->states + k] * load(p, &p->c, l->range, t, l->group, k);
    return y;
}

static void forward(const line *l) {
    const scan_problem *p = l->p;
    const double *last = walk(l);
    for (seq_size t = 0; t < l->length; t++) {
        const double y = read_at(l, t),
                     z = p->has_gate ? load(p, &p->gate, l->range, t, 0, l->e) : 0;
        store(p, &p->y, l->range, t, 0, l->e, p->has_gate ? y * z / (1 + exp(-z)) : y);
    }
    const seq_size slot = scan_slot(p, p->has_after, l->n);
    for (seq_size k = 0; slot >= 0 && k < p->states; k++)
        store_state(&p->after, slot, l->e, k, last[k]);
}

/* Sums over tokens or channels. */
typedef struct sums {
    double *d_a, *d_b, *d_c, *d_h; /* [states], of tokens and groups twice, [states] */
    double d_d, d_bias;
} sums;

static void backward_token(const line *l, seq_size t, sums *s) {
    const scan_problem *p = l->p;
    const double x = load(p, &p->x, l->range, t, 0, l->e);
    double dy = load(p, &p->y, l->range, t, 0, l->e), slope, d_x = 0, d_delta = 0;
    const double delta = delta_at(l, t, &slope);
    if (p->has_gate) {
        const double z = load(p, &p->gate, l->range, t, 0, l->e), g = 1 / (1 + exp(-z));
        store(p, &p->d_gate, l->range, t, 0, l->e, dy * read_at(l, t) * g * (1 + z * (1 - g)));
        dy *= z / (1 + exp(-z));
    }
    const seq_size token = l->range.row * p->sequences.tokens + l->range.begin + t;
    for (seq_size k = 0; k < p->states; k++) {
        const seq_size at = (token * p->groups + l->group) * p->states + k;
        const double a = load_state(&p->a, 0, l->e, k), decay = exp(a * delta);
        const double b = load(p, &p->b, l->range, t, l->group, k);
        s->d_h[k] += dy * load(p, &p->c, l->range, t, l->group, k);
        s->d_c[at] += dy * l->h[(t + 1) * p->states + k];
        s->d_b[at] += s->d_h[k] * delta * x;
        d_x += s->d_h[k] * delta * b;
        const double faded = s->d_h[k] * decay * l->h[t * p->states + k];
        d_delta += a * faded + s->d_h[k] * b * x;
        s->d_a[k] += delta * faded;
        s->d_h[k] *= decay;
    }
    s->d_d += dy * x;
    s->d_bias += d_delta * slope;
    store(p, &p->d_x, l->range, t, 0, l->e, d_x + dy * skip_of(l));
    store(p, &p->d_dt, l->range, t, 0, l->e, d_delta * slope);
}

static void backward(const line *l, sums *s) {
    const scan_problem *p = l->p;
    walk(l);
    for (seq_size k = 0; k < p->states; k++)
        s->d_h[k] = p->has_after ? load_state(&p->after, l->n, l->e, k) : 0;
    for (seq_size t = l->length - 1; t >= 0; t--) backward_token(l, t, s);
    for (seq_size k = 0; k < p->states; k++) store_state(&p->d_before, l->n, l->e, k, s->d_h[k]);
}

/* Tokens of no sequence. */
static void clear(const scan_problem *p, const scan_rows *rows, seq_size groups, seq_size width) {
    const sequences *s = &p->sequences;
    const seq_range range = {0, 0, s->tokens};
    for (seq_size t = s->packed ? seq_end(s, s->count) : s->tokens; t < s->tokens; t++)
        for (seq_size i = 0; i < groups * width; i++)
            store(p, rows, range, t, i / width, i % width, 0);
}

static void finish(const scan_problem *p, const sums *s) {
    for (seq_size i = 0; i < p->batch * p->sequences.tokens * p->groups * p->states; i++) {
        const seq_size k = i % p->states, g = i / p->states % p->groups;
        const seq_size t = i / p->states / p->groups;
        const seq_range range = {t / p->sequences.tokens, t % p->sequences.tokens, 0};
        store(p, &p->d_b, range, 0, g, k, s->d_b[i]);
        store(p, &p->d_c, range, 0, g, k, s->d_c[i]);
    }
}

static void channels(const scan_problem *p, double *h, sums *s) {
    for (seq_size e = 0; e < p->channels; e++) {
        s->d_d = s->d_bias = 0;
        for (seq_size k = 0; k < p->states; k++) s->d_a[k] = 0;
        for (seq_size n = 0; n < p->sequences.count; n++) {
            line l = {.p = p, .range = seq_of(&p->sequences, n), .n = n, .e = e, .h = h};
            l.length = l.range.end - l.range.begin;
            l.group = e / (p->channels / p->groups);
            if (p->gradient)
                backward(&l, s);
            else
                forward(&l);
        }
        for (seq_size k = 0; k < p->states; k++) store_state(&p->d_a, 0, e, k, s->d_a[k]);
        store_state(&p->d_d, 0, e, 0, s->d_d);
        store_state(&p->d_dt_bias, 0, e, 0, s->d_bias);
    }
}

static ejk_status run(const ejk_run *run) {
    const scan_problem *p = run->problem;
    const size_t states = (size_t)p->states, tokens = (size_t)p->sequences.tokens;
    const size_t both = p->gradient ? (size_t)(p->batch * p->groups) * tokens * states : 0;
    double *memory = calloc((tokens + 3) * states + 2 * both + 1, sizeof *memory);
    if (!memory) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for states");
    sums s = {.d_a = memory, .d_h = memory + states};
    s.d_b = memory + (tokens + 3) * states;
    s.d_c = s.d_b + both;
    channels(p, memory + 2 * states, &s);
    if (p->gradient) {
        finish(p, &s);
        clear(p, &p->d_x, 1, p->channels);
        clear(p, &p->d_dt, 1, p->channels);
        clear(p, &p->d_gate, 1, p->channels);
    } else {
        clear(p, &p->y, 1, p->channels);
    }
    free(memory);
    return EJK_OK;
}

EJKI_DECLARE(state_space_v1_reference, .version = 1, .run = run)
EJKI_DECLARE(state_space_v1_vjp_reference, .version = 1, .run = run)
