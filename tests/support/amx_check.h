/* SPDX-License-Identifier: Apache-2.0 */
/* What flash attention in bf16 should give in the cases of amx_case.h, and whether a kernel that multiplies bf16 as it
 * is does. */
#ifndef TESTS_AMX_CHECK_H
#define TESTS_AMX_CHECK_H

#include "kernels/flash_attention/dropout.h"
#include "support/amx_case.h"
#include "support/test_threads.h"

/* ---- The expected result ------------------------------------------------------------------------------ */

typedef struct expected {
    double *out, lse, max, sum, magnitude;
} expected;

static double score(const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i, int64_t j,
                    bool naive, double *magnitude) {
    const int64_t q = b * p->query.stride_b + i * p->query.stride_t + h * p->query.stride_h;
    const int64_t k = b * p->key.stride_b + j * p->key.stride_t + h / p->group * p->key.stride_h;
    double sum = 0, size = 0;
    for (int64_t d = 0; d < p->head_dim; d++) {
        const double product = element(p->query.data, q + d) * element(p->key.data, k + d);
        sum = naive ? (double)(float)(sum + product) : sum + product;
        size += fabs(product * p->scale);
    }
    double z = sum * p->scale;
    if (p->soft_cap > 0) z = p->soft_cap * tanh(z / p->soft_cap);
    if (p->has_bias) {
        const double bias = element(p->bias.data, b * p->bias.stride_b + h * p->bias.stride_h +
                                                      i * p->bias.stride_t + j);
        if (isfinite(bias)) size += fabs(bias);
        z += bias;
    }
    if (size > *magnitude) *magnitude = size;
    return naive ? (double)(float)z : z;
}

/* One row; naive: scores in f32, weights rounded to bf16 before they meet values. */
static void evaluate(const world *w, const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i,
                     bool naive, double *scores, expected *e) {
    e->max = -INFINITY;
    e->sum = e->magnitude = 0;
    bool nan = false;
    for (int64_t d = 0; d < p->value_dim; d++) e->out[d] = 0;
    for (int64_t j = 0; j < p->keys; j++) {
        if (!visible(w, p, b, h, i, j)) continue;
        scores[j] = score(p, b, h, i, j, naive, &e->magnitude);
        nan |= isnan(scores[j]);
        e->max = fmax(e->max, scores[j]);
    }
    if (nan) e->max = NAN;
    double top = e->max;
    for (int64_t n = 0; n < p->sink_count; n++)
        top = fmax(top, element(p->sinks, h * p->sink_stride_h + n));
    double all = 0;
    for (int64_t n = 0; n < p->sink_count; n++)
        all += exp(element(p->sinks, h * p->sink_stride_h + n) - top);
    for (int64_t j = 0; j < p->keys; j++) {
        if (!visible(w, p, b, h, i, j) || scores[j] == -INFINITY) continue;
        const double weight = exp(scores[j] - e->max);
        e->sum += weight;
        if (p->dropout > 0 && !ejki_dropout_keeps(p, b, h, i, j)) continue;
        const double used =
            naive ? (double)ejk_bf16_to_f32(ejk_f32_to_bf16((float)weight)) : weight;
        const int64_t v =
            b * p->value.stride_b + j * p->value.stride_t + h / p->group * p->value.stride_h;
        for (int64_t d = 0; d < p->value_dim; d++)
            e->out[d] += used * element(p->value.data, v + d);
    }
    const double share = e->sum == 0 ? 0 : exp(e->max - top);
    all += share * e->sum;
    e->lse = all == 0 ? -INFINITY : top + log(all);
    for (int64_t d = 0; d < p->value_dim; d++) {
        if (e->sum == 0) e->out[d] = 0;
        if (p->normalize && e->sum != 0) e->out[d] *= share / all;
        e->out[d] /= 1 - p->dropout;
        /* A dropped key's NaN is in the sum, or in the maximum that weights are relative to. */
        if (isnan(e->sum)) e->out[d] = NAN;
        if (naive && p->normalize)
            e->out[d] = (double)ejk_bf16_to_f32(ejk_f32_to_bf16((float)e->out[d]));
    }
}

/* ---- Checks ------------------------------------------------------------------------------------------- */

static void say(const world *w, const char *what, double got, double want) {
    print_message("%s: got %g, expected %g [%s]\n", what, got, want, w->text);
}

static bool same_kind(double got, double want) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got)) return want == got;
    return true;
}

typedef struct tally {
    double error, naive, size, worst, naive_worst, largest;
    double magnitude; /* of all rows */
} tally;

/* False where what is not finite differs. */
static bool count(tally *t, double got, double want, double naive) {
    if (!same_kind(got, want)) return false;
    if (!isfinite(want) || !isfinite(naive)) return true;
    const double e = fabs(got - want), n = fabs(naive - want);
    t->error += e * e;
    t->naive += n * n;
    t->size += want * want;
    t->worst = fmax(t->worst, e);
    t->naive_worst = fmax(t->naive_worst, n);
    t->largest = fmax(t->largest, fabs(want));
    return true;
}

