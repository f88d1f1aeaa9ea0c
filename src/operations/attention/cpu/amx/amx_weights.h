/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of flash attention on AMX from raw products, made beside the products of the next chunk. Where scores
 * are more than a multiple of a product, by soft cap or bias, a form says how; whoever checks that nothing leaves
 * what a form takes is told by amx_fits().
 */
#ifndef EJKI_FLASH_AMX_WEIGHTS_H
#define EJKI_FLASH_AMX_WEIGHTS_H

#include "operations/attention/cpu/amx/amx_tiles.h"

#include "kernels/simd/vec_math.h"

#include "operations/attention/shared/scores_body.h"

/* Scores to base 2, and softmax shifts, within this let weights be computed by amx_row_weights(). */
#define AMX_FAST_RANGE 16384.0f

#define AMX_BIAS_PREFETCH_DISTANCE 4 /* chunks whose bias is prefetched before it is needed */

/*
 * 2^y as bf16 by integers: AMX leaves one floating-point instruction a cycle to the vectors, but two of
 * integers. One fused operation puts round(128 · (y + 127)) into the low bits of a float near 1.5 · 2^23:
 * the bits of a bf16 whose mantissa f stands for 2^(f/128), where it should be 1 + f/128. A table of the
 * differences corrects that. What is too small becomes 0 by saturation.
 */
typedef __m512i amx_exp; /* f − 128 · (2^(f/128) − 1) for pairs of f, to the nearest */

#define AMX_MAGIC      12582912.0f
#define AMX_MAGIC_BITS 0x4B400000

static inline amx_exp amx_exp_table(void) {
    static const uint8_t table[64] = {
        0,  1,  1,  2,  2,  3,  4,  4,  5,  5,  5,  6,  6,  7,  7,  8,  8,  8,  9,  9,  9,  9,
        10, 10, 10, 10, 10, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 10, 10, 10,
        10, 10, 9,  9,  9,  8,  8,  8,  7,  7,  6,  6,  5,  5,  4,  3,  3,  2,  1,  1,
    };
    return _mm512_loadu_si512(table);
}

/* Bits of a bf16, whose mantissa is f, to those of the weight. */
AMX_INLINE __m512i amx_correct(const amx_exp *e, __m512i w) {
    const __m512i place = _mm512_srli_epi16(w, 1);
    return _mm512_sub_epi16(w, _mm512_maskz_permutexvar_epi8(0x5555555555555555u, place, *e));
}

/* From floats near AMX_MAGIC to weights. */
AMX_INLINE __m512i amx_bits(const amx_exp *e, __m512i a, __m512i b) {
    const __m512i magic = _mm512_set1_epi32(AMX_MAGIC_BITS);
    const __m512i w = _mm512_packus_epi32(_mm512_sub_epi32(a, magic), _mm512_sub_epi32(b, magic));
    return amx_correct(e, w);
}

/* 32 weights of scores that are -inf or in range: see amx_is_in_range(). */
AMX_INLINE __m512i amx_row_weights(const amx_exp *e, const float *scores, __m512 factor,
                                   float base) {
    const __m512 offset = _mm512_set1_ps(base);
    const __m512 a = _mm512_fmadd_ps(_mm512_load_ps(scores), factor, offset);
    const __m512 b = _mm512_fmadd_ps(_mm512_load_ps(scores + 16), factor, offset);
    return amx_bits(e, _mm512_castps_si512(a), _mm512_castps_si512(b));
}

/* ---- Forms ------------------------------------------------------------------------------------------ */

/*
 * Scores to base 2 times `steps`, which are 128 here and more in the gradients, by raw products a: without a
 * soft cap near[0] · a; with one cap · tanh(scale · a) as a · (near[0] + near[1]·a²), which is within 6.4e-5
 * of it, relatively, as long as a² ≤ nearest; by four such terms, within 1.1e-5, as long as a² ≤ most; else
 * by v_tanh(). Behind it the bias is added. Nothing is rounded to whole numbers before the sum.
 */
