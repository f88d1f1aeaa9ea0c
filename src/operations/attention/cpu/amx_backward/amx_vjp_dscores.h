/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights and dS of 32 rows beside a chunk of 32 keys, a score tile, from their two products.
 *
 *     weights = 2^(score − lse)        dS = weights ∘ (products − δ)
 *
 * Weights are made by integers as the forward pass makes them (amx_tiles.h), from eight times finer numbers: a row's
 * lse is not rounded to 1/128 first. dS is made from the weights as they were rounded.
 */
#ifndef EJKI_AMX_VJP_DSCORES_H
#define EJKI_AMX_VJP_DSCORES_H

#include "operations/attention/cpu/amx_backward/amx_vjp_plan.h"
#include "operations/attention/cpu/amx_backward/amx_vjp_tiles.h"

#define AMX_VJP_STEPS 1024 /* numbers for a doubling */
#define AMX_VJP_SHIFT 3    /* bf16 has 128 */
#define AMX_VJP_HALF  4
#define AMX_VJP_FAST_RANGE                                                                         \
    4000.0f /* scores and lse to base 2 within this are computed by the fast path */
#define AMX_VJP_MOST                                                                               \
    0x4000 /* bits of weights of 2 and more, which cannot be a share of a sum: the slow path has to do */

/* What a score's float is before a row's lse counts. */
#define AMX_VJP_BASE (AMX_MAGIC + AMX_VJP_STEPS * 127 + AMX_VJP_HALF)

typedef struct amx_vjp_score_tile {
    const float *scores, *products; /* [32 keys][32 rows]; rows of products in even, odd order */
    const amx_vjp_tile *tile;
    uint16_t *weights, *d_scores;
    int64_t half; /* from the first 16 keys to the others */
    uint16_t *pairs;
    int64_t odd;             /* from even rows to odd ones */
    float scale;             /* of scores to base 2 */
    float *caps;             /* NULL, or [32 keys][32 rows] that dS is multiplied with */
    const uint32_t *visible; /* keys that rows see, a word each; weights' order */
    const uint32_t *kept;    /* NULL, or those that dropout keeps; even rows, odd rows */
    float share;             /* what products of those are multiplied with */
    float *d_bias_f32; /* NULL, or where dS of the bias goes: [32 keys][even rows, odd rows] */
    uint16_t *
        d_bias_bf16; /* NULL, or where these go in bf16, as pairs, odd rows 16 vectors behind even ones */
    const uint32_t
        *bias; /* with a form that has one: [rows 0-15, 16-31][16 pairs of keys][16 rows] */
    const amx_form *form;
} amx_vjp_score_tile;

/* Numbers near AMX_MAGIC, eight times finer than bf16, to weights in their order. */
AMX_INLINE __m512i amx_vjp_weights(const amx_exp *e, __m512i a, __m512i b) {
    const __m512i magic = _mm512_set1_epi32(AMX_MAGIC_BITS);
    const __m512i w =
        _mm512_packus_epi32(_mm512_srai_epi32(_mm512_sub_epi32(a, magic), AMX_VJP_SHIFT),
                            _mm512_srai_epi32(_mm512_sub_epi32(b, magic), AMX_VJP_SHIFT));
    return amx_correct(e, w);
}

/* What all keys of a score tile share, for registers. */
typedef struct amx_vjp_fixed {
    amx_vjp_score_tile tile;
    amx_exp exp;
    __m512 factor, base, base_high, even, odd; /* δ of even and odd rows */
    __m512 share;
} amx_vjp_fixed;

AMX_INLINE amx_vjp_fixed amx_vjp_fix(const amx_vjp_score_tile *st, const amx_exp *e) {
    return (amx_vjp_fixed){*st,
                           *e,
                           _mm512_set1_ps(st->scale * AMX_VJP_STEPS),
                           _mm512_loadu_ps(st->tile->base),
                           _mm512_loadu_ps(st->tile->base + 16),
                           _mm512_loadu_ps(st->tile->delta),
                           _mm512_loadu_ps(st->tile->delta + 16),
                           _mm512_set1_ps(st->share)};
}

/* Which of 16 words have a key's bit. */
AMX_INLINE __mmask16 amx_vjp_bit(const uint32_t *words, int key) {
    return _mm512_test_epi32_mask(_mm512_loadu_si512(words), _mm512_set1_epi32((int)(1u << key)));
}

