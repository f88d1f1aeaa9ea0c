/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Positions of the caller's in place of indices, for what causal, a window and chunks hide. The keys that a row
 * sees then need not lie side by side, so they are looked up one by one. Positions count up to ±2^61.
 */
#ifndef EJKI_FLASH_ATTENTION_POSITIONS_H
#define EJKI_FLASH_ATTENTION_POSITIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ejki_positions {
    bool given, are_i64;
    const void *query, *key; /* [B, T] and [B, S], int32 or int64; NULL = 0, 1, 2, … */
    int64_t query_stride_b, key_stride_b;
    int64_t first, last; /* position q sees q + first … q + last; ±2^61 = without an end */
    int64_t chunk,
        chunk_offset; /* and nothing before the chunk of q + chunk_offset; 0 = no chunks */
} ejki_positions;

/* The start of a position's chunk. */
static inline int64_t ejki_chunk_start(int64_t position, int64_t chunk) {
    const int64_t rest = position % chunk;
    return position - (rest < 0 ? rest + chunk : rest);
}

static inline int64_t ejki_position_at(const ejki_positions *p, const void *positions,
                                       int64_t start, int64_t index) {
    typedef int64_t position_i64 __attribute__((aligned(1), may_alias));
    typedef int32_t position_i32 __attribute__((aligned(1), may_alias));
    if (!positions) return index;
    if (!p->are_i64) return ((const position_i32 *)positions)[start + index];
    const int64_t far = INT64_C(1) << 61, own = ((const position_i64 *)positions)[start + index];
    return own < -far ? -far : own > far ? far : own;
}

static inline int64_t ejki_key_position(const ejki_positions *p, int64_t batch, int64_t key) {
    return ejki_position_at(p, p->key, batch * p->key_stride_b, key);
}

/* The positions [*low, *high] that a query sees. */
static inline void ejki_position_range(const ejki_positions *p, int64_t batch, int64_t query,
                                       int64_t *low, int64_t *high) {
    const int64_t far = INT64_C(1) << 61;
    const int64_t q = ejki_position_at(p, p->query, batch * p->query_stride_b, query);
    *low = p->first <= -far ? INT64_MIN : q + p->first;
    *high = p->last >= far ? INT64_MAX : q + p->last;
    if (p->chunk == 0) return;
    const int64_t start = ejki_chunk_start(q + p->chunk_offset, p->chunk);
    if (start > *low) *low = start;
}

#endif
