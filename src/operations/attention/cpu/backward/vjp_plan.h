/* SPDX-License-Identifier: Apache-2.0 */
/* How gradients of attention are cut into tasks, and how a worker's memory is laid out. */
#ifndef EJKI_VJP_PLAN_H
#define EJKI_VJP_PLAN_H

#include "base/base.h"
#include "operations/attention/flash/vjp_problem.h"
#include "operations/attention/cpu/backward/vjp_products.h"
#include "operations/attention/cpu/backward/vjp_tasks.h"
#include "operations/attention/cpu/backward/vjp_visible.h"

/* A range of memory to prefetch. */
typedef struct vjp_prefetch_range {
    const char *at;
    int64_t bytes;
} vjp_prefetch_range;

/* Places are in floats. Panels have TILE_COLUMNS columns, of floats or, as operands, of VJP_DEPTH elements each. */
typedef struct vjp_plan {
    int64_t all_rows;         /* T · G, of a KV head; of packed sequences, of all together */
    int64_t rows, row_blocks; /* of a block of rows */
    int64_t row_step;         /* rows from one of its panels to the next */
    int64_t keys, key_blocks; /* of a block of keys, a multiple of TILE_COLUMNS */
    int64_t region_rows,
        region_row_blocks; /* rows of a mask block, or all; blocks of rows in that */
    int64_t region_keys, region_key_blocks; /* the same of keys */
    int64_t mask_blocks;               /* of a block mask that blocks of rows and keys lie in */
    int64_t head_panels, value_panels; /* of D and Dv */
    int64_t head_lanes,
        value_lanes; /* that a row of queries or keys, or of values, has in products along it */
    int64_t
        row_major_step; /* rows of lanes from one panel of a block's pairs of rows to the next */
    int64_t tasks, most_workers;
    int64_t bias_rows; /* of d_bias */
    bool bias_once;    /* its elements are of one row and key each */
    bool bias_streams; /* and its rows begin at lines of memory: stored past the caches */
    bool wants_d_scores;
    bool sums_batches, sums_heads;    /* a task takes all of them, one after the other */
    int64_t bias_groups;              /* then: tasks of a block of keys */
    int64_t bias_heads, bias_queries; /* rows of sums of the bias in a worker's memory; 0 = none */
    bool sums_queries;                /* d_query cannot hold sums: an f32 copy does */
    int64_t query_panels;             /* that add to d_query at once */
    bool stores_first; /* a row's first task stores d_query, which then needs no zeros */
    int64_t keys_transposed_at, values_transposed_at, keys_at, d_keys_at, d_values_at, rows_at,
        cotangents_at, queries_row_major_at, cotangents_row_major_at, d_scores_at, weights_at,
        d_scores_f32_at, weights_row_major_at, d_scores_row_major_at, tile_at, row_at, tiles_at,
        caps_at, kept_at, visible_at, words_at, ids_at, mask_blocks_at, pieces_at, bias_at,
        bias_rows_at;
    int64_t worker_floats;
    int64_t row_count, row_block_count; /* rows of all heads, and blocks of them; at least */
    int64_t delta_at, progress_at, query_sums_at, sequences_at,
        order_at;  /* of what all share, after lse */
    int64_t bytes; /* of what all share */
} vjp_plan;

#define VJP_LIMIT ((int64_t)1 << 47)

/* Room for rows x columns floats; *at stays below 2^40, and at that value says that they do not fit. */
static int64_t vjp_reserve(int64_t *at, int64_t rows, int64_t columns) {
    const int64_t start = *at, limit = (int64_t)1 << 40;
    int64_t count;
    if (!ejki_mul(rows, columns, &count) || count > limit - start) count = limit - start;
    *at = ejki_min(limit, start + ejki_round_up(count, 16));
    return start;
}

/*
 * A tile of rows is some lines of each panel. Were panels a multiple of the first-level cache's sets apart, all of
 * a tile would lie in the same few sets: they are some multiples and a tile apart.
 */
static int64_t vjp_row_step(int64_t rows) {
    const int64_t sets = 4096 / (TILE_COLUMNS * (int64_t)sizeof(float));
    return rows + ((TILE_ROWS - rows) % sets + sets) % sets;
}

/* What products along columns read is of its own where lanes hold several rows. */
static void vjp_lay_out_row_major(vjp_plan *t, int64_t *at) {
    const int64_t c = TILE_COLUMNS, rows = ejki_cdiv(t->rows, VJP_DEPTH);
    t->queries_row_major_at = vjp_reserve(at, t->row_major_step * c, t->head_panels);
    t->cotangents_row_major_at = vjp_reserve(at, t->row_major_step * c, t->value_panels);
    t->d_scores_f32_at = vjp_reserve(at, TILE_ROWS, c);
    t->weights_row_major_at = vjp_reserve(at, rows, c);
    t->d_scores_row_major_at = vjp_reserve(at, rows, c);
}

