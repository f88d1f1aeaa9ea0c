/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many rows by the register tiles of gemm_body.h. amx/paged_amx_products.h has the same words. */
#ifndef EJKI_PAGED_PRODUCTS_H
#define EJKI_PAGED_PRODUCTS_H

#include "operations/paged/cpu/paged_plan.h"

#define SCORES_PAIR(n) GEMM_PAIR(gemm_scores, n, 1, TILE_ROWS, SCORE_STRIDE)
#define SCORES_SIZE(n) GEMM_CASE(gemm_scores, n)
#define VALUES_PAIR(n) GEMM_PAIR(gemm_values, n, SCORE_STRIDE, 1, TILE_COLUMNS)
#define VALUES_SIZE(n) GEMM_CASE(gemm_values, n)
TILE_ROW_COUNTS(SCORES_PAIR)
TILE_ROW_COUNTS(VALUES_PAIR)
GEMM_DISPATCH(gemm_scores, TILE_ROW_COUNTS(SCORES_SIZE))
GEMM_DISPATCH(gemm_values, TILE_ROW_COUNTS(VALUES_SIZE))

/* Lanes of a query lie QUERY_STEP apart, those of a tile's rows side by side. */
#define QUERY_STEP TILE_ROWS

static inline float *query_at(float *query, paged_size depth, paged_size i) {
    const paged_size tile = i / TILE_ROWS * TILE_ROWS;
    return query + tile * depth + (i - tile);
}

/* Rows of the next product where `left` are left of a tile. */
static inline int rows_at_once(paged_size left) {
    return gemm_rows(left);
}

static inline void begin_products(void) {}
static inline void end_products(void) {}

/* Scores of rows with a panel of TILE_COLUMNS keys. */
static inline void multiply_panel(int rows, paged_size depth, const float *query, const float *keys,
                                  float *scores, const gemm_prefetch *lines) {
    gemm_scores(rows, TILE_COLUMNS, depth, query, keys, TILE_COLUMNS, scores, SCORE_STRIDE, false,
                lines);
}

/* Sums of rows take in `columns` columns of `depth` lanes of values, `width` floats from lane to lane. */
static inline void add_panel(int rows, paged_size columns, paged_size depth, const float *weights,
                             const float *values, paged_size width, float *sums,
                             const gemm_prefetch *lines) {
    gemm_values(rows, columns, depth, weights, values, width, sums, TILE_COLUMNS, true, lines);
}

#endif
