/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operands of the tiled kernel's products as floats, whatever the tensors' type. Part of tile_body.h, which
 * includes it, or tile_pairs_body.h, behind its types.
 */
#ifndef EJKI_TILE_FLOATS_BODY_H
#define EJKI_TILE_FLOATS_BODY_H

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

/* True if weights and values of the block may go through the product: what is not finite may only meet weights of
 * keys that all rows see. */
static inline bool tile_is_fit(const tile_state *s, const tile_span *span) {
    return s->fit || !span->partial;
}

/* Weights become what the product takes, those dropped 0. */
static inline void tile_end_weights(tile_state *s, int64_t row, int rows, const tile_span *span) {
    for (int i = 0; s->drops && i < rows; i++)
        flash_drop(s->problem, &s->row[row + i], s->block + span->first, span->end - span->first,
                   s->scores + i * SCORE_STRIDE + span->first);
}

/* The weight of a tile's row and a column, and VL components of the column's value. */
static inline float tile_weight_of(const tile_state *s, int i, int64_t column) {
    return s->scores[i * SCORE_STRIDE + column];
}
static inline vf tile_value_of(const tile_state *s, int64_t column, int64_t d) {
    return v_load(s->values + column * s->plan->width + d);
}

/* The sum of a row's weights as the product took them. */
static inline float tile_total(const tile_state *s, int64_t row) {
    return v_sum(v_load(s->lanes + row * VL));
}

#endif
