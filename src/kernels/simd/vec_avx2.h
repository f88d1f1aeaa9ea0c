/* SPDX-License-Identifier: Apache-2.0 */
/* The vector vocabulary on AVX2 with FMA; vec_avx512.h says what the words mean. */
#ifndef EJKI_VEC_H
#define EJKI_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef __m256 vf;
typedef uint64_t vw __attribute__((vector_size(32)));
#define VL 8

static inline vf v_zero(void) {
    return _mm256_setzero_ps();
}
static inline vf v_set1(float x) {
    return _mm256_set1_ps(x);
}
static inline vf v_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void v_store(float *p, vf v) {
    _mm256_storeu_ps(p, v);
}
static inline void v_stream(float *p, vf v) {
    _mm256_stream_ps(p, v);
}
static inline void v_streamed(void) {
    _mm_sfence();
}
/* Lane indices, and lanes below n as a mask. */
static inline __m256i v_lanes(void) {
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}
static inline __m256i v_first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), v_lanes());
}
static inline vf v_load_first(const float *p, int64_t n) {
    return _mm256_maskload_ps(p, v_first(n));
}
static inline void v_store_first(float *p, vf v, int64_t n) {
    _mm256_maskstore_ps(p, v_first(n), v);
}
static inline __m128i v_halves(const void *p, int64_t n) {
    uint16_t bits[VL] = {0};
    memcpy(bits, p, (size_t)n * sizeof *bits);
    return _mm_loadu_si128((const __m128i *)(const void *)bits);
}
static inline vf v_from_bf16(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
static inline __m128i v_to_bf16(vf v) {
    const __m256i bits = _mm256_castps_si256(v), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i nearest = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_blendv_epi8(nearest, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
static inline __m128i v_to_f16(vf v) {
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
static inline vf v_load_bf16(const void *p) {
    return v_from_bf16(_mm_loadu_si128((const __m128i *)p));
}
static inline vf v_load_bf16_first(const void *p, int64_t n) {
    return v_from_bf16(v_halves(p, n));
}
static inline vf v_load_f16(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline vf v_load_f16_first(const void *p, int64_t n) {
    return _mm256_cvtph_ps(v_halves(p, n));
}
static inline void v_store_bf16(void *p, vf v) {
    _mm_storeu_si128((__m128i *)p, v_to_bf16(v));
}
static inline void v_store_bf16_first(void *p, vf v, int64_t n) {
    const __m128i bits = v_to_bf16(v);
    memcpy(p, &bits, (size_t)n * sizeof(uint16_t));
}
static inline void v_store_f16(void *p, vf v) {
    _mm_storeu_si128((__m128i *)p, v_to_f16(v));
}
static inline void v_store_f16_first(void *p, vf v, int64_t n) {
    const __m128i bits = v_to_f16(v);
    memcpy(p, &bits, (size_t)n * sizeof(uint16_t));
}
static inline vf v_load_u8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline __m256i v_nibbles(const void *p) {
    int32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    const __m128i pairs = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(bytes));
    const __m128i apart = _mm_or_si128(pairs, _mm_slli_epi16(pairs, 4));
    return _mm256_cvtepu8_epi32(_mm_and_si128(apart, _mm_set1_epi8(15)));
}
static inline vf v_load_u4(const void *p) {
    return _mm256_cvtepi32_ps(v_nibbles(p));
}
static inline vf v_load_u4_of(const void *p, const float table[16]) {
    const __m256i at = v_nibbles(p);
    const vf low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), at);
    const vf high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), at);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
}
static inline vw v_multiply(vw a, vw b) {
    return (vw)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
static inline vw v_zip_even(vw a, vw b) {
    return (vw)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b);
}
static inline vw v_zip_odd(vw a, vw b) {
    return (vw)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b);
}
static inline vf v_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
static inline vf v_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
static inline vf v_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf v_fma_one(const float *a, vf b, vf c) {
    return v_fma(v_set1(*a), b, c);
}
static inline vf v_fms(vf a, vf b, vf c) {
    return _mm256_fmsub_ps(a, b, c);
}
static inline vf v_abs(vf a) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
static inline vf v_copysign(vf magnitude, vf sign) {
    return _mm256_or_ps(v_abs(magnitude), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}
static inline vf v_select_gt(vf a, vf b, vf x, vf y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
static inline bool v_any_gt(vf a, vf b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}
static inline float v_sum(vf v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float v_largest(vf v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
static inline vf v_sums(const vf r[VL]) {
    const vf a = _mm256_hadd_ps(_mm256_hadd_ps(r[0], r[1]), _mm256_hadd_ps(r[2], r[3]));
    const vf b = _mm256_hadd_ps(_mm256_hadd_ps(r[4], r[5]), _mm256_hadd_ps(r[6], r[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
static inline vf v_largests(const vf r[VL]) {
    vf t[4], u[2];
    for (int i = 0; i < 4; i++)
        t[i] = _mm256_max_ps(_mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]),
                             _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        u[i] = _mm256_max_ps(_mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44),
                             _mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    return _mm256_max_ps(_mm256_permute2f128_ps(u[0], u[1], 0x20),
                         _mm256_permute2f128_ps(u[0], u[1], 0x31));
}

#ifdef __AVX512VL__
/* As vec_avx512.h, for units of eight lanes that have its instructions. */
static inline vf v_exp2(vf y) {
    const __mmask8 normal = _mm256_cmp_ps_mask(y, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);
    const vf f = _mm256_reduce_ps(y, 0x09);
    vf p = _mm256_set1_ps(0.0002161291631637141f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.0012467845808714628f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.009675451554358006f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.055485282093286514f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.2402293086051941f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.6931470632553101f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    return _mm256_maskz_scalef_ps(normal, p, y);
}
#else
/*
 * 2^y = 2^r · p(f), r = y rounded to nearest by adding 1.5·2^23, f = y - r; p has degree 6 on [-1/2, 1/2]
 * (0.93 ulp). The power is built in the exponent bits and multiplied, so that it may be 0 (r = -127) or
 * infinite (r = 128); operands of min and max are ordered so that NaN passes.
 */
static inline vf v_exp2(vf y) {
    const vf magic = _mm256_set1_ps(12582912.0f);
    y = _mm256_min_ps(_mm256_set1_ps(128.0f), _mm256_max_ps(_mm256_set1_ps(-127.0f), y));
    const vf t = _mm256_add_ps(y, magic);
    const vf f = _mm256_sub_ps(y, _mm256_sub_ps(t, magic));
    vf p = _mm256_set1_ps(0.00015353361959569156f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.0013398875016719103f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.00961843691766262f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.055503323674201965f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.24022647738456726f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.6931471824645996f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(t), 23),
                                           _mm256_set1_epi32(127 << 23));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}
#endif
/* On AVX2 and in scalars v_exp2 goes by the nearest integer anyway. */
static inline vf v_exp2_near(vf y) {
#ifdef __AVX512VL__
    const __mmask8 normal = _mm256_cmp_ps_mask(y, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);
    const vf f = _mm256_reduce_ps(y, 0x08);
    vf p = _mm256_set1_ps(0.00015353361959569156f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.0013398875016719103f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.00961843691766262f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.055503323674201965f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.24022647738456726f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.6931471824645996f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    return _mm256_maskz_scalef_ps(normal, p, _mm256_sub_ps(y, f));
#else
    return v_exp2(y);
#endif
}

static inline vf v_keep(vf v, int64_t low, int64_t high) {
    const int a = low < 0 ? 0 : low > VL ? VL : (int)low;
    const int b = high < a ? a : high > VL ? VL : (int)high;
    const __m256i keep = _mm256_andnot_si256(v_first(a), v_first(b));
    return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), v, _mm256_castsi256_ps(keep));
}
static inline vf v_allow(vf v, const uint8_t *bytes) {
    const __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)bytes);
    const __m256i deny = _mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(b), _mm256_setzero_si256());
    return _mm256_blendv_ps(v, _mm256_set1_ps(-__builtin_inff()), _mm256_castsi256_ps(deny));
}
static inline vf v_where(vf v, uint32_t bits) {
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32((int)bits), lanes);
    return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lanes)));
}

static inline void v_transpose(vf r[VL]) {
    vf t[VL];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            r[4 * i + 2 * j] = _mm256_shuffle_ps(t[4 * i + j], t[4 * i + 2 + j], 0x44);
            r[4 * i + 2 * j + 1] = _mm256_shuffle_ps(t[4 * i + j], t[4 * i + 2 + j], 0xee);
        }
    for (int j = 0; j < 4; j++) {
        t[j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x20);
        t[4 + j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x31);
    }
    for (int i = 0; i < VL; i++) r[i] = t[i];
}

#endif
