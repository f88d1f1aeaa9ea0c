/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector vocabulary on AVX-512 (F, BW, DQ, VL). One of four headers with the same words; bodies are
 * written against the words only. What each word means:
 *   v_load/v_store       VL floats at any address
 *   v_stream             the same to an aligned address, past the caches where there is such a store; other
 *                        threads may read it after v_streamed()
 *   v_load_first/v_store_first   the first n of them, 0 ≤ n ≤ VL; nothing beyond is touched, the rest is 0
 *   v_fma(a, b, c)       a * b + c, rounded once where the hardware can
 *   v_fma_one(p, b, c)   p[0] * b + c
 *   v_fms(a, b, c)       a * b - c
 *   v_max                larger one; the second if either is NaN
 *   v_exp2               2^y within 2 ulp; below 2^-126 exactly 0, NaN stays NaN
 *   v_exp2_near          the same, within 0.6 ulp near y = 0: for factors that are multiplied many times
 *   v_keep(v, low, high) lanes low ≤ lane < high, -inf elsewhere
 *   v_allow(v, bytes)    lanes whose byte is not 0, -inf elsewhere
 *   v_where(v, bits)     lanes whose bit is set, from the lowest on, 0 elsewhere
 *   v_select_gt(a, b, x, y)      x where a > b, else y
 *   v_any_gt(a, b)       whether a > b in any lane
 *   v_sums(r)            lane i is the sum of r[i]'s lanes
 *   v_largests(r)        lane i is the largest of r[i]'s lanes, none of them NaN
 *   v_transpose          VL x VL floats in registers
 *   v_load_bf16, v_load_f16      VL elements of 16 bits, at any address; …_first as above
 *   v_store_bf16, v_store_f16    rounded to nearest, ties to even; NaN becomes quiet; subnormals stay
 *   v_load_u8            VL bytes, as numbers from 0 to 255
 *   v_load_u4            VL halves of bytes, the low one first, as numbers from 0 to 15
 *   v_load_u4_of(p, t)   entries of a table of 16 floats by such halves
 *   v_multiply(a, b)     products of the lower halves of VL / 2 words of 64 bits
 *   v_zip_even(a, b)     a[0], b[0], a[2], b[2], …; v_zip_odd: a[1], b[1], a[3], b[3], …
 * All are static inline: a unit compiled for one tier never shares a symbol with another.
 */
#ifndef EJKI_VEC_H
#define EJKI_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

typedef __m512 vf;
typedef uint64_t vw __attribute__((vector_size(64)));
#define VL 16

