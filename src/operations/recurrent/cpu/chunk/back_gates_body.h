/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a chunk's rows and gates. A gate's is the sum over all that passes by it, from a token or the state
 * before to a token or the state behind it, each with its decays: nothing is subtracted, so that gates of -inf, -1e4
 * and 0 get what they get in the recurrence.
 */
#ifndef EJKI_RECURRENT_CHUNK_BACK_GATES_BODY_H
#define EJKI_RECURRENT_CHUNK_BACK_GATES_BODY_H

#include "operations/recurrent/cpu/chunk/back_tile.h"
#include "operations/recurrent/cpu/chunk/gates_body.h"

/* ---- One decay for each token ------------------------------------------------------------------------ */

/* Row i, column j of an operand in panels. */
INLINE float *in_panels(float *panels, rec_size i, rec_size j) {
    return panels + (j / TILE_COLUMNS * CHUNK + i) * TILE_COLUMNS + j % TILE_COLUMNS;
}

/* Whether a head is the first or the last of those that are worked on together. */
typedef struct unit_end {
    bool first, last;
} unit_end;

/*
 * d_own and d_rest get the decays between their tokens and are added to m and n, or are these if the head is the first,
 * and what they were made of becomes what passes by the gates between.
 */
static void back_head_products(const chunk *c, back *b, const bool delta, bool first) {
    vf between[CHUNK / VL];
    float passing[SQUARE];
    memset(b->gate, 0, sizeof b->gate);
    EJKI_UNROLL for (int j = 0; j < CHUNK / VL; j++) between[j] = v_zero();
    for (int i = 0; i < c->rows; i++) {
        const vf decay = v_set1(c->d[i]);
        EJKI_UNROLL for (int j = 0; j < CHUNK / VL; j++) {
            const int n = i - j * VL;
            const uint32_t before = n <= 0 ? 0 : n >= VL ? (1u << VL) - 1 : (1u << n) - 1;
            const uint32_t here = n < 0 || n >= VL ? 0 : 1u << n;
            const rec_size at = i * CHUNK + j * VL;
            const vf d_own = v_load(b->d_own + at);
            vf pass = v_mul(d_own, v_load(c->own + at)), n_row = v_zero();
            between[j] = v_add(v_where(v_mul(between[j], decay), before), v_where(v_set1(1), here));
            const vf m_row = v_where(v_mul(between[j], d_own), before | here);
            if (delta) {
                const vf d_rest = v_load(b->d_rest + at);
                pass = v_fma(d_rest, v_load(c->rest + at), pass);
                n_row = v_where(v_mul(between[j], d_rest), before);
            }
            v_store(passing + at, v_where(pass, before));
            v_store(b->m + at, first ? m_row : v_add(v_load(b->m + at), m_row));
            if (delta) v_store(b->n + at, first ? n_row : v_add(v_load(b->n + at), n_row));
        }
        float sum = 0;
        for (int j = 0; j < i; j++) b->gate[j + 1] += sum += passing[i * CHUNK + j];
    }
}

/* Operands of products with rows: m in panels, which takes the place of d_own, and turned; n and n turned added up. */
static void turn_head_products(const chunk *c, back *b, const bool delta) {
    pack_transposed(b->m, CHUNK, c->rows, CHUNK, b->m_turned);
    if (delta) pack_transposed(b->n, CHUNK, c->rows, CHUNK, b->n_turned);
    for (rec_size i = 0; i < c->rows; i++)
        for (rec_size j = 0; j < CHUNK; j += VL) {
            float *n = in_panels(b->n_turned, i, j);
            if (delta) v_store(n, v_add(v_load(n), v_load(b->n + i * CHUNK + j)));
            v_store(in_panels(b->d_own, i, j), v_load(b->m + i * CHUNK + j));
        }
}

