/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of scores in flash attention on AMX: softmax shifts, weights of the slow path, the end of a row. The
 * counterpart of scores_body.h for bf16 and chunks of 32 keys.
 */
#ifndef EJKI_FLASH_AMX_ROWS_H
#define EJKI_FLASH_AMX_ROWS_H

#include "kernels/simd/vec_avx512.h"
#include "kernels/simd/vec_math.h"

#include "operations/attention/cpu/amx/amx_weights.h"
#include "operations/attention/shared/scores_body.h"

/* Elements of bf16 tensors begin anywhere. */
static inline char *amx_address(const void *data, int64_t element) {
    return (char *)((uintptr_t)data + (uintptr_t)element * sizeof(uint16_t));
}

/* Where a row lies in a tensor of queries or of their results, if that is bf16. */
static inline char *amx_row_address(const ejki_bthd *tensor, const flash_row *r) {
    return amx_address(tensor->data, r->batch * tensor->stride_b + r->query * tensor->stride_t +
                                         r->head * tensor->stride_h);
}

static inline double amx_element(const void *data, int64_t element) {
    uint16_t bits;
    memcpy(&bits, amx_address(data, element), sizeof bits);
    return (double)ejk_bf16_to_f32(bits);
}

static inline vf amx_widen(const void *data, int64_t count) {
    const __m256i bits = _mm256_maskz_loadu_epi16(count >= 16  ? 0xffff
                                                  : count <= 0 ? 0
                                                               : v_first(count),
                                                  data);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* To the nearest, ties to even. The instruction for it would make 0 of subnormal numbers. */
static inline __m256i amx_narrow(vf v) {
    const __m512i bits = _mm512_castps_si512(v), one = _mm512_set1_epi32(1);
    const __m512i unfit = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), unfit);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(sum, nan, quiet), 16));
}

/* Two vectors at once, by that instruction unless one of them has subnormal numbers. */
static inline __m512i amx_narrow_both(vf a, vf b) {
    if (_mm512_kortestz(amx_small(a), amx_small(b))) return (__m512i)_mm512_cvtne2ps_pbh(b, a);
    return _mm512_inserti64x4(_mm512_castsi256_si512(amx_narrow(a)), amx_narrow(b), 1);
}

/* Stores the first `count` of two vectors' elements, at least one and as many as there are. */
static inline void amx_write_both(char *target, vf a, vf b, int64_t count) {
    const __m512i bits = amx_narrow_both(a, b);
    if (count >= 2 * VL)
        _mm512_storeu_si512(target, bits);
    else
        _mm512_mask_storeu_epi16(target, (1u << count) - 1, bits);
}

/*
 * Rounds a softmax shift: to 1/128 where it is in range, so that 128 · shift is whole, else to a whole number; so
 * differences between shifts of a row are whole, or so large that 2^difference is 0.
 */
static inline float amx_round_shift(float shift) {
    return fabsf(shift) <= AMX_FAST_RANGE ? rintf(shift * 128) / 128 : rintf(shift);
}

static inline bool amx_is_far(float shift) {
    return fabsf(shift) > AMX_FAST_RANGE && shift != -INFINITY;
}

/* What amx_row_weights() adds: with it a score of -inf has no weight, and without a shift none has. */
static inline float amx_base(float shift) {
    return fabsf(shift) <= AMX_FAST_RANGE ? AMX_MAGIC + 128 * (127 - shift) : AMX_MAGIC;
}

/* The same for a form. */
static inline float amx_form_base(float shift) {
    return fabsf(shift) <= AMX_FAST_RANGE ? 128 * (127 - shift) : -INFINITY;
}

/* 32 floats to bf16 in the order of tiles. */
static inline __m512i amx_round(vf a, vf b) {
    const __m512i order =
        _mm512_set_epi16(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9, 8, 23, 22, 21,
                         20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

static inline vf amx_lost(vf v) {
    const __m512i bits = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(v));
    return v_sub(v, _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)));
}

/* Weights rounded to bf16 from f32, and, if `rest` is not NULL, what that lost; *lanes += weights. */
static inline __m512i amx_precise_weights(const float *scores, float scale, float shift, vf *lanes,
                                          uint16_t *rest) {
    const vf factor = v_set1(scale), base = v_set1(shift == -INFINITY ? 0 : shift);
    const vf a = v_exp2(v_fms(v_load(scores), factor, base));
    const vf b = v_exp2(v_fms(v_load(scores + VL), factor, base));
    *lanes = v_add(*lanes, v_add(a, b));
    if (rest) _mm512_store_si512(rest, amx_round(amx_lost(a), amx_lost(b)));
    return amx_round(a, b);
}

