/* SPDX-License-Identifier: Apache-2.0 */
/* What workers of a run share: the plan, packed keys and values with their means, and what is kept between phases. */
#ifndef EJKI_NATIVE_SPARSE_SHARED_H
#define EJKI_NATIVE_SPARSE_SHARED_H

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/declare.h"
#include "operations/attention/native_sparse/problem.cuh"
#include "operations/attention/native_sparse/products.h"
#include "tensor/access.h"

/* Rows of one kind, of keys or of values: in tiles, as products with queries take them, and one by one. */
typedef struct packed {
    int64_t depth, width; /* components, and those of a row with its zeros */
    float *tiles, *rows, *mean_tiles, *mean_rows;
} packed;

/* What gradients keep of a row's softmax in a branch: the weight of a score z is exp(z - most) part. */
typedef struct kept {
    float most, part, inner;
} kept;

typedef struct shared {
    const nsa_problem *p;
    const ejk_run *run;
    packed key, value;
    uint8_t *finite,
        *mean_finite;         /* of each block and mean: no NaN or infinity in what products take */
    kept *kept[NSA_BRANCHES]; /* [B,T,Hq] */
    int32_t *chosen, *count;  /* [B,T,Hkv][slots], [B,T,Hkv] */
    int64_t *first;           /* [heads][rows + 1]: where tokens of a block begin */
    int32_t *token;           /* [heads][T slots]: tokens that chose it, ascending */
    float *d_mean_key, *d_mean_value;
    uint16_t *
        turned; /* amx/selected.h: values by components, and which tokens and blocks have some that do not fit */
    uint8_t *unfit, *unfit_blocks;
    int64_t turned_tiles;
    int64_t block_tiles, mean_tiles; /* of a head */
    int64_t tile_tokens, lanes;      /* of a task of tokens */
    char *scratch;
    int64_t scratch_bytes, bytes;
    _Atomic int64_t next;
} shared;

static int64_t take(int64_t *at, int64_t count, int64_t size) {
    const int64_t start = *at, limit = INT64_C(1) << 50;
    int64_t bytes;
    if (!ejki_mul(count, size, &bytes) || bytes > limit - start) bytes = limit - start;
    *at = ejki_min(limit, start + ejki_round_up(bytes, 64));
    return start;
}
#define TAKE(member, count)                                                                        \
    do {                                                                                           \
        const int64_t place_ = take(at, count, (int64_t)sizeof *(member));                         \
        (member) = memory ? (void *)((char *)memory + place_) : NULL;                              \
    } while (0)

/* The first tile of a block that begins at a token, and of the means of line n; the others follow. */
static int64_t block_tile(nsa_size begin, nsa_size row) {
    return begin / KEY_TILE + row;
}
static int64_t mean_tile(const nsa_line *line, nsa_size n) {
    return line->row / KEY_TILE + n;
}

static void place_packed(packed *k, const shared *s, bool rows, bool tiles, void *memory,
                         int64_t *at) {
    const nsa_problem *p = s->p;
    const int64_t heads = p->batch * p->kv_heads;
    if (tiles) {
        TAKE(k->tiles, heads * s->block_tiles * KEY_TILE * k->depth);
        TAKE(k->mean_tiles, heads * s->mean_tiles * KEY_TILE * k->depth);
    }
    if (rows) {
        TAKE(k->rows, heads * p->tokens * k->width);
        TAKE(k->mean_rows, heads * p->rows * k->width);
    }
}

#ifdef EJKI_TIER_AMX /* amx/selected.h */
static bool amx_takes(const nsa_problem *p);
static void place_turned(shared *s, void *memory, int64_t *at);
static void turn_block(const shared *s, nsa_size head, const ejki_range *block);
#endif

/* Lays out the memory of a run; without memory only counts it. */
static void place_shared(shared *s, const nsa_problem *p, void *memory) {
    int64_t place = 0, *at = &place;
    const int64_t heads = p->batch * p->kv_heads, lists = heads * p->tokens;
    s->p = p;
    s->block_tiles = block_tile(p->tokens, p->rows) + 1;
    s->mean_tiles = p->rows / KEY_TILE + nsa_lines(p) + 1;
    s->tile_tokens = ejki_max(1, LANES / ejki_max(1, p->group));
    s->lanes = ejki_round_up(ejki_max(1, s->tile_tokens * p->group), VL);
    s->key = (packed){.depth = p->dim, .width = ejki_round_up(p->dim, VL)};
    s->value = (packed){.depth = p->width, .width = ejki_round_up(p->width, VL)};
    place_packed(&s->key, s, p->gradient, true, memory, at);
    place_packed(&s->value, s, true, p->gradient, memory, at);
    TAKE(s->finite, heads * p->rows);
    TAKE(s->mean_finite, heads * p->rows);
#ifdef EJKI_TIER_AMX
    if (!p->gradient) place_turned(s, memory, at);
#endif
    if (p->gradient) {
        for (int i = 0; i < NSA_BRANCHES; i++) TAKE(s->kept[i], p->batch * p->tokens * p->heads);
        TAKE(s->chosen, lists * p->slots);
        TAKE(s->count, lists);
        TAKE(s->first, heads * (p->rows + 1));
        TAKE(s->token, lists * p->slots);
        TAKE(s->d_mean_key, heads * p->rows * s->key.width);
        TAKE(s->d_mean_value, heads * p->rows * s->value.width);
    }
    s->bytes = place;
}

