/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker multiplies at a time: some rows of a segment and some columns, and memory for both and their sums. */
#ifndef EJKI_PRODUCT_BLOCK_H
#define EJKI_PRODUCT_BLOCK_H

#include "operations/matmul/shared/product_rows.h"

/* What is asked for while tiles are multiplied: rows of memory `stride` apart, line by line. */
typedef struct product_ahead {
    const char *row;
    int64_t stride, bytes, rows; /* rows left */
    int64_t line;                /* of the first one */
    int64_t each;                /* lines for a tile */
} product_ahead;

#ifdef TILE_AMX
/* A block of b that is packed (product_beside.h): words of the depth and columns from `b` on. */
typedef struct beside_block {
    const void *b; /* NULL: there is none */
    mm_size words, columns;
    bool fit;
} beside_block;
#endif

typedef struct product_block {
    const mm_product *p;
    const mm_segment *s;
    mm_size row, rows;       /* of the segment */
    mm_size column, columns; /* of out */
    float *a, *b, *sums, *scattered;
    int64_t capacity;            /* rows of `sums` in each panel */
    mm_size sums_from, sums_row; /* column and row of the block whose sums are the first ones */
#ifdef TILE_AMX
    beside_block beside;
    int beside_place;
#endif
    const void *after;     /* b of the block behind this one; NULL: there is none */
    mm_size after_columns; /* of that */
    product_ahead ahead;
    bool fit[PRODUCT_ROWS / TILE_ROWS];
    group_rows packed; /* rows `packed_row` on of segment `packed_group` */
    mm_size packed_group, packed_row;
} product_block;

/* Sums of row i. */
static inline const float *sums_of_row(const product_block *k, mm_size i) {
    return k->sums + (i - k->sums_row) * TILE_COLUMNS;
}

#endif
