/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random problems of the gradients of flash attention in bf16: sizes around the edges of tiles, every feature that
 * AMX takes, views with gaps at guard pages; NaN and infinities in keys that nobody sees and rows that see nothing.
 */
#ifndef TESTS_VJP_AMX_CASE_H
#define TESTS_VJP_AMX_CASE_H

#include "base/base.h"
#include "operations/attention/flash/vjp_problem.h"
#include "support/amx_bias.h"
#include "support/amx_segments.h"
#include "support/flash_run.h"
#include "support/guarded.h"
#include "support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUERY, KEY, VALUE, OUT, COTANGENT, TENSORS };
enum { D_QUERY, D_KEY, D_VALUE, D_SINKS, GRADIENTS };

enum {
    NORMAL,
    LARGE,
    EQUAL,
    JUMP,
    TINY_COTANGENTS,
    TINY_KEYS,
    HUGE_COTANGENT,
    NAN_ROW,
    NAN_KEY,
    PATTERNS
};

typedef struct world {
    uint64_t seed;
    int pattern;
    ejki_flash_vjp_problem v;
    struct guarded memory[TENSORS], gradient[GRADIENTS], lse, d_lse, bias, mask, ids, key_ids,
        sinks, grid, blocks;
    int64_t parameters[2];
    char text[512];
} world;

static double element(const void *data, int64_t index) {
    uint16_t bits;
    memcpy(&bits, (const char *)data + 2 * index, sizeof bits);
    return (double)ejk_bf16_to_f32(bits);
}

static double rounded(double value) {
    return (double)ejk_bf16_to_f32(ejk_f32_to_bf16((float)value));
}

static void put(const void *data, int64_t index, double value) {
    const uint16_t bits = ejk_f32_to_bf16((float)value);
    memcpy((char *)(uintptr_t)data + 2 * index, &bits, sizeof bits);
}

/* ---- Cases ------------------------------------------------------------------------------------------ */

