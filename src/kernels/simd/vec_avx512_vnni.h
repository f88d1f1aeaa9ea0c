/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector vocabulary on AVX-512 where VPDPBUSD multiplies: the words of vec_avx512.h, and those of bytes. A vector
 * of bytes has four in each lane of 32 bits, sums are whole numbers of 32 bits in the lanes of a vf:
 *   v_dot_bytes(x, w, c)         c plus the products of the four bytes of each lane, signed ones of x, unsigned of w
 *   v_dot_bytes_one(p, w, c)     the same with the four bytes at p in each lane
 *   v_set1_whole(n), v_of_whole(c)       a whole number in each lane; whole numbers as floats
 *   v_store_words(p, v, turns)           VL whole numbers as bytes; of eight, 0 4 1 5 2 6 3 7 if `turns`
 *   v_byte_entries(bytes, table)         entries of 16 bytes by bytes below 16
 *   v_bytes_less(bytes, n)               n taken off each byte
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
static inline void v_store_words(void *p, vf v, bool turns) {
    const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
    _mm_storeu_si128(p, turns ? _mm_shuffle_epi8(bytes, order) : bytes);
}
static inline vf v_byte_entries(vf bytes, const uint8_t table[16]) {
    const __m512i entries = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    return (vf)_mm512_shuffle_epi8(entries, (__m512i)bytes);
}
static inline vf v_bytes_less(vf bytes, int n) {
    return (vf)_mm512_sub_epi8((__m512i)bytes, _mm512_set1_epi8((char)n));
}

#endif
