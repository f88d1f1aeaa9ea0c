/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block of rows beside panels of keys: packing, weights and dS, gradients of keys and values.
 */
#ifndef EJKI_VJP_PANEL_H
#define EJKI_VJP_PANEL_H

#include "operations/attention/cpu/backward/vjp_worker.h"

/* Rows that see nothing are packed as 0: their cotangents count nowhere. */
static void vjp_pack_rows(vjp_worker *w) {
    const ejki_flash_vjp_problem *v = &w->own;
    const ejki_flash_problem *p = &v->forward;
    const int64_t panel_stride = w->plan.row_step * TILE_COLUMNS,
                  down = w->plan.row_major_step * TILE_COLUMNS;
    vjp_probe probe = vjp_probe_none();
    for (int64_t i = 0; i < w->count; i += VJP_DEPTH) {
        const void *query[VJP_DEPTH] = {NULL}, *cotangent[VJP_DEPTH] = {NULL};
        for (int64_t n = 0; n < VJP_DEPTH && i + n < w->count; n++) {
            if (w->block.lse[i + n] == -INFINITY) continue;
            query[n] = flash_query(p, &w->block.row[i + n]);
            cotangent[n] = vjp_cotangent(v, &w->block.row[i + n]);
        }
        const int64_t along_at = i * TILE_COLUMNS, down_at = i / VJP_DEPTH * TILE_COLUMNS;
        probe = vjp_pack(p->dtype, query, p->head_dim, w->rows + along_at, panel_stride,
                         w->queries_row_major + down_at, down, probe);
        probe = vjp_pack(p->dtype, cotangent, p->value_dim, w->cotangents + along_at, panel_stride,
                         w->cotangents_row_major + down_at, down, probe);
    }
    w->rows_finite = vjp_is_finite(probe);
    w->block.exact = w->keys_small || vjp_is_small(probe);
}

/* Rows of the block that see any of `columns` of a panel: from the first tile of such to the last. */
static vjp_range vjp_rows_of(const vjp_worker *w, int64_t panel, uint32_t columns) {
    vjp_range rows = {w->count, 0};
    for (const vjp_tile *tile = w->block.tile; tile < w->block.tile_end; tile++) {
        if (!(tile->any[panel] & columns)) continue;
        rows.first = ejki_min(rows.first, tile->first);
        rows.end = tile->first + tile->rows;
    }
    return rows;
}

/* d += aᵀ · b where coefficients of 0 count nowhere; rows of b are queries or cotangents. */
static void vjp_add_skipping(const vjp_worker *w, vjp_range visible, const float *a,
                             bool cotangents, float *d, int64_t width) {
    const ejki_flash_problem *p = &w->own.forward;
    for (int64_t i = visible.first; i < visible.end; i++) {
        const flash_row *r = &w->block.row[i];
        const void *row = cotangents ? vjp_cotangent(&w->own, r) : flash_query(p, r);
        for (int64_t j = 0; j < TILE_COLUMNS; j++) {
            const float coefficient = vjp_down(a, i, j);
            if (coefficient != 0)
                vjp_add_row(coefficient, p->dtype, row, width, d + j * TILE_COLUMNS,
                            w->plan.keys * TILE_COLUMNS);
        }
    }
}

/* d += aᵀ · b over those rows of the block that see them, for the keys of a panel; `width` columns of d. */
static void vjp_add_keys(vjp_worker *w, int64_t panel, const float *a, const float *b, float *d,
                         int64_t width) {
    const int64_t b_stride = w->plan.row_major_step * TILE_COLUMNS;
    const int64_t d_stride = w->plan.keys * TILE_COLUMNS;
    for (int64_t j = 0, rows; j < TILE_COLUMNS; j += rows) {
        rows = gemm_rows(TILE_COLUMNS - j);
        w->seeing[j] =
            vjp_rows_of(w, panel, (uint32_t)((UINT64_C(1) << (j + rows)) - (UINT64_C(1) << j)));
    }
    for (int64_t column = 0; column < width; column += TILE_COLUMNS, b += b_stride, d += d_stride)
        for (int64_t j = 0, rows; j < TILE_COLUMNS; j += rows) {
            rows = gemm_rows(TILE_COLUMNS - j);
            const vjp_range visible = w->seeing[j];
            if (visible.first >= visible.end) continue;
            const int64_t first = visible.first / VJP_DEPTH * TILE_COLUMNS; /* an even row */
            const int64_t depth = ejki_cdiv(visible.end - visible.first, VJP_DEPTH);
            const vjp_product add = w->block.exact        ? vjp_add_exact((int)rows)
                                    : width - column > VL ? vjp_add((int)rows)
                                                          : vjp_add_one((int)rows);
            vjp_prefetch(w);
            add(depth, a + first + j, 0, b + first, d + j * TILE_COLUMNS, NULL, NULL, 0);
        }
}

/* Weights and dS of a tile beside a panel. As pairs they are made as floats, a tile of them at a time, and rounded;
 * as floats they are where products read them. */
typedef struct vjp_made {
    float *weights, *d_scores;
} vjp_made;

