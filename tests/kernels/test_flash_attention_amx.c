/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention in bf16 on AMX tiles, on random cases, against the formula in double precision: error at
 * most twice that of a naive evaluation (weights rounded to bf16) plus 4 eps; NaN and infinities where
 * they belong and nowhere else; nothing read beyond an input or written beside an output; the same bits for
 * one, two and three workers, and for a part of the queries alone.
 */
#include "base/base.h"
#include "kernels/flash_attention/problem.h"
#include "support/expect.h"
#include "support/flash_run.h"
#include "support/test_threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 400 };

typedef struct world {
    uint64_t seed;
    int pattern;
    ejki_flash_problem p;
    struct guarded query, key, value, bias, mask, ids, key_ids, sinks, out, lse, row_max, row_sum;
    int64_t parameters[2];
    char text[512];
} world;

enum { NORMAL, LARGE, RISING, JUMP, EQUAL, TINY_VALUES, NAN_VALUE, NAN_KEY, INF_VALUE, PATTERNS };

static double element(const void *data, int64_t index) {
    uint16_t bits;
    memcpy(&bits, (const char *)data + 2 * index, sizeof bits);
    return (double)ejk_bf16_to_f32(bits);
}

static void put(const void *data, int64_t index, double value) {
    const uint16_t bits = ejk_f32_to_bf16((float)value);
    memcpy((char *)(uintptr_t)data + 2 * index, &bits, sizeof bits);
}

static float real(const void *data, int64_t index) {
    float value;
    memcpy(&value, (const char *)data + 4 * index, sizeof value);
    return value;
}

/* ---- Cases ------------------------------------------------------------------------------------------ */

/* Memory for [B, T, H, D] in one of two orders, with gaps; returns its view. */
static ejki_bthd tensor(struct random *r, struct guarded *memory, int64_t b, int64_t t, int64_t h,
                        int64_t d, size_t size) {
    ejki_bthd v = {0};
    const int64_t gap = random_chance(r, 0.5) ? random_int(r, 0, 9) : 0;
    if (random_chance(r, 0.5)) {
        v.stride_h = d + gap;
        v.stride_t = h * v.stride_h;
        v.stride_b = t * v.stride_t + gap;
    } else {
        v.stride_t = d + gap;
        v.stride_h = t * v.stride_t + gap;
        v.stride_b = h * v.stride_h;
    }
    const int64_t last =
        b * t * h * d == 0 ? 0
                           : (b - 1) * v.stride_b + (t - 1) * v.stride_t + (h - 1) * v.stride_h + d;
    guarded_create(memory, (size_t)last * size, random_chance(r, 0.7) ? GUARDED_END : GUARDED_START,
                   (size_t)(random_chance(r, 0.2) ? random_int(r, 0, 3) : 0));
    v.data = memory->data;
    return v;
}

static ejki_bht rows(struct guarded *memory, const ejki_flash_problem *p) {
    ejki_bht v = {.stride_b = p->query_heads * p->queries, .stride_h = p->queries, .stride_t = 1};
    guarded_create(memory, (size_t)(p->batch * v.stride_b) * sizeof(float), GUARDED_END, 0);
    v.data = (ejki_float *)(void *)memory->data;
    return v;
}

static void fill(struct random *r, const ejki_bthd *v, int64_t b, int64_t t, int64_t h, int64_t d,
                 double size) {
    for (int64_t i = 0; i < b; i++)
        for (int64_t j = 0; j < t; j++)
            for (int64_t k = 0; k < h; k++)
                for (int64_t l = 0; l < d; l++)
                    put(v->data, i * v->stride_b + j * v->stride_t + k * v->stride_h + l,
                        size * random_normal(r));
}

static const int64_t lengths[] = {1,  2,  15, 16, 17,  31,  32,  33, 47,
                                  63, 64, 65, 96, 127, 130, 200, 257};
static const int64_t dims[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 80, 96, 128, 129, 192, 256};

