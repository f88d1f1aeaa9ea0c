/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights and dS of a score tile where scores have a soft cap or a bias: amx_weights.h has the forms. d_bias is
 * weights ∘ (products − δ); dS is that times 1 − tanh² of the soft cap.
 */
#ifndef EJKI_AMX_VJP_FORMS_H
#define EJKI_AMX_VJP_FORMS_H

#include "operations/attention/cpu/amx_backward/amx_vjp_dscores.h"

/* Scores of 16 rows: their numbers near AMX_MAGIC, and the derivative that dS is multiplied by. */
typedef struct amx_vjp_score {
    __m512i number;
    vf derivative;
} amx_vjp_score;

/* `bias` holds floats, and is ignored without one; `fit` loses lanes whose a² is out of the polynomial's range. */
AMX_INLINE amx_vjp_score amx_vjp_score_of(const int kind, const amx_form *f, const float *scores,
                                          __m512i bias, vf base, amx_fit *fit) {
    const vf a = _mm512_load_ps(scores);
    amx_vjp_score score = {.derivative = v_set1(1)};
    if (kind & AMX_BIASED) base = v_fma(_mm512_castsi512_ps(bias), v_set1(f->bias), base);
    if (kind & AMX_CAPS) {
        const vf own = v_mul(a, a), factor = amx_cap_factor(kind & AMX_DEGREE_4, f, own);
        fit->square = amx_fit_square(kind & AMX_DEGREE_4, f, fit->square, own);
        score.derivative = v_fma(own, v_set1(f->derivative[1]), v_set1(f->derivative[0]));
        if (kind & AMX_DEGREE_4) {
            const vf tanh = v_mul(v_mul(a, factor), v_set1(1 / f->cap));
            score.derivative = _mm512_mask_mov_ps(score.derivative, amx_not_nearest(f, own),
                                                  _mm512_fnmadd_ps(tanh, tanh, v_set1(1)));
        }
        base = v_fma(a, factor, base);
    } else {
        base = v_fma(a, v_set1(f->near[0]), base);
    }
    score.number = _mm512_castps_si512(base);
    /* Masks made of biases are far below 2^23, which would be wrong as an integer. */
    if (kind & AMX_BIASED)
        score.number = _mm512_max_epi32(score.number, _mm512_set1_epi32(AMX_MAGIC_BITS));
    return score;
}

/* A key's weights and dS: biases as above, of rows 0-15 and 16-31. `sums_bias`: d_bias goes to its sums in f32. */
AMX_INLINE amx_vjp_pair amx_vjp_form_d_score(const int kind, const bool sums_bias,
                                             const amx_vjp_fixed *f, const amx_form *form, int key,
                                             __m512i bias, __m512i second_bias,
                                             amx_vjp_pair *d_bias, amx_fit *fit) {
    const amx_vjp_score_tile *st = &f->tile;
    const float *score = st->scores + key * AMX_ROWS, *product = st->products + key * AMX_ROWS;
    const amx_vjp_score a = amx_vjp_score_of(kind, form, score, bias, f->base, fit);
    const amx_vjp_score b =
        amx_vjp_score_of(kind, form, score + 16, second_bias, f->base_high, fit);
    const __m512i w = _mm512_maskz_mov_epi16(amx_vjp_rows_of(st->visible, key),
                                             amx_vjp_weights(&f->exp, a.number, b.number));
    _mm512_store_si512(st->weights + key / 16 * st->half + key % 16 * 32, w);
    amx_fit_weights(false, fit, w, AMX_VJP_MOST);
    const __m512i half = _mm512_set1_epi32(0x8000);
    const vf even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    const vf odd = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(-65536)));
    const vf x = v_mul(even, v_sub(_mm512_load_ps(product), f->even));
    const vf y = v_mul(odd, v_sub(_mm512_load_ps(product + 16), f->odd));
    if (sums_bias) {
        v_store(st->d_bias_f32 + key * AMX_ROWS, x);
        v_store(st->d_bias_f32 + key * AMX_ROWS + 16, y);
    }
    *d_bias = (amx_vjp_pair){_mm512_add_epi32(_mm512_castps_si512(x), half),
                             _mm512_add_epi32(_mm512_castps_si512(y), half)};
    if (!(kind & AMX_CAPS)) return *d_bias;
    const __m512i order =
        _mm512_set_epi32(30, 28, 14, 12, 26, 24, 10, 8, 22, 20, 6, 4, 18, 16, 2, 0);
    const __m512i next = _mm512_or_si512(order, _mm512_set1_epi32(1));
    const vf p = v_mul(x, _mm512_permutex2var_ps(a.derivative, order, b.derivative));
    const vf q = v_mul(y, _mm512_permutex2var_ps(a.derivative, next, b.derivative));
    return (amx_vjp_pair){_mm512_add_epi32(_mm512_castps_si512(p), half),
                          _mm512_add_epi32(_mm512_castps_si512(q), half)};
}

