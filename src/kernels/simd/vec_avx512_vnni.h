/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector vocabulary on AVX-512 where VPDPBUSD multiplies: the words of vec_avx512.h, and those of bytes. A vector
 * of bytes has four in each lane of 32 bits, sums are whole numbers of 32 bits in the lanes of a vf:
 *   v_dot_bytes(x, w, c)         c plus the products of the four bytes of each lane, signed ones of x, unsigned of w
 *   v_dot_bytes_one(p, w, c)     the same with the four bytes at p in each lane
 *   v_set1_whole(n), v_of_whole(c)       a whole number in each lane; whole numbers as floats
 *   v_byte_entries(bytes, table)         entries of 16 bytes by bytes below 16
 *   v_load_bytes(p)      4 VL bytes at any address; …_first(p, n): the first n, then 0
 *   v_offset_bytes(x)    128 added to each
 *   v_zip_bytes(r, half, t)      t[j]: bytes 8 half + 4 j to 8 half + 4 j + 3 of each 16, of r[0] to r[3] in turn
 *   v_turn(r)            quarter i of r[j] and quarter j of r[i] change places, of four vectors
 *   v_to_whole(v)        floats to the nearest whole numbers; v_add_whole, v_sum_whole of them
 *   v_down_whole(c, n), v_up_whole(c, n)     c >> n, c << n
 *   v_most_whole(a, b), v_largest_whole(c)   of floats that are not negative; a NaN is the largest, whichever it is
 *   v_store_bytes(p, c)  the lowest byte of each lane
 */
#ifndef EJKI_VEC_AVX512_VNNI_H
#define EJKI_VEC_AVX512_VNNI_H

#include "kernels/simd/vec_avx512.h"

/* Not the intrinsic, whose sums are of another type: gcc 12 moves tiles of them to memory and back. */
static inline vf v_dot_bytes(vf x, vf w, vf c) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(w), "v"(x));
    return c;
}
static inline vf v_dot_bytes_one(const float *p, vf w, vf c) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(c) : "v"(w), "m"(*p));
    return c;
}
static inline vf v_set1_whole(int32_t n) {
    return (vf)_mm512_set1_epi32(n);
}
static inline vf v_of_whole(vf c) {
    return _mm512_cvtepi32_ps((__m512i)c);
}
static inline vf v_byte_entries(vf bytes, const uint8_t table[16]) {
    const __m512i entries = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    return (vf)_mm512_shuffle_epi8(entries, (__m512i)bytes);
}
static inline vf v_load_bytes(const void *p) {
    return (vf)_mm512_loadu_si512(p);
}
static inline vf v_load_bytes_first(const void *p, int64_t n) {
    return (vf)_mm512_maskz_loadu_epi8(n < 64 ? ((__mmask64)1 << n) - 1 : ~(__mmask64)0, p);
}
static inline vf v_offset_bytes(vf x) {
    return (vf)_mm512_xor_si512((__m512i)x, _mm512_set1_epi8(-128));
}
static inline __attribute__((always_inline)) void v_zip_bytes(const vf r[4], const int half,
                                                              vf t[2]) {
    const __m512i a = (__m512i)r[0], b = (__m512i)r[1], c = (__m512i)r[2], d = (__m512i)r[3];
    const __m512i first = half ? _mm512_unpackhi_epi8(a, b) : _mm512_unpacklo_epi8(a, b);
    const __m512i last = half ? _mm512_unpackhi_epi8(c, d) : _mm512_unpacklo_epi8(c, d);
    t[0] = (vf)_mm512_unpacklo_epi16(first, last);
    t[1] = (vf)_mm512_unpackhi_epi16(first, last);
}
static inline void v_turn(vf r[4]) {
    const vf a = _mm512_shuffle_f32x4(r[0], r[1], 0x88);
    const vf b = _mm512_shuffle_f32x4(r[0], r[1], 0xdd);
    const vf c = _mm512_shuffle_f32x4(r[2], r[3], 0x88);
    const vf d = _mm512_shuffle_f32x4(r[2], r[3], 0xdd);
    r[0] = _mm512_shuffle_f32x4(a, c, 0x88);
    r[1] = _mm512_shuffle_f32x4(b, d, 0x88);
    r[2] = _mm512_shuffle_f32x4(a, c, 0xdd);
    r[3] = _mm512_shuffle_f32x4(b, d, 0xdd);
}
static inline vf v_to_whole(vf v) {
    return (vf)_mm512_cvtps_epi32(v);
}
static inline vf v_add_whole(vf a, vf b) {
    return (vf)_mm512_add_epi32((__m512i)a, (__m512i)b);
}
static inline vf v_up_whole(vf c, unsigned n) {
    return (vf)_mm512_slli_epi32((__m512i)c, n);
}
static inline vf v_most_whole(vf a, vf b) {
    return (vf)_mm512_max_epi32((__m512i)a, (__m512i)b);
}
static inline float v_largest_whole(vf c) {
    const int32_t most = _mm512_reduce_max_epi32((__m512i)c);
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(most)));
}
static inline int32_t v_sum_whole(vf c) {
    return _mm512_reduce_add_epi32((__m512i)c);
}
static inline vf v_down_whole(vf c, unsigned n) {
    return (vf)_mm512_srai_epi32((__m512i)c, n);
}
static inline void v_store_bytes(void *p, vf c) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)c));
}

#endif
