/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing a problem: sizes, features, scalars. */
#include "support/flash_case.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const int64_t lengths[] = {1,  2,  3,  5,  7,  8,  15,  16,  17,  31,
                                  33, 63, 64, 65, 96, 97, 100, 127, 129, 257};
static const int64_t long_lengths[] = {257, 300, 511, 512, 513, 767, 1025};
static const int64_t dims[] = {1,  2,  3,  5,  8,  15,  16,  17,  31,  32,  33,  40,
                               63, 64, 65, 80, 96, 100, 127, 128, 129, 192, 257, 576};

static const int64_t tiled_lengths[] = {17,  31,  64,  65,  96,  127, 128, 129,
                                        130, 191, 192, 193, 255, 257, 300, 385};
static const int64_t tiled_dims[] = {8, 32, 64, 64, 64, 72, 80, 96, 100, 112, 128, 128, 128, 128};

static bool is_tiled(const struct flash_case *c) {
    return (c->seed & FLASH_TILED) != 0;
}

/* A size, once in a while 0. */
static int64_t size_of(struct random *r, int64_t size) {
    return random_chance(r, 0.01) ? 0 : size;
}

static int64_t scores_of(const ejki_flash_problem *p) {
    return p->batch * p->query_heads * p->queries * p->keys;
}

static void choose_sizes(ejki_flash_problem *p, struct random *r, int64_t budget) {
    do {
        const bool decode = random_chance(r, 0.35);
        p->queries = size_of(r, decode ? random_int(r, 1, 8) : RANDOM_OF(r, lengths));
        p->keys = size_of(r, decode && random_chance(r, 0.3)    ? RANDOM_OF(r, long_lengths)
                             : !decode && random_chance(r, 0.4) ? p->queries
                                                                : RANDOM_OF(r, lengths));
        p->head_dim = size_of(r, RANDOM_OF(r, dims));
        p->value_dim = size_of(r, random_chance(r, 0.5) ? p->head_dim : RANDOM_OF(r, dims));
        p->batch = size_of(r, random_int(r, 1, 3));
        p->kv_heads = size_of(r, random_int(r, 1, 3));
        p->group = random_chance(r, 0.4) ? 1 : random_int(r, 2, 9);
        p->query_heads = p->group * p->kv_heads;
    } while (scores_of(p) * (p->head_dim + p->value_dim) > budget || scores_of(p) > budget / 16);
}

static void choose_tiled_sizes(ejki_flash_problem *p, struct random *r, int64_t budget) {
    do {
        p->queries = RANDOM_OF(r, tiled_lengths);
        p->keys = random_chance(r, 0.4)   ? p->queries
                  : random_chance(r, 0.2) ? RANDOM_OF(r, long_lengths)
                                          : RANDOM_OF(r, tiled_lengths);
        p->head_dim = RANDOM_OF(r, tiled_dims);
        p->value_dim = random_chance(r, 0.7) ? p->head_dim : RANDOM_OF(r, tiled_dims);
        p->batch = random_int(r, 1, 2);
        p->kv_heads = random_int(r, 1, 2);
        p->group = random_chance(r, 0.5) ? 1 : random_int(r, 2, 4);
        p->query_heads = p->group * p->kv_heads;
    } while (scores_of(p) * (p->head_dim + p->value_dim) > budget);
}

/* Causal and window as positions; far beyond all keys where a side is open. */
static void choose_positions(ejki_flash_problem *p, struct random *r, bool causal, bool window) {
    const int64_t open = INT64_C(1) << 61;
    int64_t offset = p->keys - p->queries;
    if (random_chance(r, 0.4)) offset = random_int(r, -p->queries - 1, p->keys + 1);
    int64_t left = open, right = open;
    if (window && random_chance(r, 0.7))
        left = random_int(r, 0, random_chance(r, 0.5) ? 3 : p->keys);
    if (window && random_chance(r, 0.7))
        right = random_int(r, 0, random_chance(r, 0.5) ? 3 : p->keys);
    if (causal) right = 0;
    p->first_offset = left == open ? -open : offset - left;
    p->last_offset = right == open ? open : offset + right;
}

