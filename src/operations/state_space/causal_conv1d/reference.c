/* SPDX-License-Identifier: Apache-2.0 */
/* causal_conv1d and its gradient as the formulas read, an element at a time, in double precision. */
#include <math.h>

#include "kernels/declare.h"
#include "operations/state_space/causal_conv1d/problem.cuh"
#include "tensor/access.h"

static double load(const conv_problem *p, const void *data, seq_size at) {
    return ejki_load_f64((ejk_dtype)p->dtype, data, at);
}
static void store(const conv_problem *p, void *data, seq_size at, double value) {
    ejki_store_f64((ejk_dtype)p->dtype, data, at, value);
}

/* A channel of a sequence. */
typedef struct line {
    const conv_problem *p;
    seq_range range;
    seq_size n, c, length; /* of the sequence */
} line;

/* Entry j of the extended sequence. */
static double entry(const line *l, seq_size j) {
    const conv_problem *p = l->p;
    if (j >= p->width - 1)
        return load(p, p->x.data,
                    conv_at(&p->x, l->range.row, l->range.begin + j - p->width + 1) + l->c);
    const seq_size slot = conv_slot(p, p->has_before, l->n);
    return slot < 0 ? 0 : load(p, p->before.data, conv_state_at(&p->before, slot, l->c) + j);
}

static double tap(const line *l, seq_size i) {
    return load(l->p, l->p->weight.data, conv_state_at(&l->p->weight, 0, l->c) + i);
}

static double sum_at(const line *l, seq_size t) {
    double sum = l->p->has_bias ? load(l->p, l->p->bias, l->c) : 0;
    for (seq_size i = 0; i < l->p->width; i++) sum += tap(l, i) * entry(l, t + i);
    return sum;
}

/* The cotangent of the sum before the activation. */
static double slope_at(const line *l, seq_size t) {
    const conv_problem *p = l->p;
    const double d = load(p, p->y.data, conv_at(&p->y, l->range.row, l->range.begin + t) + l->c);
    if (!p->silu) return d;
    const double z = sum_at(l, t), s = 1 / (1 + exp(-z));
    return d * s * (1 + z * (1 - s));
}

static void forward(const line *l) {
    const conv_problem *p = l->p;
    for (seq_size t = 0; t < l->length; t++) {
        const double z = sum_at(l, t);
        store(p, p->y.data, conv_at(&p->y, l->range.row, l->range.begin + t) + l->c,
              p->silu ? z / (1 + exp(-z)) : z);
    }
    const seq_size slot = conv_slot(p, p->has_after, l->n);
    if (slot < 0) return;
    /* Ascending, so that a state that is updated in place is read before it is written. */
    for (seq_size k = 0; k < p->width - 1; k++)
        store(p, p->after.data, conv_state_at(&p->after, slot, l->c) + k, entry(l, l->length + k));
}

/* The gradient of entry j. */
static double gradient_at(const line *l, seq_size j) {
    const conv_problem *p = l->p;
    double sum = 0;
    for (seq_size i = 0; i < p->width; i++)
        if (j - i >= 0 && j - i < l->length) sum += tap(l, i) * slope_at(l, j - i);
    if (p->has_after && j >= l->length)
        sum += load(p, p->after.data, conv_state_at(&p->after, l->n, l->c) + j - l->length);
    return sum;
}

static void backward(const line *l, double *d_weight, double *d_bias) {
    const conv_problem *p = l->p;
    for (seq_size t = 0; t < l->length; t++) {
        const double slope = slope_at(l, t);
        *d_bias += slope;
        for (seq_size i = 0; i < p->width; i++) d_weight[i] += slope * entry(l, t + i);
        if (p->d_x.data)
            store(p, p->d_x.data, conv_at(&p->d_x, l->range.row, l->range.begin + t) + l->c,
                  gradient_at(l, t + p->width - 1));
    }
    for (seq_size j = 0; p->d_before.data && j < p->width - 1; j++)
        store(p, p->d_before.data, conv_state_at(&p->d_before, l->n, l->c) + j, gradient_at(l, j));
}

/* Tokens of no sequence. */
static void clear(const conv_problem *p, const conv_rows *rows, seq_size c) {
    const sequences *s = &p->sequences;
    for (seq_size t = s->packed ? seq_end(s, s->count) : s->tokens; t < s->tokens && rows->data;
         t++)
        store(p, rows->data, conv_at(rows, 0, t) + c, 0);
}

static ejk_status run(const ejk_run *run) {
    const conv_problem *p = run->problem;
    for (seq_size c = 0; c < p->channels; c++) {
        double d_weight[CONV_MOST_TAPS] = {0}, d_bias = 0;
        for (seq_size n = 0; n < p->sequences.count; n++) {
            line l = {.p = p, .range = seq_of(&p->sequences, n), .n = n, .c = c};
            l.length = l.range.end - l.range.begin;
            if (p->gradient)
                backward(&l, d_weight, &d_bias);
            else
                forward(&l);
        }
        clear(p, p->gradient ? &p->d_x : &p->y, c);
        for (seq_size i = 0; i < p->width && p->d_weight.data; i++)
            store(p, p->d_weight.data, conv_state_at(&p->d_weight, 0, c) + i, d_weight[i]);
        if (p->d_bias) store(p, p->d_bias, c, d_bias);
    }
    return EJK_OK;
}

EJKI_DECLARE(causal_conv1d_reference, .version = 1, .run = run)
EJKI_DECLARE(causal_conv1d_vjp_reference, .version = 1, .run = run)
