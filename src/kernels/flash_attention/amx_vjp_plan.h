/* SPDX-License-Identifier: Apache-2.0 */
/* How the gradients of flash attention on AMX are cut into tasks, and where memory has what. */
#ifndef EJKI_AMX_VJP_PLAN_H
#define EJKI_AMX_VJP_PLAN_H

#include "kernels/flash_attention/amx_plan.h"
#include "kernels/flash_attention/vjp_problem.h"

#define AMX_VJP_PANEL 64 /* keys whose gradients are summed together: four tiles */

/*
 * The rows of a key head are its query heads one after the other, each cut into strips of `rows`; its keys are
 * cut into blocks. A task is a block of keys of a key head.
 */
typedef struct amx_vjp_plan {
    int64_t heads;                       /* B · Hkv */
    int64_t rows, head_strips, strips;   /* of a strip; strips of a query head, of a key head */
    int64_t keys, key_blocks, tasks;     /* of a block, a multiple of AMX_VJP_PANEL */
    int64_t steps, value_steps;          /* 32 columns each of D and Dv */
    int64_t wide, value_wide;            /* 16 columns each, twice as many */
    int64_t key_at, value_at, across_at; /* bytes into a worker's memory */
    int64_t d_key_at, d_value_at;        /* sums */
    int64_t query_at, cotangent_at;      /* pairs of components */
    int64_t query_rows_at, cotangent_rows_at; /* pairs of rows */
    int64_t stage_at, weights_at, slopes_at, pairs_at, d_query_at, tile_at, chunk_at, scratch_at;
    int64_t bytes;
    int64_t sums_at, delta_at, turns_at; /* bytes into what workers share, and in all */
    int64_t shared_bytes;
} amx_vjp_plan;

#define AMX_VJP_LIMIT ((int64_t)1 << 50)

/* A tile of 32 rows. Two orders of rows occur: natural, and that of the weights (amx_vjp_tiles.h). */
typedef struct amx_vjp_tile {
    float base[AMX_ROWS], reference[AMX_ROWS], delta[AMX_ROWS]; /* δ: even rows first, see there */
    int16_t first[AMX_ROWS], end[AMX_ROWS]; /* keys seen, counted from the block; weights' order */
    int64_t low, high, least, most;         /* keys that any row sees, and all see */
    int64_t row, count;                     /* first query, and how many */
    float query_top, cotangent_top;
    bool wild; /* lse or δ need care */
    bool odd;  /* not to be multiplied by tiles */
} amx_vjp_tile;

/* A chunk of 32 keys. */
typedef struct amx_vjp_chunk {
    float key_top, value_top;
    bool odd;
} amx_vjp_chunk;

/* Floats of scratch for what goes row by row. */
#define AMX_VJP_SCRATCH (2 * AMX_ROWS * AMX_CHUNK)

static inline void amx_vjp_lay_out(amx_vjp_plan *t) {
    const int64_t element = sizeof(uint16_t), real = sizeof(float), tiles = t->rows / AMX_ROWS;
    const int64_t row = 32 * element, sum = 32 * real;
    int64_t at = 0;
    t->stage_at = amx_reserve(&at, 4 * AMX_ROWS * AMX_CHUNK, real);
    t->weights_at = amx_reserve(&at, AMX_VJP_PANEL * t->rows, element);
    t->slopes_at = amx_reserve(&at, AMX_VJP_PANEL * t->rows, element);
    t->scratch_at = amx_reserve(&at, AMX_VJP_SCRATCH, real);
    t->tile_at = amx_reserve(&at, tiles, sizeof(amx_vjp_tile));
    t->chunk_at = amx_reserve(&at, t->keys / AMX_CHUNK, sizeof(amx_vjp_chunk));
    t->query_at = amx_reserve(&at, t->rows * row, t->steps);
    t->cotangent_at = amx_reserve(&at, t->rows * row, t->value_steps);
    t->query_rows_at = amx_reserve(&at, t->rows * row, t->steps);
    t->cotangent_rows_at = amx_reserve(&at, t->rows * row, t->value_steps);
    t->pairs_at = amx_reserve(&at, t->rows * element, t->keys);
    t->d_query_at = amx_reserve(&at, t->rows * sum, t->steps);
    t->key_at = amx_reserve(&at, t->keys * row, t->steps);
    t->value_at = amx_reserve(&at, t->keys * row, t->value_steps);
    t->across_at = amx_reserve(&at, t->keys * row, t->steps);
    t->d_key_at = amx_reserve(&at, t->keys * sum, t->steps);
    t->d_value_at = amx_reserve(&at, t->keys * sum, t->value_steps);
    t->bytes = at;
}

static inline amx_vjp_plan amx_vjp_plan_of(const ejki_flash_vjp_problem *v,
                                           const int64_t *parameters) {
    const ejki_flash_problem *p = &v->forward;
    amx_vjp_plan t = {.heads = p->batch * p->kv_heads};
    const int64_t queries = ejki_round_up(ejki_max(1, p->queries), AMX_ROWS);
    t.rows = ejki_min(queries, ejki_round_up(parameters[0], AMX_ROWS));
    t.head_strips = ejki_cdiv(p->queries, t.rows);
    t.strips = t.head_strips * p->group;
    t.keys = ejki_round_up(ejki_max(1, ejki_min(parameters[1], p->keys)), AMX_VJP_PANEL);
    t.key_blocks = ejki_cdiv(p->keys, t.keys);
    t.tasks = t.heads * t.key_blocks;
    t.steps = ejki_cdiv(p->head_dim, 32);
    t.value_steps = ejki_cdiv(p->value_dim, 32);
    t.wide = 2 * t.steps;
    t.value_wide = 2 * t.value_steps;
    amx_vjp_lay_out(&t);
    int64_t at = 0, rows = 0;
    /* With one block of keys the gradients of a strip of queries are complete when it ends. */
    if (t.key_blocks > 1 && v->wants_query) rows = t.heads * t.strips * t.rows;
    t.sums_at = amx_reserve(&at, rows * 32 * (int64_t)sizeof(float), t.steps);
    t.delta_at = amx_reserve(&at, t.heads * p->group * (int64_t)sizeof(float), p->queries);
    t.turns_at = amx_reserve(&at, t.heads * (int64_t)sizeof(int32_t), t.strips);
    t.shared_bytes = at;
    return t;
}

#endif
