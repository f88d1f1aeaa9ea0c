/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows of a KV head by AMX tiles, which read the cache where it lies: keys are left operands, 16 of them as they
 * are, and queries right ones, packed once; values are right operands as they are. Tiles take neighbouring components
 * of a value for a pair, so that weights come with a 0 on the other side: rows of weights times even components, and
 * rows times odd ones. Sums of a row lie in that order, those of even components first, until its keys have been seen.
 *
 * Keys and values that are not bf16, rows that are not evenly spaced as at the ends of pages, and what is left of a
 * row are copied into a tile. A value that is not finite spoils the sum of its neighbour, which has_lost() finds.
 */
#ifndef EJKI_PAGED_AMX_ROWS_H
#define EJKI_PAGED_AMX_ROWS_H

#include "operations/paged/cpu/paged_few.h"

#include "operations/attention/cpu/amx/amx_tiles.h"

enum { AMX_KEYS = 16, AMX_GROUPS = BLOCK / AMX_KEYS, AMX_TILE = 256 /* floats */ };

/* Rows that tiles are worth it for. */
static inline bool in_tiles(const paged_job *j) {
    return j->rows > 1;
}

/* Rows of a block as tiles: of group g they begin at row[16 g] and lie stride[g] bytes apart, if that is not 0. */
typedef struct amx_rows {
    const paged_block *block;
    const char *const *row;
    paged_size stride[AMX_GROUPS], head; /* bytes from the first head on */
    paged_size dim;
    float *copy; /* of a tile */
} amx_rows;

static amx_rows rows_of(const paged_few *f, const paged_cache *c, const char *const *row,
                        paged_size h, paged_size dim, float *copy) {
    amx_rows r = {.block = f->block, .row = row, .dim = dim, .copy = copy};
    r.head = h * c->head * paged_bytes(c->dtype);
    for (paged_size g = 0, t = 0; g < AMX_GROUPS; g++, t += AMX_KEYS) {
        const intptr_t step = (intptr_t)row[t + 1] - (intptr_t)row[t];
        bool even = c->dtype == EJK_DTYPE_BF16 && t >= f->block->low;
        even = even && t + AMX_KEYS <= f->block->high;
        for (int i = 2; i < AMX_KEYS; i++)
            even &= (intptr_t)row[t + i] - (intptr_t)row[t + i - 1] == step;
        r.stride[g] = even ? (paged_size)step : 0;
    }
    return r;
}

/* Components 32 s to 32 s + 31 of group g, as a tile in memory. */
AMX_INLINE const void *tile_rows(const ejk_dtype dtype, const amx_rows *r, paged_size g,
                                 paged_size s, int64_t *stride) {
    const paged_size left = r->dim - LANES * s, at = LANES * s * (paged_size)stored_size(dtype);
    const bool whole = left >= LANES;
    *stride = r->stride[g];
    if (dtype == EJK_DTYPE_BF16 && whole && *stride != 0)
        return r->row[AMX_KEYS * g] + r->head + at;
    const char *row[AMX_KEYS];
    head_rows(r->row, AMX_KEYS * g, AMX_KEYS, r->head, r->block, row);
    for (int i = 0; i < AMX_KEYS; i++)
        v_store(r->copy + i * VL,
                whole ? v_operand(dtype, row[i] + at) : v_operand_first(dtype, row[i] + at, left));
    *stride = 64;
    AMX_BARRIER();
    return r->copy;
}

/* Prefetches as many bytes as a tile has read. */
AMX_INLINE void tile_ahead(paged_few *f, const ejk_dtype dtype) {
    const paged_size bytes = AMX_KEYS * LANES * (paged_size)stored_size(dtype);
    const char *next = prefetch_next(&f->prefetch, bytes, NULL);
    if (!next) return;
    EJKI_UNROLL for (int i = 0; i < (int)bytes; i += 64)
        __builtin_prefetch((const void *)((uintptr_t)next + (uintptr_t)i), 0, 2);
}

/* ---- Scores ----------------------------------------------------------------------------------------- */