/* Memory for [B, T, H, D] in one of two orders, with gaps; returns its view. */
static ejki_bthd tensor(struct random *r, struct guarded *memory, int64_t b, int64_t t, int64_t h,
                        int64_t d) {
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
    const int64_t last = (b - 1) * v.stride_b + (t - 1) * v.stride_t + (h - 1) * v.stride_h + d;
    guarded_create(memory, (size_t)last * 2, random_chance(r, 0.7) ? GUARDED_END : GUARDED_START,
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

static int64_t at(const ejki_bthd *v, int64_t b, int64_t i, int64_t h) {
    return b * v->stride_b + i * v->stride_t + h * v->stride_h;
}

static void fill(struct random *r, const ejki_bthd *v, int64_t b, int64_t t, int64_t h, int64_t d,
                 double size) {
    for (int64_t n = 0; n < b * t * h; n++)
        for (int64_t l = 0; l < d; l++)
            put(v->data, at(v, n / h / t, n / h % t, n % h) + l, size * random_normal(r));
}

static const int64_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 96, 127, 130, 200};
static const int64_t dims[] = {1, 7, 16, 17, 32, 33, 64, 80, 96, 128, 129};

static void sizes(struct random *r, ejki_flash_problem *p) {
    p->batch = random_int(r, 1, 2);
    p->kv_heads = random_int(r, 1, 2);
    p->group = random_chance(r, 0.4) ? random_int(r, 2, 3) : 1;
    p->query_heads = p->kv_heads * p->group;
    p->queries = RANDOM_OF(r, lengths);
    p->keys = random_chance(r, 0.3) ? p->queries : RANDOM_OF(r, lengths);
    if (random_chance(r, 0.1)) p->keys = random_int(r, 300, 700);
    if (p->keys > 200 && p->queries > 70) p->queries = 70;
    p->head_dim = random_chance(r, 0.4) ? 64 : random_chance(r, 0.2) ? 128 : RANDOM_OF(r, dims);
    p->value_dim = random_chance(r, 0.6) ? p->head_dim : RANDOM_OF(r, dims);
}

static void features(struct random *r, world *w) {
    ejki_flash_problem *p = &w->v.forward;
    const int64_t far = INT64_C(1) << 61, offset = p->keys - p->queries;
    p->first_offset = random_chance(r, 0.25) ? offset - random_int(r, 0, 60) : -far;
    p->last_offset = random_chance(r, 0.35)   ? offset - random_int(r, 0, 1) * 40
                     : random_chance(r, 0.15) ? offset + random_int(r, 0, 60)
                                              : far;
    p->scale = random_chance(r, 0.8) ? 1 / sqrt((double)p->head_dim)
                                     : RANDOM_OF(r, ((const double[]){0.3, -0.2, 0, 1}));
    p->soft_cap = random_chance(r, 0.2) ? RANDOM_OF(r, ((const double[]){5, 5, 0.5, 30, 200})) : 0;
    if (random_chance(r, 0.15)) {
        p->dropout = RANDOM_OF(r, ((const double[]){0.1, 0.5, 0.9}));
        p->dropout_seed = random_bits(r);
        p->first_sequence = random_int(r, 0, 3);
    }
    p->normalize = true;
    p->sink_group = p->mask_group = 1;
    if (random_chance(r, 0.15)) {
        p->has_bias = true;
        p->bias.stride_t = p->keys;
        p->bias.stride_h = random_chance(r, 0.5) ? p->queries * p->keys : 0;
        const int64_t count = (p->bias.stride_h ? p->query_heads : 1) * p->queries * p->keys;
        guarded_create(&w->bias, (size_t)count * 2, GUARDED_END, 0);
        for (int64_t i = 0; i < count; i++) put(w->bias.data, i, amx_bias(r, true));
        p->bias.data = w->bias.data;
    }
    if (random_chance(r, 0.15)) {
        p->has_mask = true;
        p->mask.stride_t = p->keys;
        guarded_create(&w->mask, (size_t)(p->queries * p->keys), GUARDED_END, 0);
        for (int64_t i = 0; i < p->queries * p->keys; i++)
            w->mask.data[i] = random_chance(r, 0.8) && i % p->keys % 13 != 5;
        p->mask.data = w->mask.data;
    }
    if (random_chance(r, 0.15)) amx_segments(p, &w->ids, &w->key_ids);
    if (random_chance(r, 0.2)) {
        p->has_sinks = true;
        p->sink_count = random_int(r, 1, 3);
        p->sink_stride_h = random_chance(r, 0.7) ? p->sink_count : 0;
        guarded_create(&w->sinks, (size_t)(p->sink_count * p->query_heads) * 2, GUARDED_END, 0);
        for (int64_t i = 0; i < p->sink_count * p->query_heads; i++)
            put(w->sinks.data, i, 2 * random_normal(r));
        p->sinks = w->sinks.data;
    }
}

/*
 * Cells by rows, as the problems of gradients have them, of which a part is empty, partial or full; shrunk: those that
 * are not empty come first in their row. Partial ones have blocks of their own.
 */
static void grid(struct random *r, world *w, int64_t block_q, int64_t block_kv) {
    ejki_flash_problem *p = &w->v.forward;
    ejki_block_mask *t = &p->block_mask;
    const int64_t columns = p->keys / block_kv;
    *t = (ejki_block_mask){.name = "fwd", .block_q = block_q, .block_kv = block_kv};
    t->mask_heads = random_chance(r, 0.5)   ? 1
                    : random_chance(r, 0.5) ? p->kv_heads
                                            : p->query_heads;
    t->heads_per_mask = p->query_heads / t->mask_heads;
    t->rows = p->queries / block_q;
    t->columns = columns;
    const int64_t count = t->mask_heads * t->rows * columns, size = block_q * block_kv;
    const bool shrunk = random_chance(r, 0.5);
    const double alive = RANDOM_OF(r, ((const double[]){0.1, 0.5, 0.8, 1}));
    guarded_create(&w->grid, (size_t)count * 12, GUARDED_END, 0);
    ejki_int32 *next = (ejki_int32 *)(void *)w->grid.data, *state = next + count,
               *id = state + count;
    int64_t partial = 0;
    for (int64_t row = 0; row < t->mask_heads * t->rows; row++)
        for (int64_t n = 0, at = 0; n < columns; n++) {
            const int32_t own = random_chance(r, alive) ? (int32_t)random_int(r, 1, 2) : 0;
            if (own == 0 && shrunk) continue;
            const int64_t place = row * columns + at++;
            next[place] = (int32_t)n;
            state[place] = own;
            id[place] = (int32_t)partial;
            partial += own == 1;
        }
    guarded_create(&w->blocks, (size_t)(partial * size), GUARDED_END, 0);
    for (int64_t n = 0; n < partial * size; n++) w->blocks.data[n] = random_chance(r, 0.4);
    const ejki_block_list of = {.stride_p = t->rows * columns, .stride_r = columns, .size = 4};
    t->next = t->state = t->id = of;
    t->next.data = next;
    t->state.data = state;
    t->id.data = id;
    t->blocks = w->blocks.data;
    t->block_count = partial;
    t->block_stride = size;
    t->block_row = block_kv;
    guarded_protect(&w->grid);
    guarded_protect(&w->blocks);
}

static void pattern(struct random *r, world *w) {
    ejki_flash_problem *p = &w->v.forward;
    static const int64_t blocks[] = {1, 5, 8, 10, 16, 32, 33, 64, 65, 96, 100, 128};
    if (random_chance(r, 0.8)) {
        const int64_t block_q = RANDOM_OF(r, blocks), block_kv = RANDOM_OF(r, blocks);
        p->queries = block_q * random_int(r, 1, block_q > 50 ? 3 : 5);
        p->keys = block_kv * random_int(r, 1, 5);
        grid(r, w, block_q, block_kv);
    }
    if (random_chance(r, 0.2)) p->block_mask.chunk = random_int(r, 1, 70);
}

static bool visible(const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    int64_t first, end;
    ejki_flash_visible(p, i, &first, &end);
    return j >= first && j < end && flash_visible(p, b, h, i, j) &&
           ejki_block_mask_visible(&p->block_mask, h, i, j);
}

/* No query of the key head sees key j. */
static bool hidden(const ejki_flash_problem *p, int64_t b, int64_t kv, int64_t j) {
    for (int64_t g = 0; g < p->group; g++)
        for (int64_t i = 0; i < p->queries; i++)
            if (visible(p, b, kv * p->group + g, i, j)) return false;
    return true;
}

static bool blank(const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i) {
    for (int64_t j = 0; j < p->keys; j++)
        if (visible(p, b, h, i, j)) return false;
    return !p->has_sinks;
}

static void poison(const ejki_bthd *v, int64_t start, int64_t width) {
    for (int64_t d = 0; d < width; d++) put(v->data, start + d, d % 2 ? INFINITY : NAN);
}

static void fill_rows(struct random *r, world *w) {
    const ejki_flash_problem *p = &w->v.forward;
    for (int64_t n = 0; n < p->batch * p->queries * p->query_heads; n++) {
        const int64_t h = n % p->query_heads, i = n / p->query_heads % p->queries;
        const int64_t b = n / p->query_heads / p->queries;
        const int64_t q = at(&p->query, b, i, h), c = at(&w->v.out_cotangent, b, i, h);
        if (w->pattern == JUMP) put(p->query.data, q, random_chance(r, 0.5) ? 8 : 0.5);
        if (w->pattern == HUGE_COTANGENT && random_chance(r, 0.03))
            put(w->v.out_cotangent.data, c, 0x1p70);
        if (w->pattern == NAN_ROW && random_chance(r, 0.02)) put(w->v.out_cotangent.data, c, NAN);
        if (!blank(p, b, h, i)) continue;
        poison(&p->query, q, p->head_dim);
        poison(&w->v.out_cotangent, c, p->value_dim);
        if (w->v.has_lse_cotangent)
            w->v.lse_cotangent.data[(b * p->query_heads + h) * p->queries + i] = NAN;
    }
}

static void fill_keys(struct random *r, world *w) {
    const ejki_flash_problem *p = &w->v.forward;
    for (int64_t n = 0; n < p->batch * p->keys * p->kv_heads; n++) {
        const int64_t h = n % p->kv_heads, j = n / p->kv_heads % p->keys;
        const int64_t b = n / p->kv_heads / p->keys;
        const int64_t k = at(&p->key, b, j, h);
        if (w->pattern == JUMP) put(p->key.data, k, j > p->keys / 2 ? 90 : 0);
        if (w->pattern == NAN_KEY && random_chance(r, 0.01)) put(p->key.data, k, NAN);
        if (!hidden(p, b, h, j)) continue;
        poison(&p->key, k, p->head_dim);
        poison(&p->value, at(&p->value, b, j, h), p->value_dim);
    }
}

static void create(world *w, uint64_t seed) {
    struct random r = {seed};
    *w = (world){.seed = seed};
    ejki_flash_vjp_problem *v = &w->v;
    ejki_flash_problem *p = &v->forward;
    p->dtype = EJK_DTYPE_BF16;
    sizes(&r, p);
    if (random_chance(&r, 0.25)) pattern(&r, w);
    features(&r, w);
    w->pattern = random_chance(&r, 0.5) ? NORMAL : (int)random_int(&r, 0, PATTERNS - 1);
    const int64_t b = p->batch, t = p->queries, n = p->keys, h = p->query_heads, kv = p->kv_heads;
    p->query = tensor(&r, &w->memory[QUERY], b, t, h, p->head_dim);
    p->key = tensor(&r, &w->memory[KEY], b, n, kv, p->head_dim);
    p->value = tensor(&r, &w->memory[VALUE], b, n, kv, p->value_dim);
    p->out = tensor(&r, &w->memory[OUT], b, t, h, p->value_dim);
    v->out_cotangent = tensor(&r, &w->memory[COTANGENT], b, t, h, p->value_dim);
    p->lse = rows(&w->lse, p);
    v->has_lse_cotangent = random_chance(&r, 0.3);
    if (v->has_lse_cotangent) v->lse_cotangent = rows(&w->d_lse, p);
    const bool all = random_chance(&r, 0.7);
    v->wants_query = all || random_chance(&r, 0.5);
    v->wants_key = all || random_chance(&r, 0.5);
    v->wants_value = all || random_chance(&r, 0.5);
    v->wants_sinks = p->has_sinks && (all || random_chance(&r, 0.5));
    if (v->wants_query) v->d_query = tensor(&r, &w->gradient[D_QUERY], b, t, h, p->head_dim);
    if (v->wants_key) v->d_key = tensor(&r, &w->gradient[D_KEY], b, n, kv, p->head_dim);
    if (v->wants_value) v->d_value = tensor(&r, &w->gradient[D_VALUE], b, n, kv, p->value_dim);
    if (v->wants_sinks) {
        v->d_sink_stride_h = p->sink_stride_h;
        guarded_create(&w->gradient[D_SINKS],
                       (size_t)(p->sink_count * (p->sink_stride_h ? h : 1)) * 2, GUARDED_END, 0);
        v->d_sinks = w->gradient[D_SINKS].data;
    }
    const double large = w->pattern == LARGE ? 60 : 1;
    fill(&r, &p->query, b, t, h, p->head_dim, large);
    fill(&r, &p->key, b, n, kv, p->head_dim,
         w->pattern == EQUAL       ? 0
         : w->pattern == TINY_KEYS ? 1e-25
                                   : large);
    fill(&r, &p->value, b, n, kv, p->value_dim, 1);
    fill(&r, &v->out_cotangent, b, t, h, p->value_dim, w->pattern == TINY_COTANGENTS ? 1e-30 : 1);
    for (int64_t i = 0; v->has_lse_cotangent && i < b * h * t; i++)
        v->lse_cotangent.data[i] =
            (float)(random_normal(&r) * (w->pattern == TINY_COTANGENTS ? 1e-30 : 1));
    fill_rows(&r, w);
    fill_keys(&r, w);
    w->parameters[0] = random_int(&r, 1, 300);
    w->parameters[1] = random_int(&r, 1, 700);
    snprintf(w->text, sizeof w->text,
             "seed %llu: B=%lld T=%lld S=%lld Hkv=%lld G=%lld D=%lld Dv=%lld scale=%g cap=%g "
             "bias=%d mask=%d segments=%d sinks=%d d_lse=%d wants=%d%d%d%d first=%lld last=%lld "
             "pattern=%d dropout=%g q=%lld kv=%lld blocks=%lldx%lld chunk=%lld",
             (unsigned long long)seed, (long long)b, (long long)t, (long long)n, (long long)kv,
             (long long)p->group, (long long)p->head_dim, (long long)p->value_dim, p->scale,
             p->soft_cap, p->has_bias, p->has_mask, p->has_segments, p->has_sinks,
             v->has_lse_cotangent, v->wants_query, v->wants_key, v->wants_value, v->wants_sinks,
             (long long)p->first_offset, (long long)p->last_offset, w->pattern, p->dropout,
             (long long)w->parameters[0], (long long)w->parameters[1],
             (long long)p->block_mask.block_q, (long long)p->block_mask.block_kv,
             (long long)p->block_mask.chunk);
}

static void destroy(world *w) {
    struct guarded *others[] = {&w->lse,     &w->d_lse, &w->bias, &w->mask,  &w->ids,
                                &w->key_ids, &w->sinks, &w->grid, &w->blocks};
    for (int i = 0; i < TENSORS; i++) guarded_destroy(&w->memory[i]);
    for (int i = 0; i < GRADIENTS; i++)
        if (w->gradient[i].pages) guarded_destroy(&w->gradient[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i]->pages) guarded_destroy(others[i]);
}

#endif
