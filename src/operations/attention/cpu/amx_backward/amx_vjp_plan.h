/* SPDX-License-Identifier: Apache-2.0 */
/* How the gradients of flash attention on AMX are cut into tasks, and where memory has what. */
#ifndef EJKI_AMX_VJP_PLAN_H
#define EJKI_AMX_VJP_PLAN_H

#include "operations/attention/cpu/amx/amx_plan.h"
#include "operations/attention/cpu/amx_backward/amx_vjp_tasks.h"
#include "operations/attention/flash/vjp_problem.h"

/* Consecutive queries or keys. */
typedef struct amx_vjp_range {
    int64_t first, end;
} amx_vjp_range;

/* How queries or keys are cut: each `region` of them into `blocks` of `size`, the last of which may be shorter. */
typedef struct amx_vjp_blocking {
    int64_t region, blocks, size;
} amx_vjp_blocking;

/*
 * The rows of a KV head are its query heads one after the other, each cut into row blocks; its keys are cut into
 * blocks. A task is a block of keys of a KV head of a sequence.
 */
typedef struct amx_vjp_plan {
    amx_vjp_blocking queries, keys;
    int64_t head_row_blocks, row_blocks; /* of a query head, of a KV head */
    int64_t key_blocks;                  /* of a sequence */
    int64_t tasks;                       /* at most */
    int64_t tiles, chunks;               /* of a row block, of a block, as there is room for */
    int64_t mask_blocks;                 /* of a row of a block mask that a block lies in */
    bool sums_batches, sums_heads;       /* one task sums them */
    int64_t bias_groups;                 /* tasks of a block of keys, where d_bias is wanted */
    int64_t bias_heads, bias_queries;    /* rows of sums of it in a worker's memory; 0 = none */
    int64_t steps, value_steps;          /* 32 columns each of D and Dv */
    int64_t head_tiles, value_tiles;     /* 16 columns each, twice as many */
    int64_t key_at, value_at, key_transposed_at; /* bytes into a worker's memory */
    int64_t d_key_at, d_value_at;                /* sums */
    int64_t query_at, cotangent_at;              /* pairs of components */
    int64_t query_rows_at, cotangent_rows_at;    /* pairs of rows */
    int64_t stage_at, weights_at, d_scores_at, pairs_at, d_query_at, tile_at, chunk_at, scratch_at;
    int64_t state_at, visible_at, mask_block_at;
    int64_t bias_at;
    int64_t bias_pairs_at, d_bias_pairs_at,
        bias_tops_at; /* bias of a panel, its gradient; largest biases */
    int64_t bytes;
    int64_t sums_at, delta_at, progress_at, sequences_at,
        order_at; /* bytes into what workers share */
    int64_t block_bits_at;
    int64_t
        block_words; /* of each row block: a bit for each block of keys, where there is a block mask */
    int64_t row_block_count, shared_bytes;
} amx_vjp_plan;

#define AMX_VJP_LIMIT ((int64_t)1 << 50)

/* A tile of 32 rows. Two orders of rows occur: natural, and that of the weights (amx_vjp_tiles.h). */
typedef struct amx_vjp_tile {
    float base[AMX_ROWS], shift[AMX_ROWS], delta[AMX_ROWS]; /* δ: even rows first, see there */
    int16_t first[AMX_ROWS], end[AMX_ROWS]; /* keys seen, counted from the block; weights' order */
    uint32_t rows;                          /* those that see anything; weights' order */
    int64_t low, high, least, most;         /* keys that any row sees, and all see */
    int64_t row, count;                     /* first query, and how many */
    float query_top, cotangent_top;
    float *sums;       /* of d_query */
    bool visible;      /* something of the block */
    bool out_of_range; /* lse or δ are out of the fast path's range */
    bool special;      /* has elements that AMX tiles cannot multiply */
} amx_vjp_tile;

/* A chunk of 32 keys. */
typedef struct amx_vjp_chunk {
    float key_top, value_top;
    bool special;
} amx_vjp_chunk;

/* Floats of scratch: d_bias, derivative of a soft cap. */
#define AMX_VJP_SCRATCH (2 * AMX_ROWS * AMX_CHUNK)
#define AMX_VJP_CAPS    (AMX_ROWS * AMX_CHUNK)

/* A score tile's bias, and its d_bias in bf16, are two tiles: pairs of keys by rows. */
#define AMX_VJP_BIAS_PAIRS (2 * AMX_ELEMENT)

/*
 * True if mask, segments, given positions or partial blocks may hide keys: what is seen is then looked up
 * before it is needed.
 */
static inline bool amx_vjp_hides_keys(const ejki_flash_problem *p) {
    return flash_hides_keys(p) || p->block_mask.mask_heads > 0;
}