typedef struct amx_form {
    bool caps, biased;
    float near[2], nearest;
    float series[4], most;
    float derivative
        [2]; /* 1 - tanh² of near ones as derivative[0] + derivative[1]·a², within 3.2e-4 */
    float scale, cap, bias; /* of tanh's arguments, of its results, of biases */
} amx_form;

/* Arguments of tanh within these take two and four terms. */
#define AMX_NEAREST  0.25
#define AMX_NEAR     0.75
#define AMX_MOST_CAP 128.0 /* from here on they are not exact enough beside bf16 */

/* False if there is no form for these numbers. */
static inline bool amx_form_of(double scale, double soft_cap, bool biased, double steps,
                               amx_form *f) {
    static const double series[4] = {0.99998898, -0.33269671, 0.12742697, -0.03545279};
    static const double near[2] = {0.99993665, -0.32518501},
                        derivative[2] = {0.9996815, -0.95945673};
    steps *= LOG2_E;
    *f = (amx_form){.caps = soft_cap != 0, .biased = biased, .bias = (float)steps};
    f->near[0] = (float)(scale * steps);
    if (!f->caps) return fabs(scale) <= 0x1p60;
    const double argument = scale / soft_cap, square = argument * argument;
    if (!(soft_cap <= AMX_MOST_CAP && fabs(argument) >= 0x1p-13 && fabs(argument) <= 0x1p7))
        return false;
    double power = scale * steps;
    for (int i = 0; i < 2; i++) f->near[i] = (float)(near[i] * power * (i ? square : 1));
    for (int i = 0; i < 4; i++, power *= square) f->series[i] = (float)(series[i] * power);
    for (int i = 0; i < 2; i++) f->derivative[i] = (float)(derivative[i] * (i ? square : 1));
    f->nearest = (float)(AMX_NEAREST * AMX_NEAREST / square);
    f->most = (float)(AMX_NEAR * AMX_NEAR / square);
    f->scale = (float)argument;
    f->cap = (float)(soft_cap * steps);
    return true;
}

/* Which squares of raw products two terms do not take, NaN among them. */
AMX_INLINE __mmask16 amx_not_nearest(const amx_form *f, vf square) {
    return _mm512_cmp_ps_mask(square, v_set1(f->nearest), _CMP_NLE_UQ);
}

/* What raw products with a cap are multiplied by, from their squares: only near ones if not `degree_4`. */
AMX_INLINE vf amx_cap_factor(const bool degree_4, const amx_form *f, vf square) {
    const vf near = v_fma(square, v_set1(f->near[1]), v_set1(f->near[0]));
    if (!degree_4) return near;
    vf s = v_fma(v_set1(f->series[3]), square, v_set1(f->series[2]));
    s = v_fma(s, square, v_set1(f->series[1]));
    s = v_fma(s, square, v_set1(f->series[0]));
    return _mm512_mask_mov_ps(near, amx_not_nearest(f, square), s);
}

/* 16 numbers or scores, -inf where the bias is: that hides a key whatever its product is, even NaN. */
AMX_INLINE vf amx_bias_hides(vf bias, vf numbers) {
    const vf none = v_set1(-INFINITY);
    return _mm512_mask_mov_ps(numbers, _mm512_cmp_ps_mask(bias, none, _CMP_EQ_OQ), none);
}

/* amx_number() of what no bias hides. */
AMX_INLINE vf amx_masked_number(const amx_form *f, vf a, vf bias, vf base, float factor) {
    const vf own = v_mul(a, v_set1(factor));
    if (f->biased) base = v_fma(bias, v_set1(f->bias * factor), base);
    if (!f->caps) return v_fma(own, v_set1(f->near[0]), base);
    const vf square = v_mul(a, a);
    if (amx_not_nearest(f, square) == 0) return v_fma(own, amx_cap_factor(false, f, square), base);
    const vf near = v_fma(own, amx_cap_factor(true, f, square), base);
    const __mmask16 far = _mm512_cmp_ps_mask(square, v_set1(f->most), _CMP_NLE_UQ);
    if (far == 0) return near;
    const vf tanh = v_tanh(v_mul(a, v_set1(f->scale)));
    return _mm512_mask_mov_ps(near, far, v_fma(tanh, v_set1(f->cap * factor), base));
}

