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
    const rec_size tiles = 8 * steps_of(p) + 2 * MOST_TERMS;
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

/* Keys meet all terms of the state, queries the first. */
static int state_terms_of(const rec_problem *p) {
    return p->update == REC_DELTA || terms_of(p) == 0 ? terms_of(p) : 1;
}
/* Floats of a slab's operand, behind the slab. */
static rec_size operand_floats(const rec_problem *p) {
    return state_terms_of(p) * steps_of(p) * BLOCK_SIZE;
}

static void begin_pairs(chunk *c, float *memory) {
    if (terms_of(c->p) == 0) return;
    const rec_size steps = steps_of(c->p), tile = 2 * BLOCK_SIZE;
    chunk_pairs *t = (chunk_pairs *)(void *)memory;
    t->steps = steps;
    t->terms = terms_of(c->p);
    t->state_terms = state_terms_of(c->p);
    t->k_met = memory + 16 * VL;
    t->q_met = t->k_met + CHUNK * TILE_COLUMNS;
    t->q = (uint16_t *)(void *)(t->q_met + CHUNK * TILE_COLUMNS);
    t->k = t->q + steps * tile;
    t->k_columns = t->k + steps * tile;
    t->k_right = t->k_columns + steps * tile;
    t->u = t->k_right + steps * tile;
    c->pairs = t;
    open_products();
}

static void end_pairs(const chunk *c) {
    if (c->pairs) close_products();
}

/* ---- Operands ---------------------------------------------------------------------------------------- */

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

/* A block of left operands as one of right ones: words are pairs of channels, columns tokens. */
INLINE void turn_block(const uint16_t *from, uint16_t *to) {
    vf block[VL];
    EJKI_UNROLL for (int i = 0; i < VL; i++) block[i] =
        _mm512_loadu_ps((const void *)(from + i * STEP));
    v_transpose(block);
    EJKI_UNROLL for (int i = 0; i < VL; i++) _mm512_storeu_ps((void *)(to + i * STEP), block[i]);
}
static void turn_tokens(const chunk *c, const uint16_t *left, uint16_t *to) {
    const rec_size steps = c->pairs->steps;
    for (rec_size half = 0; half < 2; half++)
        for (rec_size s = 0; s < steps; s++)
            turn_block(left + (half * steps + s) * BLOCK_SIZE, to + (2 * s + half) * BLOCK_SIZE);
}

/* Keys with a channel a row, for what they add to the state: from `kt`, in slabs. */
static void round_columns(const chunk *c) {
    for (rec_size d = 0; d < c->pitch; d++) {
        const float *row = c->kt + d * TILE_COLUMNS;
        _mm512_storeu_si512(c->pairs->k_columns + d * STEP,
                            round_both(v_load(row), v_load(row + VL)));
    }
}

/* Rows of a slab, times a number each if `by` has them, as right operands; those from `count` on, an even number, are
 * 0. */
INLINE void pair_slab(const int terms, const float *rows, const float *by, rec_size count,
                      rec_size all, uint16_t *to) {
    const rec_size apart = all / STEP * 2 * BLOCK_SIZE;
    for (rec_size r = 0; r < all; r += 2, rows += 2 * TILE_COLUMNS) {
        uint16_t *at = to + r / STEP * 2 * BLOCK_SIZE + r % STEP * VL;
        EJKI_UNROLL for (int j = 0; j < 2; j++, at += BLOCK_SIZE) {
            if (r >= count) {
                for (int n = 0; n < terms; n++)
                    _mm512_storeu_si512(at + n * apart, _mm512_setzero_si512());
                continue;
            }
            const vf a = v_load(rows + j * VL), b = v_load(rows + TILE_COLUMNS + j * VL);
            pair_rows(terms, by ? v_mul(v_set1(by[r]), a) : a, by ? v_mul(v_set1(by[r + 1]), b) : b,
                      apart, at);
        }
    }
}

/* ---- Products ---------------------------------------------------------------------------------------- */

/* The operand of a slab lies behind it. */
static uint16_t *operand_of(const chunk *c, float *state) {
    return (uint16_t *)(void *)(state + c->pitch * TILE_COLUMNS);
}

/* A slab that comes from elsewhere. */
static void pair_state(const chunk *c, float *state) {
    const chunk_pairs *t = c->pairs;
    if (!t) return;
    if (t->state_terms > 1)
        pair_slab(MOST_TERMS, state, NULL, c->pitch, t->steps * STEP, operand_of(c, state));
    else
        pair_slab(1, state, NULL, c->pitch, t->steps * STEP, operand_of(c, state));
}

