/* SPDX-License-Identifier: Apache-2.0 */
/* State of a worker of flash attention on AMX, and where it keeps what belongs to rows and chunks. */
#ifndef EJKI_FLASH_AMX_STATE_H
#define EJKI_FLASH_AMX_STATE_H

#include "operations/attention/cpu/amx/amx_plan.h"
#include "operations/attention/cpu/amx/amx_visible.h"

/* Rows [row, end) of the task in a tensor that are prefetched while products run. */
typedef struct amx_rows {
    const ejki_bthd *tensor;
    int64_t row, end, width;
} amx_rows;

/* Addresses of a chunk's keys and values. */
typedef struct amx_places {
    const char *key[AMX_CHUNK], *value[AMX_CHUNK];
} amx_places;

/* Keys and values that lie anywhere, as in pages: `find` says where those from `key` on do. What no row sees may be
 * zeros. */
typedef struct amx_pages {
    void (*find)(const void *context, int64_t key, amx_places *places);
    const void *context;
    uint16_t *copy; /* of a chunk: AMX_CHUNK rows of keys, then of values */
    amx_places now, next;
} amx_pages;

/* One worker's memory and the group it is at. */
typedef struct amx_state {
    const ejki_flash_problem *problem;
    const amx_plan *plan;
    amx_pages *pages; /* NULL: the problem's tensors have keys and values */
    bool fast;        /* weights are made by `form` beside the products */
    bool precise;     /* weights are computed in f32 */
    bool split;       /* and multiplied as two bf16 numbers, rounded value and rounding error */
    bool drops;
    float scale; /* of raw products to base 2; 1 if amx_change_scores() has done it */
    amx_form form;
    amx_exp exp;
    uint16_t *query, *keys, *values, *weights, *ones;
    float *sums, *lanes, *scores, *shift, *maximum, *base;
    float *small_sums; /* subnormal sums of a tile, kept apart while products run */
    float *rounded;    /* with dropout: sums of all weights as rounded; as lanes */
    flash_row *row;
    amx_tile *tile;
    amx_task task;
    amx_chunk *chunk;
    int64_t first, end;        /* chunks of the block */
    int64_t following;         /* first key of the next one */
    block_mask_walk mask_walk; /* of the mask block that comes next, or that is cut there */
    ejki_mask_block *now;      /* those of the block's chunks */
    amx_packed *packed;        /* of each place */
    amx_stored *store;         /* blocks that stay packed: see amx_store.h */
    uint8_t *ahead; /* of each column of the block mask: bit i says that task index + i visits it */
    int64_t index, head;   /* the task and its KV head */
    int64_t load;          /* blocks of keys listed so far */
    float key_top;         /* the block's largest key component */
    bool all_values_fit;   /* all values of the block may go through AMX */
    amx_rows prefetch[2];  /* next tile's queries, this one's output */
    int64_t prefetch_rate; /* rows of each to prefetch at a chunk */
    const char *bias[AMX_ROWS],
        *prefetch_bias[AMX_ROWS]; /* rows of the bias: the tile's, the next one's */
    int64_t prefetch_row, prefetch_chunk,
        prefetched; /* that tile, -1 = none, and its first chunk; the tile prefetched so far */
    int64_t low[AMX_ROWS], high[AMX_ROWS]; /* keys that a tile's rows see by positions */
    int64_t noted;                         /* that tile's first row; -1 = none */
    uint32_t words[AMX_ROWS];              /* those of a chunk that they see */
} amx_state;

static void amx_set_problem(amx_state *s, const ejki_flash_problem *p, const amx_plan *t) {
    s->problem = p;
    s->plan = t;
    s->drops = p->dropout > 0;
    s->precise = p->lse.data || !p->normalize || s->drops;
    s->split = !p->normalize;
    s->scale = flash_scale(p);
    s->fast = amx_form_of(p->scale, p->soft_cap, p->has_bias, 128, &s->form) && !s->precise &&
              (amx_kind(&s->form) != AMX_PLAIN || !flash_rescales(p));
    if (!s->fast) s->form = (amx_form){.caps = false};
}

