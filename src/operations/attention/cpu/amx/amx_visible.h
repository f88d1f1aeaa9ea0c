/* SPDX-License-Identifier: Apache-2.0 */
/* Which of up to 32 keys a row sees, a bit each, by mask, segments, given positions and mask blocks. */
#ifndef EJKI_AMX_VISIBLE_H
#define EJKI_AMX_VISIBLE_H

#include "operations/attention/cpu/amx/amx_rows.h"

static inline __mmask32 amx_first(int64_t count) {
    return count >= 32 ? 0xffffffffu : count <= 0 ? 0 : (__mmask32)((1u << count) - 1);
}

/* Keys [key, key + 32) of those [low, high) that each of 32 rows sees by its position, a word for each row. */
static inline void amx_within(const int64_t *low, const int64_t *high, int64_t key,
                              uint32_t *words) {
    const __m512i zero = _mm512_setzero_si512(), ones = _mm512_set1_epi64(-1);
    const __m512i at = _mm512_set1_epi64(key);
    for (int i = 0; i < 32; i += 8) {
        const __m512i from = _mm512_sub_epi64(_mm512_loadu_si512(low + i), at);
        const __m512i to = _mm512_sub_epi64(_mm512_loadu_si512(high + i), at);
        const __m512i past = _mm512_sllv_epi64(ones, _mm512_max_epi64(to, zero));
        const __m512i later = _mm512_sllv_epi64(ones, _mm512_max_epi64(from, zero));
        _mm256_storeu_si256((__m256i *)(void *)(words + i),
                            _mm512_cvtepi64_epi32(_mm512_andnot_si512(past, later)));
    }
}

/* Bits of up to 32 bytes that are not 0. */
static inline uint32_t amx_bytes(const uint8_t *bytes, int64_t count) {
    const __m256i x = _mm256_maskz_loadu_epi8(amx_first(count), bytes);
    return _mm256_test_epi8_mask(x, x);
}

/* Keys [key, key + count) in the segment of a row. */
static inline uint32_t amx_same_segment(const ejki_flash_problem *p, const flash_row *r,
                                        int64_t key, int64_t count) {
    const char *ids = flash_ids_of(p, p->key_segments, r->batch);
    const int64_t own = flash_id(p, flash_ids_of(p, p->query_segments, r->batch), r->query);
    const __mmask32 first = amx_first(count);
    uint32_t same = 0;
    if (own < 0) return 0;
    for (int n = 0; p->segments_are_i64 && n < 32; n += 8) {
        const __mmask8 there = (__mmask8)(first >> n);
        const __m512i x = _mm512_maskz_loadu_epi64(there, ids + 8 * (key + n));
        same |= (uint32_t)_mm512_mask_cmpeq_epi64_mask(there, x, _mm512_set1_epi64(own)) << n;
    }
    for (int n = 0; !p->segments_are_i64 && n < 32; n += 16) {
        const __mmask16 there = (__mmask16)(first >> n);
        const __m512i x = _mm512_maskz_loadu_epi32(there, ids + 4 * (key + n));
        same |= (uint32_t)_mm512_mask_cmpeq_epi32_mask(there, x, _mm512_set1_epi32((int)own)) << n;
    }
    return same;
}

/* Those of `keys` that mask, segments and positions let a row see; bit 0 is key `key`, and `count` exist. */
static inline uint32_t amx_visible_keys(const ejki_flash_problem *p, const flash_row *r,
                                        int64_t key, int64_t count, uint32_t keys) {
    if (keys && p->has_segments) keys &= amx_same_segment(p, r, key, count);
    if (keys && p->positions.given) keys &= flash_visible_positions(p, r, key, count);
    if (keys && p->has_mask) keys &= amx_bytes(flash_mask_row(p, r) + key, count);
    return keys;
}

#endif