static void sizes(struct random *r, ejki_flash_problem *p) {
    p->batch = random_int(r, 1, 2);
    p->kv_heads = random_int(r, 1, 2);
    p->group = random_chance(r, 0.4) ? random_int(r, 2, 4) : 1;
    p->query_heads = p->kv_heads * p->group;
    p->queries = RANDOM_OF(r, lengths);
    p->keys = random_chance(r, 0.3) ? p->queries : RANDOM_OF(r, lengths);
    if (random_chance(r, 0.1)) p->keys = random_int(r, 500, 1100);
    if (p->keys > 300 && p->queries > 70) p->queries = 70;
    p->head_dim = random_chance(r, 0.5) ? 64 : RANDOM_OF(r, dims);
    p->value_dim = random_chance(r, 0.5) ? p->head_dim : RANDOM_OF(r, dims);
    if (random_chance(r, 0.04)) {
        p->head_dim = 576;
        p->value_dim = 512;
        p->queries = ejki_min(p->queries, 33);
        p->keys = ejki_min(p->keys, 65);
    }
}

static void features(struct random *r, world *w) {
    ejki_flash_problem *p = &w->p;
    const int64_t far = INT64_C(1) << 61, offset = p->keys - p->queries;
    p->first_offset = random_chance(r, 0.25) ? offset - random_int(r, 0, 60) : -far;
    p->last_offset = random_chance(r, 0.35)   ? offset
                     : random_chance(r, 0.15) ? offset + random_int(r, 0, 60)
                                              : far;
    p->scale = random_chance(r, 0.8) ? 1 / sqrt((double)p->head_dim)
                                     : RANDOM_OF(r, ((const double[]){0.3, -0.2, 0, 1}));
    p->soft_cap = random_chance(r, 0.15) ? 5 : 0;
    p->normalize = !random_chance(r, 0.2);
    p->sink_group = p->mask_group = 1;
    if (random_chance(r, 0.2)) {
        p->has_bias = true;
        p->bias.stride_t = p->keys;
        p->bias.stride_h = random_chance(r, 0.5) ? p->queries * p->keys : 0;
        const int64_t count = (p->bias.stride_h ? p->query_heads : 1) * p->queries * p->keys;
        guarded_create(&w->bias, (size_t)count * 2, GUARDED_END, 0);
        for (int64_t i = 0; i < count; i++)
            put(w->bias.data, i, random_chance(r, 0.02) ? -INFINITY : random_normal(r));
        p->bias.data = w->bias.data;
    }
    if (random_chance(r, 0.2)) {
        p->has_mask = true;
        p->mask.stride_t = p->keys;
        p->mask.stride_b = random_chance(r, 0.5) ? p->queries * p->keys : 0;
        const int64_t count = (p->mask.stride_b ? p->batch : 1) * p->queries * p->keys;
        guarded_create(&w->mask, (size_t)count, GUARDED_END, 0);
        for (int64_t i = 0; i < count; i++)
            w->mask.data[i] = random_chance(r, 0.8) && i % p->keys % 13 != 5;
        p->mask.data = w->mask.data;
    }
    if (random_chance(r, 0.2)) {
        p->has_segments = true;
        guarded_create(&w->ids, (size_t)(p->batch * p->queries) * 4, GUARDED_END, 0);
        guarded_create(&w->key_ids, (size_t)(p->batch * p->keys) * 4, GUARDED_END, 0);
        for (int64_t i = 0; i < p->batch * p->queries; i++)
            ((ejki_int32 *)(void *)w->ids.data)[i] = (int32_t)(i % p->queries / 40) - 1;
        for (int64_t i = 0; i < p->batch * p->keys; i++)
            ((ejki_int32 *)(void *)w->key_ids.data)[i] = (int32_t)(i % p->keys / 40) - 1;
        p->query_segments = (ejki_ids){w->ids.data, p->queries};
        p->key_segments = (ejki_ids){w->key_ids.data, p->keys};
    }
    if (random_chance(r, 0.2)) {
        p->has_sinks = true;
        p->sink_count = random_int(r, 1, 3);
        p->sink_stride_h = p->sink_count;
        guarded_create(&w->sinks, (size_t)(p->sink_count * p->query_heads) * 2, GUARDED_END, 0);
        for (int64_t i = 0; i < p->sink_count * p->query_heads; i++)
            put(w->sinks.data, i, 2 * random_normal(r));
        p->sinks = w->sinks.data;
    }
}