static void amx_bind(amx_state *s, const ejki_flash_problem *p, const amx_plan *t, char *memory) {
    *s = (amx_state){.exp = amx_exp_table()};
    amx_set_problem(s, p, t);
    s->scores = (float *)(void *)(memory + t->score_at);
    s->weights = (uint16_t *)(void *)(memory + t->weight_at);
    s->ones = (uint16_t *)(void *)(memory + t->ones_at);
    s->shift = (float *)(void *)(memory + t->float_at);
    s->maximum = s->shift + t->rows;
    s->base = s->maximum + t->rows;
    s->lanes = (float *)(void *)(memory + t->lane_at);
    s->rounded = s->lanes + t->rows * VL;
    s->query = (uint16_t *)(void *)(memory + t->query_at);
    s->sums = (float *)(void *)(memory + t->sum_at);
    s->keys = (uint16_t *)(void *)(memory + t->key_at);
    s->values = (uint16_t *)(void *)(memory + t->value_at);
    s->row = (flash_row *)(void *)(memory + t->row_at);
    s->tile = (amx_tile *)(void *)(memory + t->tile_at);
    s->chunk = (amx_chunk *)(void *)(memory + t->chunk_at);
    s->mask_walk.cursor = (block_mask_cursor *)(void *)(memory + t->cursor_at);
    s->mask_walk.count = block_mask_cursor_count(p);
    s->now = (ejki_mask_block *)(void *)(memory + t->now_at);
    s->packed = (amx_packed *)(void *)(memory + t->packed_at);
    s->store = (amx_stored *)(void *)(memory + t->store_at);
    s->ahead = (uint8_t *)(memory + t->ahead_at);
    s->small_sums = (float *)(void *)(memory + t->small_sums_at);
    s->head = -1;
    for (int i = 0; i < AMX_ELEMENT; i++) s->ones[i] = 0x3f80;
}

/* A row tile at a block: chunks [first, end) of it, and what they need. */
typedef struct amx_span {
    int64_t row; /* first of the tile */
    int64_t rows, first, end;
    int64_t last; /* end of all that the tile has of the block */
    bool slow;
    bool ready;              /* the first chunk's raw products are there */
    const uint32_t *visible; /* NULL, or keys of the chunk at hand that rows see */
} amx_span;

/* Slot of a row's tile for queries and sums: tiles that end before the next one begins share one. */
static inline int64_t amx_slot(const amx_state *s, int64_t row) {
    return s->plan->slots == 1 ? 0 : row / AMX_ROWS;
}

static inline uint16_t *amx_queries(const amx_state *s, int64_t row) {
    return s->query + amx_slot(s, row) * 2 * s->plan->steps * AMX_ELEMENT;
}

/* Where a row's sums of column d begin. */
static inline float *amx_sum(const amx_state *s, int64_t row, int64_t d) {
    const int64_t half = row % AMX_ROWS / 16;
    return s->sums + amx_slot(s, row) * s->plan->sums + (d / 16 * 2 + half) * AMX_SUMS +
           row % 16 * 16 + d % 16;
}

/* The row's 32 weights of a chunk. */
static inline uint16_t *amx_weights_of(const amx_state *s, int64_t row, int64_t chunk) {
    return s->weights + chunk % AMX_STAGE_CHUNKS * 2 * AMX_ELEMENT + row % AMX_ROWS * AMX_CHUNK;
}

/* Rounding errors of the row's weights, where `split`. */
static inline uint16_t *amx_rest_of(const amx_state *s, int64_t row, int64_t chunk) {
    return amx_weights_of(s, row, chunk) + AMX_ROWS * AMX_STAGE_KEYS;
}

static inline uint16_t *amx_keys_of(const amx_state *s, int64_t chunk) {
    return s->keys + s->chunk[chunk].place * 2 * s->plan->steps * AMX_ELEMENT;
}

#endif
