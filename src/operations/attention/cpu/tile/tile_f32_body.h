/* SPDX-License-Identifier: Apache-2.0 */
/* The operands of the tiled kernel's products as floats, whatever the tensors' type. */
#ifndef EJKI_TILE_F32_BODY_H
#define EJKI_TILE_F32_BODY_H

#include "operations/attention/cpu/tile/tile_types.h"

/* Packs `count` keys from `source` on. */
static inline void tile_pack_keys(const ejki_flash_problem *p, const void *source, int64_t count,
                                  float *target) {
    pack_transposed_any(p->dtype, source, p->key.stride_t, count, p->head_dim, target);
}

/* Packs values, `width` floats a row; true if they are fit for products with any weights. */
static inline bool tile_pack_values(const ejki_flash_problem *p, const void *source, int64_t count,
                                    float *target, int64_t width) {
    return pack_rows_any(p->dtype, source, p->value.stride_t, count, p->value_dim, target, width);
}

/* True if weights and values of the block may go through the product: all values are finite. */
static inline bool tile_is_fit(const tile_state *s, int64_t row) {
    (void)row;
    return s->fit;
}

/* Weights become what the product takes, those dropped 0. */
static inline void tile_end_weights(tile_state *s, int64_t row, int rows, const tile_span *span) {
    for (int i = 0; s->drops && i < rows; i++)
        flash_drop(s->problem, &s->row[row + i], s->block + span->first, span->end - span->first,
                   s->scores + i * SCORE_STRIDE + span->first);
}

/* sums += weights · values, key by key over those that have a weight, which no hidden key has: for values that are not
 * fit. */
static __attribute__((noinline)) void tile_add_slow(tile_state *s, int64_t row, int rows,
                                                    const tile_span *span) {
    const int64_t width = s->plan->width;
    for (int i = 0; i < rows; i++)
        for (int64_t c = span->low; c < span->high; c++) {
            if (s->scores[i * SCORE_STRIDE + c] == 0) continue;
            const vf weight = v_set1(s->scores[i * SCORE_STRIDE + c]);
            for (int64_t d = 0; d < width; d += VL) {
                float *sum = tile_sum(s, row + i, d);
                v_store(sum, v_fma(weight, v_load(s->values + c * width + d), v_load(sum)));
            }
        }
}

/* The sum of a row's weights as the product took them. */
static inline float tile_total(const tile_state *s, int64_t row) {
    return v_sum(v_load(s->lanes + row * VL));
}

#endif
