/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operands of the tiled kernel's products as pairs of bf16, for the words of vec_avx512_bf16.h: queries and keys
 * as pairs of neighbouring components, weights and values as pairs of neighbouring keys, the first of which has an
 * even place in its block. Part of tile_body.h, which includes it, or tile_floats_body.h, behind its types.
 *
 * Weights are rounded to nearest, and summed once more as they were rounded: by that sum rows are divided, so that
 * values that are all the same come out as they are. The log-sum-exp is of the weights as they were.
 */
#ifndef EJKI_TILE_PAIRS_BODY_H
#define EJKI_TILE_PAIRS_BODY_H

static inline void tile_pack_keys(const ejki_flash_problem *p, const void *source, int64_t count,
                                  float *target) {
    pack_transposed_pairs(source, p->key.stride_t, count, p->head_dim, target);
}

static inline bool tile_pack_values(const ejki_flash_problem *p, const void *source, int64_t count,
                                    float *target, int64_t width) {
    return pack_row_pairs(source, p->value.stride_t, count, p->value_dim, target, width);
}

/* Products would take small values for 0. */
static inline bool tile_is_fit(const tile_state *s, const tile_span *span) {
    (void)span;
    return s->fit;
}

/* In place: a row's pairs lie where its first half of columns had weights. */
static inline void tile_end_weights(tile_state *s, int64_t row, int rows, const tile_span *span) {
    const vf one = v_set1(1.0f), ones = v_pairs(one, one);
    for (int i = 0; i < rows; i++) {
        float *weights = s->scores + i * SCORE_STRIDE;
        vf total = v_load(s->totals + (row + i) * VL);
        for (int64_t c = span->first; c < span->end; c += 2 * VL) {
            vf pairs = v_pairs(v_load(weights + c), v_load(weights + c + VL));
            total = v_dot(pairs, ones, total);
            if (s->drops) {
                flash_drop(s->problem, &s->row[row + i], s->block + c, 2 * VL, weights + c);
                pairs = v_pairs(v_load(weights + c), v_load(weights + c + VL));
            }
            v_store(weights + c / 2, pairs);
        }
        v_store(s->totals + (row + i) * VL, total);
    }
}

static inline float tile_weight_of(const tile_state *s, int i, int64_t column) {
    return element_load(EJK_DTYPE_BF16, s->scores + i * SCORE_STRIDE, column);
}
static inline vf tile_value_of(const tile_state *s, int64_t column, int64_t d) {
    const vf pairs = v_load(s->values + column / 2 * s->plan->width + d);
    return column % 2 == 0 ? v_of_first(pairs) : v_of_second(pairs);
}

static inline float tile_total(const tile_state *s, int64_t row) {
    return v_sum(v_load(s->totals + row * VL));
}

#endif