static inline void amx_vjp_lay_out(amx_vjp_plan *t, const ejki_flash_problem *p) {
    const int64_t element = sizeof(uint16_t), real = sizeof(float);
    const int64_t row = 32 * element, sum = 32 * real;
    const int64_t rows = t->tiles * AMX_ROWS, keys = t->chunks * AMX_CHUNK;
    int64_t at = 0;
    t->stage_at = amx_reserve(&at, 4 * AMX_ROWS * AMX_CHUNK, real);
    t->weights_at = amx_reserve(&at, AMX_VJP_PANEL * rows, element);
    t->d_scores_at = amx_reserve(&at, AMX_VJP_PANEL * rows, element);
    t->scratch_at = amx_reserve(&at, AMX_VJP_SCRATCH, real);
    t->tile_at = amx_reserve(&at, t->tiles, sizeof(amx_vjp_tile));
    t->chunk_at = amx_reserve(&at, t->chunks, sizeof(amx_vjp_chunk));
    t->state_at = amx_reserve(&at, t->tiles, t->chunks);
    t->query_at = amx_reserve(&at, rows * row, t->steps);
    t->cotangent_at = amx_reserve(&at, rows * row, t->value_steps);
    t->query_rows_at = amx_reserve(&at, rows * row, t->steps);
    t->cotangent_rows_at = amx_reserve(&at, rows * row, t->value_steps);
    t->pairs_at = amx_reserve(&at, rows * element, keys);
    t->d_query_at = amx_reserve(&at, rows * sum, t->steps);
    t->key_at = amx_reserve(&at, keys * row, t->steps);
    t->value_at = amx_reserve(&at, keys * row, t->value_steps);
    t->key_transposed_at = amx_reserve(&at, keys * row, t->steps);
    t->d_key_at = amx_reserve(&at, keys * sum, t->steps);
    t->d_value_at = amx_reserve(&at, keys * sum, t->value_steps);
    t->visible_at = amx_reserve(&at, amx_vjp_hides_keys(p) ? rows * 4 : 0, t->chunks);
    t->bias_at = amx_reserve(&at, t->bias_heads * t->bias_queries, keys * real);
    t->mask_block_at = amx_reserve(&at, t->mask_blocks, sizeof(ejki_mask_block));
    const int64_t score_tiles = p->has_bias ? 2 * t->tiles : 0;
    t->bias_pairs_at = amx_reserve(&at, score_tiles, AMX_VJP_BIAS_PAIRS * element);
    t->d_bias_pairs_at =
        amx_reserve(&at, p->soft_cap != 0 ? score_tiles : 0, AMX_VJP_BIAS_PAIRS * element);
    t->bias_tops_at = amx_reserve(&at, score_tiles, real);
    t->bytes = at;
}

/* What workers share. Tokens of packed sequences are one list; each may end with a row block that is not full. */
static inline void amx_vjp_share(amx_vjp_plan *t, const ejki_flash_vjp_problem *v) {
    const ejki_flash_problem *p = &v->forward;
    const bool tokens = p->layout == EJKI_FLASH_TOKENS;
    const int64_t heads = (tokens ? 1 : p->batch) * p->query_heads;
    const int64_t row_blocks = p->layout == EJKI_FLASH_DENSE
                                   ? t->head_row_blocks
                                   : ejki_cdiv(p->queries, ejki_min(t->queries.size, 64)) + 1;
    const int64_t more = tokens ? p->batch * p->query_heads : 0;
    /* With one block of keys the gradients of a row block are complete when it ends. */
    const bool several =
        p->layout == EJKI_FLASH_DENSE ? t->key_blocks > 1 : p->keys > AMX_VJP_PANEL;
    const bool sums = v->wants_query && several;
    int64_t at = 0;
    t->row_block_count = heads * row_blocks + more;
    t->sums_at = amx_reserve(&at, sums ? heads * p->queries : 0, 128 * t->steps);
    t->delta_at = amx_reserve(&at, heads * (int64_t)sizeof(float), p->queries);
    t->progress_at = amx_reserve(&at, t->row_block_count, sizeof(int32_t));
    t->sequences_at = amx_reserve(&at, p->batch, sizeof(ejki_vjp_sequence));
    t->block_words = p->block_mask.mask_heads > 0 ? ejki_cdiv(t->key_blocks, 64) : 0;
    t->block_bits_at =
        amx_reserve(&at, t->row_block_count * (int64_t)sizeof(uint64_t), t->block_words);
    t->order_at = amx_reserve(&at, p->batch, sizeof(int64_t));
    t->shared_bytes = at;
}

/*
 * Blocking in which no tile lies in two mask blocks, which are `block` long; 0 = none. Where tiles fit into mask
 * blocks, a block may be several of these.
 */
static inline amx_vjp_blocking amx_vjp_blocking_of(int64_t all, int64_t block, int64_t size) {
    if (block == 0) return (amx_vjp_blocking){ejki_max(1, all), ejki_cdiv(all, size), size};
    if (block % AMX_CHUNK == 0 && block <= size)
        return (amx_vjp_blocking){ejki_max(1, all), ejki_cdiv(all, size / block * block),
                                  size / block * block};
    const int64_t blocks = ejki_cdiv(block, size);
    return (amx_vjp_blocking){block, blocks, ejki_round_up(ejki_cdiv(block, blocks), AMX_CHUNK)};
}