/* The pairs of keys [from, to). `fit` tells what the form could not take. */
AMX_INLINE void amx_vjp_form_range(const int kind, const bool sums_bias, const amx_vjp_fixed *f,
                                   const amx_form *form, int from, int to, amx_fit *fit) {
    const amx_vjp_score_tile *st = &f->tile;
    const __m512i high = _mm512_set1_epi32(-65536);
    AMX_UNROLL for (int i = from; i < to; i++) {
        __m512i a = _mm512_setzero_si512(), b = a;
        if (kind & AMX_BIASED) {
            a = _mm512_load_si512(st->bias + 16 * i);
            b = _mm512_load_si512(st->bias + 256 + 16 * i);
        }
        amx_vjp_pair d_bias[2], d_scores[2];
        d_scores[0] =
            amx_vjp_form_d_score(kind, sums_bias, f, form, 2 * i, _mm512_slli_epi32(a, 16),
                                 _mm512_slli_epi32(b, 16), &d_bias[0], fit);
        d_scores[1] =
            amx_vjp_form_d_score(kind, sums_bias, f, form, 2 * i + 1, _mm512_and_si512(a, high),
                                 _mm512_and_si512(b, high), &d_bias[1], fit);
        amx_vjp_store_pair(st, i, d_scores[0], d_scores[1]);
        if (st->d_bias_bf16)
            amx_vjp_store_bf16(st->d_bias_bf16, AMX_ELEMENT, i, d_bias[0], d_bias[1]);
    }
}

/* Weights and dS alone. */
#define AMX_VJP_IN_FORM(name, kind, sums_bias)                                                     \
    static __attribute__((noinline)) bool name(const amx_vjp_score_tile *st, const amx_exp *e) {   \
        const amx_vjp_fixed f = amx_vjp_fix(st, e);                                                \
        const amx_form form = *st->form;                                                           \
        amx_fit fit = amx_fit_all();                                                               \
        for (int i = 0; i < AMX_CHUNK / 2; i++)                                                    \
            amx_vjp_form_range(kind, sums_bias, &f, &form, i, i + 1, &fit);                        \
        return amx_fits(&fit, AMX_VJP_MOST);                                                       \
    }
AMX_VJP_IN_FORM(amx_vjp_capped, AMX_CAPS, false)
AMX_VJP_IN_FORM(amx_vjp_biased, AMX_BIASED, false)
AMX_VJP_IN_FORM(amx_vjp_capped_and_biased, AMX_BOTH, false)
AMX_VJP_IN_FORM(amx_vjp_degree_4, AMX_CAPS | AMX_DEGREE_4, false)
AMX_VJP_IN_FORM(amx_vjp_degree_4_and_biased, AMX_BOTH | AMX_DEGREE_4, false)
AMX_VJP_IN_FORM(amx_vjp_biased_sums, AMX_BIASED, true)
AMX_VJP_IN_FORM(amx_vjp_capped_and_biased_sums, AMX_BOTH, true)
AMX_VJP_IN_FORM(amx_vjp_degree_4_and_biased_sums, AMX_BOTH | AMX_DEGREE_4, true)

static inline bool amx_vjp_by_form(const amx_vjp_score_tile *st, bool degree_4, const amx_exp *e) {
    const int kind = amx_kind(st->form) + (degree_4 ? AMX_DEGREE_4 : 0);
    if (st->d_bias_f32) switch (kind) { /* then there is a bias */
        case AMX_BIASED: return amx_vjp_biased_sums(st, e);
        case AMX_BOTH: return amx_vjp_capped_and_biased_sums(st, e);
        default: return amx_vjp_degree_4_and_biased_sums(st, e);
        }
    switch (kind) {
    case AMX_CAPS: return amx_vjp_capped(st, e);
    case AMX_BIASED: return amx_vjp_biased(st, e);
    case AMX_BOTH: return amx_vjp_capped_and_biased(st, e);
    case AMX_CAPS | AMX_DEGREE_4: return amx_vjp_degree_4(st, e);
    default: return amx_vjp_degree_4_and_biased(st, e);
    }
}

#endif
