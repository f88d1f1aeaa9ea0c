/* SPDX-License-Identifier: Apache-2.0 */
/* What items of attention over pages are, how a run is planned, and where things lie in its workspace. */
#ifndef EJKI_PAGED_PLAN_H
#define EJKI_PAGED_PLAN_H

#include <ejkernel/kernel.h>

#include "base/base.h"
#include "operations/attention/cpu/tile/tile_shape.h"
#include "operations/paged/cpu/paged_parameters.h"
#include "operations/paged/shared/problem.cuh"

/* Keys and values come from the second-level cache. */
#ifdef EJKI_TIER_AVX512
#define TILE_LOADS_ONCE
#endif
#include "kernels/simd/gemm_body.h"
#include "kernels/simd/vec_bytes.h"

#ifdef PAGED_AMX
#include "operations/paged/cpu/amx/paged_prefill.h"
#endif

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define LOG2E 1.4426950408889634
#define LN2   0.6931471805599453

/* Elements that a lane of what is multiplied has, and those of a vector. */
#ifdef TILE_BF16_DOT
#define PAGED_PACK 2
#else
#define PAGED_PACK 1
#endif
#define LANES (PAGED_PACK * VL)
/* Rows of a tile of many rows, and what lanes of keys are rounded up to. */
#ifdef PAGED_AMX
#define PAGED_ROWS  32
#define PAGED_DEPTH 16
#else
#define PAGED_ROWS  TILE_ROWS
#define PAGED_DEPTH 1
#endif
/* What queries of few rows take once more as right operands of tiles: of two rows or more 16; and columns of sums. */
#ifdef PAGED_AMX
#define FEW_TILES   (VL / 2)
#define PAGED_WIDTH LANES
#else
#define FEW_TILES   0
#define PAGED_WIDTH VL
#endif
/* Sums of a row's weights as products took them: floats are taken as they are. */
#define TOTAL_LANES (PAGED_PACK > 1 ? VL : 0)

enum {
    BLOCK = 64,    /* keys that few rows look at together */
    FEW_ROWS = 16, /* of a KV head: more go through tiles */
    LONG_ROWS = 8, /* the same where keys are longer than LONG_DIM */
    LONG_DIM = 256,
    ORDER_ROWS = 4,         /* of a KV head, where rows of the cache are read one after the other */
    ORDER_COLUMNS = 8 * VL, /* of values, whose sums with two of these rows are in registers */
    ROWS_AT_ONCE = 64,      /* of all heads of an item of few rows */
    SPLIT_ROWS = 16,        /* sequences of more rows are not split */
    MOST_SPLITS = 16,       /* bounds the memory of partial results */
    SCORE_STRIDE = TILE_KEYS + 16,
};

/* What follows from shapes and parameters, and where things lie in memory, in floats. */
typedef struct paged_plan {
    paged_size split;                         /* keys of a KV split */
    paged_size prefix;                        /* keys that all rows look at together */
    paged_size rows, keys;                    /* of a tile's group, and of its blocks */
    paged_size depth, width;                  /* of queries in whole vectors, of sums */
    paged_size sum_width;                     /* rounded up to TILE_COLUMNS */
    paged_size scratch;                       /* of a row before it is packed */
    paged_size slots;                         /* rows of partial results */
    paged_size prefetch_hint, prefetch_bytes; /* of few rows */
    bool prefills; /* sequences of more than SPLIT_ROWS rows go through flash attention */
    paged_size list_at, slot_at, zero_at, worker_at; /* in bytes */
    paged_size worker_bytes, bytes;
} paged_plan;

/* What an item has of the list: sequences' first items and first slots. */
typedef struct paged_lists {
    paged_size *items, *slots;
    float *partial, *state; /* [slots][width]; [slots][3]: largest score in base 2, sum, total */
    const char *zeros;      /* a row of a cache */
    paged_size prefix_items,
        prefix_rows; /* items of the prefix, first of all; rows of all sequences */
} paged_lists;

