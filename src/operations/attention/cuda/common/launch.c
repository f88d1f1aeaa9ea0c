/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/attention/cuda/common/launch.h"

#include "operations/attention/shared/dropout.h"

ejki_cuda_constants ejki_flash_cuda_row_constants_of(const ejki_flash_problem *p) {
    ejki_cuda_constants c = {.count = 0};
    ejki_cuda_add(&c, "ELEMENT", p->dtype);
    ejki_cuda_add(&c, "HEAD_DIM", p->head_dim);
    ejki_cuda_add(&c, "VALUE_DIM", p->value_dim);
    if (p->layout != EJKI_FLASH_DENSE) ejki_cuda_add(&c, "LAYOUT", p->layout);
    if (p->dropout > 0) ejki_cuda_add(&c, "DROPOUT", 1);
    return c;
}

ejki_cuda_constants ejki_flash_cuda_constants_of(const ejki_flash_problem *p) {
    ejki_cuda_constants c = ejki_flash_cuda_row_constants_of(p);
    if (p->has_bias) ejki_cuda_add(&c, "BIAS", 1);
    if (p->has_mask) ejki_cuda_add(&c, "MASK", 1);
    if (p->has_segments) ejki_cuda_add(&c, "SEGMENTS", 1);
    if (p->soft_cap > 0) ejki_cuda_add(&c, "SOFT_CAP", 1);
    ejki_flash_cuda_add_visibility(&c, p);
    return c;
}

/* ---- Sizes ------------------------------------------------------------------------------------------ */

/* Tiles, tokens and packed rows stay below this, so that sums of two of them fit 32 bits. */
#define MOST (INT64_C(1) << 30)

bool ejki_flash_cuda_fits(const ejki_flash_problem *p) {
    const ejki_block_mask *t = &p->block_mask;
    int64_t rows, heads, all, block_mask;
    const bool dense = ejki_block_mask_is_empty(t) && !p->positions.given;
    return (dense || p->layout == EJKI_FLASH_DENSE) && t->rows < MOST && t->columns < MOST &&
           t->block_count < MOST &&
           ejki_mul(t->mask_heads, ejki_max(t->rows, t->columns), &block_mask) &&
           block_mask < MOST && ejki_flash_cuda_block_mask_bytes(p) >= 0 && p->head_dim <= 576 &&
           p->value_dim <= 576 && p->queries < MOST && p->keys < MOST && p->batch < MOST &&
           p->query_heads < MOST && ejki_mul(p->queries, ejki_max(p->group, 1), &rows) &&
           rows < MOST && ejki_mul(p->batch, p->query_heads, &heads) && heads < MOST &&
           ejki_mul(heads, ejki_max(p->queries, p->keys), &all) && all < (INT64_C(1) << 36);
}

int64_t ejki_flash_cuda_entries(const ejki_flash_problem *p) {
    return p->layout == EJKI_FLASH_TOKENS ? 1 : p->batch;
}

int64_t ejki_flash_cuda_rows(const ejki_flash_problem *p) {
    return ejki_flash_cuda_entries(p) * p->query_heads * p->queries;
}

int64_t ejki_flash_cuda_tiles(const ejki_flash_problem *p, int64_t tokens, int64_t times,
                              int64_t size) {
    const int64_t tiles = ejki_cdiv(tokens * times, size);
    /* Each sequence may have a tile that is not full, and so may the tokens of none. */
    return p->layout == EJKI_FLASH_TOKENS ? tiles + p->batch + 1 : tiles;
}

int64_t ejki_flash_cuda_blocks(const ejki_flash_problem *p, int64_t tiles) {
    return tiles * p->kv_heads * ejki_flash_cuda_entries(p);
}

/* ---- Problems --------------------------------------------------------------------------------------- */

static ejki_cuda_bthd bthd(const ejki_bthd *t) {
    return (ejki_cuda_bthd){t->data, t->stride_b, t->stride_t, t->stride_h};
}
static ejki_cuda_bhts bht(const ejki_bht *t) {
    return (ejki_cuda_bhts){t->data, t->stride_b, t->stride_h, t->stride_t};
}
static ejki_cuda_bhts bhts(const ejki_bhts *t) {
    return (ejki_cuda_bhts){(void *)(uintptr_t)t->data, t->stride_b, t->stride_h, t->stride_t};
}

