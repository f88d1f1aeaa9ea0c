/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products whose sums are scaled block by block: TILE_COLUMNS columns of some blocks of the depth as operands, in the
 * first-level cache, with all rows, a tile after the other. For each block
 *
 *     total ← total + scale · (inner sum + zero · sum of the row's elements)
 *
 * where the inner sum is one chain of multiply-adds in the order of the words (or of tiles of AMX) from 0 on.
 */
#ifndef EJKI_PRODUCT_CHUNK_H
#define EJKI_PRODUCT_CHUNK_H

#include "operations/matmul/shared/product_rows.h"

/* Of bytes on AMX a block is a step or two, whose sums want the first-level cache more than operands do: 64 words take
 * 0.89 of the time of 128 where another program shares the core. */
#if defined(TILE_AMX) && defined(TILE_BYTE_DOT)
enum { GROUP_DEPTH = 64, GROUP_BLOCKS = 16 };
#else
enum { GROUP_DEPTH = 128, GROUP_BLOCKS = 16 };
#endif

/* Where inner sums of row `at` of all blocks begin. */
INLINE vf group_begin(const group_rows *r, int64_t at) {
#ifdef TILE_BYTE_DOT
    /* Where two sums are known to begin alike, gcc 12 keeps the 24 of a tile in memory: 1.5 times the time. */
    vf begin = v_set1_whole(r->begins[at]);
    __asm__ volatile("" : "+v"(begin));
    return begin;
#else
    (void)r;
    (void)at;
    return v_zero();
#endif
}
/* A row's inner sum with its zeros and scales. */
INLINE vf group_end(const bool rounds, const bool zeros, vf inner, vf scale, vf zero, float sum,
                    float row_scale, vf total) {
#ifdef TILE_BYTE_DOT
    inner = v_of_whole(inner);
#endif
    if (zeros) inner = v_fma(zero, v_set1(sum), inner);
    if (rounds) scale = v_mul(scale, v_set1(row_scale));
    return v_fma(scale, inner, total);
}

/* TILE_COLUMNS columns of some blocks as operands. */
typedef struct group_chunk {
    float *words;
    int64_t blocks, first; /* first of its blocks among all */
    bool rounds, zeros;
    int64_t steps[GROUP_BLOCKS];
    float scale[GROUP_BLOCKS][TILE_COLUMNS], zero[GROUP_BLOCKS][TILE_COLUMNS];
#ifdef TILE_AMX
    uintptr_t ask, ask_end; /* lines that are asked for while sums are settled */
    int64_t ask_each;       /* with each row; 0: none */
#endif
} group_chunk;

#ifdef TILE_AMX
/* Blocks that are multiplied before their sums are settled: totals pass through all of them in registers, vectors do
 * not wait for what tiles have just stored, and are at half their rate for fewer of them: Intel's processors have one
 * unit for floats, not two, for some 250 cycles behind each instruction of tiles. */
enum { SETTLED = 4 };

/* Totals of `rows` rows from `row` on with the inner sums of `count` blocks from n on. */
INLINE void settle(const int count, const bool rounds, const bool zeros, int64_t rows,
                   const group_chunk *chunk, const group_rows *r, int64_t row, int64_t n,
                   const float *inner, float *totals) {
    const bool begins = chunk->first + n == 0;
    const float *sums[SETTLED], *own[SETTLED]; /* of the rows */
    EJKI_UNROLL for (int b = 0; b < count; b++) {
        sums[b] = r->sums + (chunk->first + n + b) * r->capacity + row;
        own[b] = r->scales + (chunk->first + n + b) * r->capacity + row;
    }
    vf scale[SETTLED][TILE_VECTORS], zero[SETTLED][TILE_VECTORS];
    EJKI_UNROLL for (int b = 0; b < count; b++) EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
        scale[b][j] = v_load(&chunk->scale[n + b][j * VL]);
        zero[b][j] = zeros ? v_load(&chunk->zero[n + b][j * VL]) : v_zero();
    }
    uintptr_t ask = chunk->ask;
    const uintptr_t step = chunk->ask < chunk->ask_end ? (uintptr_t)chunk->ask_each * 64 : 0;
    for (int64_t i = 0; i < rows; i++, totals += TILE_COLUMNS, inner += TILE_COLUMNS) {
        vf total[TILE_VECTORS];
        for (const uintptr_t end = ask + step; ask < end; ask += 64)
            __builtin_prefetch((const void *)ask, 0, 2);
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) total[j] =
            begins ? v_zero() : v_load(totals + j * VL);
        EJKI_UNROLL for (int b = 0; b < count; b++)
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
            const vf v = v_load(inner + b * TILE_ROWS * TILE_COLUMNS + j * VL);
            total[j] = group_end(rounds, zeros, v, scale[b][j], zero[b][j], sums[b][i], own[b][i],
                                 total[j]);
        }
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) v_store(totals + j * VL, total[j]);
    }
}

