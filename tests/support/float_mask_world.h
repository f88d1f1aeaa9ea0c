/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Problems with keys whose score is -inf, by a bias or by the product, with and without NaN in them, and what has to
 * hold of their results. Whoever includes this says how an implementation is run, and whether its results are the same
 * bits where there is NaN in what is hidden.
 */
#ifndef TESTS_SUPPORT_FLOAT_MASK_WORLD_H
#define TESTS_SUPPORT_FLOAT_MASK_WORLD_H

#include "base/base.h"
#include "kernels/registry/builtin.h"
#include "operations/attention/dense/problem.h"
#include "operations/attention/flash/vjp_problem.h"
#include "support/element.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Defined by the includer, with SIZES, how many of the sizes below are tried. */
static bool run(const ejk_implementation *e, const void *problem);
static bool is_exact(const ejk_implementation *e);

enum { HEADS = 2, GROUP = 2, MOST_QUERIES = 72, MOST_KEYS = 136, WIDTH = 64 };
enum { ROWS = MOST_QUERIES * HEADS * GROUP, ROW_ELEMENTS = ROWS * WIDTH };
enum { KEY_ELEMENTS = MOST_KEYS * HEADS * WIDTH, PAIRS = ROWS * MOST_KEYS };

/* What makes scores -inf, and what else there is. */
enum { BY_BIAS = 0, BY_PRODUCT = 1, WAYS };
enum { PLAIN, CAPPED, CAUSAL, DROPPED, WITH_SINKS, RAW, FEATURES };
static const char *const way_names[WAYS] = {"bias", "product"};
static const char *const feature_names[FEATURES] = {"plain",   "soft cap", "causal",
                                                    "dropout", "sinks",    "not normalised"};
static const int64_t sizes[][2] = {{1, 8}, {2, 33}, {8, 8}, {40, 80}, {MOST_QUERIES, MOST_KEYS}};

struct world {
    ejki_flash_vjp_problem v;
    ejki_attention_problem a;
    int way;
    _Alignas(64) double query[ROW_ELEMENTS], key[KEY_ELEMENTS], value[KEY_ELEMENTS], bias[PAIRS],
        sinks[4];
    double d_out[ROW_ELEMENTS];
    /* Results. */
    double out[ROW_ELEMENTS], weights[PAIRS];
    float lse[ROWS], row_max[ROWS], row_sum[ROWS];
    double d_query[ROW_ELEMENTS], d_key[KEY_ELEMENTS], d_value[KEY_ELEMENTS], d_bias[PAIRS];
};

static struct world clean, dirty;

static double number(int64_t i, int64_t period) {
    return (double)(i * 37 % period) / (double)period - 0.45;
}

/* Of every row but the first, which by its bias sees nothing. */
static bool hides(int64_t key) {
    return key % 5 == 1 || (key >= 40 && key < 72);
}

