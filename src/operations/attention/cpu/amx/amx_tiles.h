/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What flash attention does with AMX tiles: packing bf16 into their layouts, and the two products. A tile is
 * 16 rows of 64 bytes; tiles 0 to 3 hold sums, 4 and 5 the right operand, 6 and 7 the left one.
 *
 * Layouts, each a run of tiles:
 *   queries  [half of 16 rows][step of 32 components]   row i: 32 components of query i
 *   keys     [16 keys][step]                            row i: components 2i, 2i+1 of the 16 keys
 *   weights  [32 keys][half]                            row i: 32 weights of row i, in the order below
 *   values   [32 keys][16 columns]                      row i: weights' keys 2i, 2i+1 of the 16 columns
 * Two vectors of 16 scores become 32 weights by an instruction that works in quarters: weights lie in the
 * order 0-3, 16-19, 4-7, 20-23, …, and so do the values' rows.
 */
#ifndef EJKI_FLASH_AMX_TILES_H
#define EJKI_FLASH_AMX_TILES_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "kernels/simd/amx.h"
#include "kernels/simd/vec_avx512.h"

#define AMX_ROWS    32  /* of a row tile: two halves */
#define AMX_CHUNK   32  /* keys of a chunk */
#define AMX_ELEMENT 512 /* bf16 elements of a tile */
#define AMX_SUMS    256 /* floats of a tile */

#if defined(__clang__)
#define AMX_UNROLL _Pragma("clang loop unroll(full)")
#else
#define AMX_UNROLL _Pragma("GCC unroll 32")
#endif
#define AMX_INLINE static inline __attribute__((always_inline))

/* ---- Packing ---------------------------------------------------------------------------------------- */

/* The first `count` of 32 elements, any number of them; the rest is 0 and not read. */
static inline __m512i amx_load(const void *data, int64_t count) {
    if (count >= 32) return _mm512_loadu_si512(data);
    return _mm512_maskz_loadu_epi16(count <= 0 ? 0 : (__mmask32)((1u << count) - 1), data);
}

/* The larger magnitudes, as bits: they are ordered as numbers, NaN above all. */
static inline __m512i amx_larger(__m512i top, __m512i bits) {
    return _mm512_max_epu16(top, _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff)));
}