/* The rows that see a key. */
AMX_INLINE __mmask32 amx_vjp_rows_of(const uint32_t *words, int key) {
    return _mm512_kunpackw(amx_vjp_bit(words + 16, key), amx_vjp_bit(words, key));
}

/* Weights without those of even and odd rows that are not kept. */
AMX_INLINE __m512i amx_vjp_leave(__m512i weights, __mmask16 even, __mmask16 odd) {
    const __m512i high = _mm512_set1_epi32(-65536), low = _mm512_set1_epi32(65535);
    weights = _mm512_mask_and_epi32(weights, _knot_mask16(even), weights, high);
    return _mm512_mask_and_epi32(weights, _knot_mask16(odd), weights, low);
}

/* dS of a key's even and odd rows, with half a bf16 ulp added. */
typedef struct amx_vjp_pair {
    __m512i even, odd;
} amx_vjp_pair;

AMX_INLINE amx_vjp_pair amx_vjp_d_score(const amx_vjp_fixed *f, int key, __m512i weights,
                                        const bool drops, const bool sums_bias) {
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(weights, 16));
    const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(weights, _mm512_set1_epi32(-65536)));
    const float *product = f->tile.products + key * AMX_ROWS;
    __m512 p = _mm512_load_ps(product), q = _mm512_load_ps(product + 16);
    if (drops) {
        const uint32_t *kept = f->tile.kept;
        const __mmask16 a = amx_vjp_bit(kept, key), b = amx_vjp_bit(kept + 16, key);
        p = _mm512_maskz_mul_ps(a, p, f->share);
        q = _mm512_maskz_mul_ps(b, q, f->share);
        _mm512_store_si512(f->tile.weights + key / 16 * f->tile.half + key % 16 * 32,
                           amx_vjp_leave(weights, a, b));
    }
    const __m512 x = _mm512_mul_ps(even, _mm512_sub_ps(p, f->even));
    const __m512 y = _mm512_mul_ps(odd, _mm512_sub_ps(q, f->odd));
    if (sums_bias) {
        _mm512_store_ps(f->tile.d_bias_f32 + key * AMX_ROWS, x);
        _mm512_store_ps(f->tile.d_bias_f32 + key * AMX_ROWS + 16, y);
    }
    const __m512i half = _mm512_set1_epi32(0x8000);
    return (amx_vjp_pair){_mm512_add_epi32(_mm512_castps_si512(x), half),
                          _mm512_add_epi32(_mm512_castps_si512(y), half)};
}

/* Low halves of a, high halves of b. */
AMX_INLINE __m512i amx_vjp_blend(__m512i a, __m512i b) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, a, b);
}

/* Stores dS of the keys 2i and 2i + 1 as pairs of them. */
AMX_INLINE void amx_vjp_store_bf16(uint16_t *target, int64_t odd, int i, amx_vjp_pair a,
                                   amx_vjp_pair b) {
    _mm512_store_si512(target + 32 * i, amx_vjp_blend(_mm512_srli_epi32(a.even, 16), b.even));
    _mm512_store_si512(target + odd + 32 * i, amx_vjp_blend(_mm512_srli_epi32(a.odd, 16), b.odd));
}

/* And in all places. */
AMX_INLINE void amx_vjp_store_pair(const amx_vjp_score_tile *st, int i, amx_vjp_pair a,
                                   amx_vjp_pair b) {
    uint16_t *d_scores = st->d_scores + i / 8 * st->half + i % 8 * 64;
    _mm512_store_si512(d_scores, amx_vjp_blend(_mm512_srli_epi32(a.even, 16), a.odd));
    _mm512_store_si512(d_scores + 32, amx_vjp_blend(_mm512_srli_epi32(b.even, 16), b.odd));
    amx_vjp_store_bf16(st->pairs, st->odd, i, a, b);
}

