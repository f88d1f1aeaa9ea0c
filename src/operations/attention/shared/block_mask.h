/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which blocks of scores exist: the block lists of a splash MaskInfo as kernels read them. An entry of a list is empty
 * (0), partial (1) or full (2); entries that are not empty name the block that they stand for. A mask head is the part
 * of the lists that one or several query heads share. Plain flash attention has no lists: then every block exists.
 *
 * Block lists come from callers and may hold anything. ejki_block_mask_check() has to have accepted them before any
 * other function here looks at one.
 */
#ifndef EJKI_ATTENTION_BLOCK_MASK_H
#define EJKI_ATTENTION_BLOCK_MASK_H

#include "operations/attention/shared/positions.h"

#include <ejkernel/tensor.h>

/* [mask heads, rows, columns] of integers of `size` bytes; the last axis is contiguous. */
typedef struct ejki_block_list {
    const void *data;
    int64_t stride_p, stride_r;
    int64_t size;
} ejki_block_list;

typedef struct ejki_block_mask {
    const char *name;                  /* of the block lists, in sentences: "fwd" */
    int64_t mask_heads, rows, columns; /* of the block lists; 0 mask heads = there are none */
    int64_t heads_per_mask;            /* query head h reads mask head h / heads_per_mask */
    int64_t block_q, block_kv;         /* rows and keys of a block; they divide T and S */
    /* False: row r is block row r, its mask blocks name block columns, ascending. True: column c is block column c,
     * and its mask blocks name block rows, ascending; then blocks lie transposed. */
    bool by_column;
    ejki_block_list next, state, id;
    const uint8_t *blocks; /* elements of partial blocks, not 0 = visible */
    int64_t block_count, block_stride, block_row;

    /* What the rows' positions allow besides: a predicate in place of blocks, and chunks. */
    bool has_function, has_positions;
    const void *positions; /* int32 [T]; without, row i is at i */
    int64_t function_first,
        function_last;      /* position q sees q + first … q + last, of absolute value ≤ 2^61 */
    int64_t function_chunk; /* and nothing before its chunk; 0 = no chunks */
    int64_t chunk, chunk_offset; /* the same of position i + chunk_offset; 0 = no chunks */
} ejki_block_mask;

/* True of plain flash attention: nothing here hides anything. */
static inline bool ejki_block_mask_is_empty(const ejki_block_mask *p) {
    return p->mask_heads == 0 && !p->has_function && p->chunk == 0;
}

/* One block of a mask head: empty (0), partial (1) or full (2), and the bits of a partial one. */
typedef struct ejki_mask_block {
    int32_t state;
    const uint8_t *block; /* of a partial one without a predicate, else NULL */
} ejki_mask_block;

static inline int64_t ejki_block_list_at(const ejki_block_list *grid, int64_t mask_head,
                                         int64_t row, int64_t column) {
    const int64_t at = mask_head * grid->stride_p + row * grid->stride_r + column;
    typedef int16_t list_i16 __attribute__((aligned(1), may_alias));
    typedef int32_t list_i32 __attribute__((aligned(1), may_alias));
    typedef int64_t list_i64 __attribute__((aligned(1), may_alias));
    switch (grid->size) {
    case 1: return ((const int8_t *)grid->data)[at];
    case 2: return ((const list_i16 *)grid->data)[at];
    case 4: return ((const list_i32 *)grid->data)[at];
    default: return ((const list_i64 *)grid->data)[at];
    }
}

static inline ejki_mask_block ejki_block_mask_at(const ejki_block_mask *p, int64_t mask_head,
                                                 int64_t row, int64_t column) {
    ejki_mask_block mask_block = {
        .state = (int32_t)ejki_block_list_at(&p->state, mask_head, row, column)};
    if (mask_block.state == 1 && !p->has_function)
        mask_block.block =
            p->blocks + ejki_block_list_at(&p->id, mask_head, row, column) * p->block_stride;
    return mask_block;
}

/* The first mask block from `column` on that is not empty; `columns` if there is none. */
static inline int64_t ejki_block_mask_seek(const ejki_block_mask *p, int64_t mask_head, int64_t row,
                                           int64_t column) {
    while (column < p->columns && ejki_block_list_at(&p->state, mask_head, row, column) == 0)
        column++;
    return column;
}

static inline bool ejki_block_mask_names(const ejki_block_mask *p, int64_t mask_head, int64_t row,
                                         int64_t column, int64_t block) {
    return ejki_block_list_at(&p->state, mask_head, row, column) != 0 &&
           ejki_block_list_at(&p->next, mask_head, row, column) == block;
}

/* The mask block of block (i, j): at its own place if the block list is not shrunk, else looked for. */
static inline ejki_mask_block ejki_block_mask_find(const ejki_block_mask *p, int64_t mask_head,
                                                   int64_t i, int64_t j) {
    if (p->by_column) {
        if (i < p->rows && ejki_block_mask_names(p, mask_head, i, j, i))
            return ejki_block_mask_at(p, mask_head, i, j);
        for (int64_t row = 0; row < p->rows; row++)
            if (ejki_block_mask_names(p, mask_head, row, j, i))
                return ejki_block_mask_at(p, mask_head, row, j);
    } else {
        if (j < p->columns && ejki_block_mask_names(p, mask_head, i, j, j))
            return ejki_block_mask_at(p, mask_head, i, j);
        for (int64_t column = 0; column < p->columns; column++)
            if (ejki_block_mask_names(p, mask_head, i, column, j))
                return ejki_block_mask_at(p, mask_head, i, column);
    }
    return (ejki_mask_block){0};
}

/* True if the block lists let query i of head h see key j; the predicate is ejki_block_mask_limit()'s. */
static inline bool ejki_block_mask_visible(const ejki_block_mask *p, int64_t h, int64_t i,
                                           int64_t j) {
    if (p->mask_heads == 0) return true;
    const ejki_mask_block mask_block =
        ejki_block_mask_find(p, h / p->heads_per_mask, i / p->block_q, j / p->block_kv);
    if (mask_block.block == NULL) return mask_block.state != 0;
    const int64_t a = i % p->block_q, b = j % p->block_kv;
    return mask_block.block[p->by_column ? b * p->block_row + a : a * p->block_row + b] != 0;
}

/* Narrows the keys [*first, *end) that row i may see to what predicate and chunks allow. */
static inline void ejki_block_mask_limit(const ejki_block_mask *p, int64_t i, int64_t *first,
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