static inline vf v_zero(void) {
    return _mm512_setzero_ps();
}
static inline vf v_set1(float x) {
    return _mm512_set1_ps(x);
}
static inline vf v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, vf v) {
    _mm512_storeu_ps(p, v);
}
static inline void v_stream(float *p, vf v) {
    _mm512_stream_ps(p, v);
}
static inline void v_streamed(void) {
    _mm_sfence();
}
static inline __mmask16 v_first(int64_t n) {
    return (__mmask16)((1u << n) - 1u);
}
static inline vf v_load_first(const float *p, int64_t n) {
    return _mm512_maskz_loadu_ps(v_first(n), p);
}
static inline void v_store_first(float *p, vf v, int64_t n) {
    _mm512_mask_storeu_ps(p, v_first(n), v);
}
static inline vf v_load_bf16_first(const void *p, int64_t n) {
    const __m256i bits = _mm256_maskz_loadu_epi16(v_first(n), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
static inline vf v_load_bf16(const void *p) {
    const __m256i bits = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
static inline vf v_load_f16_first(const void *p, int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v_first(n), p));
}
static inline vf v_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
/* The upper halves of lanes become bf16. Not VCVTNEPS2BF16, which takes subnormal numbers for 0. */
static inline __m512i v_round_bf16(vf v) {
    const __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_or_epi32(_mm512_add_epi32(bits, half),
                                _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits,
                                _mm512_set1_epi32(0x400000));
}
static inline void v_store_bf16_first(void *p, vf v, int64_t n) {
    const __m512i rounded = _mm512_srli_epi32(v_round_bf16(v), 16);
    _mm256_mask_storeu_epi16(p, v_first(n), _mm512_cvtepi32_epi16(rounded));
}
static inline void v_store_bf16(void *p, vf v) {
    v_store_bf16_first(p, v, VL);
}
static inline void v_store_f16_first(void *p, vf v, int64_t n) {
    _mm256_mask_storeu_epi16(p, v_first(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline void v_store_f16(void *p, vf v) {
    v_store_f16_first(p, v, VL);
}
static inline vf v_load_u8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline __m512i v_nibbles(const void *p) {
    const __m128i pairs = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
    const __m128i apart = _mm_or_si128(pairs, _mm_slli_epi16(pairs, 4));
    return _mm512_cvtepu8_epi32(_mm_and_si128(apart, _mm_set1_epi8(15)));
}
static inline vf v_load_u4(const void *p) {
    return _mm512_cvtepi32_ps(v_nibbles(p));
}
static inline vf v_load_u4_of(const void *p, const float table[16]) {
    return _mm512_permutexvar_ps(v_nibbles(p), _mm512_loadu_ps(table));
}
static inline vw v_multiply(vw a, vw b) {
    return (vw)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}
static inline vw v_zip_even(vw a, vw b) {
    return (vw)_mm512_unpacklo_epi64((__m512i)a, (__m512i)b);
}
static inline vw v_zip_odd(vw a, vw b) {
    return (vw)_mm512_unpackhi_epi64((__m512i)a, (__m512i)b);
}
static inline vf v_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
static inline vf v_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
static inline vf v_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
/* One instruction, where a compiler would load the number once for all its uses: see gemm_step(). */
static inline vf v_fma_one(const float *a, vf b, vf c) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
    return c;
}
static inline vf v_fms(vf a, vf b, vf c) {
    return _mm512_fmsub_ps(a, b, c);
}
static inline vf v_abs(vf a) {
    return _mm512_abs_ps(a);
}
static inline vf v_copysign(vf magnitude, vf sign) {
    const __m512i bit = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign),
                                                         _mm512_castps_si512(magnitude), 0xca));
}
static inline vf v_select_gt(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
static inline bool v_any_gt(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}
static inline float v_sum(vf v) {
    return _mm512_reduce_add_ps(v);
}
static inline float v_largest(vf v) {
    return _mm512_reduce_max_ps(v);
}
/* Pairs of neighbours, then of pairs, then of quarters: 15 adds for 16 sums. */
static inline vf v_sums(const vf r[VL]) {
    vf t[8], u[4];
    for (int i = 0; i < 8; i++)
        t[i] = _mm512_add_ps(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]),
                             _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
        u[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const vf a = _mm512_add_ps(_mm512_shuffle_f32x4(u[0], u[1], 0x88),
                               _mm512_shuffle_f32x4(u[0], u[1], 0xdd));
    const vf b = _mm512_add_ps(_mm512_shuffle_f32x4(u[2], u[3], 0x88),
                               _mm512_shuffle_f32x4(u[2], u[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
static inline vf v_largests(const vf r[VL]) {
    vf t[8], u[4];
    for (int i = 0; i < 8; i++)
        t[i] = _mm512_max_ps(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]),
                             _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
        u[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const vf a = _mm512_max_ps(_mm512_shuffle_f32x4(u[0], u[1], 0x88),
                               _mm512_shuffle_f32x4(u[0], u[1], 0xdd));
    const vf b = _mm512_max_ps(_mm512_shuffle_f32x4(u[2], u[3], 0x88),
                               _mm512_shuffle_f32x4(u[2], u[3], 0xdd));
    return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/*
 * 2^y = 2^floor(y) · (1 + f·q(f)) with f = y - floor(y) by VREDUCEPS and the power by VSCALEFPS, which
 * takes the floor itself: 10 instructions. q is the minimax polynomial of degree 5 for f in [0, 1)
 * (relative error 2e-9); measured over all f with step 2^-22: 1.05 ulp. Lanes below -126 are masked to 0,
 * because products with subnormal numbers cost an assist of some 150 cycles on several processors.
 */
static inline vf v_exp2(vf y) {
    const __mmask16 normal = _mm512_cmp_ps_mask(y, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const vf f = _mm512_reduce_ps(y, 0x09); /* round down, no exceptions */
    vf p = _mm512_set1_ps(0.0002161291631637141f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0012467845808714628f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.009675451554358006f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.055485282093286514f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2402293086051941f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931470632553101f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(normal, p, y);
}

/* By the integer nearest to y, an instruction more: a floor loses a bit of what is a little less than 1. */
static inline vf v_exp2_near(vf y) {
    const __mmask16 normal = _mm512_cmp_ps_mask(y, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const vf f = _mm512_reduce_ps(y, 0x08); /* round to nearest, no exceptions */
    vf p = _mm512_set1_ps(0.00015353361959569156f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0013398875016719103f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00961843691766262f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.055503323674201965f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24022647738456726f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931471824645996f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(normal, p, _mm512_sub_ps(y, f));
}

static inline vf v_keep(vf v, int64_t low, int64_t high) {
    const int64_t a = low < 0 ? 0 : low > VL ? VL : low, b = high < a ? a : high > VL ? VL : high;
    const __mmask16 keep = (__mmask16)(v_first(b) & ~v_first(a));
    return _mm512_mask_blend_ps(keep, _mm512_set1_ps(-__builtin_inff()), v);
}
static inline vf v_allow(vf v, const uint8_t *bytes) {
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)bytes);
    return _mm512_mask_blend_ps(_mm_test_epi8_mask(b, b), _mm512_set1_ps(-__builtin_inff()), v);
}
static inline vf v_where(vf v, uint32_t bits) {
    return _mm512_maskz_mov_ps((__mmask16)bits, v);
}

static inline void v_transpose(vf r[VL]) {
    vf t[VL];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++) {
            const __m512d a = _mm512_castps_pd(t[4 * i + j]),
                          b = _mm512_castps_pd(t[4 * i + 2 + j]);
            r[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    for (int j = 0; j < 4; j++) {
        const vf a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
        const vf b = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
        const vf c = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
        const vf d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
        t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
        t[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
        t[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
        t[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
    for (int i = 0; i < VL; i++) r[i] = t[i];
}

#endif
