/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tokens read from a state and add to it, and products of their rows, in bf16: by tiles of AMX (amx/products.h) or
 * by VDPBF16PS (products.h). Queries, keys, the state and U are rounded to bf16 on their way; the state itself, sums,
 * decays of heads and what is solved for stay floats.
 *
 * A state after the last token would show that, as would what is kept for gradients: where one is wanted, the state
 * that keys meet and U are sums of three numbers of bf16, which have all bits of a float. Three products in place of
 * one pay on AMX only. Keys are none, so that those with decays or a norm have their products in floats then; and so
 * has all where outputs are floats, which a norm may make large.
 */
#ifndef EJKI_RECURRENT_CHUNK_PAIRS_H
#define EJKI_RECURRENT_CHUNK_PAIRS_H

#ifdef EJKI_TIER_AMX
#include "operations/recurrent/cpu/chunk/amx/products.h"
#else
#include "operations/recurrent/cpu/chunk/bf16_dot/products.h"
#endif

static rec_size steps_of(const rec_problem *p) {
    return ejki_cdiv(p->key_size, STEP);
}

/* Floats of operands and of the struct that says where they are. */
static rec_size pair_floats(const rec_problem *p) {
    const rec_size tile = BLOCK_SIZE / 2;
    const rec_size tiles = (8 + 2 * MOST_TERMS) * steps_of(p) + 2 * MOST_TERMS;
    return 2 * CHUNK * TILE_COLUMNS + tiles * tile + 16 * VL;
}

/* Numbers of bf16 for an element; 0: products are of floats. */
static int terms_of(const rec_problem *p) {
    const bool exact =
        p->view[REC_KEY].dtype == (int)EJK_DTYPE_BF16 && !p->normalise && !p->key_decay;
    if (p->view[REC_OUT].dtype != (int)EJK_DTYPE_BF16) return 0;
    if (!p->view[REC_FINAL].present && !rec_keeps(p)) return 1;
    return exact && EXACT_STATES ? MOST_TERMS : 0;
}

static void begin_pairs(chunk *c, float *memory) {
    if (terms_of(c->p) == 0) return;
    const rec_size steps = steps_of(c->p), tile = 2 * BLOCK_SIZE;
    chunk_pairs *t = (chunk_pairs *)(void *)memory;
    t->steps = steps;
    t->terms = terms_of(c->p);
    t->k_met = memory + 16 * VL;
    t->q_met = t->k_met + CHUNK * TILE_COLUMNS;
    t->q = (uint16_t *)(void *)(t->q_met + CHUNK * TILE_COLUMNS);
    t->k = t->q + steps * tile;
    t->k_columns = t->k + steps * tile;
    t->k_right = t->k_columns + steps * tile;
    t->state = t->k_right + steps * tile;
    t->u = t->state + t->terms * steps * tile;
    c->pairs = t;
    open_products();
}

static void end_pairs(const chunk *c) {
    if (c->pairs) close_products();
}

/* ---- Operands ---------------------------------------------------------------------------------------- */

INLINE __m512i round_both(vf a, vf b) {
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}

/* Rows of tokens as left operands. */
static void round_tokens(const chunk *c, const float *rows, uint16_t *to) {
    const rec_size steps = c->pairs->steps;
    for (rec_size r = 0; r < CHUNK; r++, rows += c->pitch)
        for (rec_size s = 0; s < steps; s++) {
            const bool there = r < c->count, both = STEP * s + VL < c->pitch;
            const vf a = there ? v_load(rows + STEP * s) : v_zero();
            const vf b = there && both ? v_load(rows + STEP * s + VL) : v_zero();
            const rec_size tile = r / BLOCK_ROWS * steps + s;
            _mm512_storeu_si512(to + tile * BLOCK_SIZE + r % BLOCK_ROWS * STEP, round_both(a, b));
        }
}

/* Left operands of tokens as right ones: words are pairs of channels, columns tokens. */
static void turn_tokens(const chunk *c, const uint16_t *left, uint16_t *to) {
    const rec_size steps = c->pairs->steps;
    for (rec_size half = 0; half < 2; half++)
        for (rec_size s = 0; s < steps; s++) {
            const uint16_t *from = left + (half * steps + s) * BLOCK_SIZE;
            uint16_t *at = to + (2 * s + half) * BLOCK_SIZE;
            vf block[VL];
            EJKI_UNROLL for (int i = 0; i < VL; i++) block[i] =
                _mm512_loadu_ps((const void *)(from + i * STEP));
            v_transpose(block);
            EJKI_UNROLL for (int i = 0; i < VL; i++)
                _mm512_storeu_ps((void *)(at + i * STEP), block[i]);
        }
}