/* Weights of two vectors of numbers, NaN where these are. */
static inline __m512i amx_mark_nan(__m512i w, vf x, vf y) {
    const __mmask16 nan_x = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __mmask16 nan_y = _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q);
    if (_mm512_kortestz(nan_x, nan_y)) return w;
    const __m512i of_x = _mm512_movm_epi32(nan_x), of_y = _mm512_movm_epi32(nan_y);
    return _mm512_mask_mov_epi16(w, _mm512_movepi16_mask(_mm512_packs_epi32(of_x, of_y)),
                                 _mm512_set1_epi16(0x7fc0));
}

/* The weights of amx_row_weights() for any scores and shift, NaN and far values included. */
static inline __m512i amx_any_weights(const amx_exp *e, const float *scores, float scale,
                                      float shift) {
    const vf a = v_load(scores), b = v_load(scores + VL);
    const __m512i least = _mm512_set1_epi32(AMX_MAGIC_BITS);
    vf x, y;
    if (amx_is_far(shift) || shift != shift) {
        const vf factor = v_set1(scale), base = v_set1(shift);
        const vf offset = v_set1(AMX_MAGIC + 128 * 127), steps = v_set1(128);
        x = v_fma(v_fms(a, factor, base), steps, offset);
        y = v_fma(v_fms(b, factor, base), steps, offset);
    } else {
        const vf factor = v_set1(scale * 128), base = v_set1(amx_base(shift));
        x = v_fma(a, factor, base);
        y = v_fma(b, factor, base);
    }
    const __m512i w = amx_bits(e, _mm512_max_epi32(_mm512_castps_si512(x), least),
                               _mm512_max_epi32(_mm512_castps_si512(y), least));
    return amx_mark_nan(w, x, y);
}

/* The weights of amx_form_weights() for any scores, shift and bias (32 elements in bf16). */
static inline __m512i amx_any_form_weights(const amx_form *f, const amx_exp *e, const float *scores,
                                           __m512i bias, float shift) {
    const bool far = !(fabsf(shift) <= AMX_FAST_RANGE) && shift != -INFINITY;
    const vf base = v_set1(far ? 0 : amx_form_base(shift)), most = v_set1(65535);
    const float unit = far ? 1 / 128.0f : 1;
    vf x = amx_number(f, v_load(scores), amx_wide_low(bias), base, unit);
    vf y = amx_number(f, v_load(scores + VL), amx_wide_high(bias), base, unit);
    if (far) {
        const vf own = v_set1(shift), steps = v_set1(128), offset = v_set1(128 * 127);
        x = v_fma(v_sub(x, own), steps, offset);
        y = v_fma(v_sub(y, own), steps, offset);
    }
    /* A clamp: conversion of what is too large would give a negative integer. */
    const __m512i a = _mm512_cvtps_epi32(v_min(x, most)), b = _mm512_cvtps_epi32(v_min(y, most));
    return amx_mark_nan(amx_correct(e, _mm512_packus_epi32(a, b)), x, y);
}

/* The sum of 32 weights in bf16, by lanes. */
static inline vf amx_sum_weights(const uint16_t *weights) {
    return v_add(amx_widen(weights, VL), amx_widen(weights + VL, VL));
}

/* Clears those of a row's 32 weights that dropout does not keep, as bits by `kept`. */
static inline void amx_clear_weights(uint16_t *weights, __m512i kept) {
    _mm512_store_si512(weights, _mm512_and_si512(_mm512_load_si512(weights), kept));
}

/* Which weights of the 32 keys from `key` on dropout keeps, in the order of tiles. */
static inline __m512i amx_kept(const ejki_flash_problem *p, const flash_row *r, int64_t key) {
    float keep[AMX_CHUNK];
    const __m512i all = _mm512_set1_epi32(-1);
    _mm512_storeu_si512(keep, all);
    _mm512_storeu_si512(keep + VL, all);
    flash_drop(p, r, key, AMX_CHUNK, keep);
    return _mm512_packs_epi32(_mm512_loadu_si512(keep), _mm512_loadu_si512(keep + VL));
}

