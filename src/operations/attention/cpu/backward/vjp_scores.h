/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights and dS of a tile of rows beside a panel of keys. Where every row sees every key and a score is
 * nothing but a product, both are finished in registers; else products are stored and gone through row by
 * row. Both ways give the same bits. Scores are natural ones; weights and dS of hidden keys are 0,
 * whatever was computed there.
 */
#ifndef EJKI_VJP_SCORES_H
#define EJKI_VJP_SCORES_H

#include "operations/attention/cpu/backward/vjp_products.h"
#include "operations/attention/cpu/backward/vjp_visible.h"

/* Raw products of a tile, of the only vector of columns that any row looks at where there is but one. */
static inline void vjp_multiply(const vjp_block *block, const vjp_tile *tile, int64_t panel,
                                int64_t depth, const float *a, int64_t panel_stride, const float *b,
                                float *c) {
    const uint32_t any = tile->any[panel];
    const int64_t only = __builtin_ctz(any) / VL * VL;
    if (block->exact)
        vjp_raw_exact((int)tile->rows)(depth, a, panel_stride, b, c, NULL, NULL, 0);
    else if (any >> only >= UINT64_C(1) << VL)
        vjp_raw((int)tile->rows)(depth, a, panel_stride, b, c, NULL, NULL, 0);
    else
        vjp_raw_one((int)tile->rows)(depth, a, panel_stride, b + only, c + only, NULL, NULL, 0);
}

/* Products of a tile become weights; derivatives of the soft cap on the way. */
static inline __attribute__((always_inline)) void
vjp_soften(const bool capped, const bool biased, const ejk_dtype dtype, const vjp_block *block,
           const vjp_tile *tile, int64_t panel, float *weights) {
    const ejki_flash_problem *p = &block->problem->forward;
    const int64_t at = panel * TILE_COLUMNS, left = block->end - block->key - at;
    const vf factor = v_set1((float)(capped ? p->soft_cap : p->scale));
    float *caps = block->caps + tile->first * TILE_COLUMNS;
    for (int64_t i = 0; i < tile->rows; i++, caps += TILE_COLUMNS) {
        const uint32_t visible = vjp_visible(block, tile, panel, i);
        const char *bias = biased ? element_at(dtype, block->bias_row[tile->first + i], at) : NULL;
        const vf lse = v_set1(block->lse[tile->first + i]);
        float *row = weights + i * TILE_COLUMNS;
        vf z[TILE_VECTORS];
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) z[j] = v_load(row + j * VL);
        if (capped) v_cap_some(TILE_VECTORS, &block->cap, z);
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
            if (capped) v_store(caps + j * VL, v_fma(-z[j], z[j], v_set1(1)));
            vf score = v_mul(z[j], factor);
            if (biased) {
                const char *place = element_at(dtype, bias, j * VL);
                const vf b = left > j * VL ? v_widen_some(dtype, place, left - j * VL) : v_zero();
                z[j] = v_fma(z[j], factor, b);
                __builtin_prefetch(element_at(dtype, place, TILE_COLUMNS), 0, 2);
                score = flash_bias_hides(b, b, z[j]);
                z[j] = v_sub(z[j], lse);
            } else {
                z[j] = v_fms(z[j], factor, lse);
            }
            const vf weight = vjp_weight_of(score, vjp_exp(z[j]));
            v_store(row + j * VL, v_where(weight, visible >> (j * VL)));
        }
    }
}

/* Address of a row's d_bias, or of its sums, from a key on. */
static inline void *vjp_bias_address(const vjp_block *block, const flash_row *r, int64_t key) {
    const ejki_bias_gradient *bias = &block->problem->d_bias;
    if (!block->bias)
        return element_at(block->problem->forward.dtype, bias->data,
                          r->batch * bias->stride_b + r->head * bias->stride_h +
                              r->query * bias->stride_t + key);
    const int64_t head = r->head - r->kv_head * block->problem->forward.group;
    const int64_t row =
        (bias->stride_h ? head * block->bias_step : 0) + (bias->stride_t ? r->query : 0);
    return block->bias + row * block->bias_keys + (key - block->bias_key);
}

/* Looks up where rows of a block have their bias and its gradient: once, not for each panel. */
static inline void vjp_find_bias(const vjp_block *block, int64_t count) {
    const ejki_flash_vjp_problem *v = block->problem;
    const ejki_flash_problem *p = &v->forward;
    for (int64_t i = 0; i < count; i++) {
        const flash_row *r = &block->row[i];
        if (p->has_bias)
            block->bias_row[i] = element_at(p->dtype, flash_bias_row(p, r), block->key);
        if (v->wants_bias) block->d_bias_row[i] = vjp_bias_address(block, r, block->key);
    }
}