ejki_cuda_problem ejki_flash_cuda_problem_of(const ejki_flash_problem *p) {
    return (ejki_cuda_problem){
        .query = bthd(&p->query),
        .key = bthd(&p->key),
        .value = bthd(&p->value),
        .out = bthd(&p->out),
        .lse = bht(&p->lse),
        .row_max = bht(&p->row_max),
        .row_sum = bht(&p->row_sum),
        .bias = bhts(&p->bias),
        .mask = bhts(&p->mask),
        .query_segments = {p->query_segments.data, p->query_segments.stride_b},
        .key_segments = {p->key_segments.data, p->key_segments.stride_b},
        .sinks = p->has_sinks ? p->sinks : NULL,
        .query_sums = p->query_sums,
        .key_sums = p->key_sums,
        .sink_stride_h = p->sink_stride_h,
        .first_offset = ejki_flash_cuda_first_offset(p),
        .last_offset = ejki_flash_cuda_last_offset(p),
        .first_sequence = p->first_sequence,
        .dropout_seed = p->dropout_seed,
        .entries = ejki_flash_cuda_entries(p),
        .batch = (int)p->batch,
        .queries = (int)p->queries,
        .keys = (int)p->keys,
        .kv_heads = (int)p->kv_heads,
        .group = (int)p->group,
        .sink_count = (int)p->sink_count,
        .sink_group = (int)p->sink_group,
        .mask_group = (int)p->mask_group,
        .sums_are_i64 = p->sums_are_i64,
        .segments_are_i64 = p->segments_are_i64,
        .ends_together = p->ends_together,
        .normalize = p->normalize,
        .splits = 1,
        .split_keys = (int)ejki_max(p->keys, 1),
        .drop_below = ejki_dropout_threshold(p->dropout),
        .keep_factor = (float)ejki_dropout_factor(p->dropout),
        .scale = (float)p->scale,
        .soft_cap = (float)p->soft_cap,
        .visibility = ejki_flash_cuda_visibility_of(p, NULL),
    };
}

ejk_status ejki_flash_cuda_check_aligned(const ejki_flash_problem *p) {
    const int64_t size = (int64_t)ejk_dtype_size(p->dtype), id = p->segments_are_i64 ? 8 : 4;
    const int64_t sum = p->sums_are_i64 ? 8 : 4;
    EJKI_TRY(ejki_cuda_check_address(p->query.data, size, "query"));
    EJKI_TRY(ejki_cuda_check_address(p->key.data, size, "key"));
    EJKI_TRY(ejki_cuda_check_address(p->value.data, size, "value"));
    EJKI_TRY(ejki_cuda_check_address(p->out.data, p->normalize ? size : 4, "out"));
    EJKI_TRY(ejki_cuda_check_address(p->lse.data, 4, "lse"));
    EJKI_TRY(ejki_cuda_check_address(p->row_max.data, 4, "row_max"));
    EJKI_TRY(ejki_cuda_check_address(p->row_sum.data, 4, "row_sum"));
    if (p->has_bias) EJKI_TRY(ejki_cuda_check_address(p->bias.data, size, "bias"));
    if (p->has_sinks) EJKI_TRY(ejki_cuda_check_address(p->sinks, size, "softmax_aux"));
    if (p->has_segments) {
        EJKI_TRY(ejki_cuda_check_address(p->query_segments.data, id, "q_segment_ids"));
        EJKI_TRY(ejki_cuda_check_address(p->key_segments.data, id, "kv_segment_ids"));
    }
    EJKI_TRY(ejki_flash_cuda_check_block_lists(p));
    if (p->layout == EJKI_FLASH_DENSE) return EJK_OK;
    EJKI_TRY(ejki_cuda_check_address(p->query_sums, sum, "cum_seqlens_q"));
    return ejki_cuda_check_address(p->key_sums, sum, "cum_seqlens_k");
}