/* Elements are stored in place of doubles, side by side. */
static void fill(struct world *w, ejk_dtype dtype, const int64_t size[2], int way, int feature,
                 bool poisoned) {
    const int64_t t = size[0], s = size[1], heads = HEADS * GROUP;
    memset(w, 0, sizeof *w);
    w->way = way;
    for (int64_t i = 0; i < t * heads * WIDTH; i++) {
        /* Component 0 of queries is positive: beside -inf in a key the product is -inf. */
        element_store(dtype, w->query, i, i % WIDTH == 0 ? 0.5 : number(i, 1009));
        element_store(dtype, w->d_out, i, number(i, 499));
    }
    for (int64_t i = 0; i < s * HEADS * WIDTH; i++) {
        const bool hidden = hides(i / WIDTH / HEADS), product = way == BY_PRODUCT && i % WIDTH == 0;
        const double bad = i % 3 == 0   ? (double)NAN
                           : i % 3 == 1 ? (double)INFINITY
                                        : -(double)INFINITY;
        const bool any = hidden && poisoned;
        element_store(dtype, w->key, i,
                      hidden && product       ? -(double)INFINITY
                      : any && way == BY_BIAS ? bad
                                              : number(i, 997));
        element_store(dtype, w->value, i, any ? bad : number(i, 761));
    }
    for (int64_t i = 0; i < heads * t * s; i++)
        element_store(dtype, w->bias, i,
                      hides(i % s) || i / s % t == 0 ? -(double)INFINITY : number(i, 211));
    for (int i = 0; i < 4; i++) element_store(dtype, w->sinks, i, number(i, 7));
    ejki_flash_problem *p = &w->v.forward;
    const ejki_bthd rows = {NULL, 0, heads * WIDTH, WIDTH}, keys = {NULL, 0, HEADS * WIDTH, WIDTH};
    *p = (ejki_flash_problem){.batch = 1,
                              .queries = t,
                              .keys = s,
                              .query_heads = heads,
                              .kv_heads = HEADS,
                              .group = GROUP,
                              .head_dim = WIDTH,
                              .value_dim = WIDTH,
                              .dtype = dtype,
                              .query = rows,
                              .key = keys,
                              .value = keys,
                              .out = rows,
                              .mask_group = 1,
                              .sink_group = 1,
                              .scale = 0.125,
                              .first_offset = -(INT64_C(1) << 61),
                              .last_offset = feature == CAUSAL ? s - t : INT64_C(1) << 61,
                              .normalize = feature != RAW,
                              .soft_cap = feature == CAPPED ? 3 : 0,
                              .dropout = feature == DROPPED ? 0.25 : 0,
                              .dropout_seed = 7,
                              .has_bias = way == BY_BIAS,
                              .has_sinks = feature == WITH_SINKS,
                              .sinks = w->sinks,
                              .sink_count = feature == WITH_SINKS ? 2 : 0,
                              .sink_stride_h = feature == WITH_SINKS ? 2 : 0,
                              .wants_lse = true,
                              .wants_row_maxima = feature == RAW};
    if (feature == WITH_SINKS) p->sink_group = GROUP;
    p->query.data = w->query;
    p->key.data = w->key;
    p->value.data = w->value;
    p->out.data = w->out;
    p->lse = (ejki_bht){w->lse, 0, t, 1};
    if (feature == RAW) p->row_max = (ejki_bht){w->row_max, 0, t, 1};
    if (feature == RAW) p->row_sum = (ejki_bht){w->row_sum, 0, t, 1};
    if (p->has_bias) p->bias = (ejki_bhts){w->bias, 0, t * s, s};
    ejki_flash_vjp_problem *v = &w->v;
    v->wants_query = v->wants_key = v->wants_value = true;
    v->wants_bias = p->has_bias;
    v->out_cotangent = (ejki_bthd){w->d_out, 0, heads * WIDTH, WIDTH};
    v->d_query = (ejki_bthd){w->d_query, 0, heads * WIDTH, WIDTH};
    v->d_key = (ejki_bthd){w->d_key, 0, HEADS * WIDTH, WIDTH};
    v->d_value = (ejki_bthd){w->d_value, 0, HEADS * WIDTH, WIDTH};
    v->d_bias = (ejki_bias_gradient){w->d_bias, 0, t * s, s};
    w->a = (ejki_attention_problem){.flash = *p, .wants_weights = true};
    w->a.weights.data = w->weights;
    w->a.weights.stride_h = t * s;
    w->a.weights.stride_t = s;
}

/* The implementation of that name; NULL if there is none. */
static const ejk_implementation *named(const char *algorithm, const char *name) {
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++)
        if (strcmp(ejki_builtin_implementations[i]->algorithm, algorithm) == 0 &&
            strcmp(ejki_builtin_implementations[i]->name, name) == 0)
            return ejki_builtin_implementations[i];
    return NULL;
}

static bool is_finite(const struct world *w, const double *results, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(element_load(w->v.forward.dtype, results, i))) return false;
    return true;
}

static const char *check_forward(const struct world *w) {
    const ejki_flash_problem *p = &w->v.forward;
    const int64_t rows = p->queries * p->query_heads;
    ejki_flash_problem in_type = *p;
    if (!p->normalize) in_type.dtype = EJK_DTYPE_F32;
    for (int64_t i = 0; i < rows * p->value_dim; i++)
        if (!isfinite(element_load(in_type.dtype, w->out, i))) return "out is not finite";
    for (int64_t i = 0; i < rows; i++) {
        const bool blank = w->way == BY_BIAS && i % p->queries == 0;
        if (blank && !p->has_sinks && w->lse[i] != -INFINITY) return "lse of a row without keys";
        if ((!blank || p->has_sinks) && !isfinite(w->lse[i])) return "lse is not finite";
    }
    return NULL;
}

