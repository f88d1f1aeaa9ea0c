/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector vocabulary on AVX-512 where VDPBF16PS multiplies: the words of vec_avx512.h, and those of pairs. A
 * vector of pairs has two neighbouring bf16 elements in each lane of 32 bits, the first one in the lower half:
 *   v_dot(a, b, c)       c plus the products of both elements of each lane, each rounded to f32
 *   v_dot_one(p, b, c)   the same of the pair at p with each lane of b
 *   v_pairs(a, b)        2 VL floats rounded to nearest, ties to even, as VL pairs in their order
 *   v_pairs_exact        the same; subnormal numbers stay
 *   v_of_first, v_of_second      the first, or second, element of each lane as a float
 *   v_load_pairs         2 VL elements of 16 bits, at any address
 *   v_load_pairs_first   the first n of them, n ≤ 2 VL; nothing beyond is touched, the rest is 0
 *   v_load_pairs_i8, v_load_pairs_e4m3, v_load_pairs_e5m2        2 VL elements of 8 bits, which pairs hold exactly
 *   v_zip_bf16(p, n, q, m)       lane i: element i of p, if i < n, and element i of q, if i < m; else 0
 *   v_pair_table_of(t), v_pair_entries(u, table)     pairs of 16 elements by the lowest four bits of each half word
 *   v_pairs_of(a, b)     whole numbers below 2^8 or other floats that are bf16, a in the first half of each lane
 *   v_store_pairs(p, v, turns)   VL floats that are bf16 as such; of four, 0 2 1 3 if `turns`
 *   v_turn_pairs(v)      of four elements of 16 bits 0 2 1 3
 *   v_zip_first(a, b)    pairs of the first VL elements of a and of b, which have 2 VL each; v_zip_last: of the last
 *   v_zip_low(a, b)      pairs of elements of a and of b, of four from each eighth element on; v_zip_high: of the next
 *                        four: one instruction that needs no order
 *   v_zip_rows(a, b, p, q)       the same, stored at p and q, by instructions that take half as long
 *   v_tiny       whether elements are of a magnitude below 2^-60, but not 0
 *   v_range, v_within    whether elements are fit for products: 0, or of a magnitude from 2^-60 on, and finite;
 *                        v_finite and v_large ask for one of both
 * VDPBF16PS takes numbers below 2^-126 for 0 and makes 0 of results below; v_pairs() makes 0 of them, too.
 */
#ifndef EJKI_VEC_AVX512_BF16_H
#define EJKI_VEC_AVX512_BF16_H

#include "kernels/simd/vec_avx512.h"

static inline vf v_dot(vf a, vf b, vf c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
static inline vf v_dot_one(const float *a, vf b, vf c) {
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
    return c;
}
static inline vf v_pairs(vf a, vf b) {
    return (vf)_mm512_cvtne2ps_pbh(b, a);
}
static inline vf v_pairs_exact(vf a, vf b) {
    const __m512i count =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_castsi512_ps(_mm512_permutex2var_epi16(v_round_bf16(a), count, v_round_bf16(b)));
}
static inline vf v_of_first(vf pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
static inline vf v_of_second(vf pairs) {
    const __m512i second = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), second));
}
static inline vf v_load_pairs(const void *p) {
    return _mm512_castsi512_ps(_mm512_loadu_si512(p));
}
static inline vf v_load_pairs_first(const void *p, int64_t n) {
    const __mmask32 first = (__mmask32)(((uint64_t)1 << n) - 1);
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(first, p));
}
static inline vf v_zip_bf16(const void *p, int64_t n, const void *q, int64_t m) {
    const bool whole = n == VL && m == VL;
    const __m256i a = whole ? _mm256_loadu_si256(p) : _mm256_maskz_loadu_epi16(v_first(n), p);
    const __m256i b = whole ? _mm256_loadu_si256(q) : _mm256_maskz_loadu_epi16(v_first(m), q);
    const __m512i second = _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_cvtepu16_epi32(a), second));
}
/* Bit 4 of a half word is looked at, too. */
typedef __m512i v_pair_table;
static inline v_pair_table v_pair_table_of(const float table[16]) {
    const __m512i bits = _mm512_srli_epi32(v_round_bf16(_mm512_loadu_ps(table)), 16);
    const __m256i half = _mm512_cvtepi32_epi16(bits);
    return _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
}
static inline vf v_pair_entries(__m512i words, v_pair_table table) {
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(words, table));
}
static inline vf v_pairs_of(vf a, vf b) {
    const __m512i second = _mm512_set1_epi32((int)0xffff0000u);
    const __m512i first = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    const __m512i both = _mm512_ternarylogic_epi32(first, _mm512_castps_si512(b), second, 0xf8);
    return _mm512_castsi512_ps(both);
}
static inline void v_store_pairs(void *p, vf v, bool turns) {
    const __m512i bits = _mm512_castps_si512(turns ? _mm512_permute_ps(v, 0xd8) : v);
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}
static inline vf v_turn_pairs(vf v) {
    const __m512i bits = _mm512_shufflelo_epi16(_mm512_castps_si512(v), 0xd8);
    return _mm512_castsi512_ps(_mm512_shufflehi_epi16(bits, 0xd8));
}
static inline vf v_load_pairs_i8(const void *p) {
    const __m128i *from = p;
    const __m512i a = _mm512_cvtepi8_epi32(_mm_loadu_si128(from));
    const __m512i b = _mm512_cvtepi8_epi32(_mm_loadu_si128(from + 1));
    const __m512i upper =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const __m512i first = _mm512_castps_si512(_mm512_cvtepi32_ps(a));
    const __m512i second = _mm512_castps_si512(_mm512_cvtepi32_ps(b));
    return _mm512_castsi512_ps(_mm512_permutex2var_epi16(first, upper, second));
}
/*
 * Floats of 8 bits: exponent and mantissa are put in their places and the bias is changed by an addition. What is less
 * than `normal` or from `special` on, in those places, is an entry of a table by its lowest five bits instead. The
 * shift is 4 or 5.
 */
