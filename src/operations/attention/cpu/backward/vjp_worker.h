/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's memory, the task it is at, and its prefetch list. */
#ifndef EJKI_VJP_WORKER_H
#define EJKI_VJP_WORKER_H

#include "operations/attention/cpu/backward/vjp_plan.h"
#include "operations/attention/cpu/backward/vjp_rows.h"
#include "operations/attention/cpu/backward/vjp_scores.h"

/* One worker's memory and the task it is at. Sequences and batch entries are problems of their own. */
typedef struct vjp_worker {
    vjp_shared *shared;
    ejki_flash_vjp_problem own;
    vjp_plan plan;
    vjp_block block;
    float *keys_transposed, *values_transposed, *keys, *d_keys, *d_values, *rows, *cotangents,
        *d_scores;
    float *queries_row_major,
        *cotangents_row_major; /* the same as products along columns read them */
    float *weights, *d_scores_f32, *weights_row_major, *d_scores_row_major,
        *tile;                      /* of a panel, or a tile */
    vjp_range seeing[TILE_COLUMNS]; /* rows that see the columns of a panel from here on */
    int64_t sequence, kv_head;
    int64_t first_row; /* of the head, among those of all */
    _Atomic int32_t *progress;
    int64_t key_block, key, key_end, panels;
    int64_t row, count; /* of the block of rows */
    int64_t next_row;   /* of the one after it; all rows if there is none */
    vjp_prefetch_range *prefetch_list, *prefetch_end,
        *prefetch_next;    /* ranges to prefetch; the next of them */
    int64_t products, due; /* products left to spread the prefetch over; Bresenham remainder */
    bool keys_finite, rows_finite;
    bool keys_small; /* so that products have to be exact */
    bool stores; /* the task is the first of the block of rows, whose d_query holds nothing yet */
} vjp_worker;

static void vjp_bind(vjp_worker *w, vjp_shared *shared, int64_t index) {
    const vjp_plan *t = &shared->plan;
    float *memory = shared->workers_memory + index * t->worker_floats;
    *w = (vjp_worker){.shared = shared, .sequence = -1};
    w->keys_transposed = memory + t->keys_transposed_at;
    w->values_transposed = memory + t->values_transposed_at;
    w->keys = memory + t->keys_at;
    w->d_keys = memory + t->d_keys_at;
    w->d_values = memory + t->d_values_at;
    w->rows = memory + t->rows_at;
    w->cotangents = memory + t->cotangents_at;
    w->d_scores = memory + t->d_scores_at;
    w->weights = memory + t->weights_at;
    w->tile = memory + t->tile_at;
    w->queries_row_major = VJP_DEPTH > 1 ? memory + t->queries_row_major_at : w->rows;
    w->cotangents_row_major = VJP_DEPTH > 1 ? memory + t->cotangents_row_major_at : w->cotangents;
    w->d_scores_f32 = memory + t->d_scores_f32_at;
    w->weights_row_major = VJP_DEPTH > 1 ? memory + t->weights_row_major_at : w->weights;
    w->d_scores_row_major = memory + t->d_scores_row_major_at;
    w->prefetch_list = (vjp_prefetch_range *)(void *)(memory + t->pieces_at);
    w->block = (vjp_block){.problem = &w->own,
                           .scale = (float)shared->problem->forward.scale,
                           .row = (flash_row *)(void *)(memory + t->row_at),
                           .tile = (vjp_tile *)(void *)(memory + t->tiles_at),
                           .caps = memory + t->caps_at,
                           .kept = memory + t->kept_at,
                           .visible = (uint32_t *)(void *)(memory + t->visible_at),
                           .ids = (vjp_ids *)(void *)(memory + t->ids_at),
                           .mask_block = (ejki_mask_block *)(void *)(memory + t->mask_blocks_at),
                           .mask_blocks = t->mask_blocks,
                           .most_panels = t->keys / TILE_COLUMNS,
                           .bias = t->bias_heads > 0 ? memory + t->bias_at : NULL,
                           .bias_row = (const char **)(void *)(memory + t->bias_rows_at),
                           .d_bias_row = (char **)(void *)(memory + t->bias_rows_at) + t->rows,
                           .bias_once = t->bias_once,
                           .bias_streams = t->bias_streams,
                           .bias_step = t->bias_queries};
    w->block.tile->any = (uint32_t *)(void *)(memory + t->words_at);
    const ejki_flash_vjp_problem *v = shared->problem;
    const ejki_flash_problem *p = &v->forward;
    w->block.hides_keys = flash_hides_keys(p) || t->mask_blocks > 0;
    if (p->soft_cap != 0) w->block.cap = v_cap_of(p->scale / p->soft_cap, 1);
    w->block.rescales = p->soft_cap != 0 || p->has_bias;
    w->block.scales_d_scores = p->soft_cap != 0 || p->dropout > 0 || v->wants_bias;
}