static const char *check_gradients(const struct world *w) {
    const ejki_flash_problem *p = &w->v.forward;
    if (!is_finite(w, w->d_query, p->queries * p->query_heads * p->head_dim))
        return "d_query is not finite";
    for (int64_t i = 0; i < p->keys * p->kv_heads * WIDTH; i++) {
        const double dk = element_load(p->dtype, w->d_key, i),
                     dv = element_load(p->dtype, w->d_value, i);
        const bool hidden = hides(i / WIDTH / HEADS);
        if (!isfinite(dk) || (hidden && dk != 0)) return "d_key";
        if (!isfinite(dv) || (hidden && dv != 0)) return "d_value";
    }
    for (int64_t i = 0; p->has_bias && i < p->query_heads * p->queries * p->keys; i++) {
        const double db = element_load(p->dtype, w->d_bias, i);
        const bool hidden = element_load(p->dtype, w->bias, i) == -(double)INFINITY;
        if (!isfinite(db) || (hidden && db != 0)) return "d_bias";
    }
    return NULL;
}

static const char *check_weights(const struct world *w) {
    const ejki_flash_problem *p = &w->v.forward;
    for (int64_t i = 0; i < p->query_heads * p->queries * p->keys; i++) {
        const double weight = element_load(p->dtype, w->weights, i);
        if (!isfinite(weight) || (hides(i % p->keys) && weight != 0)) return "weights";
    }
    return NULL;
}

static bool near(ejk_dtype dtype, const double *x, const double *y, int64_t count) {
    double most = 0, difference = 0;
    for (int64_t i = 0; i < count; i++) {
        const double u = element_load(dtype, x, i);
        most = fmax(most, fabs(u));
        difference = fmax(difference, fabs(u - element_load(dtype, y, i)));
    }
    return difference <= 0.01 * most;
}

/* Bit by bit, or results only near. */
static bool same(const struct world *a, const struct world *b, bool exact) {
    const ejki_flash_problem *p = &a->v.forward;
    const int64_t rows = p->queries * p->query_heads, keys = p->keys * p->kv_heads;
    const bool statistics = memcmp(a->lse, b->lse, sizeof a->lse) == 0 &&
                            memcmp(a->row_max, b->row_max, sizeof a->row_max) == 0 &&
                            memcmp(a->row_sum, b->row_sum, sizeof a->row_sum) == 0 &&
                            memcmp(a->weights, b->weights, sizeof a->weights) == 0;
    if (!exact)
        return statistics &&
               near(p->normalize ? p->dtype : EJK_DTYPE_F32, a->out, b->out, rows * WIDTH) &&
               near(p->dtype, a->d_query, b->d_query, rows * WIDTH) &&
               near(p->dtype, a->d_key, b->d_key, keys * WIDTH) &&
               near(p->dtype, a->d_value, b->d_value, keys * WIDTH) &&
               near(p->dtype, a->d_bias, b->d_bias, rows * p->keys);
    return statistics && memcmp(a->out, b->out, sizeof a->out) == 0 &&
           memcmp(a->d_query, b->d_query, sizeof a->d_query) == 0 &&
           memcmp(a->d_key, b->d_key, sizeof a->d_key) == 0 &&
           memcmp(a->d_value, b->d_value, sizeof a->d_value) == 0 &&
           memcmp(a->d_bias, b->d_bias, sizeof a->d_bias) == 0;
}

enum { FORWARD, GRADIENTS, WEIGHTS, OPERATIONS };
static const char *const operations[OPERATIONS] = {"flash_attention", "flash_attention_vjp",
                                                   "attention_weights"};

static const void *problem_of(const struct world *w, int operation) {
    return operation == FORWARD     ? (const void *)&w->v.forward
           : operation == GRADIENTS ? (const void *)&w->v
                                    : (const void *)&w->a;
}