static void vjp_lay_out(vjp_plan *t) {
    const int64_t c = TILE_COLUMNS, panels = t->keys / c;
    int64_t at = 0;
    t->keys_transposed_at = vjp_reserve(&at, t->keys, t->head_lanes);
    t->values_transposed_at = vjp_reserve(&at, t->keys, t->value_lanes);
    t->keys_at = vjp_reserve(&at, t->keys / VJP_DEPTH * c, t->head_panels);
    t->d_keys_at = vjp_reserve(&at, t->keys * c, t->head_panels);
    t->d_values_at = vjp_reserve(&at, t->keys * c, t->value_panels);
    t->rows_at = vjp_reserve(&at, t->row_step * c, ejki_cdiv(t->head_lanes, c));
    t->cotangents_at = vjp_reserve(&at, t->row_step * c, ejki_cdiv(t->value_lanes, c));
    t->d_scores_at = vjp_reserve(&at, t->row_step * c, ejki_cdiv(panels, VJP_DEPTH));
    t->weights_at = vjp_reserve(&at, VJP_DEPTH > 1 ? TILE_ROWS : t->rows, c);
    if (VJP_DEPTH > 1) vjp_lay_out_row_major(t, &at);
    t->tile_at = vjp_reserve(&at, TILE_ROWS, c);
    t->row_at = vjp_reserve(&at, t->rows, (int64_t)(sizeof(flash_row) / sizeof(float)));
    t->tiles_at = vjp_reserve(&at, t->rows, (int64_t)(sizeof(vjp_tile) / sizeof(float)));
    t->caps_at = vjp_reserve(&at, t->rows, c);
    t->kept_at = vjp_reserve(&at, TILE_ROWS, c);
    t->visible_at = vjp_reserve(&at, t->rows, panels);
    t->words_at = vjp_reserve(&at, t->rows, 2 * panels);
    t->ids_at = vjp_reserve(&at, panels, (int64_t)(sizeof(vjp_ids) / sizeof(float)));
    t->mask_blocks_at =
        vjp_reserve(&at, t->mask_blocks, (int64_t)(sizeof(ejki_mask_block) / sizeof(float)));
    t->pieces_at =
        vjp_reserve(&at, 5 * t->rows, (int64_t)(sizeof(vjp_prefetch_range) / sizeof(float)));
    t->bias_at = vjp_reserve(&at, t->bias_heads * t->bias_queries, t->keys);
    t->bias_rows_at = vjp_reserve(&at, 2 * t->rows, sizeof(uint64_t) / sizeof(float));
    t->worker_floats = at;
}

static int64_t vjp_bias_rows(const ejki_flash_vjp_problem *v) {
    const ejki_flash_problem *p = &v->forward;
    if (!v->wants_bias) return 0;
    return (v->d_bias.stride_b ? p->batch : 1) * (v->d_bias.stride_h ? p->query_heads : 1) *
           (v->d_bias.stride_t ? p->queries : 1);
}

/*
 * Where several batch entries or KV heads add to the same elements of d_bias, a task takes a block of keys of all of
 * them. In 16 bits a task has f32 sums of its own: few keys if there are many rows.
 */
static void vjp_plan_bias(vjp_plan *t, const ejki_flash_vjp_problem *v) {
    const ejki_flash_problem *p = &v->forward;
    const ejki_bias_gradient *bias = &v->d_bias;
    const int64_t few = ejki_round_up(64, TILE_COLUMNS);
    t->sums_batches = v->wants_bias && !bias->stride_b && p->batch > 1;
    t->sums_heads = v->wants_bias && !bias->stride_h && p->kv_heads > 1;
    t->bias_groups = (t->sums_batches ? 1 : p->batch) * (t->sums_heads ? 1 : p->kv_heads);
    t->bias_once = v->wants_bias && (bias->stride_b || p->batch == 1) &&
                   (bias->stride_h || p->query_heads == 1) && (bias->stride_t || p->queries == 1);
    t->bias_rows = vjp_bias_rows(v);
    const uint64_t strides = (uint64_t)(bias->stride_b | bias->stride_h | bias->stride_t);
    t->bias_streams =
        t->bias_once && p->dtype == FLASH_TYPE && p->block_mask.mask_heads == 0 &&
        ((uintptr_t)bias->data | strides * (uint64_t)element_size(p->dtype)) % 64 == 0;
    if (!v->wants_bias || p->dtype == EJK_DTYPE_F32 || t->bias_once) return;
    t->bias_heads = bias->stride_h ? p->group : 1;
    t->bias_queries = bias->stride_t ? p->queries : 1;
    if (t->bias_heads * t->bias_queries > few) t->keys = ejki_min(t->keys, few);
}