/* Numbers of 16 raw products and bias, whatever they are, the latter looked at only if there is one; plus `base`. A
 * `factor` of 1 / 128 gives scores, which are finite where numbers would not be. */
AMX_INLINE vf amx_number(const amx_form *f, vf a, vf bias, vf base, float factor) {
    const vf number = amx_masked_number(f, a, bias, base, factor);
    return f->biased ? amx_bias_hides(bias, number) : number;
}

/* 32 elements in bf16 as floats: the first 16, and the others. */
AMX_INLINE vf amx_wide_low(__m512i bits) {
    const __m512i order = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7,
                                           0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, order, bits));
}
AMX_INLINE vf amx_wide_high(__m512i bits) {
    const __m512i order = _mm512_set_epi16(31, 0, 30, 0, 29, 0, 28, 0, 27, 0, 26, 0, 25, 0, 24, 0,
                                           23, 0, 22, 0, 21, 0, 20, 0, 19, 0, 18, 0, 17, 0, 16, 0);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, order, bits));
}

/* ---- Beside products -------------------------------------------------------------------------------- */

/* What both scores and weights of a chunk need. */
typedef struct amx_pair {
    const uint16_t *query, *key; /* of the scores that come next */
    float *scores;               /* of the weights, [32][32], and where those that come next go */
    const float *base;           /* [32]; what is added to numbers, for a form amx_form_base() */
    uint16_t *weights;           /* where they go */
    __m512 factor;
    const amx_form *form;
    const char *const *bias; /* [32]; rows of the bias, the first key's element `skip` bytes on */
    int64_t skip;
    const char *const *ahead; /* [32]; rows of the bias to prefetch, `ahead_skip` bytes on */
    int64_t ahead_skip;
    const uint32_t *visible; /* NULL, or [32]: keys that rows see, a bit each */
    __mmask32 inside;        /* keys that exist */
    bool degree_4;           /* cap by a polynomial of degree 4 */
} amx_pair;

/*
 * The lanes in which weights, squares of raw products, and biases have been what the fast path takes, from the first to
 * the last: bits that are set. Comparisons run beside multiplications, whose port maxima would need; without a form,
 * where that has room, the larger weights are kept in `top`.
 */
typedef struct amx_fit {
    __mmask32 weight, bias;
    __mmask16 square;
    __m512i top;
} amx_fit;

static inline amx_fit amx_fit_all(void) {
    return (amx_fit){0xffffffffu, 0xffffffffu, 0xffff, _mm512_setzero_si512()};
}

/* Weights are below `most`, as bits. */
static inline bool amx_fits(const amx_fit *t, int most) {
    const __mmask32 top = _mm512_cmplt_epu16_mask(t->top, _mm512_set1_epi16((short)most));
    return (t->weight & t->bias & top) == 0xffffffffu && t->square == 0xffff;
}

/* A weight from here on raises its row's shift: 2^40. */
#define AMX_MOST_WEIGHT 0x1p40f
#define AMX_MOST_BITS   ((127 + 40) << 7)
#define AMX_MOST_BIAS   0x4500 /* 2048 */

static inline bool amx_overflows(__m512i weights) {
    return _mm512_cmpge_epu16_mask(weights, _mm512_set1_epi16((short)AMX_MOST_BITS)) != 0;
}

/* Notes weights, whose lanes fit if they are below `most`. */
AMX_INLINE void amx_fit_weights(const bool plain, amx_fit *fit, __m512i weights, int most) {
    const __m512i limit = _mm512_set1_epi16((short)most);
    if (plain)
        fit->top = _mm512_max_epu16(fit->top, weights);
    else
        fit->weight = _mm512_mask_cmplt_epu16_mask(fit->weight, weights, limit);
}

/* Leaves the lanes whose biases are numbers below AMX_MOST_BIAS. */
AMX_INLINE __mmask32 amx_fit_bias(__mmask32 fit, __m512i bias) {
    const __m512i lowest = _mm512_set1_epi16((short)0xff80);
    fit = _mm512_mask_cmplt_epi16_mask(fit, bias, _mm512_set1_epi16(AMX_MOST_BIAS));
    return _mm512_mask_cmple_epu16_mask(fit, bias, lowest);
}

