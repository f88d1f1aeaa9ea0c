/* SPDX-License-Identifier: Apache-2.0 */
/* What flash attention in bf16 should give in the cases of amx_case.h, and whether a kernel that multiplies bf16 as it
 * is does. */
#ifndef TESTS_AMX_CHECK_H
#define TESTS_AMX_CHECK_H

#include "operations/attention/shared/dropout.h"
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

/* Relative weights below this may be 0 in a kernel. */
#define LEAST_WEIGHT 0x1p-120

/* One row; naive: scores in f32, weights rounded to bf16 before they meet values, and what is not finite left out
 * where its weight may be 0. */
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
        for (int64_t d = 0; d < p->value_dim; d++) {
            const double value = element(p->value.data, v + d);
            if (naive && weight < LEAST_WEIGHT && !isfinite(value)) continue;
            e->out[d] += used * value;
        }
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
} tally;

/* False where what is not finite differs from both evaluations. */
static bool count(tally *t, double got, double want, double naive) {
    if (!same_kind(got, want) && !(isfinite(naive) && isfinite(got))) return false;
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

/* All rows of a call: out, lse, row_max, row_sum. */
typedef struct comparison {
    tally of[4];
    double magnitude;
} comparison;

/* A row's log-sum-exp, maximum or sum: the error counts in units of what scores are made of. */
typedef struct statistic {
    const char *name;
    const ejki_bht *view;
    double want, naive, unit;
    tally *all;
} statistic;

static bool count_statistic(const world *w, const statistic *s, int64_t b, int64_t h, int64_t i) {
    const ejki_bht *view = s->view;
    if (!view->data) return true;
    const double got =
        (double)view->data[b * view->stride_b + h * view->stride_h + i * view->stride_t];
    if (!same_kind(got, s->want)) {
        say(w, s->name, got, s->want);
        return false;
    }
    if (!isfinite(s->want) || !isfinite(s->naive) || s->unit == 0) return true;
    return count(s->all, 1 + (got - s->want) / s->unit, 1, 1 + (s->naive - s->want) / s->unit);
}

static bool compare_row(const world *w, const ejki_flash_problem *p, int64_t n, expected *exact,
                        expected *naive, double *scores, comparison *all) {
    const int64_t i = n % p->queries, h = n / p->queries % p->query_heads;
    const int64_t b = n / p->queries / p->query_heads;
    const int64_t at = b * p->out.stride_b + i * p->out.stride_t + h * p->out.stride_h;
    evaluate(w, p, b, h, i, false, scores, exact);
    evaluate(w, p, b, h, i, true, scores, naive);
    for (int64_t d = 0; d < p->value_dim; d++) {
        const double got =
            p->normalize ? element(p->out.data, at + d) : (double)real(p->out.data, at + d);
        if (count(&all->of[0], got, exact->out[d], naive->out[d])) continue;
        say(w, "out is not finite in another way", got, exact->out[d]);
        return false;
    }
    all->magnitude = fmax(all->magnitude, exact->magnitude);
    const double unit = 1 + exact->magnitude;
    const statistic of[] = {
        {"lse", &p->lse, exact->lse, naive->lse, unit, &all->of[1]},
        {"row_max", &p->row_max, exact->max, naive->max, unit, &all->of[2]},
        {"row_sum", &p->row_sum, exact->sum, naive->sum, 2 * unit * exact->sum, &all->of[3]},
    };
    for (int k = 0; k < 3; k++) /* A row_max beside NaN may be either. */
        if (!(k == 1 && isnan(of[k].want)) && !count_statistic(w, &of[k], b, h, i)) return false;
    return true;
}

static bool compare_part(const world *w, const ejki_flash_problem *p, comparison *all) {
    double *scores = malloc((size_t)p->keys * 8 + 8);
    expected exact = {.out = malloc((size_t)p->value_dim * 8 + 8)};
    expected naive = {.out = malloc((size_t)p->value_dim * 8 + 8)};
    bool right = true;
    for (int64_t n = 0; right && n < p->batch * p->query_heads * p->queries; n++)
        right = compare_row(w, p, n, &exact, &naive, scores, all);
    free(scores);
    free(exact.out);
    free(naive.out);
    return right;
}

static bool compare(const world *w) {
    static const char *const names[4] = {"out", "lse", "row_max", "row_sum"};
    comparison all = {.magnitude = 0};
    for (int64_t n = 0; n < parts(w); n++) {
        const ejki_flash_problem own = part_of(w, n);
        if (!compare_part(w, &own, &all)) return false;
    }
    for (int k = 0; k < 4; k++) {
        /* Without normalisation results are relative to row_max, which f32 holds only so well. */
        const double of_out = w->p.normalize ? 0x1p-8 : 0x1p-23 * (1 + all.magnitude);
        const tally *t = &all.of[k];
        if (close_enough(t, k == 0 ? of_out : 0x1p-23)) continue;
        print_message("%s: error %g (naive %g), largest %g (naive %g) [%s]\n", names[k],
                      sqrt(t->error / t->size), sqrt(t->naive / t->size), t->worst / t->largest,
                      t->naive_worst / t->largest, w->text);
        return false;
    }
    return true;
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