/* Why a world's results are wrong; NULL if they are not. */
static const char *compute(const ejk_implementation *e, struct world *w, int operation) {
    char name[32];
    if (operation == GRADIENTS) {
        snprintf(name, sizeof name, "%.*s/reference", (int)strcspn(e->name, "/"), e->name);
        const ejk_implementation *forward = named("flash_attention", name);
        if (!forward || !run(forward, &w->v.forward)) return "there is no forward pass";
    }
    if (!run(e, problem_of(w, operation))) return ejk_last_error();
    return operation == FORWARD     ? check_forward(w)
           : operation == GRADIENTS ? check_gradients(w)
                                    : check_weights(w);
}

static bool holds(const ejk_implementation *e, int operation, const int64_t size[2], int way,
                  int feature, int64_t *runs) {
    if (feature == RAW && operation != FORWARD) return true;
    if (feature == CAPPED && way == BY_PRODUCT) return true; /* no score is -inf */
    fill(&clean, e->dtype, size, way, feature, false);
    fill(&dirty, e->dtype, size, way, feature, true);
    if (e->applicable && !e->applicable(problem_of(&clean, operation))) return true;
    ++*runs;
    const char *why = compute(e, &clean, operation);
    if (!why) why = compute(e, &dirty, operation);
    if (!why && !same(&clean, &dirty, is_exact(e))) why = "bits depend on what is hidden";
    if (why)
        printf("FAIL %s %s: T=%d S=%d, -inf by %s, %s: %s\n", operations[operation], e->name,
               (int)size[0], (int)size[1], way_names[way], feature_names[feature], why);
    return !why;
}

/* Scores are whole numbers up to some hundreds, so that only the maximum is rounded. */
static bool sums_hold(const ejk_implementation *e, const int64_t size[2], int64_t *runs) {
    struct world *w = &clean;
    fill(w, e->dtype, size, BY_PRODUCT, RAW, false);
    ejki_flash_problem *p = &w->v.forward;
    p->scale = 1;
    for (int64_t i = 0; i < p->queries * p->query_heads * WIDTH; i++)
        element_store(p->dtype, w->query, i, i % WIDTH == 0 ? 16 : i % WIDTH == 1 ? 1 : 0);
    for (int64_t i = 0; i < p->keys * p->kv_heads * WIDTH; i++)
        element_store(p->dtype, w->key, i, i % WIDTH == 0 ? 43 : (double)(i / WIDTH * 5 % 23));
    if (e->applicable && !e->applicable(p)) return true;
    ++*runs;
    bool good = run(e, p);
    for (int64_t h = 0; h < p->query_heads; h++)
        for (int64_t i = 0; i < p->queries; i++) {
            const double top = (double)w->row_max[h * p->queries + i];
            double sum = 0;
            for (int64_t j = 0; j < p->keys; j++)
                sum += exp(16 * 43 + (double)((j * HEADS + h / GROUP) * 5 % 23) - top);
            const double got = (double)w->row_sum[h * p->queries + i];
            good &= fabs(got - sum) <= 4 * 0x1p-23 * sum;
            if (fabs(got - sum) > 4 * 0x1p-23 * sum)
                printf("FAIL %s: T=%d S=%d: row_sum is %.9g, expected %.9g\n", e->name,
                       (int)size[0], (int)size[1], got, sum);
        }
    return good;
}

/* Everything that an implementation can be asked; failures. */
static int check_implementation(const ejk_implementation *e, int *found) {
    int failures = 0;
    for (int operation = 0; operation < OPERATIONS; operation++) {
        if (strcmp(e->algorithm, operations[operation]) != 0) continue;
        int64_t runs = 0;
        const int before = failures;
        for (size_t n = 0; operation == FORWARD && n < SIZES; n++)
            failures += !sums_hold(e, sizes[n], &runs);
        for (size_t n = 0; n < SIZES; n++)
            for (int way = 0; way < WAYS; way++)
                for (int feature = 0; feature < FEATURES; feature++)
                    failures += !holds(e, operation, sizes[n], way, feature, &runs);
        *found += runs > 0;
        printf("%s %s %s: %d problems\n", failures > before ? "FAIL" : "ok  ",
               operations[operation], e->name, (int)runs);
    }
    return failures;
}

#endif