/* Those of squares that two terms of a cap take, or four. */
AMX_INLINE __mmask16 amx_fit_square(const bool degree_4, const amx_form *f, __mmask16 fit,
                                    vf square) {
    const vf most = v_set1(degree_4 ? f->most : f->nearest);
    return _mm512_mask_cmp_ps_mask(fit, square, most, _CMP_LE_OQ);
}

/* How weights are made: as amx_row_weights() does, or by a form, whose cap may be of degree 4. Constants, for loops. */
enum { AMX_PLAIN, AMX_CAPS, AMX_BIASED, AMX_BOTH, AMX_DEGREE_4 };

/* Numbers of 16 scores in a form. */
AMX_INLINE __m512i amx_whole_numbers(const int kind, const amx_form *f, const float *scores,
                                     vf base, amx_fit *fit) {
    const vf a = _mm512_load_ps(scores), square = v_mul(a, a);
    if (!(kind & AMX_CAPS)) return _mm512_cvtps_epi32(v_fma(a, v_set1(f->near[0]), base));
    fit->square = amx_fit_square(kind & AMX_DEGREE_4, f, fit->square, square);
    return _mm512_cvtps_epi32(v_fma(a, amx_cap_factor(kind & AMX_DEGREE_4, f, square), base));
}

/* 32 weights in a form. What it does not take shows in `fit`, and only there. */
AMX_INLINE __m512i amx_form_weights(const int kind, const amx_pair *t, const amx_form *f,
                                    const amx_exp *e, int row, amx_fit *fit) {
    const float *scores = t->scores + row * AMX_CHUNK;
    vf low = v_set1(t->base[row]), high = low;
    if (kind & AMX_BIASED) {
        const vf step = v_set1(f->bias);
        const __m512i bits = _mm512_maskz_loadu_epi16(t->inside, t->bias[row] + t->skip);
        amx_prefetch_far(t->ahead[row] + t->ahead_skip);
        fit->bias = amx_fit_bias(fit->bias, bits);
        low = v_fma(amx_wide_low(bits), step, low);
        high = v_fma(amx_wide_high(bits), step, high);
    }
    const __m512i a = amx_whole_numbers(kind, f, scores, low, fit);
    const __m512i b = amx_whole_numbers(kind, f, scores + 16, high, fit);
    return amx_correct(e, _mm512_packus_epi32(a, b));
}

/* Keys as bits in the order of weights. */
AMX_INLINE __mmask32 amx_in_order(uint32_t keys) {
    return _pdep_u32(keys, 0x0f0f0f0fu) | _pdep_u32(keys >> 16, 0xf0f0f0f0u);
}

/* Weights of the rows [from, to), at an edge only of the keys that rows see. */
AMX_INLINE void amx_some_weights(const int kind, const bool edge, const amx_pair *t,
                                 const amx_form *f, const amx_exp *e, int from, int to,
                                 amx_fit *fit) {
    AMX_UNROLL for (int i = from; i < to; i++) {
        __m512i w = kind == AMX_PLAIN
                        ? amx_row_weights(e, t->scores + i * AMX_CHUNK, t->factor, t->base[i])
                        : amx_form_weights(kind, t, f, e, i, fit);
        if (edge) {
            if (!t->visible) __builtin_unreachable();
            w = _mm512_maskz_mov_epi16(amx_in_order(t->visible[i]), w);
        }
        _mm512_store_si512(t->weights + i * AMX_CHUNK, w);
        amx_fit_weights(kind == AMX_PLAIN, fit, w, AMX_MOST_BITS);
    }
}

/* Scores of a chunk, and meanwhile weights from the scores of the one before. `steps`, `kind` and `edge` are
 * constants. */