/* Queries of all heads as right operands: for each head and 16 lanes a lane of every row in turn. */
static void pack_queries(paged_few *f) {
    const paged_size depth = f->j->work->plan.depth;
    for (paged_size h = 0; h < f->j->heads; h++)
        for (paged_size d = 0; d < depth; d += VL) {
            vf block[VL];
            for (paged_size r = 0; r < VL; r++)
                block[r] =
                    r < f->j->rows ? v_load(f->query + (h * f->j->rows + r) * depth + d) : v_zero();
            v_transpose(block);
            for (int i = 0; i < VL; i++)
                v_store(f->tile_query + (h * depth + d + i) * VL, block[i]);
        }
}

/* Sums of group g take in its keys, by tile `left`: instructions have numbers of tiles in them. */
#define ADD_KEYS(g, left)                                                                          \
    do {                                                                                           \
        const void *key = tile_rows(dtype, r, g, s, &stride);                                      \
        _tile_loadd(left, key, stride);                                                            \
        _tile_dpbf16ps(g, left, 4);                                                                \
        tile_ahead(f, dtype);                                                                      \
    } while (0)

/* Tiles 0 to 3 take in products of a block's keys, or of their tails, with the queries at `query`. */
AMX_INLINE void add_scores(const ejk_dtype dtype, paged_few *f, const amx_rows *r,
                           const float *query) {
    for (paged_size s = 0; LANES * s < r->dim; s++, query += AMX_TILE) {
        int64_t stride;
        _tile_loadd(4, query, 64);
        ADD_KEYS(0, 5);
        ADD_KEYS(1, 6);
        ADD_KEYS(2, 7);
        ADD_KEYS(3, 5);
    }
}

/* Products of a head's keys, a row each, to its rows' scores. */
static void place_scores(const paged_few *f, paged_size h, const float *products) {
    for (paged_size t = 0; t < BLOCK; t += VL) {
        vf block[VL];
        for (int i = 0; i < VL; i++) block[i] = v_load(products + (t + i) * VL);
        v_transpose(block);
        for (paged_size r = 0; r < f->j->rows; r++)
            v_store(f->scores + (h * f->j->rows + r) * BLOCK + t, block[r]);
    }
}

AMX_INLINE void tile_scores(const ejk_dtype dtype, paged_few *f) {
    const paged_problem *p = f->j->p;
    const paged_size depth = f->j->work->plan.depth;
    const bool same = p->value.data == p->key.data;
    _Alignas(64) float copy[AMX_TILE], products[BLOCK * VL];
    amx_open();
    prefetch_rows(&f->prefetch, NULL, 0, 0, 0);
    for (paged_size h = 0; h < f->j->heads; h++) {
        const float *query = f->tile_query + h * depth * VL;
        const amx_rows keys = rows_of(f, &p->key, f->block->key, h, p->dim, copy);
        if (!same) begin_prefetch(f, &p->value, f->block->value, p->value_dim, h, 0, BLOCK);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        add_scores(dtype, f, &keys, query);
        if (p->tail_dim > 0) {
            const amx_rows tails = rows_of(f, &p->key_tail, f->block->tail, h, p->tail_dim, copy);
            add_scores(dtype, f, &tails, query + padded(p->dim) * VL);
        }
        AMX_BARRIER();
        _tile_stored(0, products, 64);
        _tile_stored(1, products + AMX_TILE, 64);
        _tile_stored(2, products + 2 * AMX_TILE, 64);
        _tile_stored(3, products + 3 * AMX_TILE, 64);
        AMX_BARRIER();
        place_scores(f, h, products);
    }
}

/* ---- Values ----------------------------------------------------------------------------------------- */

/* Weights of a head's rows for group g: rows for even and odd components in turn, or up to 16 of each. */
static void pack_weights(const paged_few *f, paged_size h, paged_size g, float *even, float *odd,
                         int step) {
    for (paged_size r = 0; r < f->j->rows; r++) {
        const float *weights = f->scores + (h * f->j->rows + r) * BLOCK + g * AMX_KEYS / 2;
        const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)weights));
        _mm512_storeu_si512(even + r * step, w);
        _mm512_storeu_si512(odd + r * step, _mm512_slli_epi32(w, 16));
    }
}

