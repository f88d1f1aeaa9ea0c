/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights and slopes of a tile of rows beside a panel of keys. Where every row sees every key and a score is
 * nothing but a product, both are finished in registers; else products are stored and gone through row by
 * row. Scores are natural ones, −inf where hidden.
 */
#ifndef EJKI_VJP_SCORES_H
#define EJKI_VJP_SCORES_H

#include "kernels/flash_attention/scores_body.h"

#include <float.h>

/* Some rows of a block, and keys [low, high) that any of them sees by its position, [least, most) that all
 * of them see. */
typedef struct vjp_tile {
    int64_t first, rows;
    int64_t low, high, least, most;
} vjp_tile;

/* A block of rows. */
typedef struct vjp_block {
    const ejki_flash_vjp_problem *problem;
    bool general;
    float scale;
    flash_row *row;
    vjp_tile *tile, *tile_end;
    const float *lse, *delta;
    float *caps, *kept; /* of a tile: slope of the soft cap; multiplier of dropout */
    uint8_t *allowed;
    float *bias; /* sums of the task's keys, where d_bias cannot hold them; else NULL */
    int64_t bias_keys, bias_key, bias_step; /* of a row; the first one; rows from head to head */
} vjp_block;

/* Keys that any of `count` rows of a key head sees by its position; the first and the last row see the ends. */
static inline void vjp_extent(const ejki_flash_problem *p, int64_t row, int64_t count, int64_t *low,
                              int64_t *high) {
    int64_t other;
    ejki_flash_visible(p, row / p->group, low, &other);
    ejki_flash_visible(p, (row + count - 1) / p->group, &other, high);
}

/* Cuts a block of `count` rows, row `row` being the first, into tiles. */
static inline void vjp_cut(vjp_block *block, int64_t row, int64_t count) {
    const ejki_flash_problem *p = &block->problem->forward;
    vjp_tile *tile = block->tile;
    for (int64_t at = 0; at < count; at += tile->rows, tile++) {
        *tile = (vjp_tile){.first = at, .rows = product_rows(count - at)};
        vjp_extent(p, row + at, tile->rows, &tile->low, &tile->high);
        tile->least = block->row[at + tile->rows - 1].first;
        tile->most = block->row[at].end;
        for (int64_t i = 0; i < tile->rows; i++)
            if (block->lse[at + i] == -INFINITY) tile->most = tile->least; /* it sees nothing */
    }
    block->tile_end = tile;
}

/* Every row of the tile sees every key of the panel by its position. */
static inline bool vjp_sees_all(const vjp_tile *tile, int64_t key) {
    return tile->least <= key && tile->most >= key + TILE_COLUMNS;
}

/* Products of one row become natural scores; soft cap's slopes on the way. */
static inline void vjp_modify(const vjp_block *block, const flash_row *r, int64_t key,
                              int64_t count, float *scores, float *caps) {
    const ejki_flash_problem *p = &block->problem->forward;
    const void *bias = p->has_bias ? element_at(p->dtype, flash_bias_row(p, r), key) : NULL;
    const bool hides = p->has_mask || p->has_segments, capped = p->soft_cap != 0;
    if (hides) flash_allowed(p, r, key, count, block->allowed);
    const vf scale = v_set1((float)(capped ? p->scale / p->soft_cap : p->scale));
    for (int64_t j = 0; j < TILE_COLUMNS; j += VL) {
        vf z = v_mul(v_load(scores + j), scale);
        if (capped) {
            const vf t = v_tanh(z);
            v_store(caps + j, v_mul(v_sub(v_set1(1), t), v_add(v_set1(1), t)));
            z = v_mul(t, v_set1((float)p->soft_cap));
        }
        const int64_t left = count - j;
        if (bias && left > 0)
            z = v_add(z, v_widen_some(p->dtype, element_at(p->dtype, bias, j), left));
        if (hides && left > 0) z = v_allow(z, block->allowed + j);
        v_store(scores + j, z);
    }
}

/* weights = exp(query · keys − lse). */
static inline void vjp_scores(const vjp_block *block, const vjp_tile *tile, int64_t key,
                              int64_t depth, const float *rows, int64_t turn, const float *keys,
                              float *weights) {
    const ejki_flash_problem *p = &block->problem->forward;
    const float *lse = block->lse + tile->first;
    if (!block->general && vjp_sees_all(tile, key)) {
        vjp_weights((int)tile->rows)(depth, rows, turn, keys, weights, lse, NULL, block->scale);
        return;
    }
    vjp_raw((int)tile->rows)(depth, rows, turn, keys, weights, NULL, NULL, 0);
    const int64_t count = ejki_min(TILE_COLUMNS, p->keys - key);
    for (int64_t i = 0; i < tile->rows; i++) {
        const flash_row *r = &block->row[tile->first + i];
        float *row = weights + i * TILE_COLUMNS;
        if (lse[i] == -INFINITY) {
            memset(row, 0, TILE_COLUMNS * sizeof *row);
            continue;
        }
        vjp_modify(block, r, key, count, row, block->caps + i * TILE_COLUMNS);
        flash_hide(r, key, TILE_COLUMNS, row);
        for (int64_t j = 0; j < TILE_COLUMNS; j += VL) {
            const vf z = v_load(row + j), e = vjp_exp(v_sub(z, v_set1(lse[i])));
            v_store(row + j, v_select_gt(v_set1(-FLT_MAX), z, v_zero(), e));
        }
    }
}