AMX_INLINE amx_fit amx_both(const int steps, const int kind, const bool edge, const amx_pair *pair,
                            const amx_exp *table) {
    /* Copies of what the loop only reads: what is stored could else have changed it. */
    const amx_pair copy = *pair, *t = &copy;
    const amx_exp own = *table, *e = &own;
    const amx_form form = kind == AMX_PLAIN ? (amx_form){.caps = false} : *t->form, *f = &form;
    const uint16_t *query = t->query, *key = t->key;
    amx_fit fit = amx_fit_all();
    AMX_BARRIER();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    AMX_UNROLL for (int s = 0; s < steps; s++) {
        _tile_loadd(4, key + s * AMX_ELEMENT, 64);
        _tile_loadd(6, query + s * AMX_ELEMENT, 64);
        _tile_dpbf16ps(0, 6, 4);
        amx_some_weights(kind, edge, t, f, e, 32 * s / steps, (32 * s + 8) / steps, &fit);
        _tile_loadd(7, query + (steps + s) * AMX_ELEMENT, 64);
        _tile_dpbf16ps(1, 7, 4);
        amx_some_weights(kind, edge, t, f, e, (32 * s + 8) / steps, (32 * s + 16) / steps, &fit);
        _tile_loadd(5, key + (steps + s) * AMX_ELEMENT, 64);
        _tile_dpbf16ps(2, 6, 5);
        amx_some_weights(kind, edge, t, f, e, (32 * s + 16) / steps, (32 * s + 24) / steps, &fit);
        _tile_dpbf16ps(3, 7, 5);
        amx_some_weights(kind, edge, t, f, e, (32 * s + 24) / steps, (32 * s + 32) / steps, &fit);
    }
    amx_store_scores(t->scores);
    return fit;
}

/* Weights alone, of the keys that rows see. */
AMX_INLINE amx_fit amx_some_masked(const int kind, const amx_pair *pair, const amx_exp *table) {
    const amx_pair copy = *pair, *t = &copy;
    const amx_exp own = *table, *e = &own;
    const amx_form form = kind == AMX_PLAIN ? (amx_form){.caps = false} : *t->form, *f = &form;
    amx_fit fit = amx_fit_all();
    for (int i = 0; i < AMX_ROWS; i++) {
        const __mmask32 visible = t->visible ? amx_in_order(t->visible[i]) : 0xffffffffu;
        __m512i w = kind == AMX_PLAIN
                        ? amx_row_weights(e, t->scores + i * AMX_CHUNK, t->factor, t->base[i])
                        : amx_form_weights(kind, t, f, e, i, &fit);
        w = _mm512_maskz_mov_epi16(visible, w);
        _mm512_store_si512(t->weights + i * AMX_CHUNK, w);
        amx_fit_weights(kind == AMX_PLAIN, &fit, w, AMX_MOST_BITS);
    }
    return fit;
}

#define AMX_BOTH_OF(name, steps, kind, edge)                                                       \
    static __attribute__((noinline)) amx_fit name(const amx_pair *t, const amx_exp *e) {           \
        return amx_both(steps, kind, edge, t, e);                                                  \
    }
AMX_BOTH_OF(amx_caps_2, 2, AMX_CAPS, false)
AMX_BOTH_OF(amx_biased_2, 2, AMX_BIASED, false)
AMX_BOTH_OF(amx_caps_biased_2, 2, AMX_BOTH, false)
AMX_BOTH_OF(amx_caps_4, 4, AMX_CAPS, false)
AMX_BOTH_OF(amx_biased_4, 4, AMX_BIASED, false)
AMX_BOTH_OF(amx_caps_biased_4, 4, AMX_BOTH, false)
AMX_BOTH_OF(amx_edge_2, 2, AMX_PLAIN, true)
AMX_BOTH_OF(amx_caps_edge_2, 2, AMX_CAPS, true)
AMX_BOTH_OF(amx_biased_edge_2, 2, AMX_BIASED, true)
AMX_BOTH_OF(amx_caps_biased_edge_2, 2, AMX_BOTH, true)
AMX_BOTH_OF(amx_edge_4, 4, AMX_PLAIN, true)
AMX_BOTH_OF(amx_caps_edge_4, 4, AMX_CAPS, true)
AMX_BOTH_OF(amx_biased_edge_4, 4, AMX_BIASED, true)
AMX_BOTH_OF(amx_caps_biased_edge_4, 4, AMX_BOTH, true)