/* No query of the key head sees key j. */
static bool hidden(const ejki_flash_problem *p, int64_t b, int64_t kv, int64_t j) {
    for (int64_t g = 0; g < p->group; g++)
        for (int64_t i = 0; i < p->queries; i++)
            if (flash_visible(p, b, kv * p->group + g, i, j)) return false;
    return true;
}

static void contents(struct random *r, world *w) {
    const ejki_flash_problem *p = &w->p;
    const int64_t b = p->batch, h = p->kv_heads, d = p->head_dim, v = p->value_dim;
    const double large = w->pattern == LARGE ? 60 : 1;
    fill(r, &p->query, b, p->queries, p->query_heads, d, large);
    fill(r, &p->key, b, p->keys, h, d, w->pattern == EQUAL ? 0 : large);
    fill(r, &p->value, b, p->keys, h, v, w->pattern == TINY_VALUES ? 1e-39 : 1);
    for (int64_t i = 0; i < b; i++)
        for (int64_t k = 0; k < h; k++)
            for (int64_t j = 0; j < p->keys; j++) {
                const int64_t key = i * p->key.stride_b + j * p->key.stride_t + k * p->key.stride_h;
                const int64_t value =
                    i * p->value.stride_b + j * p->value.stride_t + k * p->value.stride_h;
                if (w->pattern == RISING) put(p->key.data, key, (double)j * 3);
                if (w->pattern == JUMP) put(p->key.data, key, j > p->keys / 2 ? 900 : 0);
                const bool poisoned = random_chance(r, 0.02);
                if (w->pattern == NAN_VALUE && poisoned) put(p->value.data, value, NAN);
                if (w->pattern == INF_VALUE && poisoned) put(p->value.data, value, INFINITY);
                if (w->pattern == NAN_KEY && poisoned) put(p->key.data, key, NAN);
                if (!hidden(p, i, k, j)) continue;
                for (int64_t n = 0; n < d; n++) put(p->key.data, key + n, n % 2 ? NAN : INFINITY);
                for (int64_t n = 0; n < v; n++)
                    put(p->value.data, value + n, n % 2 ? INFINITY : NAN);
            }
    if (w->pattern == RISING || w->pattern == JUMP)
        for (int64_t i = 0; i < b; i++)
            for (int64_t t = 0; t < p->queries; t++)
                for (int64_t k = 0; k < p->query_heads; k++)
                    put(p->query.data,
                        i * p->query.stride_b + t * p->query.stride_t + k * p->query.stride_h,
                        random_chance(r, 0.5) ? 8 : 0.5);
}

