/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operands of the tiled kernel's products as pairs of bf16, for the words of vec_avx512_bf16.h: queries and keys
 * as pairs of neighbouring components, weights and values as pairs of neighbouring keys, the first of which has an
 * even place in its block.
 *
 * Weights are rounded to nearest, and summed once more as they were rounded: by that sum rows are divided, so that
 * values that are all the same come out as they are. The log-sum-exp is of the weights as they were.
 */
#ifndef EJKI_TILE_BF16_DOT_BODY_H
#define EJKI_TILE_BF16_DOT_BODY_H

#include "operations/attention/cpu/tile/tile_types.h"

static inline void tile_pack_keys(const ejki_flash_problem *p, const void *source, int64_t count,
                                  float *target) {
    pack_transposed_pairs(source, p->key.stride_t, count, p->head_dim, target);
}

static inline bool tile_pack_values(const ejki_flash_problem *p, const void *source, int64_t count,
                                    float *target, int64_t width) {
    return pack_row_pairs(source, p->value.stride_t, count, p->value_dim, target, width);
}

/* Products would take tiny values for 0. */
static inline bool tile_is_fit(const tile_state *s, int64_t row) {
    return s->fit && !s->extent[row / TILE_ROWS].tiny;
}

/* In place: a row's pairs lie where its first half of columns had weights. */
static inline void tile_end_weights(tile_state *s, int64_t row, int rows, const tile_span *span) {
    const vf one = v_set1(1.0f), ones = v_pairs(one, one);
    const bool drops = s->drops;
    for (int i = 0; i < rows; i++) {
        float *weights = s->scores + i * SCORE_STRIDE;
        vf total = v_load(s->totals + (row + i) * VL);
        for (int64_t c = span->first; c < span->end; c += 2 * VL) {
            vf pairs = v_pairs(v_load(weights + c), v_load(weights + c + VL));
            total = v_dot(pairs, ones, total);
            if (drops) {
                flash_drop(s->problem, &s->row[row + i], s->block + c, 2 * VL, weights + c);
                pairs = v_pairs(v_load(weights + c), v_load(weights + c + VL));
            }
            v_store(weights + c / 2, pairs);
        }
        v_store(s->totals + (row + i) * VL, total);
    }
}

/* A row's sums += a pair of weights times one of values, in f32 and in the order of v_dot(), so that a pair adds the
 * same bits in any block; only what has a weight, which no hidden key has. */
static void tile_add_pair(tile_state *s, int64_t row, const float *weights, const float *values) {
    const vf pair = v_set1(*weights), first = v_of_first(pair), second = v_of_second(pair);
    const bool has_first = element_load(EJK_DTYPE_BF16, weights, 0) != 0;
    const bool has_second = element_load(EJK_DTYPE_BF16, weights, 1) != 0;
    for (int64_t d = 0; d < s->plan->width; d += VL) {
        float *place = tile_sum(s, row, d);
        const vf value = v_load(values + d);
        vf sum = v_load(place);
        if (has_second) sum = v_fma(second, v_of_second(value), sum);
        if (has_first) sum = v_fma(first, v_of_first(value), sum);
        v_store(place, sum);
    }
}

/* sums += weights · values, pair by pair: for blocks with values that are not fit. Once these are tiny, so sums may be,
 * which products would take for 0: the tile stays here. */
static __attribute__((noinline)) void tile_add_slow(tile_state *s, int64_t row, int rows,
                                                    const tile_span *span) {
    const int64_t width = s->plan->width;
    v_range range = v_range_none();
    for (int64_t n = span->low / 2; n < ejki_cdiv(span->high, 2); n++) {
        const float *values = s->values + n * width;
        for (int64_t d = 0; d < width; d += VL) range = v_range_with(range, v_load(values + d));
        for (int i = 0; i < rows; i++)
            tile_add_pair(s, row + i, s->scores + i * SCORE_STRIDE + n, values);
    }
    if (!v_large(range)) s->extent[row / TILE_ROWS].tiny = true;
}

static inline float tile_total(const tile_state *s, int64_t row) {
    return v_sum(v_load(s->totals + row * VL));
}

#endif