#define AMX_SEEN_OF(name, kind)                                                                    \
    static __attribute__((noinline)) amx_fit name(const amx_pair *t, const amx_exp *e) {           \
        return amx_some_masked(kind, t, e);                                                        \
    }
AMX_SEEN_OF(amx_masked_plain, AMX_PLAIN)
AMX_SEEN_OF(amx_masked_caps, AMX_CAPS)
AMX_SEEN_OF(amx_masked_biased, AMX_BIASED)
AMX_SEEN_OF(amx_masked_caps_biased, AMX_BOTH)
AMX_SEEN_OF(amx_masked_wide, AMX_CAPS | AMX_DEGREE_4)
AMX_SEEN_OF(amx_masked_wide_biased, AMX_BOTH | AMX_DEGREE_4)

static inline int amx_kind(const amx_form *f) {
    return (f->caps ? AMX_CAPS : 0) + (f->biased ? AMX_BIASED : 0);
}

static inline int amx_pair_kind(const amx_pair *t) {
    return amx_kind(t->form) + (t->degree_4 ? AMX_DEGREE_4 : 0);
}

/* Weights of a chunk. */
static inline amx_fit amx_alone(const amx_pair *t, const amx_exp *e) {
    switch (amx_pair_kind(t)) {
    case AMX_PLAIN:
        if (t->visible) return amx_masked_plain(t, e);
        amx_fit fit = amx_fit_all();
        amx_some_weights(AMX_PLAIN, false, t, t->form, e, 0, AMX_ROWS, &fit);
        return fit;
    case AMX_CAPS: return amx_masked_caps(t, e);
    case AMX_BIASED: return amx_masked_biased(t, e);
    case AMX_BOTH: return amx_masked_caps_biased(t, e);
    case AMX_CAPS | AMX_DEGREE_4: return amx_masked_wide(t, e);
    default: return amx_masked_wide_biased(t, e);
    }
}

/* Weights of a chunk and scores of the next one. */
static inline amx_fit amx_next(int64_t steps, const amx_pair *t, const amx_exp *e) {
    enum { EDGE = 64 };
    const int kind = amx_pair_kind(t);
    switch (8 * steps + kind + (t->visible ? EDGE : 0)) {
    case 8 * 1 + AMX_PLAIN: return amx_both(1, AMX_PLAIN, false, t, e);
    case 8 * 2 + AMX_PLAIN: return amx_both(2, AMX_PLAIN, false, t, e);
    case 8 * 3 + AMX_PLAIN: return amx_both(3, AMX_PLAIN, false, t, e);
    case 8 * 4 + AMX_PLAIN: return amx_both(4, AMX_PLAIN, false, t, e);
    case 8 * 2 + AMX_CAPS: return amx_caps_2(t, e);
    case 8 * 2 + AMX_BIASED: return amx_biased_2(t, e);
    case 8 * 2 + AMX_BOTH: return amx_caps_biased_2(t, e);
    case 8 * 4 + AMX_CAPS: return amx_caps_4(t, e);
    case 8 * 4 + AMX_BIASED: return amx_biased_4(t, e);
    case 8 * 4 + AMX_BOTH: return amx_caps_biased_4(t, e);
    case EDGE + 8 * 2 + AMX_PLAIN: return amx_edge_2(t, e);
    case EDGE + 8 * 2 + AMX_CAPS: return amx_caps_edge_2(t, e);
    case EDGE + 8 * 2 + AMX_BIASED: return amx_biased_edge_2(t, e);
    case EDGE + 8 * 2 + AMX_BOTH: return amx_caps_biased_edge_2(t, e);
    case EDGE + 8 * 4 + AMX_PLAIN: return amx_edge_4(t, e);
    case EDGE + 8 * 4 + AMX_CAPS: return amx_caps_edge_4(t, e);
    case EDGE + 8 * 4 + AMX_BIASED: return amx_biased_edge_4(t, e);
    case EDGE + 8 * 4 + AMX_BOTH: return amx_caps_biased_edge_4(t, e);
    default: break;
    }
    const amx_fit fit = amx_alone(t, e);
    amx_scores(steps, t->query, t->key, t->scores);
    return fit;
}

#endif