static void create(world *w, uint64_t seed) {
    struct random r = {seed};
    *w = (world){.seed = seed};
    ejki_flash_problem *p = &w->p;
    p->dtype = EJK_DTYPE_BF16;
    sizes(&r, p);
    features(&r, w);
    w->pattern = random_chance(&r, 0.4) ? NORMAL : (int)random_int(&r, 0, PATTERNS - 1);
    p->query = tensor(&r, &w->query, p->batch, p->queries, p->query_heads, p->head_dim, 2);
    p->key = tensor(&r, &w->key, p->batch, p->keys, p->kv_heads, p->head_dim, 2);
    p->value = tensor(&r, &w->value, p->batch, p->keys, p->kv_heads, p->value_dim, 2);
    p->out = tensor(&r, &w->out, p->batch, p->queries, p->query_heads, p->value_dim,
                    p->normalize ? 2 : 4);
    if (random_chance(&r, 0.3)) p->lse = rows(&w->lse, p);
    if (!p->normalize) {
        p->row_max = rows(&w->row_max, p);
        p->row_sum = rows(&w->row_sum, p);
    }
    contents(&r, w);
    guarded_protect(&w->query);
    guarded_protect(&w->key);
    guarded_protect(&w->value);
    w->parameters[0] = random_int(&r, 1, 300);
    w->parameters[1] = random_int(&r, 1, random_chance(&r, 0.5) ? 512 : 1100);
    snprintf(
        w->text, sizeof w->text,
        "seed %llu: B=%lld T=%lld S=%lld Hkv=%lld G=%lld D=%lld Dv=%lld scale=%g cap=%g bias=%d "
        "mask=%d "
        "segments=%d sinks=%d lse=%d normalize=%d first=%lld last=%lld pattern=%d q=%lld kv=%lld",
        (unsigned long long)seed, (long long)p->batch, (long long)p->queries, (long long)p->keys,
        (long long)p->kv_heads, (long long)p->group, (long long)p->head_dim,
        (long long)p->value_dim, p->scale, p->soft_cap, p->has_bias, p->has_mask, p->has_segments,
        p->has_sinks, p->lse.data != NULL, p->normalize, (long long)p->first_offset,
        (long long)p->last_offset, w->pattern, (long long)w->parameters[0],
        (long long)w->parameters[1]);
}