static inline float amx_top(__m512i top) {
    const __m256i half =
        _mm256_max_epu16(_mm512_castsi512_si256(top), _mm512_extracti64x4_epi64(top, 1));
    const __m128i eight =
        _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
    const uint32_t wide = ~(uint32_t)_mm_extract_epi16(least, 0) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Prefetches a line that will be needed soon. Of a function that does nothing else compilers would drop the calls, were
 * this the intrinsic. */
AMX_INLINE void amx_prefetch_line(const char *line) {
    __asm__ volatile("prefetcht0 %0" ::"m"(*line));
}

/* The same for the second-level cache: what has come from memory does not hold up what the loop needs at once. */
AMX_INLINE void amx_prefetch_far(const char *line) {
    __asm__ volatile("prefetcht1 %0" ::"m"(*line));
}

/* Prefetches the lines of a row. */
AMX_INLINE void amx_prefetch(const char *row, int64_t width) {
    for (int64_t at = 0; at < width; at += 64) amx_prefetch_line(row + at);
}

/*
 * Keys or values to pack, `stride` bytes apart, and those to prefetch meanwhile, which come next: a row's lines
 * lie apart from the next one's where heads lie side by side, so the processor does not foresee them.
 */
typedef struct amx_source {
    const char *row, *ahead;
    int64_t stride, count, coming;
} amx_source;

/* Packs up to 16 keys, transposed by pairs of components; returns the larger magnitudes. */
static inline __m512i amx_pack_keys(const amx_source *from, int64_t dim, int64_t steps,
                                    uint16_t *target, __m512i top) {
    const char *key = from->row;
    const int64_t count = from->count, stride_bytes = from->stride;
    for (int64_t i = 0; i < ejki_min(from->coming, 16); i++)
        amx_prefetch(from->ahead + i * stride_bytes, 2 * dim);
    for (int64_t s = 0; s < steps; s++) {
        __m512i r[16];
        vf block[16];
        for (int64_t i = 0; i < 16; i++) {
            r[i] = i < count ? amx_load(key + i * stride_bytes + 64 * s, dim - 32 * s)
                             : _mm512_setzero_si512();
            top = amx_larger(top, r[i]);
            block[i] = _mm512_castsi512_ps(r[i]);
        }
        v_transpose(block);
        for (int64_t i = 0; i < 16; i++)
            _mm512_store_si512(target + s * AMX_ELEMENT + 32 * i, _mm512_castps_si512(block[i]));
    }
    return top;
}

/* Magnitudes that the products take as they are: not so small that a product could be flushed to 0, not so
 * large that one with a weight could overflow. 2^-60 and 2^64, as bits. */
#define AMX_LEAST_VALUE 0x2180
#define AMX_MOST_VALUE  0x5f80

/* Packs up to 32 values. True if all are 0 or within the bounds above. */
static inline bool amx_pack_values(amx_source from, int64_t dim, int64_t wide, uint16_t *target) {
    const char *value = from.row;
    const int64_t count = from.count, stride_bytes = from.stride;
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i sign = _mm512_set1_epi16(0x7fff), least = _mm512_set1_epi16(AMX_LEAST_VALUE);
    const __m512i span = _mm512_set1_epi16(AMX_MOST_VALUE - AMX_LEAST_VALUE);
    __mmask32 unfit = 0;
    for (int64_t i = 0; i < 16; i++) {
        const int64_t a = 4 * (i >> 2) + 2 * (i & 1) + 8 * (i & 2);
        for (int64_t n = a; n < ejki_min(from.coming, a + 2); n++)
            amx_prefetch(from.ahead + n * stride_bytes, 2 * dim);
        for (int64_t d = 0; d < wide; d += 2) {
            __m512i x = _mm512_setzero_si512(), y = x;
            if (a < count) x = amx_load(value + a * stride_bytes + 32 * d, dim - 16 * d);
            if (a + 1 < count) y = amx_load(value + (a + 1) * stride_bytes + 32 * d, dim - 16 * d);
            const __m512i p = _mm512_and_si512(x, sign), q = _mm512_and_si512(y, sign);
            unfit |= _mm512_mask_cmpgt_epu16_mask(_mm512_test_epi16_mask(p, p),
                                                  _mm512_sub_epi16(p, least), span);
            unfit |= _mm512_mask_cmpgt_epu16_mask(_mm512_test_epi16_mask(q, q),
                                                  _mm512_sub_epi16(q, least), span);
            uint16_t *to = target + d * AMX_ELEMENT + 32 * i;
            _mm512_store_si512(to, _mm512_permutex2var_epi16(x, low, y));
            if (d + 1 < wide)
                _mm512_store_si512(to + AMX_ELEMENT, _mm512_permutex2var_epi16(x, high, y));
        }
    }
    return unfit == 0;
}

/* Which of 16 numbers products would take for 0, though they are not. */
static inline __mmask16 amx_small(__m512 v) {
    enum { SUBNORMAL = 0x20 };
    return _mm512_fpclass_ps_mask(v, SUBNORMAL);
}

/* ---- Products --------------------------------------------------------------------------------------- */

AMX_INLINE void amx_store_scores(float *scores) {
    AMX_BARRIER();
    _tile_stored(0, scores, 128);
    _tile_stored(1, scores + 16 * AMX_CHUNK, 128);
    _tile_stored(2, scores + 16, 128);
    _tile_stored(3, scores + 16 * AMX_CHUNK + 16, 128);
    AMX_BARRIER();
}

/* scores[32][32] = queries · keysᵀ. */
static inline void amx_scores(int64_t steps, const uint16_t *query, const uint16_t *key,
                              float *scores) {
    const uint16_t *lower = query + steps * AMX_ELEMENT, *later = key + steps * AMX_ELEMENT;
    AMX_BARRIER();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t s = 0; s < steps * AMX_ELEMENT; s += AMX_ELEMENT) {
        _tile_loadd(4, key + s, 64);
        _tile_loadd(6, query + s, 64);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(7, lower + s, 64);
        _tile_dpbf16ps(1, 7, 4);
        _tile_loadd(5, later + s, 64);
        _tile_dpbf16ps(2, 6, 5);
        _tile_dpbf16ps(3, 7, 5);
    }
    amx_store_scores(scores);
}