/* sum_i += rows of a tile times their own rows `by`, over the tile. */
INLINE void add_along(const float *by, vf sum[TILE_ROWS][TILE_VECTORS], vf along[TILE_VECTORS]) {
    EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++)
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) along[j] =
            v_fma(v_load(by + i * TILE_COLUMNS + j * VL), sum[i][j], along[j]);
}

/*
 * sum += a times an operand that is 0 before or behind its diagonal, and has the columns of a panel: a vector of them
 * counts up to its own rows, or from these on.
 */
INLINE void tile_before(const chunk *c, rec_size panel, const float *a, const float *b,
                        vf sum[TILE_ROWS][TILE_VECTORS]) {
    const rec_size first = panel * TILE_COLUMNS, middle = ejki_min(first + VL, c->rows);
    const rec_size end = ejki_min(first + TILE_COLUMNS, c->rows);
    tile(middle, a, 1, c->pitch, b, sum);
    narrow_tile(end - middle, a + middle * c->pitch, 1, c->pitch, b + middle * TILE_COLUMNS, 1,
                sum);
}
INLINE void tile_behind(const chunk *c, rec_size panel, const float *a, const float *b,
                        vf sum[TILE_ROWS][TILE_VECTORS]) {
    const rec_size first = panel * TILE_COLUMNS, middle = ejki_min(first + VL, c->rows);
    narrow_tile(middle - first, a + first * c->pitch, 1, c->pitch, b + first * TILE_COLUMNS, 0,
                sum);
    tile(c->rows - middle, a + middle * c->pitch, 1, c->pitch, b + middle * TILE_COLUMNS, sum);
}

/* sum += a tile in memory. */
INLINE void tile_add(const float *from, vf sum[TILE_ROWS][TILE_VECTORS]) {
    EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++)
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
            v_add(v_load(from + i * TILE_COLUMNS + j * VL), sum[i][j]);
}

/*
 * Gradients of the rows of a panel of tokens, added to those of heads of the unit before; what rows say to each other
 * comes with the last one, of all heads at once. b->since and until get what rows say to gates. One product after the
 * other: operands of all three would not stay in an L1 cache.
 */
static void back_head_rows(chunk *c, back *b, const bool delta, unit_end in, rec_size panel,
                           const float *state) {
    const rec_size from = panel * b->columns * TILE_COLUMNS, square = panel * CHUNK * TILE_COLUMNS;
    vf since[TILE_VECTORS], until[TILE_VECTORS];
    EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) since[j] = until[j] = v_zero();
    for (rec_size r = 0; r < c->pitch; r += TILE_ROWS) {
        const rec_size at = (panel * c->pitch + r) * TILE_COLUMNS;
        vf sum[TILE_ROWS][TILE_VECTORS];
        multiply_state(c, b, state, r, b->d_out_turned + from, sum);
        add_along(c->qt + at, sum, since);
        if (!in.first) tile_add(b->dq + at, sum);
        if (in.last) tile_before(c, panel, c->k + r, b->m_turned + square, sum);
        tile_store(b->dq + at, TILE_COLUMNS, sum);
    }
    for (rec_size r = 0; r < c->pitch; r += TILE_ROWS) {
        const rec_size at = (panel * c->pitch + r) * TILE_COLUMNS;
        vf sum[TILE_ROWS][TILE_VECTORS];
        multiply_state(c, b, b->d_state, r, b->u_turned + from, sum);
        add_along(c->kt + at, sum, until);
        if (!in.first) tile_add(b->dk + at, sum);
        if (in.last) tile_behind(c, panel, c->q + r, b->d_own + square, sum);
        if (in.last && delta) tile(c->rows, c->k + r, 1, c->pitch, b->n_turned + square, sum);
        tile_store(b->dk + at, TILE_COLUMNS, sum);
    }
    for (rec_size r = 0; r < c->pitch && delta; r += TILE_ROWS) {
        const rec_size at = (panel * c->pitch + r) * TILE_COLUMNS;
        vf sum[TILE_ROWS][TILE_VECTORS];
        multiply_state(c, b, state, r, b->y_turned + from, sum);
        add_along(c->kt + at, sum, since);
        tile_add(b->dk + at, sum);
        tile_store(b->dk + at, TILE_COLUMNS, sum);
    }
    EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
        v_store(b->since + panel * TILE_COLUMNS + j * VL, since[j]);
        v_store(b->until + panel * TILE_COLUMNS + j * VL, until[j]);
    }
}