/* What all items of a run share. */
typedef struct paged_work {
    const ejk_run *run;
    const paged_problem *p;
    paged_plan plan;
    paged_lists lists;
    paged_size count;
    atomic_llong next;
    bool merging;
} paged_work;

/* A row that an item computes. */
typedef struct paged_row {
    paged_size low, high; /* keys that it sees */
    paged_size token, head, r;
    float slope; /* of alibi, in base 2 */
    float most;  /* largest score so far, in base 2 */
} paged_row;

/* An item. Row i of KV head `head + i / rows` is row first_row + i % rows of T x G. */
typedef struct paged_job {
    const paged_work *work;
    const paged_problem *p;
    paged_sequence s;
    paged_size entries, head, heads, first_row, rows;
    paged_size part, parts; /* KV split, and how many the sequence has */
    bool prefix;            /* the common prefix: `s` has the rows of all sequences */
    paged_size low, high;   /* keys that any of the rows sees here */
    float *memory;          /* the worker's */
} paged_job;

static paged_size paged_bytes(int dtype) {
    return stored_size((ejk_dtype)dtype);
}

/* ---- Plans ------------------------------------------------------------------------------------------ */

static paged_size heads_at_once(const paged_problem *p, paged_size rows) {
    return paged_least(paged_most(p->kv_heads, 1),
                       paged_most(ROWS_AT_ONCE / paged_most(rows, 1), 1));
}

/* KV splits of a sequence, without those that are of the prefix alone. */
static paged_size parts_of(const paged_plan *t, const paged_sequence *s) {
    const paged_size parts = ejki_cdiv(s->keys, t->split) - t->prefix / t->split;
    return s->rows > SPLIT_ROWS ? 1 : paged_most(parts, 1);
}
static paged_size prefix_parts(const paged_plan *t) {
    return ejki_cdiv(t->prefix, t->split);
}
/* Whether rows of a sequence are merged of parts. */
static bool has_parts(const paged_plan *t, const paged_sequence *s) {
    return t->prefix > 0 || parts_of(t, s) > 1;
}

/* Few rows take both parts of a key for the same type. */
static bool is_few(const paged_problem *p, const paged_sequence *s) {
    if (p->tail_dim > 0 && p->key_tail.dtype != p->key.dtype) return false;
#ifdef PAGED_AMX
    if (s->rows * p->group > 1) return s->rows * p->group <= FEW_ROWS;
#endif
    return s->rows * p->group <= (p->dim + p->tail_dim <= LONG_DIM ? FEW_ROWS : LONG_ROWS);
}

/* Items of a KV split of a sequence. */
static paged_size tiles_of(const paged_problem *p, const paged_plan *t, const paged_sequence *s) {
    const paged_size rows = s->rows * p->group;
    if (rows == 0 || p->kv_heads == 0) return 0;
    if (is_few(p, s)) return ejki_cdiv(p->kv_heads, heads_at_once(p, rows));
    return p->kv_heads * ejki_cdiv(rows, t->rows);
}

/* Lanes of a part of a query or a key, and those in whole vectors. */
static paged_size lanes_of(paged_size dim) {
    return ejki_cdiv(dim, PAGED_PACK);
}
static paged_size padded(paged_size dim) {
    return ejki_round_up(lanes_of(dim), VL);
}

static paged_size floats_of_few(const paged_plan *t) {
    const paged_size own = t->depth + t->width + VL + TOTAL_LANES + BLOCK + FEW_TILES * t->depth;
    return ROWS_AT_ONCE * own + 2 * BLOCK + t->scratch;
}

/* Lanes of a query of many rows. */
static paged_size many_depth(const paged_problem *p) {
    return ejki_round_up(lanes_of(p->dim) + lanes_of(p->tail_dim), PAGED_DEPTH);
}

static paged_size floats_of_many(const paged_problem *p, const paged_plan *t) {
    const paged_size depth = many_depth(p);
    return t->rows * (depth + t->sum_width + VL + TOTAL_LANES) + t->keys * (depth + t->width) +
           PAGED_ROWS * SCORE_STRIDE + 2 * TILE_KEYS + t->scratch;
}