/* A key's weights; with dropout they are stored later. */
AMX_INLINE __m512i amx_vjp_key_weights(const amx_vjp_fixed *f, int key, const bool edge,
                                       const bool drops) {
    const amx_vjp_score_tile *st = &f->tile;
    const float *score = st->scores + key * AMX_ROWS;
    const __m512 a = _mm512_fmadd_ps(_mm512_load_ps(score), f->factor, f->base);
    const __m512 b = _mm512_fmadd_ps(_mm512_load_ps(score + 16), f->factor, f->base_high);
    __m512i w = amx_vjp_weights(&f->exp, _mm512_castps_si512(a), _mm512_castps_si512(b));
    if (edge) w = _mm512_maskz_mov_epi16(amx_vjp_rows_of(st->visible, key), w);
    if (!drops) _mm512_store_si512(st->weights + key / 16 * st->half + key % 16 * 32, w);
    return w;
}

/* The pairs of keys [from, to). */
AMX_INLINE void amx_vjp_plain_range(const amx_vjp_fixed *f, int from, int to, const bool edge,
                                    const bool drops, const bool sums_bias, amx_fit *fit) {
    AMX_UNROLL for (int i = from; i < to; i++) {
        const __m512i v = amx_vjp_key_weights(f, 2 * i, edge, drops);
        const __m512i w = amx_vjp_key_weights(f, 2 * i + 1, edge, drops);
        amx_fit_weights(true, fit, _mm512_max_epu16(v, w), AMX_VJP_MOST);
        amx_vjp_store_pair(&f->tile, i, amx_vjp_d_score(f, 2 * i, v, drops, sums_bias),
                           amx_vjp_d_score(f, 2 * i + 1, w, drops, sums_bias));
    }
}

/* ---- Slow path ---------------------------------------------------------------------------------------- */

/* A key's weights whatever scores and lse are: NaN stays, too large a weight becomes infinite. */
static inline __m512i amx_vjp_any_weights(const amx_vjp_score_tile *st, const amx_exp *e, int key) {
    const __m512i least = _mm512_set1_epi32(AMX_MAGIC_BITS);
    const __m512i most = _mm512_set1_epi32(AMX_MAGIC_BITS + (0x7f80 << AMX_VJP_SHIFT));
    __m512i number[2], nan[2];
    for (int half = 0; half < 2; half++) {
        const vf score = v_load(st->scores + key * AMX_ROWS + 16 * half);
        const vf scale = v_set1(st->scale), lowest = v_set1(-INFINITY);
        const __mmask16 none = _mm512_cmp_ps_mask(v_mul(score, scale), lowest, _CMP_EQ_OQ);
        const vf y = v_fms(score, scale, v_load(st->tile->shift + 16 * half));
        const vf z =
            _mm512_mask_mov_ps(v_fma(y, v_set1(AMX_VJP_STEPS), v_set1(AMX_VJP_BASE)), none, lowest);
        number[half] = _mm512_min_epi32(_mm512_max_epi32(_mm512_castps_si512(z), least), most);
        nan[half] = _mm512_movm_epi32(_mm512_cmp_ps_mask(z, z, _CMP_UNORD_Q));
    }
    const __m512i w = _mm512_mask_mov_epi16(
        amx_vjp_weights(e, number[0], number[1]),
        _mm512_movepi16_mask(_mm512_packs_epi32(nan[0], nan[1])), _mm512_set1_epi16(0x7fc0));
    return _mm512_maskz_mov_epi16(amx_vjp_rows_of(st->visible, key), w);
}

/* A row's d_bias: 0 where its weights are, whatever the products are. */
static inline vf amx_vjp_any_d_bias(vf weight, vf product, vf delta) {
    const __mmask16 some = _mm512_cmp_ps_mask(weight, v_zero(), _CMP_NEQ_UQ);
    return _mm512_maskz_mul_ps(some, weight, v_sub(product, delta));
}