static void choose_mask(struct flash_case *c, struct random *r) {
    static const double densities[] = {0, 0.05, 0.3, 0.5, 0.7, 0.95, 1};
    static const int heads[] = {0, 1, 1, 2};
    struct flash_traits *t = &c->traits;
    t->mask_batch = random_chance(r, 0.5);
    t->mask_queries = random_chance(r, 0.5);
    t->mask_heads = RANDOM_OF(r, heads);
    t->mask_density = RANDOM_OF(r, densities);
    c->problem.mask_group = t->mask_heads == 1 ? c->problem.group : 1;
}

static void choose_sinks(struct flash_case *c, struct random *r) {
    static const int64_t counts[] = {0, 1, 1, 1, 2, 4};
    static const int heads[] = {0, 1, 1, 2};
    ejki_flash_problem *p = &c->problem;
    c->traits.sink_heads = RANDOM_OF(r, heads);
    c->traits.wide_sinks = random_chance(r, 0.2);
    p->sink_count = RANDOM_OF(r, counts);
    p->sink_group = c->traits.sink_heads == 1 ? p->group : 1;
    p->sink_stride_h = c->traits.sink_heads == 0 ? 0 : p->sink_count + random_int(r, 0, 2);
}

/* A quarter plain, a quarter with one feature, half with any. */
static void choose_features(struct flash_case *c, struct random *r) {
    enum { CAUSAL, WINDOW, CAP, BIAS, MASK, SEGMENTS, SINKS, RAW, DROPOUT, FEATURES };
    static const double caps[] = {0.3, 5, 50}, scales[] = {1, 0.1, -0.3, 2, 0, 1e-3, 1e-35};
    static const double probabilities[] = {0.1, 0.1, 0.5, 0.9, 1e-3};
    ejki_flash_problem *p = &c->problem;
    bool on[FEATURES] = {false};
    const int64_t how_many = random_int(r, 0, 3);
    if (how_many == 1) on[random_int(r, 0, FEATURES - 1)] = true;
    if (how_many >= 2)
        for (int i = 0; i < FEATURES; i++) on[i] = random_chance(r, 0.35);
    if (is_tiled(c) && random_chance(r, 0.9))
        on[BIAS] = on[MASK] = on[SEGMENTS] = on[DROPOUT] = false;

    choose_positions(p, r, on[CAUSAL], on[WINDOW]);
    p->soft_cap = on[CAP] ? RANDOM_OF(r, caps) : 0;
    p->scale = p->head_dim > 0 ? 1 / sqrt((double)p->head_dim) : 1;
    if (random_chance(r, 0.3)) p->scale = RANDOM_OF(r, scales);
    p->normalize = !on[RAW];
    p->has_bias = on[BIAS];
    p->has_mask = on[MASK];
    p->has_segments = on[SEGMENTS];
    p->segments_are_i64 = random_chance(r, 0.5);
    p->has_sinks = on[SINKS];
    p->dropout = on[DROPOUT] ? RANDOM_OF(r, probabilities) : 0;
    p->dropout_seed = random_bits(r);
    p->mask_group = p->sink_group = 1;
    if (on[MASK]) choose_mask(c, r);
    if (on[SINKS]) choose_sinks(c, r);
    c->traits.bias_batch = random_chance(r, 0.5);
    c->traits.bias_heads = random_chance(r, 0.5);
    c->traits.bias_queries = random_chance(r, 0.6);
    c->traits.infinite_bias = random_chance(r, 0.2);
    c->traits.wants_lse = random_chance(r, 0.7);
    c->traits.wants_row_max = on[RAW] && random_chance(r, 0.8);
    c->traits.wants_row_sum = on[RAW] && random_chance(r, 0.8);
    c->problem.wants_lse = c->traits.wants_lse;
    c->problem.wants_row_maxima = c->traits.wants_row_max || c->traits.wants_row_sum;
}

/*
 * Visible infinities are put only where every precision agrees on what arithmetic says: no weight may
 * underflow, for 0 · inf is NaN and almost-0 · inf is not.
 */