static void destroy(world *w) {
    struct guarded *all[] = {&w->query,   &w->key,   &w->value, &w->bias, &w->mask,    &w->ids,
                             &w->key_ids, &w->sinks, &w->out,   &w->lse,  &w->row_max, &w->row_sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->pages) guarded_destroy(all[i]);
}

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
static void evaluate(const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i, bool naive,
                     double *scores, expected *e) {
    e->max = -INFINITY;
    e->sum = e->magnitude = 0;
    bool nan = false;
    for (int64_t d = 0; d < p->value_dim; d++) e->out[d] = 0;
    for (int64_t j = 0; j < p->keys; j++) {
        if (!flash_visible(p, b, h, i, j)) continue;
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
        if (!flash_visible(p, b, h, i, j) || scores[j] == -INFINITY) continue;
        const double weight = exp(scores[j] - e->max);
        e->sum += weight;
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

static bool compare(const world *w) {
    const ejki_flash_problem *p = &w->p;
    double *scores = malloc((size_t)p->keys * 8 + 8);
    expected exact = {.out = malloc((size_t)p->value_dim * 8 + 8)};
    expected naive = {.out = malloc((size_t)p->value_dim * 8 + 8)};
    tally all = {0};
    bool right = true;
    for (int64_t n = 0; right && n < p->batch * p->query_heads * p->queries; n++) {
        const int64_t i = n % p->queries, h = n / p->queries % p->query_heads;
        const int64_t b = n / p->queries / p->query_heads;
        evaluate(p, b, h, i, false, scores, &exact);
        evaluate(p, b, h, i, true, scores, &naive);
        const int64_t at = b * p->out.stride_b + i * p->out.stride_t + h * p->out.stride_h;
        for (int64_t d = 0; right && d < p->value_dim; d++) {
            const double got =
                p->normalize ? element(p->out.data, at + d) : (double)real(p->out.data, at + d);
            right = count(&all, got, exact.out[d], naive.out[d]);
            if (!right) say(w, "out is not finite in another way", got, exact.out[d]);
        }
        const double least = 4 * 0x1p-23 * (1 + exact.magnitude);
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
            const double got = (double)scalars[k].view->data[n], want = scalars[k].want;
            /* A row_max beside NaN may be either. */
            if (k == 1 && isnan(want)) continue;
            right = same_kind(got, want) &&
                    (!isfinite(want) ||
                     fabs(got - want) <= 2 * fabs(scalars[k].naive - want) + scalars[k].room);
            if (!right) say(w, k == 0 ? "lse" : k == 1 ? "row_max" : "row_sum", got, want);
        }
    }
    /* Without normalisation results are relative to row_max, which f32 holds only so well. */
    const double eps = p->normalize ? 0x1p-8 : 0x1p-23 * (1 + exact.magnitude);
    if (right && !close_enough(&all, eps)) {
        say(w, "error and naive error", sqrt(all.error / all.size), sqrt(all.naive / all.size));
        say(w, "largest error", all.worst / all.largest, all.naive_worst / all.largest);
        right = false;
    }
    free(scores);
    free(exact.out);
    free(naive.out);
    return right;
}

static const ejk_implementation *amx(void) {
    extern const ejk_implementation ejki_flash_attention_bf16_amx_tile;
    return &ejki_flash_attention_bf16_amx_tile;
}

static ejk_threads *pool[4];

static bool run(const world *w, const ejki_flash_problem *p, int workers) {
    char why[256];
    if (flash_run(amx(), p, w->parameters, pool[workers], why, sizeof why)) return true;
    print_message("%s [%s]\n", why, w->text);
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

static bool check_case(uint64_t seed) {
    world w;
    create(&w, seed);
    clear(&w);
    bool right = run(&w, &w.p, 1) && compare(&w);
    if (right && !guarded_intact(&w.out)) {
        print_message("written beside out [%s]\n", w.text);
        right = false;
    }
    unsigned char *out = keep(&w.out);
    for (int workers = 2; right && workers < 4; workers++) {
        clear(&w);
        right = run(&w, &w.p, workers) && memcmp(out, w.out.data, w.out.size) == 0;
        if (!right) print_message("other bits with %d workers [%s]\n", workers, w.text);
    }
    /* The later queries alone. */
    if (right && w.p.queries > 1) {
        const int64_t skip = w.p.queries / 3 + 1;
        const struct flash_part part = {0, w.p.batch, skip, w.p.queries, 0, w.p.kv_heads};
        const ejki_flash_problem later = flash_part_problem(&w.p, &part);
        clear(&w);
        right = run(&w, &later, 1);
        const ejki_flash_problem *p = &w.p;
        const size_t size = p->normalize ? 2 : 4;
        for (int64_t n = 0; right && n < p->batch * p->query_heads * p->queries; n++) {
            const int64_t i = n % p->queries, h = n / p->queries % p->query_heads;
            const int64_t b = n / p->queries / p->query_heads;
            const size_t at =
                (size_t)(b * p->out.stride_b + i * p->out.stride_t + h * p->out.stride_h) * size;
            if (i >= skip && memcmp(out + at, w.out.data + at, (size_t)p->value_dim * size) != 0) {
                print_message("other bits of query %lld in a part [%s]\n", (long long)i, w.text);
                right = false;
            }
        }
    }
    free(out);
    destroy(&w);
    return right;
}

static void test_random_cases(void **state) {
    (void)state;
    const char *one = getenv("EJK_TEST_SEED"), *many = getenv("EJK_TEST_CASES");
    const uint64_t first = one ? strtoull(one, NULL, 10) : 1;
    const int64_t cases = many ? strtoll(many, NULL, 10) : one ? 1 : CASES;
    int64_t wrong = 0;
    for (int64_t i = 0; i < cases; i++) wrong += !check_case(first + (uint64_t)i);
    assert_int_equal(wrong, 0);
}

int main(void) {
#if defined(__x86_64__)
    if (!ejk_cpu()->tiers[EJK_ISA_AMX]) return 77;
    for (int i = 1; i < 4; i++) pool[i] = test_threads_create(i);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_cases)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 1; i < 4; i++) ejk_threads_destroy(pool[i]);
    return failed;
#else
    return 77;
#endif
}