/* ---- Packing ---------------------------------------------------------------------------------------- */

/* Element 0 of row n of a head. */
static float *row_of(const packed *k, float *rows, int64_t head, int64_t count, int64_t n) {
    return rows + (head * count + n) * k->width;
}

/* Row i of tiles. */
static void put_in_tiles(const packed *k, const float *row, int64_t i, float *tiles) {
    float *to = tiles + i / KEY_TILE * KEY_TILE * k->depth + i % KEY_TILE;
    for (int64_t d = 0; d < k->depth; d++) to[d * KEY_TILE] = row[d];
}

/* A row as floats with zeros behind them; false if there is one that is not finite. */
static bool widen_row(ejk_dtype dtype, const void *from, int64_t depth, int64_t width, float *to) {
    return pack_rows_any(dtype, from, 0, 1, depth, to, width);
}

/* Packs rows of a block and their mean; `own` has room for two rows. */
static bool pack_block(const shared *s, packed *k, const nsa_view *v, int64_t head,
                       ejki_range block, nsa_size n, const nsa_line *line, float *own,
                       bool *mean_finite) {
    const nsa_problem *p = s->p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const nsa_size b = head / p->kv_heads, h = head % p->kv_heads;
    const int64_t tile_at = head * s->block_tiles + block_tile(block.begin, block.row);
    float *tiles = k->tiles ? k->tiles + tile_at * KEY_TILE * k->depth : NULL;
    float *sum = own + k->width;
    bool finite = true;
    memset(sum, 0, (size_t)k->width * sizeof *sum);
    if (tiles)
        memset(tiles, 0,
               (size_t)(ejki_round_up(block.end - block.begin, KEY_TILE) * k->depth) *
                   sizeof *tiles);
    for (nsa_size t = block.begin; t < block.end; t++) {
        float *row = k->rows ? row_of(k, k->rows, head, p->tokens, t) : own;
        finite &= widen_row(dtype, element_at(dtype, v->data, nsa_at(v, b, t, h)), k->depth,
                            k->width, row);
        if (tiles) put_in_tiles(k, row, t - block.begin, tiles);
        for (int64_t d = 0; d < k->width; d += VL)
            v_store(sum + d, v_add(v_load(sum + d), v_load(row + d)));
    }
    vf probe = v_zero();
    for (int64_t d = 0; d < k->width; d += VL) {
        const vf mean = v_div(v_load(sum + d), v_set1((float)(block.end - block.begin)));
        probe = v_fma(mean, v_zero(), probe);
        v_store(sum + d, mean);
    }
    const float seen = v_sum(probe);
    *mean_finite = *mean_finite && seen == seen;
    if (k->mean_rows)
        memcpy(row_of(k, k->mean_rows, head, p->rows, block.row), sum,
               (size_t)k->width * sizeof *sum);
    if (k->mean_tiles)
        put_in_tiles(k, sum, block.row - line->row,
                     k->mean_tiles +
                         (head * s->mean_tiles + mean_tile(line, n)) * KEY_TILE * k->depth);
    return finite;
}

/* The line of a row of blocks. */
static nsa_size line_of_row(const nsa_problem *p, nsa_size row) {
    return p->blocks.packed ? ejki_sequence_at(&p->blocks, row, 1) : 0;
}

static void pack_worker(void *argument, int64_t worker) {
    shared *s = argument;
    const nsa_problem *p = s->p;
    float *own = (float *)(void *)(s->scratch + worker * s->scratch_bytes);
    const int64_t count = p->batch * p->kv_heads * p->rows;
    for (;;) {
        enum { AT_ONCE = 4 };
        int64_t at = atomic_fetch_add_explicit(&s->next, AT_ONCE, memory_order_relaxed);
        if (at >= count) return;
        for (const int64_t end = ejki_min(at + AT_ONCE, count); at < end; at++) {
            const nsa_size head = at / p->rows, row = at % p->rows;
            const ejki_range block = ejki_chunk_of_row(&p->blocks, row);
            const nsa_size n = line_of_row(p, row);
            const nsa_line line = nsa_line_of(p, n);
            bool mean_finite = true;
            if (block.begin >= block.end) continue;
#ifdef EJKI_TIER_AMX
            if (!p->gradient) turn_block(s, head, &block);
#endif
            const bool keys =
                pack_block(s, &s->key, &p->key, head, block, n, &line, own, &mean_finite);
            if (!p->gradient) mean_finite = true; /* keys of hidden rows do not meet weights */
            const bool values =
                pack_block(s, &s->value, &p->value, head, block, n, &line, own, &mean_finite);
            s->finite[at] = values && (keys || !p->gradient);
            s->mean_finite[at] = mean_finite;
        }
    }
}

/* ---- Workers ---------------------------------------------------------------------------------------- */

static void each_worker(shared *s, void (*work)(void *, int64_t)) {
    atomic_store(&s->next, 0);
    ejk_parallel_for(s->run->threads, s->run->workers, work, s);
}

#endif
