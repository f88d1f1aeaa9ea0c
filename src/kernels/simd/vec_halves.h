/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that are read, reckoned with and written at memory speed: 2 VL elements at a time, in two halves. Which elements
 * are in a half, and where, depends on type and tier, as it is cheapest, and is always the same; floats that they meet
 * lie in their order. Include after a vec_*.h. Each tier has the words
 *   v_load_bf16_half(p, h)       half h, 0 or 1, of 2 VL elements
 *   v_store_bf16_halves(p, a, b), v_stream_bf16_halves   both in their places, as v_store and v_stream, rounded to
 *                        nearest, ties to even. A NaN has to have a lower half of 0, as all have that come from
 *                        elements of 16 bits
 *   v_inverse_near       1 / x within 2^-13, of normal numbers; 0 of infinity
 *   v_exp2_short         v_exp2 within 2^-13
 */
#ifndef EJKI_VEC_HALVES_H
#define EJKI_VEC_HALVES_H

#include "kernels/simd/vec_element.h"
#include "kernels/simd/vec_math.h"

#if defined(__AVX512F__) && VL == 16
/* Even elements, odd elements: an instruction each. */
static inline vf v_load_bf16_half(const void *p, int half) {
    const __m512i pairs = _mm512_loadu_si512(p), high = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_castsi512_ps(half ? _mm512_and_si512(pairs, high) : _mm512_slli_epi32(pairs, 16));
}
static inline __m512i v_rounded(vf v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i down = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    return _mm512_mask_add_epi32(down, odd, bits, _mm512_set1_epi32(0x8000));
}
static inline __m512i v_bf16_halves(vf a, vf b) {
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(v_rounded(a), 16), v_rounded(b), high, 0xf8);
}
static inline void v_store_bf16_halves(void *p, vf a, vf b) {
    _mm512_storeu_si512(p, v_bf16_halves(a, b));
}
static inline void v_stream_bf16_halves(void *p, vf a, vf b) {
    _mm512_stream_si512(p, v_bf16_halves(a, b));
}
static inline vf v_inverse_near(vf v) {
    return _mm512_rcp14_ps(v);
}
/* As v_exp2, with a polynomial of degree 3 (relative error 7.5e-5, as the reciprocal has). */
static inline vf v_exp2_short(vf y) {
    const __mmask16 normal = _mm512_cmp_ps_mask(y, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const vf f = _mm512_reduce_ps(y, 0x09); /* round down, no exceptions */
    vf p = _mm512_set1_ps(0.07802452266443254f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.22606715539312935f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6958335405064481f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.99992521856401f));
    return _mm512_maskz_scalef_ps(normal, p, y);
}
#else
#if defined(__AVX2__) && VL == 8
static inline vf v_load_bf16_half(const void *p, int half) {
    const __m256i pairs = _mm256_loadu_si256(p), high = _mm256_set1_epi32((int)0xffff0000u);
    return _mm256_castsi256_ps(half ? _mm256_and_si256(pairs, high) : _mm256_slli_epi32(pairs, 16));
}
static inline __m256i v_rounded(vf v) {
    const __m256i bits = _mm256_castps_si256(v), odd = _mm256_srli_epi32(bits, 16);
    const __m256i last = _mm256_and_si256(odd, _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), last);
}
static inline __m256i v_bf16_halves(vf a, vf b) {
    return _mm256_blend_epi16(_mm256_srli_epi32(v_rounded(a), 16), v_rounded(b), 0xaa);
}
static inline void v_store_bf16_halves(void *p, vf a, vf b) {
    _mm256_storeu_si256(p, v_bf16_halves(a, b));
}
static inline void v_stream_bf16_halves(void *p, vf a, vf b) {
    _mm256_stream_si256(p, v_bf16_halves(a, b));
}
#else
static inline vf v_load_bf16_half(const void *p, int half) {
    return v_load_bf16((const uint16_t *)p + half * VL);
}
static inline void v_store_bf16_halves(void *p, vf a, vf b) {
    v_store_bf16(p, a);
    v_store_bf16((uint16_t *)p + VL, b);
}
static inline void v_stream_bf16_halves(void *p, vf a, vf b) {
    v_store_bf16_halves(p, a, b);
}
#endif
static inline vf v_inverse_near(vf v) {
    return v_div(v_set1(1.0f), v);
}
static inline vf v_exp2_short(vf y) {
    return v_exp2(y);
}
#endif

/* ---- Elements ---------------------------------------------------------------------------------------- */

INLINE vf v_widen_half(const ejk_dtype dtype, const void *p, const int half) {
    if (dtype == EJK_DTYPE_BF16) return v_load_bf16_half(p, half);
    return v_widen(dtype, element_at(dtype, p, half * VL));
}
/* `stream`: past the caches, where the type has a store for that, to the beginning of a line. */
INLINE void v_narrow_halves(const ejk_dtype dtype, const bool stream, void *p, vf a, vf b) {
    if (dtype == EJK_DTYPE_BF16 && stream) {
        v_stream_bf16_halves(p, a, b);
    } else if (dtype == EJK_DTYPE_BF16) {
        v_store_bf16_halves(p, a, b);
    } else if (dtype == EJK_DTYPE_F32 && stream) {
        v_stream(p, a);
        v_stream((float *)p + VL, b);
    } else {
        v_narrow(dtype, p, a);
        v_narrow(dtype, element_at(dtype, p, VL), b);
    }
}

/* Lane i of both halves is element order[i]. */
static inline void v_halves_order(const ejk_dtype dtype, int64_t order[2 * VL]) {
    float numbers[2 * VL], lanes[2 * VL];
    for (int64_t i = 0; i < 2 * VL; i++) element_store(dtype, numbers, i, (float)i);
    v_store(lanes, v_widen_half(dtype, numbers, 0));
    v_store(lanes + VL, v_widen_half(dtype, numbers, 1));
    for (int64_t i = 0; i < 2 * VL; i++) order[i] = (int64_t)lanes[i];
}
/* The first `n` floats of a row, as many as are whole pairs of halves, into that order or, `back`, out of it. */
static inline void v_put_in_order(const ejk_dtype dtype, bool back, float *row, int64_t n) {
    int64_t order[2 * VL];
    float moved[2 * VL];
    v_halves_order(dtype, order);
    for (; n >= 2 * VL; n -= 2 * VL, row += 2 * VL) {
        for (int64_t i = 0; i < 2 * VL; i++)
            if (back)
                moved[order[i]] = row[i];
            else
                moved[i] = row[order[i]];
        memcpy(row, moved, sizeof moved);
    }
}

/* ---- Gates ------------------------------------------------------------------------------------------- */

/* v_sigmoid and v_silu to what a type can hold. */
INLINE vf v_sigmoid_of(const ejk_dtype dtype, vf x) {
    if (dtype != EJK_DTYPE_BF16) return v_sigmoid(x);
    const vf e = v_exp2_short(v_mul(x, v_set1(-1.4426950408889634f)));
    return v_inverse_near(v_add(v_set1(1.0f), e));
}
INLINE vf v_silu_of(const ejk_dtype dtype, vf x) {
    return dtype == EJK_DTYPE_BF16 ? v_mul(x, v_sigmoid_of(dtype, x)) : v_silu(x);
}

#endif