/* Zeros bytes of d_bias, past the caches from the first whole line on. */
static inline void vjp_zero_bias(void *at, int64_t bytes, bool streams) {
    float *place = at;
    for (; streams && bytes >= (int64_t)sizeof(vf); bytes -= (int64_t)sizeof(vf), place += VL)
        v_stream(place, v_zero());
    if (bytes > 0) memset(place, 0, (size_t)bytes);
}

/* What becomes of dS in the gradient of the bias. */
enum { VJP_NO_BIAS, VJP_BIAS_ADDS, VJP_BIAS_STORES, VJP_BIAS_STREAMS };

/* Products of a tile, multiplied by what dropout says, become dS; those of the bias go to its gradient. */
static inline __attribute__((always_inline)) void
vjp_finish_d_scores(const bool capped, const int mode, const ejk_dtype dtype,
                    const vjp_block *block, const vjp_tile *tile, int64_t panel,
                    const float *weights, float *d_scores) {
    const int64_t at = panel * TILE_COLUMNS, left = block->end - block->key - at;
    /* Looked up once: what is stored might change them for all that a compiler knows. */
    const float *deltas = block->delta + tile->first;
    const float *caps = block->caps + tile->first * TILE_COLUMNS;
    char *const *places = block->d_bias_row + tile->first;
    const uint32_t *words = block->visible + tile->first * block->most_panels + panel;
    const int64_t rows = tile->rows, panel_stride = block->most_panels;
    const bool all = tile->all[panel] == VJP_EVERY;
    for (int64_t i = 0; i < rows; i++, caps += TILE_COLUMNS) {
        const uint32_t visible = all ? VJP_EVERY : words[i * panel_stride];
        const vf delta = v_set1(deltas[i]);
        char *bias = mode ? element_at(dtype, places[i], at) : NULL;
        float *row = d_scores + i * TILE_COLUMNS;
        const float *weight = weights + i * TILE_COLUMNS;
        vf given[TILE_VECTORS];
        EJKI_UNROLL for (int64_t j = 0; j < TILE_COLUMNS; j += VL) {
            vf d_score = vjp_weighted(v_load(weight + j), v_sub(v_load(row + j), delta));
            d_score = v_where(d_score, visible >> j);
            given[j / VL] = d_score;
            if (mode && mode != VJP_BIAS_STREAMS && left > j) {
                char *place = element_at(dtype, bias, j);
                vf sum = d_score;
                if (mode == VJP_BIAS_ADDS)
                    sum = v_add(v_widen_some(dtype, place, left - j), d_score);
                v_narrow_some(dtype, place, sum, left - j);
                __builtin_prefetch(element_at(dtype, place, TILE_COLUMNS), 1, 2);
            }
            if (capped) {
                d_score = v_select_gt(v_load(weight + j), v_zero(),
                                      v_mul(d_score, v_load(caps + j)), d_score);
                d_score = v_where(d_score, visible >> j);
            }
            v_store(row + j, d_score);
        }
        if (mode == VJP_BIAS_STREAMS) vjp_stream(bias, given);
    }
}

/* The bias in the types that it comes in: one that is known is not tested at each vector. */
#define VJP_EACH_TYPE(call, capped, given, type, ...)                                              \
    do {                                                                                           \
        if (!(given))                                                                              \
            call(capped, false, FLASH_TYPE, __VA_ARGS__);                                          \
        else if ((type) == FLASH_TYPE)                                                             \
            call(capped, true, FLASH_TYPE, __VA_ARGS__);                                           \
        else                                                                                       \
            call(capped, true, type, __VA_ARGS__);                                                 \
    } while (0)

static __attribute__((noinline)) void vjp_soften_tile(const vjp_block *block, const vjp_tile *tile,
                                                      int64_t panel, float *weights) {
    const ejki_flash_problem *p = &block->problem->forward;
    if (p->soft_cap != 0)
        VJP_EACH_TYPE(vjp_soften, true, p->has_bias, p->dtype, block, tile, panel, weights);
    else
        VJP_EACH_TYPE(vjp_soften, false, p->has_bias, p->dtype, block, tile, panel, weights);
}