static __attribute__((noinline)) void settle_blocks(int64_t count, int64_t rows,
                                                    const group_chunk *chunk, const group_rows *r,
                                                    int64_t row, int64_t n, const float *inner,
                                                    float *totals) {
#define SETTLE(count, rounds, zeros)                                                               \
    settle(count, rounds, zeros, rows, chunk, r, row, n, inner, totals)
#define SETTLE_COUNT(rounds, zeros)                                                                \
    (count == 4   ? SETTLE(4, rounds, zeros)                                                       \
     : count == 3 ? SETTLE(3, rounds, zeros)                                                       \
     : count == 2 ? SETTLE(2, rounds, zeros)                                                       \
                  : SETTLE(1, rounds, zeros))
    if (chunk->rounds) (void)(chunk->zeros ? SETTLE_COUNT(true, true) : SETTLE_COUNT(true, false));
#ifndef TILE_BYTE_DOT
    else
        (void)(chunk->zeros ? SETTLE_COUNT(false, true) : SETTLE_COUNT(false, false));
#endif
#undef SETTLE_COUNT
#undef SETTLE
}

/* Products of a chunk with a tile of rows. */
INLINE void group_tiles(const bool both, int64_t rows, group_chunk *chunk, const group_rows *r,
                        int64_t row, const float *x, float *totals) {
    _Alignas(64) float inner[SETTLED][TILE_ROWS * TILE_COLUMNS];
    const float *words = chunk->words;
    for (int64_t n = 0, some; n < chunk->blocks; n += some) {
        some = ejki_min(chunk->blocks - n, SETTLED);
        tiles_blocks(both, some, &chunk->steps[n], x, words, inner[0]);
        for (int64_t b = 0; b < some; b++) {
            x += chunk->steps[n + b] * TILE_ROWS;
            words += chunk->steps[n + b] * TILE_COLUMNS;
        }
        settle_blocks(some, rows, chunk, r, row, n, inner[0], totals);
        chunk->ask += (uintptr_t)(rows * chunk->ask_each * 64);
    }
}

static void group_multiply(int64_t rows, group_chunk *chunk, const group_rows *r, int64_t row,
                           const float *x, float *totals) {
    if (rows > 16)
        group_tiles(true, rows, chunk, r, row, x, totals);
    else
        group_tiles(false, rows, chunk, r, row, x, totals);
}
#else
/* Products of a chunk with `rows` rows at x, the first of which is row `row`. */
INLINE void group_tile(const int rows, const group_chunk *chunk, const group_rows *r, int64_t row,
                       const float *x, float *totals) {
    const float *words = chunk->words;
    const bool rounds = chunk->rounds, zeros = chunk->zeros;
    for (int64_t n = 0; n < chunk->blocks; n++) {
        const int64_t at = (chunk->first + n) * r->capacity + row;
        const float *sums = r->sums + at, *own = r->scales + at;
        vf inner[TILE_ROWS][TILE_VECTORS];
        EJKI_UNROLL for (int i = 0; i < rows; i++)
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) inner[i][j] = group_begin(r, at + i);
        const float *end = x + chunk->steps[n] * TILE_ROWS;
        EJKI_UNROLL_TWICE for (; x < end; x += TILE_ROWS, words += TILE_COLUMNS)
            gemm_step(rows, TILE_VECTORS, x, 1, words, inner);
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
            const vf scale = v_load(&chunk->scale[n][j * VL]);
            const vf zero = zeros ? v_load(&chunk->zero[n][j * VL]) : v_zero();
            EJKI_UNROLL for (int i = 0; i < rows; i++) {
                float *total = totals + i * TILE_COLUMNS + j * VL;
                const vf before = chunk->first + n > 0 ? v_load(total) : v_zero();
                v_store(total, group_end(rounds, zeros, inner[i][j], scale, zero, sums[i], own[i],
                                         before));
            }
        }
    }
}

#define GROUP_TILE_DEFINE(n)                                                                       \
    static __attribute__((noinline)) void group_tile_##n(const group_chunk *chunk,                 \
                                                         const group_rows *r, int64_t row,         \
                                                         const float *x, float *totals) {          \
        group_tile(n, chunk, r, row, x, totals);                                                   \
    }
TILE_ROW_COUNTS(GROUP_TILE_DEFINE)

typedef void (*group_tile_fn)(const group_chunk *chunk, const group_rows *r, int64_t row,
                              const float *x, float *totals);
static group_tile_fn group_tile_of(int64_t rows) {
    group_tile_fn best = NULL;
#define GROUP_TILE_TAKE(n)                                                                         \
    if (rows <= n) best = group_tile_##n;
    TILE_ROW_COUNTS(GROUP_TILE_TAKE)
#undef GROUP_TILE_TAKE
    return best;
}

static void group_multiply(int64_t rows, const group_chunk *chunk, const group_rows *r, int64_t row,
                           const float *x, float *totals) {
    group_tile_of(rows)(chunk, r, row, x, totals);
}
#endif

#endif
