/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the row-wise kernel share: its constants, plan, tasks, and states of rows. */
#ifndef EJKI_ROW_TYPES_H
#define EJKI_ROW_TYPES_H

#include "operations/attention/cpu/row/row_shape.h"

#include "base/base.h"
#include "operations/attention/flash/problem.h"

#include <stdatomic.h>

#include "kernels/simd/vec_math.h"
#include "kernels/simd/gemm_body.h"
#include "operations/attention/shared/scores_body.h"

/* Rows and keys of a dot-product tile; their product is a multiple of VL. */
#define DOT 4
/* call(n), n being a constant, of as many rows as are left, at most DOT. */
#define DOT_ROWS(left, call)                                                                       \
    do {                                                                                           \
        if ((left) >= DOT)                                                                         \
            call(DOT);                                                                             \
        else if ((left) == 1)                                                                      \
            call(1);                                                                               \
        else if ((left) == 2)                                                                      \
            call(2);                                                                               \
        else                                                                                       \
            call(3);                                                                               \
    } while (0)
/* The most heads side by side. */
#define ROW_SIDE 64
/* Prefetch distance of keys then, in bytes, at least a step. */
#define ROW_KEY_DISTANCE (INT64_C(16) << 10)
/* Products with values: keys of a dot; keys of a pass over heads side by side; prefetch distance then, in bytes. */
#ifdef TILE_BF16_DOT
#define ROW_KEYS_PER_FMA   2
#define ROW_PV_UNROLL      4
#define ROW_VALUE_DISTANCE (INT64_C(16) << 10)
#else
#define ROW_KEYS_PER_FMA   1
#define ROW_PV_UNROLL      2
#define ROW_VALUE_DISTANCE (INT64_C(8) << 10)
#endif

/* Rows of weights lie this far apart: the largest block and a line more. */
#define ROW_KEYS     512
#define SCORE_STRIDE (ROW_KEYS + 16)

/*
 * What to prefetch beside values, as many lines as are read: from four places in turn, each line after line; or, where
 * at[0] is NULL, the lines from `next` on; or, where that is, too, what lies at the distance.
 */
typedef struct row_prefetches {
    const char *at[4], *next;
    int64_t distance;
    bool second_level; /* into the second-level cache only */
} row_prefetches;

/* Prefetches a line. (A hint is part of the instruction.) */
static inline __attribute__((always_inline)) void row_prefetch(const void *line,
                                                               bool second_level) {
    if (second_level)
        __builtin_prefetch(line, 0, 2);
    else
        __builtin_prefetch(line, 0, 3);
}

/* How a problem is cut and memory laid out, in floats. */
typedef struct row_plan {
    int64_t rows; /* of a KV head */
    int64_t splits, split_keys, block;
    int64_t heads;    /* KV heads of a task */
    int64_t side;     /* of them visited side by side, key by key; 0 = one after the other */
    int64_t distance; /* of prefetches then, in bytes; 0 = as each tier has it */
    int64_t parts;    /* tasks across the KV heads */
    int64_t tasks;
    int64_t depth, width; /* floats of a packed query and of sums: whole vectors */
    int64_t state;        /* floats of one row: see STATE_RUNNING_MAX */
    int64_t query_at, score_at, visible_bytes_at, row_at, worker_floats;
    int64_t partial_at,
        count_at; /* shared by the workers: states of all rows and splits; counters */
    int64_t bytes;
} row_plan;

/*
 * A row's state: lanes of the sum of its weights; running max and maximum, and, of bf16 dots, whether the head has met
 * tiny values; of bf16 dots, lanes of the sum of weights as they were rounded; sums.
 */
#define STATE_RUNNING_MAX VL
#define STATE_MAXIMUM     (VL + 1)
#define STATE_TINY        (VL + 2)
#define STATE_TOTALS      (2 * VL)
#define STATE_SUMS        ((ROW_KEYS_PER_FMA + 1) * VL)

typedef struct row_shared {
    const ejki_flash_problem *problem;
    row_plan plan;
    float *memory;
    float scale;
    v_cap cap;
    bool general, drops;
    bool hides;        /* mask or segments hide keys, or may */
    bool second_level; /* where prefetches go: prefetch_hint */
    int64_t low, high; /* keys that positions let any row see */
    _Atomic int64_t next;
} row_shared;

/* One worker at one task. */
typedef struct row_task {
    row_shared *shared;
    float *query, *scores;
    float *row; /* one of values, or of out */
    uint8_t *visible_bytes;
    int64_t batch, split, first_head, heads;
    int64_t first, end; /* keys */
    int64_t following;  /* index of the task after this one, or -1 before it is claimed */
    /*
     * Prefetches of the next block: at a distance; or, where the rows of the task's heads lie side by side, the halves
     * of keys and of values, all four line by line: the hardware prefetcher follows each of them, and of one stream
     * alone fetches less than memory could give.
     */
    int64_t key_distance;
    row_prefetches prefetch;
    const char
        *next_keys; /* where keys of heads side by side are prefetched from; NULL = by distance */
    bool ready;     /* all of the next block is prefetched */
} row_task;

/* A head of a task at a block: its queries, room for scores, the states of its rows; keys and values from column 0. */
typedef struct row_head {
    int64_t index;
    const float *query;
    float *scores, *states;
    const void *keys, *values;
} row_head;

/* The state of a row of a KV head in one split. */
static inline float *row_state(const row_shared *s, int64_t batch, int64_t split, int64_t kv_head,
                               int64_t row) {
    const row_plan *t = &s->plan;
    const int64_t head = (batch * t->splits + split) * s->problem->kv_heads + kv_head;
    return s->memory + t->partial_at + (head * t->rows + row) * t->state;
}

#endif