/* Keys of the common prefix that rows of all sequences look at together, where these are few. */
static paged_size prefix_of(const paged_problem *p) {
    return p->sequences > 1 && p->tokens <= SPLIT_ROWS * p->sequences ? p->prefix : 0;
}

static ejk_status plan_of(const paged_problem *p, const int64_t *parameters, int32_t workers,
                          paged_plan *t) {
    *t = (paged_plan){.rows = ejki_round_up(parameters[0], PAGED_ROWS),
                      .keys = ejki_round_up(parameters[1], TILE_COLUMNS),
                      .prefetch_hint = parameters[3],
                      .prefetch_bytes = parameters[4]};
    const paged_size most = p->tables == PAGED_LISTS ? paged_most(p->width, 1) : p->width;
    t->split =
        paged_most(parameters[2], ejki_round_up(ejki_cdiv(most * p->page, MOST_SPLITS), 256));
    t->depth = padded(p->dim) + padded(p->tail_dim);
    t->width = ejki_round_up(p->value_dim, PAGED_WIDTH);
    t->scratch = paged_most((PAGED_PACK + 1) * t->depth, t->width);
    t->sum_width = ejki_round_up(p->value_dim, TILE_COLUMNS);
    t->prefix = prefix_of(p);
    const paged_size splits = ejki_cdiv(most * p->page, t->split);
    if (splits > 1)
        t->slots = paged_least(p->tokens, p->sequences * SPLIT_ROWS) * p->heads * splits;
    if (t->prefix > 0) t->slots = p->tokens * p->heads * (prefix_parts(t) + paged_most(splits, 1));
    const paged_size row = (PAGED_PACK * t->depth + t->width) * 4;
    t->slot_at = ejki_round_up(2 * (p->sequences + 1) * (paged_size)sizeof(paged_size), 64);
    t->zero_at = t->slot_at + ejki_round_up(t->slots * (t->width + 3) * 4, 64);
    t->worker_at = t->zero_at + ejki_round_up(row + 64, 64);
    t->worker_bytes = 4 * paged_most(floats_of_few(t), floats_of_many(p, t)) +
                      (paged_size)sizeof(paged_row) * t->rows + 64;
#ifdef PAGED_AMX
    t->prefills = t->prefix == 0 && ejki_paged_prefills(p);
    if (t->prefills)
        t->worker_bytes =
            paged_most(t->worker_bytes, ejki_paged_prefill_bytes(p, t->rows, t->keys));
#endif
    t->worker_bytes = ejki_round_up(t->worker_bytes, 4096) + 576;
    t->bytes = t->worker_at + workers * t->worker_bytes;
    if (t->slots < INT64_C(1) << 40) return EJK_OK;
    return ejki_fail(EJK_STATUS_OVERFLOW, "%lld partial results cannot be held", t->slots);
}

/* Items and slots of the sequences before each; returns the number of items. */
static paged_size list_work(const paged_problem *p, const paged_plan *t, paged_lists *lists) {
    const paged_size count = paged_count(p);
    if (t->prefix > 0 && count > 0) {
        const paged_sequence last = paged_sequence_of(p, count - 1);
        lists->prefix_rows = last.begin + last.rows;
        lists->prefix_items =
            prefix_parts(t) * p->kv_heads * ejki_cdiv(lists->prefix_rows * p->group, t->rows);
    }
    paged_size items = lists->prefix_items, slots = prefix_parts(t) * lists->prefix_rows * p->heads;
    for (paged_size n = 0; n < count; n++) {
        const paged_sequence s = paged_sequence_of(p, n);
        const paged_size parts = parts_of(t, &s);
        lists->items[n] = items;
        lists->slots[n] = slots;
        items += tiles_of(p, t, &s) * parts;
        if (has_parts(t, &s)) slots += parts * s.rows * p->heads;
    }
    lists->items[count] = items;
    return items;
}

#endif