/* Sums of tile n take in components 32 (c + n) to 32 (c + n) + 31 of group g's values, by tile `right`. */
#define ADD_VALUES(n, right)                                                                       \
    do {                                                                                           \
        const void *value = tile_rows(dtype, r, g, c + (n), &step);                                \
        _tile_loadd(right, value, step);                                                           \
        _tile_dpbf16ps(n, 6, right);                                                               \
        tile_ahead(f, dtype);                                                                      \
    } while (0)

/* Sums of up to 8 rows take in a block's values: components 32 c to 32 c + 127, of which `tiles` tiles are there. */
AMX_INLINE void add_values_twice(const ejk_dtype dtype, const int tiles, paged_few *f,
                                 const amx_rows *r, paged_size c, const float *weights, float *sums,
                                 int64_t stride) {
    const paged_size end = ejki_cdiv(f->block->high, AMX_KEYS);
    int64_t step;
    AMX_BARRIER();
    _tile_loadd(0, sums, stride);
    if (tiles > 1) _tile_loadd(1, sums + VL, stride);
    if (tiles > 2) _tile_loadd(2, sums + 2 * VL, stride);
    if (tiles > 3) _tile_loadd(3, sums + 3 * VL, stride);
    for (paged_size g = f->block->low / AMX_KEYS; g < end; g++) {
        _tile_loadd(6, weights + g * AMX_TILE, 64);
        ADD_VALUES(0, 4);
        if (tiles > 1) ADD_VALUES(1, 5);
        if (tiles > 2) ADD_VALUES(2, 4);
        if (tiles > 3) ADD_VALUES(3, 5);
    }
    _tile_stored(0, sums, stride);
    if (tiles > 1) _tile_stored(1, sums + VL, stride);
    if (tiles > 2) _tile_stored(2, sums + 2 * VL, stride);
    if (tiles > 3) _tile_stored(3, sums + 3 * VL, stride);
    AMX_BARRIER();
}

/* Sums of up to 16 rows, even and odd ones apart, take in components 32 c to 32 c + 63; weights of odd ones lie
 * AMX_GROUPS tiles behind. */
AMX_INLINE void add_values_apart(const ejk_dtype dtype, const int tiles, paged_few *f,
                                 const amx_rows *r, paged_size c, const float *weights, float *sums,
                                 paged_size width) {
    const paged_size end = ejki_cdiv(f->block->high, AMX_KEYS);
    float *odd = sums + width / 2;
    int64_t step;
    AMX_BARRIER();
    _tile_loadd(0, sums, 4 * width);
    _tile_loadd(1, odd, 4 * width);
    if (tiles > 1) _tile_loadd(2, sums + VL, 4 * width);
    if (tiles > 1) _tile_loadd(3, odd + VL, 4 * width);
    for (paged_size g = f->block->low / AMX_KEYS; g < end; g++) {
        const void *value = tile_rows(dtype, r, g, c, &step);
        _tile_loadd(6, weights + g * AMX_TILE, 64);
        _tile_loadd(4, value, step);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(7, weights + (AMX_GROUPS + g) * AMX_TILE, 64);
        _tile_dpbf16ps(1, 7, 4);
        tile_ahead(f, dtype);
        if (tiles > 1) {
            value = tile_rows(dtype, r, g, c + 1, &step);
            _tile_loadd(5, value, step);
            _tile_dpbf16ps(2, 6, 5);
            _tile_dpbf16ps(3, 7, 5);
            tile_ahead(f, dtype);
        }
    }
    _tile_stored(0, sums, 4 * width);
    _tile_stored(1, odd, 4 * width);
    if (tiles > 1) _tile_stored(2, sums + VL, 4 * width);
    if (tiles > 1) _tile_stored(3, odd + VL, 4 * width);
    AMX_BARRIER();
}

/* Keys of the next block, with their tails where these follow. */
static void begin_next_keys(paged_few *f, paged_size h) {
    const paged_problem *p = f->j->p;
    const bool more = f->next->high > 0;
    const bool follows = p->tail_dim > 0 && more &&
                         f->next->key[f->next->low] + p->dim * paged_bytes(p->key.dtype) ==
                             f->next->tail[f->next->low];
    const paged_size dim = p->dim + (follows ? p->tail_dim : 0);
    begin_prefetch(f, &p->key, more ? f->next->key : NULL, dim, h, 0, BLOCK);
}

