/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every implementation of flash attention is given: sizes, strides in elements, scalars resolved to
 * what they mean, and, once bound, pointers. Whoever fills it has checked everything: implementations
 * may rely on each line below.
 */
#ifndef EJKI_FLASH_ATTENTION_PROBLEM_H
#define EJKI_FLASH_ATTENTION_PROBLEM_H

#include "kernels/views.h"
#include "operations/attention/shared/block_mask.h"
#include "operations/attention/shared/positions.h"

/* How sequences lie in the tensors: one in each batch entry, all of it; packed one after the other; or
 * packed by their lengths, but each at the start of a batch entry. */
typedef enum ejki_flash_layout {
    EJKI_FLASH_DENSE,
    EJKI_FLASH_TOKENS,
    EJKI_FLASH_PADDED,
} ejki_flash_layout;

typedef struct ejki_flash_problem {
    int64_t batch, queries, keys;  /* B, T, S; each may be 0 */
    int64_t query_heads, kv_heads; /* Hq, Hkv; Hq = group * Hkv; both may be 0 */
    int64_t group;                 /* G */
    int64_t head_dim, value_dim;   /* D, Dv; may be 0: then scores are 0, or out is empty */
    ejk_dtype dtype;               /* of query, key, value, bias, sinks */

    ejki_bthd query, key, value;
    ejki_bthd out; /* dtype, or f32 if not normalize_output */
    ejki_bht lse, row_max, row_sum;
    bool wants_lse, wants_row_maxima; /* are results: lse; row_max or row_sum */

    bool has_bias, has_mask, has_segments, has_sinks;
    ejki_bhts bias;     /* dtype; stride_h counts query heads */
    ejki_bhts mask;     /* one byte, not 0 = may attend; stride_h per query head / mask_group */
    int64_t mask_group; /* query head h reads mask head h / mask_group */
    ejki_ids query_segments, key_segments;
    bool segments_are_i64;
    const void
        *sinks; /* dtype; head h reads sink_count from sinks + (h / sink_group) * sink_stride_h */
    int64_t sink_count, sink_stride_h, sink_group;

    double scale;    /* resolved */
    double soft_cap; /* 0 = none */
    /*
     * Visible keys of query i by position: first ≤ j ≤ last with first = i + first_offset,
     * last = i + last_offset, causal and window already joined, and clamped to ±2^61: i + offset never
     * overflows.
     */
    int64_t first_offset, last_offset;
    bool normalize;
    /* dropout.h has which weights are kept. Not 0 only where B, Hq, T and S are below 2^32. */
    double dropout; /* probability, 0 = none */
    uint64_t dropout_seed;
    /*
     * Packed sequences: `batch` of them; `queries` and `keys` are those of all together, or padded ones; no
     * strides of a batch axis with EJKI_FLASH_TOKENS. An implementation that does not go through sequences.h
     * has to decline whatever is not dense.
     */
    ejki_flash_layout layout;
    bool sums_are_i64;
    const void *query_sums, *key_sums; /* batch + 1 cumulative lengths; checked on the CPU */
    bool ends_together;                /* offsets count from keys − queries of a sequence */
    int64_t first_sequence;            /* what batch entry 0 is for dropout and positions */
    ejki_block_mask block_mask;        /* zeros but for block-sparse attention */
    /* The same. If they are given, first_offset, last_offset and the block mask's chunks hide nothing. */
    ejki_positions positions;
} ejki_flash_problem;

/* The keys that positions allow query i to see: [*first, *end), empty if *first >= *end. */
static inline void ejki_flash_visible(const ejki_flash_problem *p, int64_t i, int64_t *first,
                                      int64_t *end) {
    int64_t low = i + p->first_offset, high = i + p->last_offset + 1;
    *first = low < 0 ? 0 : low;
    *end = high > p->keys ? p->keys : high;
    if (p->block_mask.has_function || p->block_mask.chunk > 0)
        ejki_block_mask_limit(&p->block_mask, i, first, end);
}

#endif