/* Cuts rows and keys into blocks, none of which lies in two mask blocks. */
static void vjp_plan_blocks(vjp_plan *t, const ejki_flash_problem *p) {
    const bool has_grid = p->block_mask.mask_heads > 0;
    t->mask_blocks = block_mask_cursor_count(p);
    t->region_rows = has_grid ? p->block_mask.block_q * p->group : ejki_max(1, t->all_rows);
    t->region_keys = has_grid ? p->block_mask.block_kv : ejki_max(1, p->keys);
    t->rows = ejki_min(t->rows, t->region_rows);
    if (has_grid) /* about equal ones */
        t->rows = ejki_min(
            t->rows, ejki_round_up(ejki_cdiv(t->region_rows, ejki_cdiv(t->region_rows, t->rows)),
                                   TILE_ROWS));
    t->keys = ejki_min(t->keys, ejki_round_up(t->region_keys, TILE_COLUMNS));
    t->region_row_blocks = ejki_cdiv(t->region_rows, t->rows);
    t->region_key_blocks = ejki_cdiv(t->region_keys, t->keys);
    t->row_blocks = t->all_rows / t->region_rows * t->region_row_blocks;
    t->key_blocks = p->keys / t->region_keys * t->region_key_blocks;
}

/* Consecutive rows or keys. */
typedef struct vjp_range {
    int64_t first, end;
} vjp_range;

static inline vjp_range vjp_block_of(int64_t index, int64_t region, int64_t blocks, int64_t size) {
    const int64_t start = index / blocks * region, first = start + index % blocks * size;
    return (vjp_range){first, ejki_min(first + size, start + region)};
}
static inline vjp_range vjp_block_rows(const vjp_plan *t, int64_t index) {
    return vjp_block_of(index, t->region_rows, t->region_row_blocks, t->rows);
}
static inline vjp_range vjp_block_keys(const vjp_plan *t, int64_t index) {
    return vjp_block_of(index, t->region_keys, t->region_key_blocks, t->keys);
}

static vjp_plan vjp_plan_of(const ejki_flash_vjp_problem *v, const int64_t *parameters) {
    const ejki_flash_problem *p = &v->forward;
    vjp_plan t = {.all_rows = p->queries * p->group};
    t.rows = ejki_max(1, ejki_min(parameters[0], t.all_rows));
    t.keys = ejki_round_up(ejki_max(1, ejki_min(parameters[1], p->keys)), TILE_COLUMNS);
    vjp_plan_bias(&t, v);
    vjp_plan_blocks(&t, p);
    t.row_step = vjp_row_step(t.rows);
    t.row_major_step = VJP_DEPTH > 1 ? vjp_row_step(ejki_cdiv(t.rows, VJP_DEPTH)) : t.row_step;
    t.head_panels = ejki_cdiv(p->head_dim, TILE_COLUMNS);
    t.value_panels = ejki_cdiv(p->value_dim, TILE_COLUMNS);
    t.head_lanes = ejki_cdiv(p->head_dim, VJP_DEPTH);
    t.value_lanes = ejki_cdiv(p->value_dim, VJP_DEPTH);
    t.sums_queries = v->wants_query && p->dtype != EJK_DTYPE_F32;
    t.stores_first = p->layout == EJKI_FLASH_DENSE && t.mask_blocks == 0;
    t.query_panels = t.keys / TILE_COLUMNS;
    t.tasks = t.bias_groups * t.key_blocks;
    t.most_workers = ejki_max(1, t.tasks);
    t.wants_d_scores = v->wants_query || v->wants_key || v->wants_bias;
    vjp_lay_out(&t);
    int64_t at = 0;
    /* Tokens of packed sequences are in one list; each of them may end with a block that is not full. */
    const bool tokens = p->layout == EJKI_FLASH_TOKENS;
    t.row_count = (tokens ? 1 : p->batch) * p->kv_heads * t.all_rows;
    t.row_block_count = p->kv_heads * (tokens ? t.row_blocks + p->batch : p->batch * t.row_blocks);
    vjp_reserve(&at, t.row_count, 1);
    t.delta_at = vjp_reserve(&at, t.row_count, 1);
    t.progress_at = vjp_reserve(&at, t.row_block_count, 1);
    t.query_sums_at = vjp_reserve(&at, t.sums_queries ? t.row_count : 0, p->head_dim);
    t.sequences_at = vjp_reserve(&at, p->batch, sizeof(ejki_vjp_sequence) / sizeof(float));
    t.order_at = vjp_reserve(&at, p->batch, sizeof(int64_t) / sizeof(float));
    t.bytes = at * (int64_t)sizeof(float);
    if (t.worker_floats >= (int64_t)1 << 40 || at >= (int64_t)1 << 40) t.bytes = VJP_LIMIT;
    return t;
}

/* The plan of a packed sequence is that of all with its own counts. */
static void vjp_plan_enter(vjp_plan *t, const ejki_vjp_sequence *s) {
    t->all_rows = t->region_rows = s->rows;
    t->row_blocks = s->row_blocks;
    t->region_row_blocks = ejki_max(1, s->row_blocks);
    t->keys = s->block;
    t->query_panels = s->step / TILE_COLUMNS;
    t->region_keys = s->keys;
    t->key_blocks = s->key_blocks;
    t->region_key_blocks = ejki_max(1, s->key_blocks);
}

#endif