static void vjp_enter(vjp_worker *w, int64_t sequence) {
    const vjp_shared *shared = w->shared;
    if (w->sequence == sequence) return;
    w->sequence = sequence;
    w->own = ejki_flash_vjp_part(shared->problem, sequence);
    w->plan = shared->plan;
    if (shared->problem->forward.layout != EJKI_FLASH_DENSE)
        vjp_plan_enter(&w->plan, &shared->tasks.sequence[sequence]);
    w->block.bias_keys = w->plan.keys;
}

/*
 * Lists what to prefetch: of each row the sums of its gradient, and query and cotangent of the row that follows in
 * the next block, with the first panel of its bias. Rows of one head lie far apart in [B, T, H, D], fall into few
 * sets of the second-level cache and so come from further away each time.
 */
static void vjp_list(vjp_worker *w, int64_t visible) {
    const ejki_flash_vjp_problem *v = &w->own;
    const ejki_flash_problem *p = &v->forward;
    const vjp_plan *t = &w->plan;
    vjp_prefetch_range *prefetch_list = w->prefetch_list;
    for (int64_t i = 0; i < w->count; i++) {
        if (v->wants_query)
            *prefetch_list++ =
                (vjp_prefetch_range){(const char *)vjp_query_sum(w->shared, v, &w->block.row[i],
                                                                 w->first_row + w->row + i),
                                     p->head_dim * (int64_t)sizeof(float)};
        const int64_t next = w->next_row + i;
        if (next >= t->all_rows) continue;
        flash_row r = {.query = p->group == 1 ? next : next / p->group};
        r.head = w->kv_head * p->group + next - r.query * p->group;
        *prefetch_list++ =
            (vjp_prefetch_range){flash_query(p, &r), p->head_dim * element_size(p->dtype)};
        *prefetch_list++ =
            (vjp_prefetch_range){vjp_cotangent(v, &r), p->value_dim * element_size(p->dtype)};
        if (!p->has_bias) continue;
        ejki_flash_visible(p, r.query, &r.first, &r.end);
        const int64_t key = w->key + ejki_max(0, r.first - w->key) / TILE_COLUMNS * TILE_COLUMNS;
        const int64_t bytes = TILE_COLUMNS * element_size(p->dtype);
        if (key >= ejki_min(r.end, w->key_end)) continue;
        *prefetch_list++ =
            (vjp_prefetch_range){element_at(p->dtype, flash_bias_row(p, &r), key), bytes};
        if (w->block.bias_once && !w->block.bias_streams)
            *prefetch_list++ = (vjp_prefetch_range){vjp_bias_address(&w->block, &r, key), bytes};
    }
    const int64_t adds =
        (v->wants_value ? t->value_panels : 0) + (v->wants_key ? t->head_panels : 0);
    w->prefetch_end = prefetch_list;
    w->prefetch_next = w->prefetch_list;
    w->due = 0;
    w->products = visible * (t->wants_d_scores ? 2 : 1) + visible * adds *
                                                              ejki_cdiv(TILE_COLUMNS, TILE_ROWS) /
                                                              (w->block.tile_end - w->block.tile);
}

/*
 * Prefetches one product's share of the list (Bresenham): all at once would fill the line fill buffers that loads
 * need.
 */
static inline void vjp_prefetch(vjp_worker *w) {
    for (w->due += w->prefetch_end - w->prefetch_list;
         w->due >= w->products && w->prefetch_next < w->prefetch_end;
         w->due -= w->products, w->prefetch_next++)
        for (int64_t n = 0; n < w->prefetch_next->bytes; n += 64)
            __builtin_prefetch(w->prefetch_next->at + n, 0, 2);
}

#endif
