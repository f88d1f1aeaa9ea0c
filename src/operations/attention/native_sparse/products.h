/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products of native_sparse_attention, by register tiles of gemm_body.h. Rows of scores are keys, lanes are rows of
 * queries: maxima, exponentials and sums of a query need no step across a vector, and keys that a token does not see
 * are left out by where a loop begins and ends.
 *
 * Keys are packed as a's rows: KEY_TILE of them side by side for each component, in each block anew. So a block is
 * TILE_ROWS-fold at least: small blocks take more memory than their keys.
 */
#ifndef EJKI_NATIVE_SPARSE_PRODUCTS_H
#define EJKI_NATIVE_SPARSE_PRODUCTS_H

#include "kernels/simd/vec.h"

#define TILE_STREAMS 0
#if defined(EJKI_TIER_AVX512) || defined(EJKI_TIER_AMX)
/* 8 rows divide blocks, and keep both adders busy with one vector of 16 query heads. */
#define TILE_ROWS          8
#define TILE_VECTORS       2
#define TILE_ROW_COUNTS(X) X(8) X(4) X(2) X(1)
#elif defined(EJKI_TIER_NEON)
#define TILE_ROWS          4
#define TILE_VECTORS       4
#define TILE_ROW_COUNTS(X) X(4) X(2) X(1)
#else
#define TILE_ROWS          4
#define TILE_VECTORS       2
#define TILE_ROW_COUNTS(X) X(4) X(2) X(1)
#endif

#include "base/base.h"
#include "kernels/simd/gemm_body.h"
#include "kernels/simd/pack_body.h"

enum { KEY_TILE = TILE_ROWS };

/* c (+)= a b; element (i, k) of a lies at a[i row + k step], one of which is given. */
#define PRODUCT_OPERANDS                                                                           \
    int64_t depth, const float *a, int64_t apart, const float *b, int64_t b_stride, float *c,      \
        int64_t c_stride, bool add
typedef void (*product_fn)(PRODUCT_OPERANDS);
static const gemm_prefetch no_prefetch;

#define PRODUCT(name, n, size, vectors, row, step)                                                 \
    static __attribute__((noinline)) void name##_##n##_##size(PRODUCT_OPERANDS) {                  \
        (void)apart;                                                                               \
        gemm(n, vectors, row, step, depth, a, b, b_stride, c, c_stride, add, &no_prefetch);        \
    }
#define PRODUCT_PAIR(name, n, row, step)                                                           \
    PRODUCT(name, n, full, TILE_VECTORS, row, step)                                                \
    PRODUCT(name, n, one, 1, row, step)

/* Functions for rows of gemm_rows() and a multiple of VL columns. */
#define PRODUCT_CASE(name, n)                                                                      \
    case n:                                                                                        \
        full = name##_##n##_full;                                                                  \
        one = name##_##n##_one;                                                                    \
        break;
#define PRODUCT_DISPATCH(name, cases)                                                              \
    static void name(int rows, int64_t columns, PRODUCT_OPERANDS) {                                \
        product_fn full = name##_1_full, one = name##_1_one;                                       \
        switch (rows) { cases }                                                                    \
        int64_t j = 0;                                                                             \
        for (; j + TILE_COLUMNS <= columns; j += TILE_COLUMNS)                                     \
            full(depth, a, apart, b + j, b_stride, c + j, c_stride, add);                          \
        for (; j < columns; j += VL) one(depth, a, apart, b + j, b_stride, c + j, c_stride, add);  \
    }

/* a: rows side by side, steps `apart`: tiles of keys, and weights with lanes as rows. */
#define ACROSS_PAIR(n) PRODUCT_PAIR(multiply_across, n, 1, apart)
#define ACROSS_CASE(n) PRODUCT_CASE(multiply_across, n)
TILE_ROW_COUNTS(ACROSS_PAIR)
PRODUCT_DISPATCH(multiply_across, TILE_ROW_COUNTS(ACROSS_CASE))

/* a: rows LANES apart, steps side by side: weights with keys as rows. */
enum { LANES = 64 };
#define DOWN_PAIR(n) PRODUCT_PAIR(multiply_down, n, LANES, 1)
#define DOWN_CASE(n) PRODUCT_CASE(multiply_down, n)
TILE_ROW_COUNTS(DOWN_PAIR)
PRODUCT_DISPATCH(multiply_down, TILE_ROW_COUNTS(DOWN_CASE))

/* to[key][lane] = products of `count` keys in tiles with a panel of `lanes` lanes, panel_stride from step to step. */
static void score_tiles(int64_t count, int64_t depth, const float *tiles, const float *panel,
                        int64_t panel_stride, int64_t lanes, float *to) {
    for (int64_t k = 0; k < count; k += KEY_TILE, tiles += KEY_TILE * depth, to += KEY_TILE * lanes)
        multiply_across(KEY_TILE, lanes, depth, tiles, KEY_TILE, panel, panel_stride, to, lanes,
                        false);
}

#endif
