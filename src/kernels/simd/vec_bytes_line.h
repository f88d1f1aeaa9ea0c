/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of 64 floats of 8 bits, VL of them at a time, where that takes less than each VL of them: V_F8_LINES is 1.
 * Elements have an order of their own, even ones before odd ones. Include after a vec_*.h:
 *   v_begin_f8(t, p, l, s)       a line of memory into `l`; NaN of e4m3 are seen in `s`, and are finite in `l`
 *   v_f8_part(l, i)              vector i of it; e4m3 divided by V_E4M3_UNIT
 *   v_f8_nan(s)                  whether there was a NaN of e4m3
 * A line becomes f16 on its way through memory, out of which VCVTPH2PS is one instruction where a register takes two;
 * 9 instructions of vector units make four vectors, where each two together took 13.
 */
#ifndef EJKI_VEC_BYTES_LINE_H
#define EJKI_VEC_BYTES_LINE_H

#include "kernels/simd/vec_bytes.h"

#if defined(__AVX512F__) && VL == 16
#define V_F8_LINES  1
#define V_E4M3_UNIT 256.0f

typedef struct v_f8_line {
    __m512i even, odd;
} v_f8_line;
typedef struct v_f8_seen {
    __m512i most; /* largest code, without its sign, twice */
} v_f8_seen;

static inline v_f8_seen v_f8_seen_none(void) {
    return (v_f8_seen){_mm512_setzero_si512()};
}
static inline void v_begin_f8(ejk_dtype dtype, const void *p, v_f8_line *line, v_f8_seen *seen) {
    const __m512i odd = _mm512_loadu_si512(p), even = _mm512_slli_epi16(odd, 8);
    if (dtype == EJK_DTYPE_F8E5M2) {
        line->even = even;
        line->odd = _mm512_and_si512(odd, _mm512_set1_epi16((short)0xff00));
    } else {
        const __m512i kept = _mm512_set1_epi16((short)0xbf80);
        line->even = _mm512_and_si512(_mm512_srai_epi16(even, 1), kept);
        line->odd = _mm512_and_si512(_mm512_srai_epi16(odd, 1), kept);
        seen->most = _mm512_max_epu8(seen->most, _mm512_add_epi8(odd, odd));
    }
    __asm__("" : "+m"(*line)); /* or a compiler takes parts out of registers */
}
static inline vf v_f8_part(const v_f8_line *line, int part) {
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)line + part));
}
static inline bool v_f8_nan(v_f8_seen seen) {
    return _mm512_cmpge_epu8_mask(seen.most, _mm512_set1_epi8((char)0xfe)) != 0;
}
#else
#define V_F8_LINES  0
#define V_E4M3_UNIT 1.0f

typedef struct v_f8_line {
    char none;
} v_f8_line;
typedef struct v_f8_seen {
    char none;
} v_f8_seen;

static inline v_f8_seen v_f8_seen_none(void) {
    return (v_f8_seen){0};
}
static inline void v_begin_f8(ejk_dtype dtype, const void *p, v_f8_line *line, v_f8_seen *seen) {
    (void)dtype, (void)p, (void)line, (void)seen;
}
static inline vf v_f8_part(const v_f8_line *line, int part) {
    (void)line, (void)part;
    return v_zero();
}
static inline bool v_f8_nan(v_f8_seen seen) {
    (void)seen;
    return false;
}
#endif

#endif