static inline vjp_made vjp_made_at(const vjp_worker *w, const vjp_tile *tile, int64_t panel) {
    const int64_t at = tile->first * TILE_COLUMNS, panel_stride = w->plan.row_step * TILE_COLUMNS;
    if (VJP_DEPTH > 1) return (vjp_made){w->weights, w->d_scores_f32};
    return (vjp_made){w->weights + at, w->d_scores + panel * panel_stride + at};
}

static inline void vjp_make_weights(vjp_worker *w, const vjp_tile *tile, int64_t panel) {
    const vjp_plan *t = &w->plan;
    vjp_prefetch(w);
    vjp_scores(&w->block, tile, panel, t->head_lanes, w->rows + tile->first * TILE_COLUMNS,
               t->row_step * TILE_COLUMNS,
               w->keys_transposed + panel * TILE_COLUMNS * t->head_lanes,
               vjp_made_at(w, tile, panel).weights);
}

static inline void vjp_make_d_scores(vjp_worker *w, const vjp_tile *tile, int64_t panel) {
    const vjp_plan *t = &w->plan;
    const vjp_made made = vjp_made_at(w, tile, panel);
    if (!t->wants_d_scores) {
        if (w->own.forward.dropout > 0) vjp_drop(&w->block, tile, panel, made.weights);
        return;
    }
    vjp_prefetch(w);
    vjp_d_scores_of(&w->block, tile, panel, t->value_lanes,
                    w->cotangents + tile->first * TILE_COLUMNS, t->row_step * TILE_COLUMNS,
                    w->values_transposed + panel * TILE_COLUMNS * t->value_lanes, made.weights,
                    made.d_scores);
}

/* Makes operands of a tile's weights and dS, unless they are. */
static inline void vjp_round_tile(const vjp_worker *w, const vjp_tile *tile, int64_t panel) {
    const int64_t at = tile->first * TILE_COLUMNS, down = at / VJP_DEPTH;
    const vjp_made made = vjp_made_at(w, tile, panel);
    if (VJP_DEPTH == 1) return;
    vjp_round(false, tile->rows, made.weights, NULL, w->weights_row_major + down);
    if (w->plan.wants_d_scores)
        vjp_round(w->block.exact, tile->rows, made.d_scores,
                  w->d_scores + panel / VJP_DEPTH * w->plan.row_step * TILE_COLUMNS +
                      panel % VJP_DEPTH * (TILE_COLUMNS / VJP_DEPTH) + at,
                  w->d_scores_row_major + down);
}

/* Weights and dS of a tile that sees none of a panel are 0 where a product comes by: between rows that see the
 * panel, or between panels that the tile sees. */
static inline void vjp_zero(const vjp_worker *w, const vjp_tile *tile, int64_t panel,
                            vjp_range visible) {
    const bool between = tile->first >= visible.first && tile->first < visible.end;
    const size_t size = (size_t)(tile->rows * TILE_COLUMNS) * sizeof(float);
    const vjp_made made = vjp_made_at(w, tile, panel);
    if (!between && (panel < tile->first_panel / VJP_DEPTH * VJP_DEPTH || panel >= tile->end_panel))
        return;
    memset(made.weights, 0, size);
    memset(made.d_scores, 0, size);
    vjp_round_tile(w, tile, panel);
}

/* One panel of keys: weights, then dS of the tiles that see it, and what the keys gain by them. Where operands are
 * floats, first all weights: the first-level cache holds the panel's keys or values beside the rows that come
 * by, hardly both. Pairs take half of that. */
static void vjp_panel(vjp_worker *w, int64_t panel) {
    const ejki_flash_vjp_problem *v = &w->own;
    const ejki_flash_problem *p = &v->forward;
    const vjp_range visible = vjp_rows_of(w, panel, VJP_EVERY);
    for (const vjp_tile *tile = w->block.tile; tile < w->block.tile_end; tile++) {
        if (tile->any[panel] == 0) {
            vjp_zero(w, tile, panel, visible);
            continue;
        }
        vjp_make_weights(w, tile, panel);
        if (VJP_DEPTH == 1) continue;
        vjp_make_d_scores(w, tile, panel);
        vjp_round_tile(w, tile, panel);
    }
    for (const vjp_tile *tile = w->block.tile; VJP_DEPTH == 1 && tile < w->block.tile_end; tile++)
        if (tile->any[panel] != 0) vjp_make_d_scores(w, tile, panel);
    if (visible.first >= visible.end) return;
    const int64_t keys_at = panel * TILE_COLUMNS * TILE_COLUMNS;
    const float *d_scores = VJP_DEPTH > 1 ? w->d_scores_row_major
                                          : w->d_scores + panel * w->plan.row_step * TILE_COLUMNS;
    float *d_keys = w->d_keys + keys_at, *d_values = w->d_values + keys_at;
    if (!w->rows_finite) {
        if (v->wants_value)
            vjp_add_skipping(w, visible, w->weights_row_major, true, d_values, p->value_dim);
        if (v->wants_key) vjp_add_skipping(w, visible, d_scores, false, d_keys, p->head_dim);
        return;
    }
    if (v->wants_value)
        vjp_add_keys(w, panel, w->weights_row_major, w->cotangents_row_major, d_values,
                     p->value_dim);
    if (v->wants_key) vjp_add_keys(w, panel, d_scores, w->queries_row_major, d_keys, p->head_dim);
}

#endif