/* Tokens of a panel, channels d on: VL columns become VL rows. */
INLINE void turn_block(const chunk *c, const float *panels, rec_size t, rec_size d, vf block[VL]) {
    const float *from =
        panels + (t / TILE_COLUMNS * c->pitch + d) * TILE_COLUMNS + t % TILE_COLUMNS;
    EJKI_UNROLL for (int i = 0; i < VL; i++) block[i] = v_load(from + i * TILE_COLUMNS);
    v_transpose(block);
}

static void unpack_rows(const chunk *c, const float *panels, float *rows) {
    for (rec_size i = 0; i < c->rows; i += VL)
        for (rec_size d = 0; d < c->pitch; d += VL) {
            vf block[VL];
            turn_block(c, panels, i, d, block);
            for (rec_size t = 0; t < VL && i + t < c->rows; t++)
                v_store(rows + (i + t) * c->pitch + d, block[t]);
        }
}

/* b->gate gets what comes from the state, what goes to d_state, and what passes by the chunk, whose sum is `met`. */
static void back_head_gates(const chunk *c, back *b, float met) {
    const float whole = c->whole[0] * met;
    float sum = 0;
    for (int t = c->rows - 1; t >= 0; t--) b->gate[t] += whole + (sum += b->since[t]);
    sum = 0;
    for (int t = 0; t < c->rows; t++) {
        b->gate[t] += sum;
        sum += b->until[t];
    }
}

static void back_head_decays(chunk *c, back *b, const bool delta, unit_end in, const float *state) {
    back_head_products(c, b, delta, in.first);
    if (in.last) turn_head_products(c, b, delta);
    for (rec_size panel = 0; panel * TILE_COLUMNS < c->rows; panel++)
        back_head_rows(c, b, delta, in, panel, state);
    back_head_gates(c, b, back_state(c, b, delta, c->q, c->k, state));
    if (!in.last) return;
    unpack_rows(c, b->dq, b->rows);
    unpack_rows(c, b->dk, b->rows + CHUNK * c->pitch);
}

/* ---- A decay for each channel of the key ------------------------------------------------------------- */

/* q and k with the decays since the chunk began, k with those to its end, and the product of all. */
static void decay_rows(const chunk *c, back *b) {
    for (rec_size d = 0; d < c->pitch; d += VL) {
        vf since = v_set1(1), left = v_set1(1);
        for (rec_size i = 0; i < c->rows; i++) {
            const rec_size at = i * c->pitch + d;
            since = v_mul(since, v_load(c->d + at));
            v_store(b->q + at, v_mul(since, v_load(c->q + at)));
            v_store(b->k + at, v_mul(since, v_load(c->k + at)));
        }
        v_store(c->whole + d, since);
        for (rec_size i = c->rows - 1; i >= 0; i--) {
            const rec_size at = i * c->pitch + d;
            v_store(b->left + at, v_mul(left, v_load(c->k + at)));
            left = v_mul(left, v_load(c->d + at));
        }
    }
}

/* VL channels of a chunk: rows, decays, decays from a token to the block at hand, gradients, and of gates. */
typedef struct channels {
    vf q[CHUNK], k[CHUNK], d[CHUNK], left[CHUNK], dq[CHUNK], dk[CHUNK], gate[CHUNK];
    vf behind[CHUNK]; /* what d_state says to k */
} channels;

