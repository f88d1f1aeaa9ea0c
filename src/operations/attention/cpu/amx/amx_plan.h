/* SPDX-License-Identifier: Apache-2.0 */
/* How flash attention on AMX is cut into tasks, and where a worker's memory has what. */
#ifndef EJKI_FLASH_AMX_PLAN_H
#define EJKI_FLASH_AMX_PLAN_H

#include "base/base.h"
#include "operations/attention/cpu/amx/amx_rows.h"
#include "operations/attention/shared/block_mask_body.h"

/* Keys, and chunks, whose weights are staged before the product with values: they fit the first-level cache. */
#define AMX_STAGE_KEYS   512
#define AMX_STAGE_CHUNKS (AMX_STAGE_KEYS / AMX_CHUNK)

/* How a problem is cut, and how a worker's memory is laid out, in bytes. */
typedef struct amx_plan {
    int64_t rows; /* of a full group, a multiple of AMX_ROWS */
    int64_t region_rows,
        region_groups; /* rows that groups are cut from: all, or those of a mask block; groups in that */
    int64_t groups;       /* of a KV head */
    int64_t whole, tasks; /* tasks that are a group each; after them come halves of groups */
    int64_t chunks;       /* of a full block of keys */
    int64_t kept, span;   /* mask blocks that stay packed, 0 = none do; chunks of one */
    int64_t room;         /* packed chunks that there is memory for */
    int64_t slots; /* row tiles that need memory of their own: one where a block has all keys */
    int64_t steps, value_tiles; /* tiles that a query is long, and a value wide */
    int64_t sums;               /* floats of a row tile's sums */
    int64_t query_at, sum_at, lane_at, key_at, value_at, weight_at, score_at, row_at, tile_at,
        float_at, ones_at, chunk_at, cursor_at, now_at, packed_at, store_at, ahead_at,
        small_sums_at;
    int64_t bytes;        /* of one worker */
    const int64_t *order; /* of groups, behind the workers' memory; NULL = as they are */
    int64_t order_bytes;
} amx_plan;

typedef struct amx_task {
    int64_t batch, kv_head, first_row, rows;
} amx_task;

/*
 * A row tile: keys visible to any row by position, and to all; its largest query component; progress. `blank` sums
 * have not been written yet; `small`: some sums are, or were, subnormal.
 */
typedef struct amx_tile {
    int64_t low, high, least, most;
    float top;
    bool begun, ended, blank, small;
} amx_tile;

/* A chunk of the block: keys [key, end), of the mask block from `first` on, whose mask blocks are at `mask_block`. */
typedef struct amx_chunk {
    int64_t key, end, first;
    int64_t mask_block;
    int64_t place; /* where it is packed */
    bool hides;    /* some head hides some of it other than by position, or it is short */
} amx_chunk;

/* A packed chunk: its largest key component; whether it is packed; whether all its values may go through AMX. */
typedef struct amx_packed {
    float top;
    bool there, values_fit;
} amx_packed;

/* A slot of the store: the mask block in it, and the load that used it last. */
typedef struct amx_stored {
    int64_t column, load;
} amx_stored;

#define AMX_AHEAD 8 /* tasks looked ahead, the present one included */

/* Reserves rows x columns bytes; *at stays below 2^50, which stands for an overflow. */
static inline int64_t amx_reserve(int64_t *at, int64_t rows, int64_t columns) {
    const int64_t start = *at, limit = (int64_t)1 << 50;
    int64_t count;
    if (!ejki_mul(rows, columns, &count) || count > limit - start) count = limit - start;
    *at = ejki_min(limit, start + ejki_round_up(count, 64));
    return start;
}

/* Chunks of all keys: mask blocks are cut into chunks one by one. */
static inline int64_t amx_chunks_of(const ejki_flash_problem *p) {
    if (p->block_mask.mask_heads == 0) return ejki_cdiv(p->keys, AMX_CHUNK);
    return p->keys / p->block_mask.block_kv * ejki_cdiv(p->block_mask.block_kv, AMX_CHUNK);
}

/* How many mask blocks stay packed: all, or as many as there is room for, if that is more than one load needs. */
static inline void amx_keep_blocks(const ejki_flash_problem *p, amx_plan *t) {
    t->room = t->chunks;
    if (p->block_mask.mask_heads == 0) return;
    const int64_t load = ejki_min(t->chunks, AMX_STAGE_CHUNKS);
    t->span = ejki_cdiv(p->block_mask.block_kv, AMX_CHUNK);
    const int64_t kept = ejki_min(t->chunks / t->span, p->keys / p->block_mask.block_kv);
    if (kept < p->keys / p->block_mask.block_kv && kept < load / t->span + 3) return;
    t->kept = kept;
    t->chunks = load;
    t->room = kept * t->span;
}

