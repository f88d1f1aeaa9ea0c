/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of many rows by AMX tiles, with the words of paged_products.h. What is packed for VDPBF16PS is in the order
 * of tiles already: 16 lanes of 16 keys or columns are a right operand, 16 lanes of 16 rows of queries or weights a
 * left one. Tiles 0 to 3 hold sums of two halves of 16 rows with two of 16 columns, 4 and 5 the right operands, 6 and
 * 7 the left ones. Lanes of queries and keys are padded with zeros to a whole tile; rows beyond an item's are computed
 * and not used.
 */
#ifndef EJKI_PAGED_AMX_PRODUCTS_H
#define EJKI_PAGED_AMX_PRODUCTS_H

#include "operations/paged/cpu/paged_plan.h"

#include "operations/attention/cpu/amx/amx_tiles.h"

enum { AMX_LANES = 16 };

/* Rows of queries are whole. */
#define QUERY_STEP 1

static inline float *query_at(float *query, paged_size depth, paged_size i) {
    return query + i * depth;
}
static inline int rows_at_once(paged_size left) {
    return (int)left;
}
static inline void begin_products(void) {
    amx_open();
}
static inline void end_products(void) {
    amx_close();
}

/* An operand: lane k of row or column 0 lies at k * step, the next row `stride` floats behind. */
typedef struct paged_amx {
    const float *left, *right;
    paged_size left_stride, right_stride, right_step, depth;
    float *sums;
    paged_size sum_stride;
    bool add;
} paged_amx;

AMX_INLINE void amx_product(const paged_amx *p, const bool both_rows, const bool both_columns) {
    const int64_t left = 4 * p->left_stride, right = 4 * p->right_stride, sum = 4 * p->sum_stride;
    float *low = p->sums, *high = p->sums + 16 * p->sum_stride;
    AMX_BARRIER();
    if (p->add) {
        _tile_loadd(0, low, sum);
        if (both_columns) _tile_loadd(1, low + 16, sum);
        if (both_rows) _tile_loadd(2, high, sum);
        if (both_rows && both_columns) _tile_loadd(3, high + 16, sum);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (paged_size k = 0; k < p->depth; k += AMX_LANES) {
        const float *a = p->left + k, *b = p->right + k * p->right_step;
        _tile_loadd(4, b, right);
        _tile_loadd(6, a, left);
        _tile_dpbf16ps(0, 6, 4);
        if (both_columns) {
            _tile_loadd(5, b + 16, right);
            _tile_dpbf16ps(1, 6, 5);
        }
        if (!both_rows) continue;
        _tile_loadd(7, a + 16 * p->left_stride, left);
        _tile_dpbf16ps(2, 7, 4);
        if (both_columns) _tile_dpbf16ps(3, 7, 5);
    }
    _tile_stored(0, low, sum);
    if (both_columns) _tile_stored(1, low + 16, sum);
    if (both_rows) _tile_stored(2, high, sum);
    if (both_rows && both_columns) _tile_stored(3, high + 16, sum);
    AMX_BARRIER();
}

static inline void amx_any_product(const paged_amx *p, int rows, paged_size columns,
                                   const gemm_prefetch *lines) {
    for (int64_t i = 0; i < lines->count; i++) amx_prefetch_far((const char *)lines->line[i]);
    if (rows > 16 && columns > 16)
        amx_product(p, true, true);
    else if (rows > 16)
        amx_product(p, true, false);
    else if (columns > 16)
        amx_product(p, false, true);
    else
        amx_product(p, false, false);
}

static void multiply_panel(int rows, paged_size depth, const float *query, const float *keys,
                           float *scores, const gemm_prefetch *lines) {
    const paged_amx p = {.left = query,
                         .right = keys,
                         .left_stride = depth,
                         .right_stride = TILE_COLUMNS,
                         .right_step = TILE_COLUMNS,
                         .depth = depth,
                         .sums = scores,
                         .sum_stride = SCORE_STRIDE};
    amx_any_product(&p, rows, TILE_COLUMNS, lines);
}

static void add_panel(int rows, paged_size columns, paged_size depth, const float *weights,
                      const float *values, paged_size width, float *sums,
                      const gemm_prefetch *lines) {
    const paged_amx p = {.left = weights,
                         .right = values,
                         .left_stride = SCORE_STRIDE,
                         .right_stride = width,
                         .right_step = width,
                         .depth = depth,
                         .sums = sums,
                         .sum_stride = TILE_COLUMNS,
                         .add = true};
    amx_any_product(&p, rows, columns, lines);
}

#endif
