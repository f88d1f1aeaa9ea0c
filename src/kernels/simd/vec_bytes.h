/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of 8 bits in the vector vocabulary; include after a vec_*.h. Each tier has the words
 *   v_load_i8, v_load_e4m3, v_load_e5m2      VL elements as floats, at any address; …_first as v_load_first
 * An 8-bit float is read by way of f16: e5m2 is its upper half; e4m3 has its exponent 8 lower, which a factor of 256
 * puts right, subnormal numbers included, and one code for NaN.
 */
#ifndef EJKI_VEC_BYTES_H
#define EJKI_VEC_BYTES_H

#include "kernels/simd/vec_element.h"

#if defined(__AVX512F__) && VL == 16
static inline vf v_load_i8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}
static inline vf v_load_e5m2(const void *p) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p)), 8));
}
static inline vf v_load_e4m3(const void *p) {
    const __m128i bits = _mm_loadu_si128(p), low = _mm_set1_epi8(0x7f);
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bits), 7);
    const vf value = _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((short)0xbfff)));
    const __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_and_si128(bits, low), low);
    return _mm512_mask_mov_ps(_mm512_mul_ps(value, _mm512_set1_ps(256)), nan,
                              _mm512_set1_ps(__builtin_nanf("")));
}
#elif defined(__AVX2__) && VL == 8
static inline vf v_load_i8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}
static inline vf v_load_e5m2(const void *p) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(p)), 8));
}
static inline vf v_load_e4m3(const void *p) {
    const __m128i bits = _mm_cvtepi8_epi16(_mm_loadl_epi64(p)), low = _mm_set1_epi16(0x7f);
    const __m128i wide = _mm_and_si128(_mm_slli_epi16(bits, 7), _mm_set1_epi16((short)0xbfff));
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(bits, low), low);
    const vf value = _mm256_mul_ps(_mm256_cvtph_ps(wide), _mm256_set1_ps(256));
    return _mm256_blendv_ps(value, _mm256_set1_ps(__builtin_nanf("")),
                            _mm256_castsi256_ps(_mm256_cvtepi16_epi32(nan)));
}
#elif defined(__ARM_NEON) && defined(EJKI_TIER_NEON)
static inline int16x4_t v_four_bytes(const void *p) {
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    return vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bits))));
}
static inline vf v_load_i8(const void *p) {
    return vcvtq_f32_s32(vmovl_s16(v_four_bytes(p)));
}
static inline vf v_load_e5m2(const void *p) {
    return vcvt_f32_f16(vreinterpret_f16_s16(vshl_n_s16(v_four_bytes(p), 8)));
}
static inline vf v_load_e4m3(const void *p) {
    const uint16x4_t bits = vreinterpret_u16_s16(v_four_bytes(p)), low = vdup_n_u16(0x7f);
    const uint16x4_t wide = vand_u16(vshl_n_u16(bits, 7), vdup_n_u16(0xbfff));
    const uint16x4_t nan = vceq_u16(vand_u16(bits, low), low);
    const vf value = vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(wide)), 256);
    const uint32x4_t all = vreinterpretq_u32_s32(vmovl_s16(vreinterpret_s16_u16(nan)));
    return vbslq_f32(all, vdupq_n_f32(__builtin_nanf("")), value);
}
#else
static inline v_uint v_load_bytes(const void *p) {
    const uint8_t *b = p;
    return (v_uint){b[0], b[1], b[2], b[3]};
}
static inline vf v_load_i8(const void *p) {
    return __builtin_convertvector((vi)(v_load_bytes(p) << 24) >> 24, vf);
}
static inline vf v_load_e5m2(const void *p) {
    return v_from_f16(v_load_bytes(p) << 8);
}
static inline vf v_load_e4m3(const void *p) {
    const v_uint bits = v_load_bytes(p);
    const vi magnitude = (vi)(bits & 0x7fu);
    const v_uint subnormal = (v_uint)(__builtin_convertvector(magnitude, vf) * 0x1p-9f);
    const v_uint normal = ((v_uint)magnitude << 20) + 0x3c000000u;
    const v_uint finite = v_mask(magnitude < 0x08, subnormal, normal);
    const vi nan = magnitude == 0x7f;
    return (vf)((bits & 0x80u) << 24 | v_mask(nan, (v_uint)nan & 0x7fc00000u, finite));
}
#endif

static inline vf v_load_i8_first(const void *p, int64_t n) {
    uint8_t bytes[VL] = {0};
    memcpy(bytes, p, (size_t)n);
    return v_load_i8(bytes);
}
static inline vf v_load_e5m2_first(const void *p, int64_t n) {
    uint8_t bytes[VL] = {0};
    memcpy(bytes, p, (size_t)n);
    return v_load_e5m2(bytes);
}
static inline vf v_load_e4m3_first(const void *p, int64_t n) {
    uint8_t bytes[VL] = {0};
    memcpy(bytes, p, (size_t)n);
    return v_load_e4m3(bytes);
}

/* v_widen and v_widen_first of these types, too. */
static inline __attribute__((always_inline)) vf v_stored(ejk_dtype dtype, const void *p) {
    if (dtype == EJK_DTYPE_I8) return v_load_i8(p);
    if (dtype == EJK_DTYPE_F8E4M3) return v_load_e4m3(p);
    return dtype == EJK_DTYPE_F8E5M2 ? v_load_e5m2(p) : v_widen(dtype, p);
}
static inline __attribute__((always_inline)) vf v_stored_first(ejk_dtype dtype, const void *p,
                                                               int64_t n) {
    if (dtype == EJK_DTYPE_I8) return v_load_i8_first(p, n);
    if (dtype == EJK_DTYPE_F8E4M3) return v_load_e4m3_first(p, n);
    return dtype == EJK_DTYPE_F8E5M2 ? v_load_e5m2_first(p, n) : v_widen_first(dtype, p, n);
}

/* Bytes of an element of any of them. */
static inline __attribute__((always_inline)) int64_t stored_size(ejk_dtype dtype) {
    const bool byte =
        dtype == EJK_DTYPE_I8 || dtype == EJK_DTYPE_F8E4M3 || dtype == EJK_DTYPE_F8E5M2;
    return byte ? 1 : element_size(dtype);
}

#endif