static inline vf v_load_pairs_of(const void *p, const int shift, int bias, int normal, int special,
                                 __m512i table) {
    const __m512i codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(p));
    const __m512i sign = _mm512_set1_epi16(INT16_MIN);
    const __m512i places = _mm512_set1_epi16((int16_t)(0x7f << shift));
    /* The compilers differ in whether a shift is signed. */
    const __m512i shifted = shift == 4 ? _mm512_slli_epi16(codes, 4) : _mm512_slli_epi16(codes, 5);
    const __m512i size = _mm512_and_si512(shifted, places);
    const __m512i above = _mm512_sub_epi16(size, _mm512_set1_epi16((int16_t)normal));
    const __mmask32 other =
        _mm512_cmpge_epu16_mask(above, _mm512_set1_epi16((int16_t)(special - normal)));
    const __m512i value = _mm512_add_epi16(size, _mm512_set1_epi16((int16_t)bias));
    const __m512i number = _mm512_mask_permutexvar_epi16(value, other, codes, table);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(number, codes, sign, 0xf8));
}
static inline vf v_load_pairs_e4m3(const void *p) {
    const __m512i table =
        _mm512_set_epi16(0x7fc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                         0, 0x3c60, 0x3c40, 0x3c20, 0x3c00, 0x3bc0, 0x3b80, 0x3b00, 0);
    return v_load_pairs_of(p, 4, 120 << 7, 0x08 << 4, 0x7f << 4, table);
}
static inline vf v_load_pairs_e5m2(const void *p) {
    const __m512i table =
        _mm512_set_epi16(0x7fc0, 0x7fc0, 0x7fc0, 0x7f80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                         0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x3840, 0x3800, 0x3780, 0);
    return v_load_pairs_of(p, 5, 112 << 7, 0x04 << 5, 0x7c << 5, table);
}
static inline vf v_zip(vf a, vf b, int first) {
    const __m512i count =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i order = _mm512_add_epi16(count, _mm512_set1_epi16((int16_t)first));
    return _mm512_castsi512_ps(
        _mm512_permutex2var_epi16(_mm512_castps_si512(a), order, _mm512_castps_si512(b)));
}
/* Quarters of both are put where the zips, which stay within quarters, take them from. */
static inline void v_zip_rows(vf a, vf b, float *p, float *q) {
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i x = _mm512_permutexvar_epi64(order, _mm512_castps_si512(a));
    const __m512i y = _mm512_permutexvar_epi64(order, _mm512_castps_si512(b));
    _mm512_storeu_si512(p, _mm512_unpacklo_epi16(x, y));
    _mm512_storeu_si512(q, _mm512_unpackhi_epi16(x, y));
}
static inline vf v_zip_first(vf a, vf b) {
    return v_zip(a, b, 0);
}
static inline vf v_zip_last(vf a, vf b) {
    return v_zip(a, b, VL);
}
static inline vf v_zip_low(vf a, vf b) {
    return (vf)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
}
static inline vf v_zip_high(vf a, vf b) {
    return (vf)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
}
/* The largest of -2 v without its carry: of 0 that is 0, else larger for smaller magnitudes. */
typedef __m512i v_tiny;
static inline v_tiny v_tiny_none(void) {
    return _mm512_setzero_si512();
}
static inline v_tiny v_tiny_with(v_tiny t, vf pairs) {
    const __m512i twice = _mm512_mullo_epi16(_mm512_castps_si512(pairs), _mm512_set1_epi16(-2));
    return _mm512_max_epu16(t, twice);
}
static inline bool v_tiny_found(v_tiny t) {
    const __m512i most = _mm512_set1_epi16((int16_t)(0x10000 - 2 * ((127 - 60) << 7)));
    return _mm512_cmpgt_epu16_mask(t, most) != 0;
}
/* The least magnitude but 0, less one, and the largest, as bits, which are ordered as numbers. */
typedef struct v_range {
    __m512i least, most;
} v_range;

static inline v_range v_range_none(void) {
    return (v_range){_mm512_set1_epi16(-1), _mm512_setzero_si512()};
}
static inline v_range v_range_with(v_range r, vf pairs) {
    const __m512i size = _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi16(INT16_MAX));
    const __m512i less = _mm512_sub_epi16(size, _mm512_set1_epi16(1));
    return (v_range){_mm512_min_epu16(r.least, less), _mm512_max_epu16(r.most, size)};
}
static inline bool v_large(v_range r) {
    const __m512i least = _mm512_set1_epi16(((127 - 60) << 7) - 1);
    return _mm512_cmplt_epu16_mask(r.least, least) == 0;
}
static inline bool v_finite(v_range r) {
    return _mm512_cmpge_epu16_mask(r.most, _mm512_set1_epi16(0x7f80)) == 0;
}
static inline bool v_within(v_range r) {
    return v_large(r) && v_finite(r);
}

#endif