static inline void amx_lay_out(const ejki_flash_problem *p, amx_plan *t) {
    const int64_t tiles = t->rows / AMX_ROWS, element = sizeof(uint16_t), real = sizeof(float);
    const int64_t keys = t->room * AMX_CHUNK, cursors = block_mask_cursor_count(p);
    int64_t at = 0;
    t->score_at = amx_reserve(&at, AMX_ROWS * AMX_CHUNK, real);
    t->weight_at = amx_reserve(&at, (p->normalize ? 1 : 2) * AMX_ROWS * AMX_STAGE_KEYS, element);
    t->ones_at = amx_reserve(&at, AMX_ELEMENT, element);
    t->float_at = amx_reserve(&at, t->rows, 3 * real);
    t->lane_at = amx_reserve(&at, t->rows, (p->dropout > 0 ? 2 : 1) * VL * real);
    t->query_at = amx_reserve(&at, t->slots * 2 * AMX_ELEMENT * element, t->steps);
    t->sum_at = amx_reserve(&at, t->slots * real, t->sums);
    t->key_at = amx_reserve(&at, keys * 32 * element, t->steps);
    t->value_at = amx_reserve(&at, keys * 16 * element, t->value_tiles);
    t->row_at = amx_reserve(&at, t->rows, sizeof(flash_row));
    t->tile_at = amx_reserve(&at, tiles, sizeof(amx_tile));
    t->chunk_at = amx_reserve(&at, t->chunks + 1, sizeof(amx_chunk));
    t->cursor_at = amx_reserve(&at, cursors, sizeof(block_mask_cursor));
    t->now_at = amx_reserve(&at, t->chunks * (int64_t)sizeof(ejki_mask_block), cursors);
    t->packed_at = amx_reserve(&at, t->room, sizeof(amx_packed));
    t->store_at = amx_reserve(&at, t->kept, sizeof(amx_stored));
    t->ahead_at = amx_reserve(&at, t->kept > 0 ? p->keys / p->block_mask.block_kv : 0, 1);
    t->small_sums_at = amx_reserve(&at, real, t->sums);
    t->bytes = at;
}

static inline amx_plan amx_plan_of(const ejki_flash_problem *p, const int64_t *parameters,
                                   int32_t workers) {
    amx_plan t = {0};
    const bool sparse = p->block_mask.mask_heads > 0;
    const int64_t all = amx_chunks_of(p);
    t.region_rows = (sparse ? p->block_mask.block_q : p->queries) * p->group;
    t.region_groups = ejki_max(1, ejki_cdiv(t.region_rows, parameters[0]));
    t.rows = ejki_round_up(ejki_max(1, ejki_cdiv(t.region_rows, t.region_groups)), AMX_ROWS);
    t.region_groups = ejki_cdiv(t.region_rows, t.rows);
    t.groups = sparse ? p->queries / p->block_mask.block_q * t.region_groups : t.region_groups;
    t.whole = t.tasks = p->batch * p->kv_heads * t.groups;
    if (workers > 1) {
        /* The last tasks are halved, so that workers end nearly together. */
        const int64_t halved = ejki_min(t.tasks, 2 * (int64_t)workers);
        t.whole = t.tasks - halved;
        t.tasks += halved;
        amx_reserve(&t.order_bytes, sparse ? t.tasks : 0, sizeof(int64_t));
    }
    t.chunks = ejki_max(1, ejki_min(ejki_cdiv(parameters[1], AMX_CHUNK), all));
    amx_keep_blocks(p, &t);
    t.slots = t.chunks >= all ? 1 : t.rows / AMX_ROWS;
    t.steps = ejki_cdiv(p->head_dim, 32);
    t.value_tiles = ejki_cdiv(p->value_dim, 16);
    t.sums = ejki_max(2, t.value_tiles + 1) * 2 * AMX_SUMS;
    amx_lay_out(p, &t);
    return t;
}

/* The task of an index: heads one after the other, so that groups of a head find its keys in the cache;
 * in a head the last rows first, which under a causal mask are the longest. */
static inline amx_task amx_task_of(const ejki_flash_problem *p, const amx_plan *t, int64_t index) {
    if (index >= t->tasks) return (amx_task){0};
    const int64_t half = index - t->whole, place = half < 0 ? index : t->whole + half / 2;
    const int64_t group = t->order ? t->order[place] : place, head = group / t->groups;
    amx_task task = {.batch = head / p->kv_heads, .kv_head = head % p->kv_heads};
    const int64_t at = t->groups - 1 - group % t->groups, part = at % t->region_groups;
    task.first_row = at / t->region_groups * t->region_rows + part * t->rows;
    task.rows = ejki_min(t->rows, t->region_rows - part * t->rows);
    if (half < 0) return task;
    const int64_t upper = ejki_min(task.rows, ejki_round_up(ejki_cdiv(task.rows, 2), AMX_ROWS));
    if (half % 2) return (amx_task){task.batch, task.kv_head, task.first_row, upper};
    task.first_row += upper;
    task.rows -= upper;
    return task;
}

#endif