/* Keys with a channel a row, for what they add to the state: from `kt`, in slabs. */
static void round_columns(const chunk *c) {
    for (rec_size d = 0; d < c->pitch; d++) {
        const float *row = c->kt + d * TILE_COLUMNS;
        _mm512_storeu_si512(c->pairs->k_columns + d * STEP,
                            round_both(v_load(row), v_load(row + VL)));
    }
}

/* Two rows of 16 columns as rows of right operands, one for each term, `apart` elements from each other. */
INLINE void pair_rows(const int terms, vf even, vf odd, rec_size apart, uint16_t *to) {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    EJKI_UNROLL for (int n = 0; n < terms; n++, to += apart) {
        const __m512i pairs = _mm512_permutexvar_epi16(order, round_both(even, odd));
        _mm512_storeu_si512(to, pairs);
        if (n + 1 == terms) break;
        const __m512i second = _mm512_set1_epi32((int)0xffff0000u);
        even = v_sub(even, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
        odd = v_sub(odd, _mm512_castsi512_ps(_mm512_and_si512(pairs, second)));
    }
}

/* Rows of a slab as right operands; those from `count` on, an even number, are 0. The rows are multiplied by `by`,
 * behind that if `after`. */
INLINE void pair_slab(const int terms, const bool after, float *rows, const float *by,
                      rec_size count, rec_size all, uint16_t *to) {
    const rec_size apart = all / STEP * 2 * BLOCK_SIZE;
    for (rec_size r = 0; r < all; r += 2, rows += 2 * TILE_COLUMNS) {
        uint16_t *at = to + r / STEP * 2 * BLOCK_SIZE + r % STEP * VL;
        EJKI_UNROLL for (int j = 0; j < 2; j++, at += BLOCK_SIZE) {
            if (r >= count) {
                for (int n = 0; n < terms; n++)
                    _mm512_storeu_si512(at + n * apart, _mm512_setzero_si512());
                continue;
            }
            float *even = rows + j * VL, *odd = even + TILE_COLUMNS;
            const vf a = v_load(even), b = v_load(odd);
            const vf with_a = v_mul(v_set1(by[r]), a), with_b = v_mul(v_set1(by[r + 1]), b);
            pair_rows(terms, after ? a : with_a, after ? b : with_b, apart, at);
            if (!after) continue;
            v_store(even, with_a);
            v_store(odd, with_b);
        }
    }
}

/* ---- Products ---------------------------------------------------------------------------------------- */

/* What tokens read of a slab of the state, which has the decays of the chunk then. */
static bool meet_state(chunk *c, float *state, const float **k_met, const float **q_met) {
    chunk_pairs *t = c->pairs;
    if (!t) return false;
    *k_met = t->k_met;
    *q_met = t->q_met;
    const bool delta = c->p->update == REC_DELTA;
    const rec_size all = t->steps * STEP;
    if (delta && t->terms > 1)
        pair_slab(MOST_TERMS, true, state, c->whole, c->pitch, all, t->state);
    else
        pair_slab(1, true, state, c->whole, c->pitch, all, t->state);
    if (delta) pair_product(t->steps, t->terms, t->k, t->state, false, t->k_met);
    pair_product(t->steps, 1, t->q, t->state, false, t->q_met);
    return true;
}

/* U has the decays to the end of the chunk. Its smallest terms come first. */
static void add_tokens(chunk *c, float *state) {
    chunk_pairs *t = c->pairs;
    if (t->terms > 1)
        pair_slab(MOST_TERMS, false, c->u, c->until, c->rows, CHUNK, t->u);
    else
        pair_slab(1, false, c->u, c->until, c->rows, CHUNK, t->u);
    for (int n = t->terms - 1; n >= 0; n--) add_term(c, t->u + n * 2 * BLOCK_SIZE, state, n == 0);
}

/* Rows of tokens as operands; `keys` are those that meet the state. */
static void load_operands(chunk *c, const float *keys) {
    round_tokens(c, c->q, c->pairs->q);
    if (keys) round_tokens(c, keys, c->pairs->k);
    pack_transposed(c->k, c->pitch, c->count, c->pitch, c->kt);
    round_columns(c);
}

static bool shared_in_pairs(chunk *c, rec_size h) {
    chunk_pairs *t = c->pairs;
    if (!t) return false;
    load_queries(c, h);
    load_keys(c, h);
    if (c->p->key_decay) return true;
    load_operands(c, c->k);
    turn_tokens(c, t->k, t->k_right);
    pair_product(t->steps, 1, t->q, t->k_right, true, c->qk);
    if (c->p->update == REC_DELTA) pair_product(t->steps, 1, t->k, t->k_right, true, c->kk);
    return true;
}

static bool head_in_pairs(chunk *c, rec_size h) {
    if (!c->pairs) return false;
    load_products(c, h);
    if (c->p->key_decay) load_operands(c, c->p->update == REC_DELTA ? c->carried : NULL);
    return true;
}

#endif