/* What the state says to rows, and through them and past them to gates. */
INLINE void load_channels(const chunk *c, const back *b, const bool delta, rec_size d,
                          channels *s) {
    vf since = v_set1(1), sum = v_zero();
    const vf whole = v_mul(v_load(c->whole + d), v_load(b->met + d));
    for (rec_size i = 0; i < c->rows; i += VL) {
        vf dq[VL], dk[VL], dl[VL];
        turn_block(c, b->dq, i, d, dq);
        turn_block(c, b->dl, i, d, dl);
        if (delta) turn_block(c, b->dk, i, d, dk);
        for (rec_size t = i; t < i + VL && t < c->rows; t++) {
            const rec_size at = t * c->pitch + d;
            s->q[t] = v_load(c->q + at);
            s->k[t] = v_load(c->k + at);
            s->d[t] = v_load(c->d + at);
            since = v_mul(since, s->d[t]);
            s->dq[t] = v_mul(since, dq[t - i]);
            s->dk[t] = delta ? v_mul(since, dk[t - i]) : v_zero();
            s->behind[t] = dl[t - i];
        }
    }
    for (rec_size t = c->rows - 1; t >= 0; t--) {
        sum = v_fma(s->q[t], s->dq[t], v_fma(s->k[t], s->dk[t], sum));
        s->gate[t] = v_add(whole, sum);
    }
}

/*
 * Rows of a block and tokens before it. hat: rows with the decays since the block began; their gradients without these.
 * Pairs of token j pass by all gates from j + 1 up to the block, and by those of the block up to their row.
 */
INLINE void back_before_block(const back *b, const bool delta, rec_size at, channels *s) {
    vf total = v_set1(1), sum = v_zero();
    vf hat_q[BLOCK], hat_k[BLOCK], decay[BLOCK], dq[BLOCK], dk[BLOCK];
    EJKI_UNROLL for (int i = 0; i < BLOCK; i++) {
        decay[i] = total = v_mul(total, s->d[at + i]);
        hat_q[i] = v_mul(total, s->q[at + i]);
        hat_k[i] = v_mul(total, s->k[at + i]);
        dq[i] = dk[i] = v_zero();
    }
    for (rec_size j = 0; j < at; j++) {
        const float *own = b->d_own + at * CHUNK + j, *rest = b->d_rest + at * CHUNK + j;
        const vf k = v_mul(s->left[j], s->k[j]);
        vf to_key = v_zero();
        EJKI_UNROLL for (int i = 0; i < BLOCK; i++) {
            dq[i] = v_fma_one(own + i * CHUNK, k, dq[i]);
            to_key = v_fma_one(own + i * CHUNK, hat_q[i], to_key);
            if (!delta) continue;
            dk[i] = v_fma_one(rest + i * CHUNK, k, dk[i]);
            to_key = v_fma_one(rest + i * CHUNK, hat_k[i], to_key);
        }
        s->dk[j] = v_fma(s->left[j], to_key, s->dk[j]);
        s->left[j] = v_mul(s->left[j], total);
        sum = v_fma(k, to_key, sum);
        s->gate[j + 1] = v_add(s->gate[j + 1], sum);
    }
    EJKI_UNROLL for (int i = 0; i < BLOCK; i++) {
        s->dq[at + i] = v_fma(decay[i], dq[i], s->dq[at + i]);
        if (delta) s->dk[at + i] = v_fma(decay[i], dk[i], s->dk[at + i]);
        const vf pass = v_fma(hat_q[i], dq[i], v_mul(hat_k[i], dk[i]));
        EJKI_UNROLL for (int t = 1; t <= i; t++) s->gate[at + t] = v_add(s->gate[at + t], pass);
    }
}

