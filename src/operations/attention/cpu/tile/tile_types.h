/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the tiled kernel share: its constants and products, plan, tasks, and a worker's state. */
#ifndef EJKI_TILE_TYPES_H
#define EJKI_TILE_TYPES_H

#include "operations/attention/cpu/tile/tile_shape.h"

#include "kernels/simd/gemm_body.h"
#include "kernels/simd/pack_body.h"
#include "operations/attention/shared/block_mask_body.h"
#include "operations/attention/shared/scores_body.h"

/* Elements of an operand that count as one float. */
#ifdef TILE_BF16_DOT
#define TILE_DEPTH 2
#else
#define TILE_DEPTH 1
#endif

/* Rows of scores lie this far apart: the largest block of keys and a line more, so that they fall into
 * different cache sets. */
#define TILE_KEYS    512
#define SCORE_STRIDE (TILE_KEYS + 16)

/* scores = queries, packed TILE_ROWS side by side, times keys; sums += weights times values. */
#define SCORES_PAIR(n) GEMM_PAIR(gemm_scores, n, 1, TILE_ROWS, SCORE_STRIDE)
#define SCORES_CASE(n) GEMM_CASE(gemm_scores, n)
#define VALUES_PAIR(n) GEMM_PAIR(gemm_values, n, SCORE_STRIDE, 1, TILE_COLUMNS)
#define VALUES_CASE(n) GEMM_CASE(gemm_values, n)
TILE_ROW_COUNTS(SCORES_PAIR)
TILE_ROW_COUNTS(VALUES_PAIR)
GEMM_DISPATCH(gemm_scores, TILE_ROW_COUNTS(SCORES_CASE))
GEMM_DISPATCH(gemm_values, TILE_ROW_COUNTS(VALUES_CASE))

/* A lane's sum above this brings the row back. Far from overflow, far above any ordinary row. */
#define SUM_LIMIT 65536.0f
/* Beyond this the exponents of weights, as differences to the shift, have lost too many digits. */
#define EXACT_LIMIT 0x1p20f

/* How a problem is cut, and how a worker's scratch memory is laid out, in floats. */
typedef struct tile_plan {
    int64_t rows;          /* of a full group, a multiple of TILE_ROWS */
    int64_t region_rows;   /* rows that groups are cut from: all, or those of a mask block */
    int64_t region_groups; /* groups of a region */
    int64_t groups, groups_in_all; /* per KV head, and of all */
    int64_t whole; /* tasks that are a group each; after them come halves of groups */
    int64_t tasks;
    int64_t claim;     /* whole tasks that a worker takes at once */
    int64_t keys;      /* of a full block, a multiple of TILE_COLUMNS */
    int64_t depth;     /* of the scores' product, in lanes */
    int64_t width;     /* value_dim rounded up to VL */
    int64_t sum_width; /* and to TILE_COLUMNS */
    int64_t query_at, sum_at, lane_at, total_at, key_at, value_at, score_at, shift_at, row_at,
        extent_at, visible_bytes_at, cursor_at, common_at;
    int64_t bytes;        /* of one worker */
    const int64_t *order; /* of groups, behind the workers' memory; NULL = as they are */
    int64_t order_bytes;
} tile_plan;

/* A group of rows of one KV head. */
typedef struct tile_task {
    int64_t batch, kv_head, first_row, rows;
} tile_task;

/* Rows that lie in memory with two strides, `inner` of them per step of the outer one. */
typedef struct tile_stream {
    const char *row;
    int64_t rows, width;                       /* left, and bytes of each */
    int64_t inner, inner_stride, outer_stride; /* strides in bytes */
    int64_t at;                                /* within the inner ones */
} tile_stream;

/*
 * What will be needed next is prefetched while products run: keys and values of the next block, the first two
 * streams; towards a task's end the places its output goes to, and keys, values and queries of the worker's
 * likely next task. Each product may prefetch `lines_each` more; rows are taken whole as long as there is credit.
 */
typedef struct tile_prefetch {
    tile_stream stream[6];
    int32_t current, count;
    int64_t lines_each, credit;
    gemm_prefetch lines;
} tile_prefetch;

/* The keys that rows of a tile see: any of them, and all of them. */
typedef struct tile_extent {
    int64_t low, high;   /* [low, high): seen by some row; empty if low ≥ high */
    int64_t least, most; /* [least, most): seen by every row */
    bool visible;        /* some row sees a key of the present block */
    bool tiny;           /* sums may be below 2^-126 */
} tile_extent;

/* One worker's memory and the group it is at. */
typedef struct tile_state {
    const ejki_flash_problem *problem;
    const tile_plan *plan;
    bool general, tracks_maximum, drops;
    float scale; /* of raw products to base 2; 1 if flash_modify() has done it */
    float *query, *sums, *lanes, *keys, *values, *scores, *shift, *maximum;
    float *totals; /* as lanes, of weights as they were rounded, if they are */
    flash_row *row;
    tile_extent *extent; /* of each TILE_ROWS rows */
    uint8_t *visible;
    flash_common *common; /* of each head of the task's group */
    v_cap cap;
    tile_task task;
    int64_t block, end; /* first key of the block, and the one behind its last */
    int64_t following;  /* where the next one begins, if not at the next mask block */
    block_mask_walk mask_walk;
    bool fit; /* the block's values are, for products with any weights */
    tile_prefetch ahead;
} tile_state;

/* Part of a block that a tile looks at: columns [first, end), a multiple of TILE_COLUMNS apart, of which
 * [low, high) are visible to any row. */
typedef struct tile_span {
    int64_t first, end, low, high;
    bool hides; /* some row does not see some column of [first, end) by its position */
} tile_span;

/* A row's sum of column d. A panel of TILE_COLUMNS columns of a tile's rows lies together. */
static inline float *tile_sum(const tile_state *s, int64_t row, int64_t d) {
    const int64_t tile = row / TILE_ROWS * TILE_ROWS, column = d % TILE_COLUMNS;
    return s->sums + tile * s->plan->sum_width + (d - column) * TILE_ROWS +
           (row - tile) * TILE_COLUMNS + column;
}

#endif