AMX_INLINE void tile_values(const ejk_dtype dtype, paged_few *f, paged_size first,
                            paged_size heads) {
    const paged_problem *p = f->j->p;
    const paged_size width = f->j->work->plan.width, rows = f->j->rows;
    const bool twice = rows <= 8;
    _Alignas(64) float copy[AMX_TILE], weights[2 * AMX_GROUPS * AMX_TILE];
    amx_open_rows((int)(twice ? 2 * rows : rows),
                  AMX_KEYS); /* sums, 0 to 3, and weights, 6 and 7; values */
    for (paged_size h = first; h < first + heads; h++) {
        const amx_rows values = rows_of(f, &p->value, f->block->value, h, p->value_dim, copy);
        const paged_size tiles = width / LANES;
        begin_next_keys(f, h);
        for (paged_size g = 0; g < AMX_GROUPS; g++) {
            float *even = weights + g * AMX_TILE;
            pack_weights(f, h, g, even, twice ? even + VL : even + AMX_GROUPS * AMX_TILE,
                         twice ? 2 * VL : VL);
        }
        float *sums = f->sums + h * rows * width;
        for (paged_size c = 0; c < tiles; c += twice ? 4 : 2) {
            float *to = sums + c * VL;
            if (!twice && tiles - c > 1)
                add_values_apart(dtype, 2, f, &values, c, weights, to, width);
            else if (!twice)
                add_values_apart(dtype, 1, f, &values, c, weights, to, width);
            else if (tiles - c >= 4)
                add_values_twice(dtype, 4, f, &values, c, weights, to, 2 * width);
            else if (tiles - c == 3)
                add_values_twice(dtype, 3, f, &values, c, weights, to, 2 * width);
            else if (tiles - c == 2)
                add_values_twice(dtype, 2, f, &values, c, weights, to, 2 * width);
            else
                add_values_twice(dtype, 1, f, &values, c, weights, to, 2 * width);
        }
    }
}

/* Sums of a row in their own order, or in that of tiles again; `scratch` has room for them. */
static void order_sums(bool tiles, paged_size width, float *sums, float *scratch) {
    const paged_size half = width / 2;
    memcpy(scratch, sums, sizeof *sums * (size_t)width);
    for (paged_size k = 0; k < half; k++) {
        sums[tiles ? k : 2 * k] = scratch[tiles ? 2 * k : k];
        sums[tiles ? half + k : 2 * k + 1] = scratch[tiles ? 2 * k + 1 : half + k];
    }
}

#define TILE_SCORES_OF(T)                                                                          \
    static __attribute__((noinline)) void tile_scores_##T(paged_few *f) {                          \
        tile_scores(EJK_DTYPE_##T, f);                                                             \
    }
#define TILE_VALUES_OF(T)                                                                          \
    static __attribute__((noinline)) void tile_values_##T(paged_few *f, paged_size h,              \
                                                          paged_size heads) {                      \
        tile_values(EJK_DTYPE_##T, f, h, heads);                                                   \
    }
OPERAND_TYPES(TILE_SCORES_OF)
OPERAND_TYPES(TILE_VALUES_OF)
#define TILE_SCORES_CASE(T)                                                                        \
    case EJK_DTYPE_##T:                                                                            \
        tile_scores_##T(f);                                                                        \
        break;
#define TILE_VALUES_CASE(T)                                                                        \
    case EJK_DTYPE_##T: tile_values_##T(f, h, heads); break;

static void any_tile_scores(paged_few *f) {
    switch (f->j->p->key.dtype) {
        OPERAND_TYPES(TILE_SCORES_CASE)
    default: break;
    }
}
static void any_tile_values(paged_few *f, paged_size h, paged_size heads) {
    switch (f->j->p->value.dtype) {
        OPERAND_TYPES(TILE_VALUES_CASE)
    default: break;
    }
}

#endif
