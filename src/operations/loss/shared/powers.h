/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Powers 2^(scale · x - base) of logits, of which losses need little else: not of their distances to the largest one,
 * which would be rounded first. `base` is a whole number, so that with AVX-512 the rounding to a grid of 1/32, which
 * picks an entry of a table, gives the exponent, too: 9 instructions on ports of 512 bits where v_exp2 takes 12 with
 * its argument. These need integers beside floats, which the words of vec.h do not have.
 */
#ifndef EJKI_LOSS_POWERS_H
#define EJKI_LOSS_POWERS_H

#include "base/base.h"
#include "operations/loss/shared/chunk.h"

#if VL == 16

/* Entry i: the bits of 2^(i/32), without i at the place where the rounded argument has it. */
static const uint32_t power_table[32] = {
    0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3, 0x3f78f4f0,
    0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043, 0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6,
    0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be, 0x3f76248c, 0x3f76a81e,
    0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907, 0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3};

/* Adding this rounds to multiples of 1/32, which are then the last bits: five of a fraction, others of the exponent. */
#define POWER_MAGIC 393216.0f

/* `to` is what is added to scale · x, `least` the smallest x whose power is a normal number. */
typedef struct power_base {
    vf scale, to, least;
    __m512i low, high;
} power_base;

INLINE power_base power_base_of(float scale, float base) {
    return (power_base){v_set1(scale), v_set1(POWER_MAGIC - base), v_set1((base - 126) / scale),
                        _mm512_loadu_si512(power_table), _mm512_loadu_si512(power_table + 16)};
}

/* A power is 1 + f slope times the power of two `whole`: slope c1 + c2 f, for f up to 1/64 (5e-8). */
typedef struct power_parts {
    vf f, slope, whole;
} power_parts;

INLINE power_parts power_parts_of(vf x, const power_base *b) {
    const vf rounded = v_fma(x, b->scale, b->to), f = v_fms(x, b->scale, v_sub(rounded, b->to));
    const __m512i bits = _mm512_castps_si512(rounded);
    const __m512i entry = _mm512_permutex2var_epi32(b->low, bits, b->high);
    return (power_parts){f, v_fma(v_set1(0.2402265f), f, v_set1(0.69315735f)),
                         _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(bits, 18), entry))};
}
INLINE __mmask16 power_is_normal(vf x, const power_base *b) {
    return _mm512_cmp_ps_mask(x, b->least, _CMP_NLT_UQ);
}

/* Within 1.5 ulp; 0 where it is below 2^-126. In sums one rounding more costs an instruction less. */
INLINE vf power_of(vf x, const power_base *b) {
    const power_parts p = power_parts_of(x, b);
    return _mm512_maskz_fmadd_ps(power_is_normal(x, b), v_mul(p.f, p.slope), p.whole, p.whole);
}
INLINE vf add_power(vf sum, vf x, const power_base *b) {
    const power_parts p = power_parts_of(x, b);
    const vf fraction = v_fma(p.f, p.slope, v_set1(1));
    return _mm512_mask3_fmadd_ps(fraction, p.whole, sum, power_is_normal(x, b));
}
/* Of x that is not below `least`. */
INLINE vf power_near(vf x, const power_base *b) {
    const power_parts p = power_parts_of(x, b);
    return v_fma(v_mul(p.f, p.slope), p.whole, p.whole);
}
#else

typedef struct power_base {
    vf scale, from, least;
} power_base;

INLINE power_base power_base_of(float scale, float base) {
    return (power_base){v_set1(scale), v_set1(base), v_set1((base - 126) / scale)};
}
INLINE vf power_of(vf x, const power_base *b) {
    return v_exp2(v_fms(x, b->scale, b->from));
}
INLINE vf add_power(vf sum, vf x, const power_base *b) {
    return v_add(sum, power_of(x, b));
}
INLINE vf power_near(vf x, const power_base *b) {
    return power_of(x, b);
}
#endif

/* Two vectors of a row. With AVX-512 elements of bf16 come apart by their places, which takes one instruction each. */
INLINE void widen_pair(const ejk_dtype dtype, const void *p, vf to[2]) {
#if VL == 16
    if (dtype == EJK_DTYPE_BF16) {
        const __m512i both = _mm512_loadu_si512(p);
        to[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        to[1] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-0x10000)));
        return;
    }
#endif
    to[0] = v_widen(dtype, p);
    to[1] = v_widen(dtype, element_at(dtype, p, VL));
}

/* Two vectors to the place of two, as widen_pair() took them. `streams`: past the caches, to a multiple of 64 bytes. */
#if VL == 16
INLINE __m512i pair_bits_bf16(const vf v[2]) {
    const __m512i odd = _mm512_set1_epi32(0x10000);
    __m512i bits[2];
    for (int k = 0; k < 2; k++) {
        const __m512i own = _mm512_castps_si512(v[k]);
        const __m512i down = _mm512_add_epi32(own, _mm512_set1_epi32(0x7fff));
        bits[k] = _mm512_mask_add_epi32(down, _mm512_test_epi32_mask(own, odd), own,
                                        _mm512_set1_epi32(0x8000));
    }
    if (_mm512_cmp_ps_mask(v[0], v[1], _CMP_UNORD_Q))
        for (int k = 0; k < 2; k++) bits[k] = v_round_bf16(v[k]);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(bits[0], 16), bits[1]);
}
INLINE __m512i pair_bits_f16(const vf v[2]) {
    const __m256i low = _mm512_cvtps_ph(v[0], _MM_FROUND_TO_NEAREST_INT);
    const __m256i high = _mm512_cvtps_ph(v[1], _MM_FROUND_TO_NEAREST_INT);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
INLINE void narrow_pair(const ejk_dtype dtype, void *p, const vf v[2], bool streams) {
    if (dtype == EJK_DTYPE_F32) {
        for (int k = 0; k < 2; k++) {
            float *to = (float *)p + k * VL;
            if (streams)
                v_stream(to, v[k]);
            else
                v_store(to, v[k]);
        }
        return;
    }
    const __m512i bits = dtype == EJK_DTYPE_BF16 ? pair_bits_bf16(v) : pair_bits_f16(v);
    if (streams)
        _mm512_stream_si512(p, bits);
    else
        _mm512_storeu_si512(p, bits);
}
#else
INLINE void narrow_pair(const ejk_dtype dtype, void *p, const vf v[2], bool streams) {
    for (int k = 0; k < 2; k++) {
        void *to = element_at(dtype, p, k * VL);
        if (streams && dtype == EJK_DTYPE_F32)
            v_stream(to, v[k]);
        else
            v_narrow(dtype, to, v[k]);
    }
}
#endif

/*
 * Gradients that are written past the caches begin with so many elements that are not: as many as it takes to a
 * multiple of 64 bytes, or all of them, where elements do not lie at multiples of their size.
 */
INLINE int64_t streamed_from(const ejk_dtype dtype, const void *to, int64_t count) {
    const int64_t size = element_size(dtype), off = (int64_t)((uintptr_t)to % 64);
    if (off % size != 0) return count;
    return off == 0 ? 0 : ejki_min((64 - off) / size, count);
}

/*
 * So many bytes of gradients are worth it. Lines that are written otherwise are read before: of 64 MiB of logits in
 * float32 gradients took 1.3 times as long, of bf16 1.28 (one core of a Xeon of model 167).
 */
enum { STREAMED_BYTES = 32 << 20 };

/* A base of logits whose largest is `most`; 0 where none is finite. */
INLINE float base_of(float scale, float most) {
    const float base = __builtin_rintf(scale * most);
    return base == -__builtin_inff() ? 0 : base;
}

#endif