static bool close_enough(const tally *t, double eps) {
    return sqrt(t->error) <= 2 * sqrt(t->naive) + 4 * eps * sqrt(t->size) &&
           t->worst <= 2 * t->naive_worst + 4 * eps * t->largest;
}

/*
 * What may be wrong with a row's statistics beyond twice the naive error, in relation to its scores. Sums of D products
 * round as often: by chance that adds up as its root, and may cancel in the naive ones.
 */
static double room_of(const ejki_flash_problem *p, double magnitude) {
    return fmax(4, sqrt((double)p->head_dim)) * 0x1p-23 * (1 + magnitude);
}

static bool compare_part(const world *w, const ejki_flash_problem *p, tally *all) {
    double *scores = malloc((size_t)p->keys * 8 + 8);
    expected exact = {.out = malloc((size_t)p->value_dim * 8 + 8)};
    expected naive = {.out = malloc((size_t)p->value_dim * 8 + 8)};
    bool right = true;
    for (int64_t n = 0; right && n < p->batch * p->query_heads * p->queries; n++) {
        const int64_t i = n % p->queries, h = n / p->queries % p->query_heads;
        const int64_t b = n / p->queries / p->query_heads;
        evaluate(w, p, b, h, i, false, scores, &exact);
        evaluate(w, p, b, h, i, true, scores, &naive);
        const int64_t at = b * p->out.stride_b + i * p->out.stride_t + h * p->out.stride_h;
        for (int64_t d = 0; right && d < p->value_dim; d++) {
            const double got =
                p->normalize ? element(p->out.data, at + d) : (double)real(p->out.data, at + d);
            right = count(all, got, exact.out[d], naive.out[d]);
            if (!right) say(w, "out is not finite in another way", got, exact.out[d]);
        }
        all->magnitude = fmax(all->magnitude, exact.magnitude);
        const double least = room_of(p, exact.magnitude);
        const struct {
            const ejki_bht *view;
            double want, naive, room;
        } scalars[] = {
            {&p->lse, exact.lse, naive.lse, least},
            {&p->row_max, exact.max, naive.max, least},
            {&p->row_sum, exact.sum, naive.sum, 2 * least * exact.sum},
        };
        for (size_t k = 0; right && k < 3; k++) {
            if (!scalars[k].view->data) continue;
            const ejki_bht *view = scalars[k].view;
            const double want = scalars[k].want;
            const double got =
                (double)view->data[b * view->stride_b + h * view->stride_h + i * view->stride_t];
            /* A row_max beside NaN may be either. */
            if (k == 1 && isnan(want)) continue;
            right = same_kind(got, want) &&
                    (!isfinite(want) ||
                     fabs(got - want) <= 2 * fabs(scalars[k].naive - want) + scalars[k].room);
            if (!right) say(w, k == 0 ? "lse" : k == 1 ? "row_max" : "row_sum", got, want);
        }
    }
    free(scores);
    free(exact.out);
    free(naive.out);
    return right;
}

static bool compare(const world *w) {
    tally all = {0};
    for (int64_t n = 0; n < parts(w); n++) {
        const ejki_flash_problem own = part_of(w, n);
        if (!compare_part(w, &own, &all)) return false;
    }
    /* Without normalisation results are relative to row_max, which f32 holds only so well. */
    if (close_enough(&all, w->p.normalize ? 0x1p-8 : 0x1p-23 * (1 + all.magnitude))) return true;
    say(w, "error and naive error", sqrt(all.error / all.size), sqrt(all.naive / all.size));
    say(w, "largest error", all.worst / all.largest, all.naive_worst / all.largest);
    return false;
}

/* ---- Runs ---------------------------------------------------------------------------------------------- */

static const ejk_implementation *subject;

static ejk_threads *pool[4];

static bool run(const world *w, const ejki_flash_problem *p, int workers) {
    char why[256];
    const int64_t parameters[2] = {w->parameters[0],
                                   ejki_min(w->parameters[1], subject->parameters[1].maximum)};
    if (flash_run(subject, p, parameters, pool[workers], why, sizeof why)) return true;
    print_message("%s: %s [%s]\n", subject->name, why, w->text);
    return false;
}

static void clear(world *w) {
    guarded_fill(&w->out);
    if (w->p.lse.data) guarded_fill(&w->lse);
    if (!w->p.normalize) {
        guarded_fill(&w->row_max);
        guarded_fill(&w->row_sum);
    }
}

static unsigned char *keep(const struct guarded *memory) {
    unsigned char *copy = malloc(memory->size + 1);
    memcpy(copy, memory->data, memory->size);
    return copy;
}

#endif