static inline __attribute__((always_inline)) void
vjp_finish_d_scores_and_bias(const bool capped, const vjp_block *block, const vjp_tile *tile,
                             int64_t panel, const float *weights, float *d_scores) {
    const ejk_dtype dtype = block->problem->forward.dtype;
    if (!block->problem->wants_bias)
        vjp_finish_d_scores(capped, VJP_NO_BIAS, EJK_DTYPE_F32, block, tile, panel, weights,
                            d_scores);
    else if (!block->bias_once)
        vjp_finish_d_scores(capped, VJP_BIAS_ADDS, EJK_DTYPE_F32, block, tile, panel, weights,
                            d_scores);
    else if (block->bias_streams && block->end - block->key >= (panel + 1) * TILE_COLUMNS)
        vjp_finish_d_scores(capped, VJP_BIAS_STREAMS, FLASH_TYPE, block, tile, panel, weights,
                            d_scores);
    else if (dtype == FLASH_TYPE)
        vjp_finish_d_scores(capped, VJP_BIAS_STORES, FLASH_TYPE, block, tile, panel, weights,
                            d_scores);
    else
        vjp_finish_d_scores(capped, VJP_BIAS_STORES, dtype, block, tile, panel, weights, d_scores);
}

static __attribute__((noinline)) void
vjp_finish_d_scores_of_tile(const vjp_block *block, const vjp_tile *tile, int64_t panel,
                            const float *weights, float *d_scores) {
    if (block->problem->forward.soft_cap != 0)
        vjp_finish_d_scores_and_bias(true, block, tile, panel, weights, d_scores);
    else
        vjp_finish_d_scores_and_bias(false, block, tile, panel, weights, d_scores);
}

/* weights = exp(query · keys − lse). */
static inline void vjp_scores(const vjp_block *block, const vjp_tile *tile, int64_t panel,
                              int64_t depth, const float *rows, int64_t panel_stride,
                              const float *keys, float *weights) {
    if (!block->rescales && !block->exact && tile->all[panel] == VJP_EVERY) {
        vjp_weights((int)tile->rows)(depth, rows, panel_stride, keys, weights,
                                     block->lse + tile->first, NULL, block->scale);
        return;
    }
    vjp_multiply(block, tile, panel, depth, rows, panel_stride, keys, weights);
    vjp_soften_tile(block, tile, panel, weights);
}

/* Multipliers of dropout for a row and a panel of keys: 0 or `factor`. */
static inline void vjp_kept(const ejki_flash_problem *p, const flash_row *r, int64_t key,
                            float *kept) {
    const vf factor = v_set1((float)ejki_dropout_factor(p->dropout));
    for (int64_t j = 0; j < TILE_COLUMNS; j += VL) v_store(kept + j, factor);
    flash_drop(p, r, key, TILE_COLUMNS, kept);
}

/* Numbers of a tile, weights or products, become those that dropout leaves. */
static inline void vjp_drop(const vjp_block *block, const vjp_tile *tile, int64_t panel,
                            float *numbers) {
    const ejki_flash_problem *p = &block->problem->forward;
    for (int64_t i = 0; i < tile->rows; i++, numbers += TILE_COLUMNS) {
        vjp_kept(p, &block->row[tile->first + i], block->key + panel * TILE_COLUMNS, block->kept);
        for (int64_t j = 0; j < TILE_COLUMNS; j += VL) {
            const vf m = v_load(block->kept + j);
            v_store(numbers + j, v_select_gt(m, v_zero(), v_mul(m, v_load(numbers + j)), v_zero()));
        }
    }
}

/* dS = weights ∘ (M ∘ cotangent · values − δ), times the derivative of the cap. */
static inline void vjp_d_scores_of(const vjp_block *block, const vjp_tile *tile, int64_t panel,
                                   int64_t depth, const float *cotangents, int64_t panel_stride,
                                   const float *values, float *weights, float *d_scores) {
    if (!block->scales_d_scores && !block->exact && tile->all[panel] == VJP_EVERY) {
        vjp_d_scores((int)tile->rows)(depth, cotangents, panel_stride, values, d_scores,
                                      block->delta + tile->first, weights, 0);
        return;
    }
    vjp_multiply(block, tile, panel, depth, cotangents, panel_stride, values, d_scores);
    const bool drops = block->problem->forward.dropout > 0;
    if (drops) vjp_drop(block, tile, panel, d_scores);
    vjp_finish_d_scores_of_tile(block, tile, panel, weights, d_scores);
    if (drops) vjp_drop(block, tile, panel, weights);
}

#endif
