/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which blocks of scores exist at all: the grids of a splash MaskInfo as kernels read them. A cell of a grid is
 * a block that is empty (0), partial (1) or full (2); cells that are not empty name their block. The problem of
 * plain flash attention has no grid: then every block exists.
 *
 * Grids come from callers and may hold anything. ejki_pattern_check() has to have accepted them before any
 * other function here looks at one.
 */
#ifndef EJKI_FLASH_ATTENTION_PATTERN_H
#define EJKI_FLASH_ATTENTION_PATTERN_H

#include "operations/attention/shared/positions.h"

#include <ejkernel/tensor.h>

/* [planes, rows, columns] of integers of `size` bytes; the last axis is contiguous. */
typedef struct ejki_grid {
    const void *data;
    int64_t stride_p, stride_r;
    int64_t size;
} ejki_grid;

typedef struct ejki_pattern {
    const char *name;              /* of the grids, in sentences: "fwd" */
    int64_t planes, rows, columns; /* of the grids; 0 planes = there are none */
    int64_t plane_heads;           /* query head h reads plane h / plane_heads */
    int64_t block_q, block_kv;     /* rows and keys of a block; they divide T and S */
    /* False: row r is block row r, its cells name block columns, ascending. True: column c is block column c,
     * and its cells name block rows, ascending; then blocks lie transposed. */
    bool by_column;
    ejki_grid next, state, id;
    const uint8_t *blocks; /* elements of partial blocks, not 0 = visible */
    int64_t block_count, block_stride, block_row;

    /* What the rows' positions allow besides: a predicate in place of blocks, and chunks. */
    bool has_function, has_positions;
    const void *positions; /* int32 [T]; without, row i is at i */
    int64_t function_first,
        function_last;      /* position q sees q + first … q + last, of absolute value ≤ 2^61 */
    int64_t function_chunk; /* and nothing before its chunk; 0 = no chunks */
    int64_t chunk, chunk_offset; /* the same of position i + chunk_offset; 0 = no chunks */
} ejki_pattern;

/* True of plain flash attention: nothing here hides anything. */
static inline bool ejki_pattern_is_empty(const ejki_pattern *p) {
    return p->planes == 0 && !p->has_function && p->chunk == 0;
}

/* A block as a cell has it. */
typedef struct ejki_cell {
    int32_t state;
    const uint8_t *block; /* of a partial one without a predicate, else NULL */
} ejki_cell;

static inline int64_t ejki_grid_at(const ejki_grid *grid, int64_t plane, int64_t row,
                                   int64_t column) {
    const int64_t at = plane * grid->stride_p + row * grid->stride_r + column;
    typedef int16_t grid_i16 __attribute__((aligned(1), may_alias));
    typedef int32_t grid_i32 __attribute__((aligned(1), may_alias));
    typedef int64_t grid_i64 __attribute__((aligned(1), may_alias));
    switch (grid->size) {
    case 1: return ((const int8_t *)grid->data)[at];
    case 2: return ((const grid_i16 *)grid->data)[at];
    case 4: return ((const grid_i32 *)grid->data)[at];
    default: return ((const grid_i64 *)grid->data)[at];
    }
}

static inline ejki_cell ejki_pattern_cell(const ejki_pattern *p, int64_t plane, int64_t row,
                                          int64_t column) {
    ejki_cell cell = {.state = (int32_t)ejki_grid_at(&p->state, plane, row, column)};
    if (cell.state == 1 && !p->has_function)
        cell.block = p->blocks + ejki_grid_at(&p->id, plane, row, column) * p->block_stride;
    return cell;
}

/* The first cell from `column` on that is not empty; `columns` if there is none. */
static inline int64_t ejki_pattern_seek(const ejki_pattern *p, int64_t plane, int64_t row,
                                        int64_t column) {
    while (column < p->columns && ejki_grid_at(&p->state, plane, row, column) == 0) column++;
    return column;
}

static inline bool ejki_pattern_names(const ejki_pattern *p, int64_t plane, int64_t row,
                                      int64_t column, int64_t block) {
    return ejki_grid_at(&p->state, plane, row, column) != 0 &&
           ejki_grid_at(&p->next, plane, row, column) == block;
}

/* The cell of block (i, j): at its own place if the grid is not shrunk, else looked for. */
static inline ejki_cell ejki_pattern_find(const ejki_pattern *p, int64_t plane, int64_t i,
                                          int64_t j) {
    if (p->by_column) {
        if (i < p->rows && ejki_pattern_names(p, plane, i, j, i))
            return ejki_pattern_cell(p, plane, i, j);
        for (int64_t row = 0; row < p->rows; row++)
            if (ejki_pattern_names(p, plane, row, j, i)) return ejki_pattern_cell(p, plane, row, j);
    } else {
        if (j < p->columns && ejki_pattern_names(p, plane, i, j, j))
            return ejki_pattern_cell(p, plane, i, j);
        for (int64_t column = 0; column < p->columns; column++)
            if (ejki_pattern_names(p, plane, i, column, j))
                return ejki_pattern_cell(p, plane, i, column);
    }
    return (ejki_cell){0};
}

/* True if the grids let query i of head h see key j; the predicate is ejki_pattern_limit()'s. */
static inline bool ejki_pattern_sees(const ejki_pattern *p, int64_t h, int64_t i, int64_t j) {
    if (p->planes == 0) return true;
    const ejki_cell cell =
        ejki_pattern_find(p, h / p->plane_heads, i / p->block_q, j / p->block_kv);
    if (cell.block == NULL) return cell.state != 0;
    const int64_t a = i % p->block_q, b = j % p->block_kv;
    return cell.block[p->by_column ? b * p->block_row + a : a * p->block_row + b] != 0;
}

/* Narrows the keys [*first, *end) that row i may see to what predicate and chunks allow. */
static inline void ejki_pattern_limit(const ejki_pattern *p, int64_t i, int64_t *first,
                                      int64_t *end) {
    if (p->chunk > 0) {
        const int64_t start = ejki_chunk_start(i + p->chunk_offset, p->chunk);
        if (start > *first) *first = start;
    }
    if (!p->has_function) return;
    typedef int32_t position_i32 __attribute__((aligned(1), may_alias));
    const int64_t q = p->has_positions ? ((const position_i32 *)p->positions)[i] : i;
    int64_t low = q + p->function_first;
    const int64_t high = q + p->function_last + 1;
    if (p->function_chunk > 0) {
        const int64_t start = ejki_chunk_start(q, p->function_chunk);
        if (start > low) low = start;
    }
    if (low > *first) *first = low;
    if (high < *end) *end = high;
}

#endif