/* What tokens read of a slab of the state. */
static bool meet_state(chunk *c, float *state, const float **k_met, const float **q_met) {
    chunk_pairs *t = c->pairs;
    if (!t) return false;
    const uint16_t *operand = operand_of(c, state);
    *k_met = t->k_met;
    *q_met = t->q_met;
    if (c->p->update == REC_DELTA) pair_product(t->steps, t->terms, t->k, operand, false, t->k_met);
    pair_product(t->steps, 1, t->q, operand, false, t->q_met);
    return true;
}

/* The slab gets the decays of the chunk and takes in what its tokens add, whose rows have those that are left; and is
 * the next chunk's operand. */
static void add_tokens(chunk *c, float *state) {
    chunk_pairs *t = c->pairs;
    uint16_t *to = operand_of(c, state);
    if (t->terms == 1) {
        pair_slab(1, c->u, c->until, c->rows, CHUNK, t->u);
        update_pairs(1, 1, c, state, to);
        return;
    }
    pair_slab(MOST_TERMS, c->u, c->until, c->rows, CHUNK, t->u);
    if (t->state_terms > 1)
        update_pairs(MOST_TERMS, MOST_TERMS, c, state, to);
    else
        update_pairs(MOST_TERMS, 1, c, state, to);
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

/* Rows `first` on, times `by` behind that, as the left operand of half a chunk. */
static void round_half(const chunk *c, const float *by, float *rows, uint16_t *to) {
    for (rec_size r = 0; r < BLOCK_ROWS; r++, rows += c->pitch)
        for (rec_size d = 0; d < c->pitch; d += STEP) {
            const bool both = d + VL < c->pitch;
            const vf a = v_load(rows + d), b = both ? v_load(rows + d + VL) : v_zero();
            _mm512_storeu_si512(to + d / STEP * BLOCK_SIZE + r * STEP, round_both(a, b));
            if (!by) continue;
            v_store(rows + d, v_mul(v_load(by + d), a));
            if (both) v_store(rows + d + VL, v_mul(v_load(by + d + VL), b));
        }
}

/*
 * channel_products() whose halves meet in a product: keys of the first with the decays up to its end, rows of the
 * second with those since then. It takes 16 of 28 groups of dot products.
 */
INLINE void halves_products(chunk *c, const bool delta, const bool old) {
    const rec_size half = BLOCK_ROWS, pitch = c->pitch;
    const chunk_pairs *t = c->pairs;
    float *before = c->qt; /* decays of the first half */
    if (c->rows <= half) {
        channel_products(c, delta, old);
        return;
    }
    channel_blocks(c, delta, old, 0, half);
    memcpy(before, c->whole, (size_t)pitch * sizeof *before);
    channel_blocks(c, delta, old, half, c->rows);
    round_half(c, c->whole, c->k, t->q);
    for (rec_size s = 0; s < t->steps; s++)
        turn_block(t->q + s * BLOCK_SIZE, t->k_right + s * BLOCK_SIZE);
    round_half(c, before, c->q + half * pitch, t->q);
    if (delta) round_half(c, before, c->carried + half * pitch, t->q + t->steps * BLOCK_SIZE);
    narrow_product(t->steps, t->q, t->k_right, t->q_met);
    for (rec_size i = 0; i < half; i++) {
        const float *q_dots = t->q_met + i * VL, *k_dots = q_dots + half * VL;
        v_store(c->own + (half + i) * CHUNK, v_load(q_dots));
        if (delta) v_store(c->rest + (half + i) * CHUNK, v_sub(v_zero(), v_load(k_dots)));
    }
    for (rec_size d = 0; d < pitch; d += VL)
        v_store(c->whole + d, v_mul(v_load(before + d), v_load(c->whole + d)));
}

static bool head_in_pairs(chunk *c, rec_size h) {
    if (!c->pairs) return false;
    if (!c->p->key_decay) {
        load_products(c, h);
        return true;
    }
    load_betas(c, h);
    if (c->p->read == REC_BEFORE) load_bonuses(c, h);
    load_channel_decays(c, h);
    CHANNEL_PRODUCTS(halves_products, c);
    load_operands(c, c->p->update == REC_DELTA ? c->carried : NULL);
    return true;
}

#endif