static void choose_poison(struct flash_case *c, struct random *r) {
    struct flash_traits *t = &c->traits;
    const double dice = random_real(r);
    if (dice < 0.5) return;
    if (dice < 0.8) {
        t->poison = FLASH_IN_HIDDEN;
        return;
    }
    t->poison = dice < 0.87 ? FLASH_IN_KEY : dice < 0.94 ? FLASH_IN_VALUE : FLASH_IN_BIAS;
    t->pattern = FLASH_NORMAL;
    t->infinite_bias = t->wide_sinks = false;
    c->problem.scale = 0.5 / sqrt((double)c->problem.head_dim + 1);
}

static struct random random_of(uint64_t seed) {
    struct random r = {.state = seed * UINT64_C(0xd1342543de82ef95) + 1};
    random_bits(&r);
    return r;
}

ejk_dtype flash_case_dtype(uint64_t seed) {
    struct random r = random_of(seed);
    const double dice = random_real(&r);
    if (seed & FLASH_TILED) return dice < 0.5 ? EJK_DTYPE_BF16 : EJK_DTYPE_F16;
    if (dice < 0.4) return EJK_DTYPE_F32;
    return dice < 0.6 ? EJK_DTYPE_F64 : dice < 0.8 ? EJK_DTYPE_BF16 : EJK_DTYPE_F16;
}

void flash_case_create(struct flash_case *c, uint64_t seed, int64_t budget) {
    *c = (struct flash_case){.seed = seed};
    c->problem.dtype = flash_case_dtype(seed);
    struct random r = random_of(seed);
    random_bits(&r); /* the one that decided the type */
    /* Large problems now and then; f64, which only the reference takes, needs none. */
    if (random_chance(&r, 0.06)) budget *= 4;
    if (c->problem.dtype == EJK_DTYPE_F64) budget /= 4;
    if (is_tiled(c))
        choose_tiled_sizes(&c->problem, &r, 30 * budget);
    else
        choose_sizes(&c->problem, &r, budget);
    choose_features(c, &r);
    if (random_chance(&r, 0.5))
        c->traits.pattern = (enum flash_pattern)random_int(&r, 0, FLASH_PATTERNS - 1);
    choose_poison(c, &r);
    c->traits.odd_addresses = random_chance(&r, 0.1);
    flash_case_fill(c, &r);
}

void flash_case_destroy(struct flash_case *c) {
    for (int i = 0; i < FLASH_TENSORS; i++) guarded_destroy(&c->memory[i]);
}

void flash_case_clear_outputs(struct flash_case *c) {
    for (int i = FLASH_FIRST_OUTPUT; i < FLASH_TENSORS; i++) guarded_fill(&c->memory[i]);
}

void flash_case_print(const struct flash_case *c, char *text, size_t size) {
    static const char *const patterns[] = {"normal", "large",   "equal", "one-hot",
                                           "rising", "falling", "jump",  "tiny"};
    static const char *const poisons[] = {"", " poison=hidden", " poison=key", " poison=value",
                                          " poison=bias"};
    const ejki_flash_problem *p = &c->problem;
    const struct flash_traits *t = &c->traits;
    snprintf(text, size,
             "EJK_TEST_SEED=%" PRIu64 " EJK_TEST_CASES=1: %s B=%" PRId64 " T=%" PRId64 " S=%" PRId64
             " Hq=%" PRId64 " Hkv=%" PRId64 " D=%" PRId64 " Dv=%" PRId64 " scale=%g keys=i%+" PRId64
             "..i%+" PRId64 " cap=%g dropout=%g%s%s%s%s%s%s%s%s%s scores=%s%s",
             c->seed, ejk_dtype_name(p->dtype), p->batch, p->queries, p->keys, p->query_heads,
             p->kv_heads, p->head_dim, p->value_dim, p->scale, p->first_offset, p->last_offset,
             p->soft_cap, p->dropout, p->has_bias ? " bias" : "",
             p->has_bias && t->infinite_bias ? "(-inf)" : "", p->has_mask ? " mask" : "",
             p->has_segments ? " segments" : "", p->has_sinks ? " sinks" : "",
             p->has_sinks && t->wide_sinks ? "(wide)" : "", p->normalize ? "" : " raw",
             t->wants_lse ? " lse" : "", t->odd_addresses ? " odd-addresses" : "",
             patterns[t->pattern], poisons[t->poison]);
}