/* Multipliers of dropout for a row and a panel of keys: 0 or `factor`. */
static inline void vjp_kept(const ejki_flash_problem *p, const flash_row *r, int64_t key,
                            float *kept) {
    const vf factor = v_set1((float)ejki_dropout_factor(p->dropout));
    for (int64_t j = 0; j < TILE_COLUMNS; j += VL) v_store(kept + j, factor);
    flash_drop(p, r, key, TILE_COLUMNS, kept);
}

/* weights become those that dropout leaves. */
static inline void vjp_drop(const vjp_block *block, const vjp_tile *tile, int64_t key,
                            float *weights) {
    const ejki_flash_problem *p = &block->problem->forward;
    for (int64_t i = 0; i < tile->rows; i++, weights += TILE_COLUMNS) {
        vjp_kept(p, &block->row[tile->first + i], key, block->kept);
        for (int64_t j = 0; j < TILE_COLUMNS; j += VL) {
            const vf m = v_load(block->kept + j);
            v_store(weights + j, v_select_gt(m, v_zero(), v_mul(m, v_load(weights + j)), v_zero()));
        }
    }
}

/* Adds the first `count` slopes of a row to its place in the gradient of the bias, or in sums of it. In 16 bits
 * such a place is added to once only. */
static inline void vjp_add_bias(const vjp_block *block, const flash_row *r, int64_t key,
                                int64_t count, const float *slopes) {
    const ejki_bias_gradient *bias = &block->problem->d_bias;
    ejk_dtype dtype = block->problem->forward.dtype;
    void *out = element_at(dtype, bias->data,
                           r->batch * bias->stride_b + r->head * bias->stride_h +
                               r->query * bias->stride_t + key);
    if (block->bias) {
        const int64_t head = r->head - r->kv_head * block->problem->forward.group;
        const int64_t row =
            (bias->stride_h ? head * block->bias_step : 0) + (bias->stride_t ? r->query : 0);
        out = block->bias + row * block->bias_keys + (key - block->bias_key);
        dtype = EJK_DTYPE_F32;
    }
    for (int64_t j = 0; j < count; j += VL) {
        void *at = element_at(dtype, out, j);
        const vf sum = v_add(v_widen_some(dtype, at, count - j), v_load(slopes + j));
        v_narrow_some(dtype, at, sum, count - j);
    }
}

/* slopes = weights ∘ (M ∘ cotangent · values − δ), times the slope of the cap; 0 where the weight is 0. */
static inline void vjp_slopes_of(const vjp_block *block, const vjp_tile *tile, int64_t key,
                                 int64_t depth, const float *cotangents, int64_t turn,
                                 const float *values, float *weights, float *slopes) {
    const ejki_flash_problem *p = &block->problem->forward;
    const float *delta = block->delta + tile->first;
    if (!block->general && vjp_sees_all(tile, key)) {
        vjp_slopes((int)tile->rows)(depth, cotangents, turn, values, slopes, delta, weights, 0);
        return;
    }
    vjp_raw((int)tile->rows)(depth, cotangents, turn, values, slopes, NULL, NULL, 0);
    for (int64_t i = 0; i < tile->rows; i++) {
        const flash_row *r = &block->row[tile->first + i];
        float *row = slopes + i * TILE_COLUMNS;
        const float *weight = weights + i * TILE_COLUMNS, *caps = block->caps + i * TILE_COLUMNS;
        if (p->dropout > 0) vjp_kept(p, r, key, block->kept);
        for (int64_t j = 0; j < TILE_COLUMNS; j += VL) {
            const vf w = v_load(weight + j);
            vf product = v_load(row + j);
            if (p->dropout > 0) {
                const vf m = v_load(block->kept + j);
                product = v_select_gt(m, v_zero(), v_mul(m, product), v_zero());
            }
            const vf slope = v_mul(w, v_sub(product, v_set1(delta[i])));
            v_store(row + j, v_select_gt(w, v_zero(), slope, w));
        }
        if (block->problem->wants_bias)
            vjp_add_bias(block, r, key, ejki_min(TILE_COLUMNS, p->keys - key), row);
        for (int64_t j = 0; p->soft_cap != 0 && j < TILE_COLUMNS; j += VL) {
            const vf slope = v_load(row + j);
            v_store(row + j, v_select_gt(v_load(weight + j), v_zero(),
                                         v_mul(slope, v_load(caps + j)), slope));
        }
    }
    if (p->dropout > 0) vjp_drop(block, tile, key, weights);
}

#endif
