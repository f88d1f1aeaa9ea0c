/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 2 VL elements of 8 bits at a time, where that takes less than each VL of them. Include after a vec_*.h:
 *   v_load_two_e4m3      as v_load_e4m3, at any address
 */
#ifndef EJKI_VEC_BYTES_TWO_H
#define EJKI_VEC_BYTES_TWO_H

#include "kernels/simd/vec_bytes.h"

#if defined(__AVX512F__) && VL == 16
static inline void v_load_two_e4m3(const void *p, vf out[2]) {
    const __m512i bits = _mm512_cvtepi8_epi16(_mm256_loadu_si256(p));
    const __m512i high = _mm512_set1_epi16(0x3f80), none = _mm512_set1_epi16(0x7fff);
    const __m512i wide =
        _mm512_and_si512(_mm512_slli_epi16(bits, 7), _mm512_set1_epi16((short)0xbf80));
    const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(wide, high), high);
    const __m512i halves = _mm512_mask_mov_epi16(wide, nan, none);
    out[0] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), _mm512_set1_ps(256));
    out[1] =
        _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)), _mm512_set1_ps(256));
}
#else
static inline void v_load_two_e4m3(const void *p, vf out[2]) {
    out[0] = v_load_e4m3(p);
    out[1] = v_load_e4m3((const uint8_t *)p + VL);
}
#endif

#endif