/* Pairs inside of a block, each with its own decay; left becomes that to the end of the block. */
INLINE void back_block(const back *b, const bool delta, rec_size at, channels *s) {
    EJKI_UNROLL for (int j = 0; j < BLOCK; j++) {
        vf decay = v_set1(1), to_key = v_zero(), passes[BLOCK];
        EJKI_UNROLL for (int i = j; i < BLOCK; i++) {
            const float *own = b->d_own + (at + i) * CHUNK + at + j;
            const float *rest = b->d_rest + (at + i) * CHUNK + at + j;
            if (i > j) decay = v_mul(decay, s->d[at + i]);
            const vf k = v_mul(decay, s->k[at + j]);
            vf here = v_mul(v_set1(*own), s->q[at + i]);
            s->dq[at + i] = v_fma_one(own, k, s->dq[at + i]);
            if (delta && i > j) {
                here = v_fma_one(rest, s->k[at + i], here);
                s->dk[at + i] = v_fma_one(rest, k, s->dk[at + i]);
            }
            to_key = v_fma(decay, here, to_key);
            passes[i] = v_mul(k, here);
        }
        vf sum = v_zero();
        EJKI_UNROLL for (int i = BLOCK - 1; i > j; i--) {
            sum = v_add(sum, passes[i]);
            s->gate[at + i] = v_add(s->gate[at + i], sum);
        }
        s->dk[at + j] = v_add(s->dk[at + j], to_key);
        s->left[at + j] = decay;
    }
}

/* What d_state says to k, and through it to gates; then all goes to rows. */
INLINE void store_channels(const chunk *c, const back *b, rec_size d, channels *s) {
    float *dq = b->rows + d, *dk = dq + CHUNK * c->pitch, *gate = dk + CHUNK * c->pitch;
    vf sum = v_zero();
    for (rec_size t = 0; t < c->rows; t++) {
        const vf own = v_mul(s->left[t], s->behind[t]);
        v_store(dq + t * c->pitch, s->dq[t]);
        v_store(dk + t * c->pitch, v_add(s->dk[t], own));
        v_store(gate + t * c->pitch, v_add(s->gate[t], sum));
        sum = v_fma(s->k[t], own, sum);
    }
}

/* Rows of a state times what is turned, all panels of it. */
static void multiply_panels(chunk *c, const back *b, const float *state, const float *turned,
                            float *to) {
    for (rec_size panel = 0; panel * TILE_COLUMNS < c->rows; panel++)
        for (rec_size r = 0; r < c->pitch; r += TILE_ROWS) {
            vf sum[TILE_ROWS][TILE_VECTORS];
            multiply_state(c, b, state, r, turned + panel * b->columns * TILE_COLUMNS, sum);
            tile_store(to + (panel * c->pitch + r) * TILE_COLUMNS, TILE_COLUMNS, sum);
        }
}

/* Sums over channels, of the head's own gates. */
static void add_channels(const chunk *c, back *b) {
    for (rec_size t = 0; t < c->rows; t++) {
        const float *gate = b->rows + (2 * CHUNK + t) * c->pitch;
        vf sum = v_zero();
        for (rec_size d = 0; d < c->pitch; d += VL) sum = v_add(sum, v_load(gate + d));
        b->gate[t] = v_sum(sum);
    }
}

static void back_channel_decays(chunk *c, back *b, const bool delta, const float *state) {
    channels s;
    meet_states(c, b, state);
    multiply_panels(c, b, state, b->d_out_turned, b->dq);  /* what the state says to rows */
    multiply_panels(c, b, b->d_state, b->u_turned, b->dl); /* d_state to k */
    if (delta) multiply_panels(c, b, state, b->y_turned, b->dk);
    for (rec_size d = 0; d < c->pitch; d += VL) {
        load_channels(c, b, delta, d, &s);
        for (rec_size at = 0; at < c->rows; at += BLOCK) {
            back_before_block(b, delta, at, &s);
            back_block(b, delta, at, &s);
        }
        store_channels(c, b, d, &s);
    }
    add_channels(c, b);
    back_state(c, b, delta, b->q, b->k, NULL);
}

#endif
