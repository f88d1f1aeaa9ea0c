/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random problems of flash attention in bf16, each made from one number: dense, packed sequences, blocks of a
 * pattern. Keys and values that no query of their head sees are NaN and infinite.
 */
#ifndef TESTS_AMX_CASE_H
#define TESTS_AMX_CASE_H

#include "base/base.h"
#include "operations/attention/flash/problem.h"
#include "support/amx_bias.h"
#include "support/amx_segments.h"
#include "support/expect.h"
#include "support/flash_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How tokens lie, or which blocks there are. */
enum amx_kind { AMX_DENSE, AMX_TOKENS, AMX_PADDED, AMX_SPARSE };
enum { AMX_SEQUENCES = 6 };

typedef struct world {
    uint64_t seed;
    enum amx_kind kind;
    int pattern;
    ejki_flash_problem p;
    struct guarded query, key, value, bias, mask, ids, key_ids, sinks, out, lse, row_max, row_sum;
    struct guarded query_sums, key_sums;    /* of packed sequences, int32 */
    struct guarded next, state, id, blocks; /* of a pattern */
    uint8_t *seen;                          /* and what it says, [Hq, T, S] */
    int64_t parameters[2];
    char text[640];
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

/* Tokens of all sequences may share one batch entry. */
static int64_t entries(const ejki_flash_problem *p) {
    return p->layout == EJKI_FLASH_TOKENS ? 1 : p->batch;
}

static ejki_bht rows(struct guarded *memory, const ejki_flash_problem *p) {
    ejki_bht v = {.stride_b = p->query_heads * p->queries, .stride_h = p->queries, .stride_t = 1};
    guarded_create(memory, (size_t)(entries(p) * v.stride_b) * sizeof(float), GUARDED_END, 0);
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
    p->soft_cap = random_chance(r, 0.2) ? RANDOM_OF(r, ((const double[]){5, 5, 0.5, 30, 200})) : 0;
    p->normalize = !random_chance(r, 0.2);
    p->sink_group = p->mask_group = 1;
    const double beside = p->layout == EJKI_FLASH_TOKENS ? 0 : 0.2;
    if (random_chance(r, beside)) {
        p->has_bias = true;
        p->bias.stride_t = p->keys;
        p->bias.stride_h = random_chance(r, 0.5) ? p->queries * p->keys : 0;
        const int64_t count = (p->bias.stride_h ? p->query_heads : 1) * p->queries * p->keys;
        guarded_create(&w->bias, (size_t)count * 2, GUARDED_END, 0);
        const bool finite = w->pattern != NAN_VALUE && w->pattern != INF_VALUE;
        for (int64_t i = 0; i < count; i++) put(w->bias.data, i, amx_bias(r, finite));
        p->bias.data = w->bias.data;
    }
    if (random_chance(r, beside)) {
        p->has_mask = true;
        p->mask.stride_t = p->keys;
        p->mask.stride_b = random_chance(r, 0.5) ? p->queries * p->keys : 0;
        const int64_t count = (p->mask.stride_b ? p->batch : 1) * p->queries * p->keys;
        guarded_create(&w->mask, (size_t)count, GUARDED_END, 0);
        for (int64_t i = 0; i < count; i++)
            w->mask.data[i] = random_chance(r, 0.8) && i % p->keys % 13 != 5;
        p->mask.data = w->mask.data;
    }
    if (random_chance(r, beside)) amx_segments(p, &w->ids, &w->key_ids);
    if (random_chance(r, 0.2)) {
        p->has_sinks = true;
        p->sink_count = random_int(r, 1, 3);
        p->sink_stride_h = p->sink_count;
        guarded_create(&w->sinks, (size_t)(p->sink_count * p->query_heads) * 2, GUARDED_END, 0);
        for (int64_t i = 0; i < p->sink_count * p->query_heads; i++)
            put(w->sinks.data, i, 2 * random_normal(r));
        p->sinks = w->sinks.data;
    }
    if (w->kind != AMX_SPARSE && random_chance(r, 0.15)) {
        p->dropout = RANDOM_OF(r, ((const double[]){0.1, 0.5, 0.9}));
        p->dropout_seed = random_bits(r);
        p->first_sequence = random_int(r, 0, 3);
    }
}

/* ---- Packed sequences ---------------------------------------------------------------------------------- */

/* Lengths of some sequences into `sums`; returns how many tokens a tensor has for them. */
static int64_t lengths_of(struct random *r, const ejki_flash_problem *p, struct guarded *sums,
                          const void **place) {
    static const int64_t some[] = {0, 0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 97, 150};
    int64_t tokens = 0, longest = 0;
    guarded_create(sums, (size_t)(p->batch + 1) * 4, GUARDED_END, 0);
    ejki_int32 *to = (ejki_int32 *)(void *)sums->data;
    to[0] = 0;
    for (int64_t n = 0; n < p->batch; n++) {
        const int64_t length = RANDOM_OF(r, some);
        tokens += length;
        longest = ejki_max(longest, length);
        to[n + 1] = (int32_t)tokens;
    }
    *place = sums->data;
    return (p->layout == EJKI_FLASH_TOKENS ? tokens : longest) +
           (random_chance(r, 0.5) ? 0 : random_int(r, 0, 40));
}

static void sequences(struct random *r, world *w) {
    ejki_flash_problem *p = &w->p;
    p->layout = w->kind == AMX_TOKENS ? EJKI_FLASH_TOKENS : EJKI_FLASH_PADDED;
    p->batch = random_int(r, 1, AMX_SEQUENCES);
    p->queries = lengths_of(r, p, &w->query_sums, &p->query_sums);
    p->keys = lengths_of(r, p, &w->key_sums, &p->key_sums);
}

/* Positions of a packed sequence count from its own end or start. */
static void sequence_offsets(struct random *r, ejki_flash_problem *p) {
    const int64_t far = INT64_C(1) << 61;
    p->ends_together = random_chance(r, 0.7);
    p->first_offset = random_chance(r, 0.25) ? -random_int(r, 0, 60) : -far;
    p->last_offset = random_chance(r, 0.4)    ? random_int(r, -3, 3)
                     : random_chance(r, 0.15) ? random_int(r, 0, 60)
                                              : far;
}

/* The number of problems that a world's is made of, each with queries and keys of its own. */
static int64_t parts(const world *w) {
    const ejki_flash_problem *p = &w->p;
    if (p->layout == EJKI_FLASH_DENSE) return 1;
    return p->layout == EJKI_FLASH_PADDED ? 2 * p->batch : p->batch + 1;
}

static void *moved(const void *data, int64_t elements, int64_t size) {
    return data ? (char *)(uintptr_t)data + elements * size : NULL;
}

static ejki_bthd later(ejki_bthd t, int64_t b, int64_t i, int64_t size) {
    t.data = moved(t.data, b * t.stride_b + i * t.stride_t, size);
    return t;
}

static ejki_bht later_rows(ejki_bht t, int64_t b, int64_t i) {
    t.data = moved(t.data, b * t.stride_b + i * t.stride_t, 4);
    return t;
}

/* Sequence `n`, or behind all of them the rows of none, as a dense problem. */
static ejki_flash_problem part_of(const world *w, int64_t n) {
    ejki_flash_problem p = w->p;
    if (p.layout == EJKI_FLASH_DENSE) return p;
    const bool padded = p.layout == EJKI_FLASH_PADDED, rest = n >= p.batch;
    const ejki_int32 *q = p.query_sums, *k = p.key_sums;
    const int64_t b = padded ? n % p.batch : 0;
    const int64_t own = rest && !padded ? 0 : q[n % p.batch + 1] - q[n % p.batch];
    int64_t first = padded ? 0 : q[rest ? p.batch : n];
    p.keys = rest ? 0 : k[n + 1] - k[n];
    if (rest) first += own;
    p.queries = rest ? p.queries - first : own;
    p.key = later(p.key, b, padded || rest ? 0 : k[n], 2);
    p.value = later(p.value, b, padded || rest ? 0 : k[n], 2);
    p.query = later(p.query, b, first, 2);
    p.out = later(p.out, b, first, p.normalize ? 2 : 4);
    p.lse = later_rows(p.lse, b, first);
    p.row_max = later_rows(p.row_max, b, first);
    p.row_sum = later_rows(p.row_sum, b, first);
    p.bias.data = moved(p.bias.data, b * p.bias.stride_b, 2);
    p.mask.data = moved(p.mask.data, b * p.mask.stride_b, 1);
    p.query_segments.data = moved(p.query_segments.data, b * p.query_segments.stride_b, 4);
    p.key_segments.data = moved(p.key_segments.data, b * p.key_segments.stride_b, 4);
    p.first_sequence += n;
    p.batch = 1;
    p.layout = EJKI_FLASH_DENSE;
    if (p.ends_together && p.first_offset > -(INT64_C(1) << 61))
        p.first_offset += p.keys - p.queries;
    if (p.ends_together && p.last_offset < INT64_C(1) << 61) p.last_offset += p.keys - p.queries;
    if (rest) {
        p.has_sinks = false;
        p.sink_count = 0;
    }
    return p;
}

/* ---- Patterns ------------------------------------------------------------------------------------------ */

static void put_index(const struct guarded *memory, int64_t size, int64_t at, int64_t value) {
    memcpy(memory->data + at * size, &value, (size_t)size); /* the low bytes come first */
}

/* Blocks of a plane's row: which there are, what is in them, and where the grid names them. */
static void pattern_row(struct random *r, world *w, int64_t plane, int64_t row, bool shrunk) {
    const ejki_flash_problem *p = &w->p;
    const ejki_block_mask *g = &p->block_mask;
    int64_t count = 0;
    for (int64_t column = 0; column < g->columns; column++) {
        const int kind = (int)random_int(r, 0, 4) - 2;
        const int64_t line = (plane * g->rows + row) * g->columns;
        const int64_t at = line + (shrunk ? count : column), id = line + column;
        uint8_t *block = w->blocks.data + id * g->block_stride;
        for (int64_t i = 0; i < g->block_q; i++)
            for (int64_t j = 0; j < g->block_kv; j++) {
                const bool seen = kind == 2 || (kind == 1 && random_chance(r, 0.4));
                block[i * g->block_row + j] = kind == 1 && seen ? (uint8_t)random_int(r, 1, 9) : 0;
                for (int64_t h = plane * g->heads_per_mask; h < (plane + 1) * g->heads_per_mask;
                     h++)
                    w->seen[(h * p->queries + row * g->block_q + i) * p->keys +
                            column * g->block_kv + j] = seen;
            }
        if (kind <= 0) continue;
        put_index(&w->state, g->state.size, at, kind);
        put_index(&w->next, g->next.size, at, column);
        put_index(&w->id, g->id.size, at, id);
        count++;
    }
}

static void blocks(struct random *r, world *w) {
    static const int64_t of_queries[] = {1, 3, 8, 16, 31, 32, 40, 64};
    static const int64_t of_keys[] = {1, 5, 16, 31, 32, 33, 48, 64, 128};
    static const int64_t index_sizes[] = {2, 4, 8};
    ejki_flash_problem *p = &w->p;
    ejki_block_mask *g = &p->block_mask;
    g->name = "fwd";
    g->block_q = RANDOM_OF(r, of_queries);
    g->block_kv = RANDOM_OF(r, of_keys);
    g->rows = random_int(r, 1, 4);
    g->columns = random_int(r, 1, random_chance(r, 0.3) ? 20 : 6);
    if (random_chance(r, 0.3)) {
        /* So many that blocks which stay packed have to make room for others. */
        g->block_q = random_int(r, 1, 4);
        g->block_kv = random_int(r, 20, 40);
        g->rows = random_int(r, 5, 20);
        g->columns = random_int(r, 10, 30);
    }
    p->queries = g->block_q * g->rows;
    p->keys = g->block_kv * g->columns;
    g->mask_heads = RANDOM_OF(r, ((const int64_t[]){1, p->kv_heads, p->query_heads}));
    g->heads_per_mask = p->query_heads / g->mask_heads;
    g->block_row = g->block_kv + (random_chance(r, 0.3) ? 3 : 0);
    g->block_stride = g->block_row * g->block_q;
    const int64_t cells = g->mask_heads * g->rows * g->columns;
    g->block_count = cells;
    g->next.size = g->id.size = RANDOM_OF(r, index_sizes);
    g->state.size = RANDOM_OF(r, ((const int64_t[]){1, 4}));
    guarded_create(&w->next, (size_t)(cells * g->next.size), GUARDED_END, 0);
    guarded_create(&w->id, (size_t)(cells * g->id.size), GUARDED_END, 0);
    guarded_create(&w->state, (size_t)(cells * g->state.size), GUARDED_END, 0);
    guarded_create(&w->blocks, (size_t)(cells * g->block_stride - g->block_row + g->block_kv),
                   GUARDED_END, 0);
    for (int64_t i = 0; i < cells; i++) put_index(&w->state, g->state.size, i, 0);
    w->seen = calloc((size_t)(p->query_heads * p->queries * p->keys) + 1, 1);
    const bool shrunk = random_chance(r, 0.5);
    for (int64_t plane = 0; plane < g->mask_heads; plane++)
        for (int64_t row = 0; row < g->rows; row++) pattern_row(r, w, plane, row, shrunk);
    g->next.data = w->next.data;
    g->id.data = w->id.data;
    g->state.data = w->state.data;
    g->next.stride_r = g->id.stride_r = g->state.stride_r = g->columns;
    g->next.stride_p = g->id.stride_p = g->state.stride_p = g->rows * g->columns;
    g->blocks = w->blocks.data;
    if (!random_chance(r, 0.2)) return;
    g->chunk = random_int(r, 1, 60);
    g->chunk_offset = random_int(r, -20, 20);
}

static bool visible(const world *w, const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i,
                    int64_t j) {
    const ejki_block_mask *g = &p->block_mask;
    if (!flash_visible(p, b, h, i, j)) return false;
    if (w->seen && !w->seen[(h * p->queries + i) * p->keys + j]) return false;
    if (g->chunk == 0) return true;
    const int64_t at = i + g->chunk_offset, rest = at % g->chunk;
    return j >= at - (rest < 0 ? rest + g->chunk : rest);
}

/* ---- Contents ------------------------------------------------------------------------------------------ */

/* No query of the key head sees key j. */
static bool hidden(const world *w, const ejki_flash_problem *p, int64_t b, int64_t kv, int64_t j) {
    for (int64_t g = 0; g < p->group; g++)
        for (int64_t i = 0; i < p->queries; i++)
            if (visible(w, p, b, kv * p->group + g, i, j)) return false;
    return true;
}

/* Scores that rise or jump, and elements that are not finite where a query may see them or none does. */
static void trouble(struct random *r, const world *w, const ejki_flash_problem *p) {
    const int64_t d = p->head_dim, v = p->value_dim;
    for (int64_t n = 0; n < p->batch * p->kv_heads * p->keys; n++) {
        const int64_t j = n % p->keys, k = n / p->keys % p->kv_heads, i = n / p->keys / p->kv_heads;
        const int64_t key = i * p->key.stride_b + j * p->key.stride_t + k * p->key.stride_h;
        const int64_t value = i * p->value.stride_b + j * p->value.stride_t + k * p->value.stride_h;
        if (w->pattern == RISING) put(p->key.data, key, (double)j * 3);
        if (w->pattern == JUMP) put(p->key.data, key, j > p->keys / 2 ? 900 : 0);
        const bool poisoned = random_chance(r, 0.02);
        if (w->pattern == NAN_VALUE && poisoned) put(p->value.data, value, NAN);
        if (w->pattern == INF_VALUE && poisoned) put(p->value.data, value, INFINITY);
        if (w->pattern == NAN_KEY && poisoned) put(p->key.data, key, NAN);
        if (!hidden(w, p, i, k, j)) continue;
        for (int64_t e = 0; e < d; e++) put(p->key.data, key + e, e % 2 ? NAN : INFINITY);
        for (int64_t e = 0; e < v; e++) put(p->value.data, value + e, e % 2 ? INFINITY : NAN);
    }
    if (w->pattern != RISING && w->pattern != JUMP) return;
    for (int64_t n = 0; n < p->batch * p->query_heads * p->queries; n++) {
        const int64_t t = n % p->queries, k = n / p->queries % p->query_heads;
        const int64_t i = n / p->queries / p->query_heads;
        put(p->query.data, i * p->query.stride_b + t * p->query.stride_t + k * p->query.stride_h,
            random_chance(r, 0.5) ? 8 : 0.5);
    }
}

static void contents(struct random *r, world *w) {
    const ejki_flash_problem *p = &w->p;
    const int64_t b = entries(p), h = p->kv_heads, d = p->head_dim, v = p->value_dim;
    const double large = w->pattern == LARGE ? 60 : 1;
    const bool packed = p->layout != EJKI_FLASH_DENSE;
    fill(r, &p->query, b, p->queries, p->query_heads, d, large);
    /* Keys and values of no sequence are NaN. */
    fill(r, &p->key, b, p->keys, h, d, packed ? NAN : w->pattern == EQUAL ? 0 : large);
    fill(r, &p->value, b, p->keys, h, v, packed ? NAN : w->pattern == TINY_VALUES ? 1e-39 : 1);
    for (int64_t n = 0; n < parts(w); n++) {
        const ejki_flash_problem own = part_of(w, n);
        if (packed) {
            fill(r, &own.key, 1, own.keys, h, d, w->pattern == EQUAL ? 0 : large);
            fill(r, &own.value, 1, own.keys, h, v, w->pattern == TINY_VALUES ? 1e-39 : 1);
        }
        trouble(r, w, &own);
    }
}

static void create(world *w, enum amx_kind kind, uint64_t seed) {
    struct random r = {seed};
    *w = (world){.seed = seed, .kind = kind};
    ejki_flash_problem *p = &w->p;
    p->dtype = EJK_DTYPE_BF16;
    sizes(&r, p);
    const bool packed = kind == AMX_TOKENS || kind == AMX_PADDED;
    if (packed) sequences(&r, w);
    if (kind == AMX_SPARSE) blocks(&r, w);
    w->pattern = random_chance(&r, 0.4) ? NORMAL : (int)random_int(&r, 0, PATTERNS - 1);
    features(&r, w);
    if (packed) sequence_offsets(&r, p);
    p->query = tensor(&r, &w->query, entries(p), p->queries, p->query_heads, p->head_dim, 2);
    p->key = tensor(&r, &w->key, entries(p), p->keys, p->kv_heads, p->head_dim, 2);
    p->value = tensor(&r, &w->value, entries(p), p->keys, p->kv_heads, p->value_dim, 2);
    p->out = tensor(&r, &w->out, entries(p), p->queries, p->query_heads, p->value_dim,
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
    snprintf(w->text, sizeof w->text,
             "kind %d, seed %llu: B=%lld T=%lld S=%lld Hkv=%lld G=%lld D=%lld Dv=%lld scale=%g "
             "cap=%g bias=%d "
             "mask=%d "
             "segments=%d sinks=%d lse=%d normalize=%d first=%lld last=%lld dropout=%g pattern=%d "
             "q=%lld kv=%lld "
             "blocks=%lldx%lld",
             (int)kind, (unsigned long long)seed, (long long)p->batch, (long long)p->queries,
             (long long)p->keys, (long long)p->kv_heads, (long long)p->group,
             (long long)p->head_dim, (long long)p->value_dim, p->scale, p->soft_cap, p->has_bias,
             p->has_mask, p->has_segments, p->has_sinks, p->lse.data != NULL, p->normalize,
             (long long)p->first_offset, (long long)p->last_offset, p->dropout, w->pattern,
             (long long)w->parameters[0], (long long)w->parameters[1],
             (long long)p->block_mask.block_q, (long long)p->block_mask.block_kv);
}

static void destroy(world *w) {
    struct guarded *all[] = {&w->query,   &w->key,     &w->value,      &w->bias,     &w->mask,
                             &w->ids,     &w->key_ids, &w->sinks,      &w->out,      &w->lse,
                             &w->row_max, &w->row_sum, &w->query_sums, &w->key_sums, &w->next,
                             &w->state,   &w->id,      &w->blocks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->pages) guarded_destroy(all[i]);
    free(w->seen);
}

#endif