static inline int64_t amx_vjp_block_count(const amx_vjp_blocking *blocking, int64_t all) {
    return all / blocking->region * blocking->blocks;
}

/* The block that an element is in. */
static inline int64_t amx_vjp_block_at(const amx_vjp_blocking *blocking, int64_t at) {
    return at / blocking->region * blocking->blocks + at % blocking->region / blocking->size;
}

static inline amx_vjp_range amx_vjp_block_range(const amx_vjp_blocking *blocking, int64_t index) {
    const int64_t start = index / blocking->blocks * blocking->region;
    const int64_t first = start + index % blocking->blocks * blocking->size;
    return (amx_vjp_range){first, ejki_min(first + blocking->size, start + blocking->region)};
}

/*
 * Where several batch entries or KV heads add to the same elements of d_bias, a task takes a block of keys of all of
 * them, with f32 sums of its own: few keys if there are many rows. Returns how many keys.
 */
static inline int64_t amx_vjp_plan_bias(amx_vjp_plan *t, const ejki_flash_vjp_problem *v,
                                        int64_t keys) {
    const ejki_flash_problem *p = &v->forward;
    const ejki_bias_gradient *bias = &v->d_bias;
    t->sums_batches = v->wants_bias && !bias->stride_b && p->batch > 1;
    t->sums_heads = v->wants_bias && !bias->stride_h && p->kv_heads > 1;
    t->bias_groups = (t->sums_batches ? 1 : p->batch) * (t->sums_heads ? 1 : p->kv_heads);
    if (!v->wants_bias || (!t->sums_batches && (bias->stride_h || p->query_heads == 1) &&
                           (bias->stride_t || p->queries == 1)))
        return keys;
    t->bias_heads = bias->stride_h ? p->group : 1;
    t->bias_queries = bias->stride_t ? p->queries : 1;
    const bool many = t->bias_heads * t->bias_queries > AMX_VJP_PANEL;
    return many ? ejki_min(keys, AMX_VJP_PANEL) : keys;
}

static inline amx_vjp_plan amx_vjp_plan_of(const ejki_flash_vjp_problem *v,
                                           const int64_t *parameters) {
    const ejki_flash_problem *p = &v->forward;
    const bool grid = p->block_mask.mask_heads > 0;
    amx_vjp_plan t = {.steps = ejki_cdiv(p->head_dim, 32)};
    const int64_t queries = ejki_round_up(ejki_max(1, p->queries), AMX_ROWS);
    const int64_t rows = ejki_min(queries, ejki_round_up(parameters[0], AMX_ROWS));
    const int64_t keys = amx_vjp_plan_bias(&t, v, ejki_max(1, ejki_min(parameters[1], p->keys)));
    t.queries = amx_vjp_blocking_of(p->queries, grid ? p->block_mask.block_q : 0, rows);
    t.keys = amx_vjp_blocking_of(p->keys, grid ? p->block_mask.block_kv : 0,
                                 ejki_round_up(keys, AMX_VJP_PANEL));
    t.head_row_blocks = amx_vjp_block_count(&t.queries, p->queries);
    t.row_blocks = t.head_row_blocks * p->group;
    t.key_blocks = amx_vjp_block_count(&t.keys, p->keys);
    t.tasks = p->kv_heads * (p->layout == EJKI_FLASH_DENSE
                                 ? p->batch * t.key_blocks
                                 : p->batch * ejki_cdiv(p->keys, AMX_VJP_PANEL));
    if (v->wants_bias) t.tasks = t.bias_groups * t.key_blocks;
    t.tiles = t.queries.size / AMX_ROWS;
    t.chunks = ejki_round_up(t.keys.size, AMX_VJP_PANEL) / AMX_CHUNK;
    t.mask_blocks = grid ? ejki_cdiv(t.keys.size, p->block_mask.block_kv) : 0;
    t.value_steps = ejki_cdiv(p->value_dim, 32);
    t.head_tiles = 2 * t.steps;
    t.value_tiles = 2 * t.value_steps;
    amx_vjp_lay_out(&t, p);
    amx_vjp_share(&t, v);
    return t;
}

/* The plan of a packed sequence is that of all with its own counts. */
static inline void amx_vjp_plan_enter(amx_vjp_plan *t, const ejki_flash_problem *p,
                                      const ejki_vjp_sequence *s) {
    t->queries =
        amx_vjp_blocking_of(p->queries, 0, amx_vjp_row_block_size(p->queries, t->queries.size));
    t->keys = amx_vjp_blocking_of(p->keys, 0, s->block);
    t->head_row_blocks = amx_vjp_block_count(&t->queries, p->queries);
    t->row_blocks = s->row_blocks;
    t->key_blocks = s->key_blocks;
}

#endif