/* 32 weights times 2^-power, `power` above 0; NaN stays. What is too small becomes 0. */
static inline void amx_lower_weights(uint16_t *weights, float power) {
    const __m512i w = _mm512_load_si512(weights), magnitude = _mm512_set1_epi16(0x7fff);
    const __m512i m = _mm512_and_si512(w, magnitude), sign = _mm512_andnot_si512(magnitude, w);
    const int bits = power < 256 ? (int)power << 7 : 0x7fff;
    const __mmask32 nan = _mm512_cmpgt_epu16_mask(m, _mm512_set1_epi16(0x7f80));
    const __m512i lower = _mm512_subs_epu16(m, _mm512_set1_epi16((short)bits));
    _mm512_store_si512(weights, _mm512_mask_mov_epi16(_mm512_or_si512(lower, sign), nan, w));
}

/* ---- The end of a row -------------------------------------------------------------------------------- */

static inline double amx_sink(const ejki_flash_problem *p, const flash_row *r, int64_t n) {
    return amx_element(p->sinks, r->head / p->sink_group * p->sink_stride_h + n);
}

/*
 * Factor and log-sum-exp of a row. `own` is Σ 2^(z − shift) over visible keys, `rounded` the sum of the weights as
 * they were rounded.
 */
static inline flash_end amx_finish(const ejki_flash_problem *p, const flash_row *r, float shift,
                                   float own, float rounded) {
    const bool empty = own == 0;
    const double mine = empty ? -INFINITY : shift * flash_correction(p);
    double top = mine, total = 0;
    for (int64_t n = 0; n < p->sink_count; n++) top = fmax(top, amx_sink(p, r, n) * LOG2_E);
    if (top == -INFINITY && empty) return (flash_end){.factor = 0, .lse = -INFINITY};
    for (int64_t n = 0; n < p->sink_count; n++) total += exp2(amx_sink(p, r, n) * LOG2_E - top);
    const double weight = empty ? 0 : mine == top ? own : exp2(mine - top) * own;
    total += weight;
    return (flash_end){.factor = empty ? 0 : (float)(weight / total / rounded),
                       .lse = (float)((top + log2(total)) * LN_2)};
}

/*
 * Writes a finished row. `share` is the factor of its sums if that is known, else negative. `sums` has 16 columns
 * at each `step`; `maximum` is the largest visible base-2 score and is read only without normalisation.
 */
static inline void amx_write_row(const ejki_flash_problem *p, const flash_row *r, const float *sums,
                                 int64_t step, float shift, float maximum, float own, float rounded,
                                 float share) {
    flash_end end = {.factor = own == 0 ? 0 : 1 / rounded};
    if (share >= 0)
        end.factor = share;
    else if (p->has_sinks || p->lse.data)
        end = amx_finish(p, r, shift, own, rounded);
    if (p->lse.data) *flash_at(&p->lse, r) = end.lse;
    if (!p->normalize) {
        float rounding;
        const float row_max = flash_row_max(maximum * flash_correction(p), &rounding);
        const float sum = own == 0 ? 0 : own == own ? own * exp2f(shift - maximum) * rounding : NAN;
        end.factor = own == 0 ? 0 : sum / rounded;
        if (p->row_max.data) *flash_at(&p->row_max, r) = row_max;
        if (p->row_sum.data) *flash_at(&p->row_sum, r) = sum;
    }
    if (p->dropout > 0) end.factor *= (float)ejki_dropout_factor(p->dropout);
    const int64_t at =
        r->batch * p->out.stride_b + r->query * p->out.stride_t + r->head * p->out.stride_h;
    const vf factor = v_set1(end.factor);
    /* 0 · inf must not make NaN in a row that saw nothing */
    const __mmask16 some = own == 0 ? 0 : 0xffff;
    for (int64_t d = 0; d < p->value_dim; d += 2 * VL, sums += 2 * step) {
        const vf a = _mm512_maskz_mul_ps(some, v_load(sums), factor);
        const vf b = _mm512_maskz_mul_ps(some, v_load(sums + step), factor);
        const int64_t width = p->value_dim - d;
        if (p->normalize) {
            amx_write_both(amx_address(p->out.data, at + d), a, b, width);
        } else {
            float *out = flash_place(p->out.data, at + d);
            v_store_first(out, a, ejki_min(VL, width));
            v_store_first(out + VL, b, ejki_max(0, ejki_min(VL, width - VL)));
        }
    }
}

#endif