static inline __m512i amx_vjp_any_d_score(vf weight, vf change, vf cap) {
    const __mmask16 some = _mm512_cmp_ps_mask(weight, v_zero(), _CMP_NEQ_UQ);
    const vf d_score = v_mul(change, cap);
    const __mmask16 nan = _mm512_cmp_ps_mask(d_score, d_score, _CMP_UNORD_Q);
    const __m512i bits =
        _mm512_mask_mov_epi32(_mm512_castps_si512(d_score), nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_maskz_add_epi32(some, bits, _mm512_set1_epi32(0x8000));
}

static inline amx_vjp_pair amx_vjp_any_d_scores(const amx_vjp_score_tile *st, int key,
                                                __m512i weights, amx_vjp_pair *d_bias) {
    const float *product = st->products + key * AMX_ROWS, *delta = st->tile->delta;
    vf even = v_set1(1), odd = even;
    if (st->caps) {
        const vf a = v_load(st->caps + key * AMX_ROWS), b = v_load(st->caps + key * AMX_ROWS + 16);
        const __m512i order =
            _mm512_set_epi32(30, 28, 14, 12, 26, 24, 10, 8, 22, 20, 6, 4, 18, 16, 2, 0);
        even = _mm512_permutex2var_ps(a, order, b);
        odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(order, _mm512_set1_epi32(1)), b);
    }
    const vf x = _mm512_castsi512_ps(_mm512_slli_epi32(weights, 16));
    const vf y = _mm512_castsi512_ps(_mm512_and_si512(weights, _mm512_set1_epi32(-65536)));
    vf p = v_load(product), q = v_load(product + 16);
    if (st->kept) {
        p = _mm512_maskz_mul_ps(amx_vjp_bit(st->kept, key), p, v_set1(st->share));
        q = _mm512_maskz_mul_ps(amx_vjp_bit(st->kept + 16, key), q, v_set1(st->share));
    }
    const vf a = amx_vjp_any_d_bias(x, p, v_load(delta));
    const vf b = amx_vjp_any_d_bias(y, q, v_load(delta + 16));
    if (st->d_bias_f32) {
        v_store(st->d_bias_f32 + key * AMX_ROWS, a);
        v_store(st->d_bias_f32 + key * AMX_ROWS + 16, b);
    }
    const vf one = v_set1(1);
    *d_bias = (amx_vjp_pair){amx_vjp_any_d_score(x, a, one), amx_vjp_any_d_score(y, b, one)};
    return (amx_vjp_pair){amx_vjp_any_d_score(x, a, even), amx_vjp_any_d_score(y, b, odd)};
}

static __attribute__((noinline)) void amx_vjp_slow_d_scores(const amx_vjp_score_tile *st,
                                                            const amx_exp *e) {
    for (int i = 0; i < AMX_CHUNK / 2; i++) {
        amx_vjp_pair d_scores[2], d_bias[2];
        for (int n = 0; n < 2; n++) {
            const int key = 2 * i + n;
            __m512i w = amx_vjp_any_weights(st, e, key);
            d_scores[n] = amx_vjp_any_d_scores(st, key, w, &d_bias[n]);
            if (st->kept)
                w = amx_vjp_leave(w, amx_vjp_bit(st->kept, key), amx_vjp_bit(st->kept + 16, key));
            _mm512_store_si512(st->weights + key / 16 * st->half + key % 16 * 32, w);
        }
        amx_vjp_store_pair(st, i, d_scores[0], d_scores[1]);
        if (st->d_bias_bf16)
            amx_vjp_store_bf16(st->d_bias_bf16, AMX_ELEMENT, i, d_bias[0], d_bias[1]);
    }
}

/* ---- Without products -------------------------------------------------------------------------------- */

/* Weights and dS alone. */
#define AMX_VJP_ALONE(name, drops, sums_bias)                                                      \
    static __attribute__((noinline)) bool name(const amx_vjp_score_tile *st, const amx_exp *e) {   \
        const amx_vjp_fixed f = amx_vjp_fix(st, e);                                                \
        amx_fit fit = amx_fit_all();                                                               \
        amx_vjp_plain_range(&f, 0, AMX_CHUNK / 2, true, drops, sums_bias, &fit);                   \
        return amx_fits(&fit, AMX_VJP_MOST);                                                       \
    }
AMX_VJP_ALONE(amx_vjp_plain, false, false)
AMX_VJP_ALONE(amx_vjp_dropped, true, false)
AMX_VJP_ALONE(amx_vjp_plain_sums, false, true)
AMX_VJP_ALONE(amx_vjp_dropped_sums, true, true)

static inline bool amx_vjp_fast_d_scores(const amx_vjp_score_tile *st, const amx_exp *e) {
    if (st->d_bias_f32) return st->kept ? amx_vjp_dropped_sums(st, e) : amx_vjp_plain_sums(st, e);
    return st->kept ? amx_vjp_dropped(st, e) : amx_vjp_plain(st, e);
}

#endif