/* A right operand: that of a chunk lies place · step elements behind the tile; step 0 for a tile of ones. */
typedef struct amx_column {
    const uint16_t *tile;
    int64_t step;
} amx_column;

/* Sums of four tiles, in tiles 0 to 3; they may be blank, which counts as 0. */
AMX_INLINE void amx_load_sums(const float *sums, bool blank) {
    AMX_BARRIER();
    if (blank) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + AMX_SUMS, 64);
    _tile_loadd(2, sums + 2 * AMX_SUMS, 64);
    _tile_loadd(3, sums + 3 * AMX_SUMS, 64);
}

/* sums += weights · values for two columns of tiles, over `chunks` chunks. */
static inline void amx_add_pair(const uint16_t *weights, const int64_t *place, int64_t chunks,
                                amx_column a, amx_column b, bool blank, float *sums) {
    amx_load_sums(sums, blank);
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t at = place ? place[c] : c;
        _tile_loadd(4, a.tile + at * a.step, 64);
        _tile_loadd(6, weights, 64);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(7, weights + AMX_ELEMENT, 64);
        _tile_dpbf16ps(1, 7, 4);
        _tile_loadd(5, b.tile + at * b.step, 64);
        _tile_dpbf16ps(2, 6, 5);
        _tile_dpbf16ps(3, 7, 5);
        weights += 2 * AMX_ELEMENT;
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + AMX_SUMS, 64);
    _tile_stored(2, sums + 2 * AMX_SUMS, 64);
    _tile_stored(3, sums + 3 * AMX_SUMS, 64);
    AMX_BARRIER();
}

/* The same for three columns, the last one of ones: two columns alone would wait for the latency of their sums. */
static inline void amx_add_last(const uint16_t *weights, const int64_t *place, int64_t chunks,
                                amx_column a, amx_column b, const uint16_t *ones, bool blank,
                                float *sums) {
    amx_load_sums(sums, blank);
    if (blank) {
        _tile_zero(4);
        _tile_zero(5);
    } else {
        _tile_loadd(4, sums + 4 * AMX_SUMS, 64);
        _tile_loadd(5, sums + 5 * AMX_SUMS, 64);
    }
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t at = place ? place[c] : c;
        const uint16_t *left = a.tile + at * a.step, *right = b.tile + at * b.step;
        _tile_loadd(7, left, 64);
        _tile_loadd(6, weights, 64);
        _tile_dpbf16ps(0, 6, 7);
        _tile_loadd(7, right, 64);
        _tile_dpbf16ps(2, 6, 7);
        _tile_loadd(7, ones, 64);
        _tile_dpbf16ps(4, 6, 7);
        _tile_loadd(6, weights + AMX_ELEMENT, 64);
        _tile_dpbf16ps(5, 6, 7);
        _tile_loadd(7, right, 64);
        _tile_dpbf16ps(3, 6, 7);
        _tile_loadd(7, left, 64);
        _tile_dpbf16ps(1, 6, 7);
        weights += 2 * AMX_ELEMENT;
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + AMX_SUMS, 64);
    _tile_stored(2, sums + 2 * AMX_SUMS, 64);
    _tile_stored(3, sums + 3 * AMX_SUMS, 64);
    _tile_stored(4, sums + 4 * AMX_SUMS, 64);
    _tile_stored(5, sums + 5 * AMX_SUMS, 64);
    AMX_BARRIER();
}

/* sums[column][half] += weights · values; behind the `degree_4` columns of values, one of ones. */
static inline void amx_values(const uint16_t *weights, const int64_t *place, int64_t chunks,
                              const uint16_t *values, int64_t wide, const uint16_t *ones,
                              bool blank, float *sums) {
    for (int64_t n = 0; n <= wide; n += 2, sums += 4 * AMX_SUMS) {
        const amx_column none = {ones, 0}, a = {values + n * AMX_ELEMENT, wide * AMX_ELEMENT};
        const amx_column b = {a.tile + AMX_ELEMENT, a.step};
        if (n + 2 == wide) {
            amx_add_last(weights, place, chunks, a, b, ones, blank, sums);
            return;
        }
        /* Without any values the second column of ones is one more than needed. */
        amx_add_pair(weights, place, chunks, wide == 0 ? none : a, n + 1 < wide ? b : none, blank,
                     sums);
    }
}

#endif
