/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies between the tokens of a chunk: products of their rows, with the decays from one to the other. These are
 * multiplied up from those of single tokens, never divided by, so that gates of -inf, -1e4, 0 and above 0 are what
 * they are in the recurrence.
 */
#ifndef EJKI_RECURRENT_CHUNK_GATES_BODY_H
#define EJKI_RECURRENT_CHUNK_GATES_BODY_H

#include "operations/recurrent/cpu/chunk/tile.h"
#include "operations/recurrent/cpu/scan/token_body.h"

/* ---- One decay for each token ------------------------------------------------------------------------ */

/*
 * Decays from and to the ends of the chunk are of sums of gates, rounded once: what products of 32 lose would be lost
 * again with each chunk. Gates of -inf count as -1e5, whose decay is 0 whatever growth is added.
 */
static void head_decays(chunk *c, rec_size h) {
    float decay[CHUNK];
    double sum[CHUNK], total = 0;
    for (int i = 0; i < CHUNK; i++) {
        decay[i] = i < c->count ? head_gate(c->p, &c->sequence, c->token[i], h, c->beta[i]) : 0;
        sum[i] = total += decay[i] < -1e5f ? -1e5 : (double)decay[i];
    }
    for (int i = 0; i < CHUNK; i++) {
        c->since[i] = (float)sum[i];
        c->until[i] = (float)(total - sum[i]);
    }
    for (int i = 0; i < CHUNK; i += VL) {
        v_store(decay + i, gate_exp(v_load(decay + i)));
        v_store(c->since + i, gate_exp(v_load(c->since + i)));
        v_store(c->until + i, gate_exp(v_load(c->until + i)));
    }
    memcpy(c->d, decay, sizeof decay);
    memcpy(c->seen, c->since, sizeof c->seen);
    if (c->p->read == REC_BEFORE) {
        memcpy(c->seen + 1, c->since, (CHUNK - 1) * sizeof *c->seen);
        c->seen[0] = 1;
    }
    for (rec_size i = 0; i < c->pitch; i += VL) v_store(c->whole + i, v_set1(c->since[CHUNK - 1]));
}

/* Row i of decays between tokens is row i - 1 times the decay of token i, and 1 at token i itself. What is read before
 * the update has those of row i - 1, and the bonus at token i. */
INLINE void apply_head_decays(chunk *c, const bool delta, const bool old) {
    vf between[CHUNK / VL];
    EJKI_UNROLL for (int j = 0; j < CHUNK / VL; j++) between[j] = v_zero();
    for (int i = 0; i < c->rows; i++) {
        const vf decay = v_set1(c->d[i]);
        EJKI_UNROLL for (int j = 0; j < CHUNK / VL; j++) {
            const int n = i - j * VL;
            const uint32_t before = n <= 0 ? 0 : n >= VL ? (1u << VL) - 1 : (1u << n) - 1;
            const uint32_t here = n < 0 || n >= VL ? 0 : 1u << n;
            const rec_size at = i * CHUNK + j * VL;
            if (old) v_store(c->own + at, v_mul(between[j], v_load(c->qk + at)));
            between[j] = v_add(v_where(v_mul(between[j], decay), before), v_where(v_set1(1), here));
            if (!old) v_store(c->own + at, v_mul(between[j], v_load(c->qk + at)));
            if (delta)
                v_store(c->rest + at, v_sub(v_zero(), v_mul(between[j], v_load(c->kk + at))));
        }
        if (old) c->own[i * CHUNK + i] = c->bonus[i];
    }
}

/* Of sums by step sizes U stays V: what is multiplied with it has beta, and the diagonal what passes by the state. */
static void apply_steps(chunk *c, rec_size h) {
    const float skip = skip_of(c->p, h);
    for (rec_size i = 0; i < c->rows; i++) {
        float *own = c->own + i * CHUNK;
        for (rec_size j = 0; j < CHUNK; j += VL)
            v_store(own + j, v_mul(v_load(c->beta + j), v_load(own + j)));
        own[i] += skip;
    }
    for (rec_size i = 0; i < CHUNK; i += VL)
        v_store(c->until + i, v_mul(v_load(c->beta + i), v_load(c->until + i)));
}

/* ---- A decay for each channel of the key ------------------------------------------------------------- */

/*
 * Tokens are taken in blocks of 4. k of all tokens before a block has the decays up to it, q and k of its own tokens
 * those since it began, so that the product of two has all those between. Inside of the block k gets the decays token
 * by token. After the last block k has the decays to the end of the chunk, as the update of the state needs it.
 */
enum { BLOCK = 4, DOT_COLUMNS = VL == 8 ? 2 : 4, DOTS = BLOCK * BLOCK };

/* Sums of `count` vectors each. */
INLINE void sum_dots(const int count, const vf *dots, float *to) {
    EJKI_UNROLL for (int i = 0; i < count; i += VL) v_store(to + i, v_sums(dots + i));
}

/* Rows `hats` of a block times rows j on of k; with `move` k gets the decays of the block. */
INLINE void dot_rows(const chunk *c, const bool move, const float *hats, rec_size j, float *to) {
    vf sum[BLOCK * DOT_COLUMNS];
    float result[BLOCK * DOT_COLUMNS];
    float *rows = c->k + j * c->pitch;
    EJKI_UNROLL for (int n = 0; n < BLOCK * DOT_COLUMNS; n++) sum[n] = v_zero();
    for (rec_size d = 0; d < c->pitch; d += VL) {
        vf k[DOT_COLUMNS];
        EJKI_UNROLL for (int n = 0; n < DOT_COLUMNS; n++) k[n] = v_load(rows + n * c->pitch + d);
        EJKI_UNROLL for (int i = 0; i < BLOCK; i++) {
            const vf hat = v_load(hats + i * c->pitch + d);
            EJKI_UNROLL for (int n = 0; n < DOT_COLUMNS; n++) sum[i * DOT_COLUMNS + n] =
                v_fma(hat, k[n], sum[i * DOT_COLUMNS + n]);
        }
        if (!move) continue;
        const vf total = v_load(c->total + d);
        EJKI_UNROLL for (int n = 0; n < DOT_COLUMNS; n++)
            v_store(rows + n * c->pitch + d, v_mul(total, k[n]));
    }
    sum_dots(BLOCK * DOT_COLUMNS, sum, result);
    for (int i = 0; i < BLOCK; i++)
        for (int n = 0; n < DOT_COLUMNS; n++) to[i * CHUNK + j + n] = result[i * DOT_COLUMNS + n];
}

/* The block's rows with their decays, and its own products: of q the 10 down to the diagonal, of k the 6 below it. */
INLINE void dot_block(chunk *c, const bool delta, const bool old, rec_size b, float *q_dots,
                      float *k_dots) {
    const rec_size pitch = c->pitch;
    float *rows_q = c->q + b * pitch, *rows_k = c->k + b * pitch, *carried = c->carried + b * pitch;
    const float *rows_d = c->d + b * pitch;
    vf q_sum[DOTS], k_sum[DOTS];
    EJKI_UNROLL for (int n = 0; n < DOTS; n++) q_sum[n] = k_sum[n] = v_zero();
    for (rec_size d = 0; d < pitch; d += VL) {
        vf k[BLOCK], hat = v_set1(1);
        const vf since = v_load(c->whole + d);
        EJKI_UNROLL for (int i = 0; i < BLOCK; i++) {
            const rec_size at = i * pitch + d;
            const vf q = v_load(rows_q + at), decay = v_load(rows_d + at);
            k[i] = v_load(rows_k + at);
            const vf met = hat;
            hat = v_mul(hat, decay);
            const vf q_hat = v_mul(old ? met : hat, q), k_hat = v_mul(hat, k[i]);
            v_store(c->hats + at, q_hat);
            v_store(rows_q + at, v_mul(since, q_hat));
            if (delta) {
                v_store(c->hats + BLOCK * pitch + at, k_hat);
                v_store(carried + at, v_mul(since, k_hat));
            }
            EJKI_UNROLL for (int j = 0; j < i; j++) {
                const vf k_met = k[j];
                k[j] = v_mul(k[j], decay);
                q_sum[i * BLOCK + j] = v_fma(q, old ? k_met : k[j], q_sum[i * BLOCK + j]);
                if (delta) k_sum[i * BLOCK + j] = v_fma(k[i], k[j], k_sum[i * BLOCK + j]);
            }
            if (!old) q_sum[i * BLOCK + i] = v_fma(q, k[i], q_sum[i * BLOCK + i]);
        }
        EJKI_UNROLL for (int i = 0; i < BLOCK; i++) v_store(rows_k + i * pitch + d, k[i]);
        v_store(c->total + d, hat);
        v_store(c->whole + d, v_mul(since, hat));
    }
    sum_dots(DOTS, q_sum, q_dots);
    if (delta) sum_dots(DOTS, k_sum, k_dots);
}

/* Blocks from row `first` to `end`, and what is between their tokens; `whole` has the decays since `first`. */
INLINE void channel_blocks(chunk *c, const bool delta, const bool old, rec_size first,
                           rec_size end) {
    for (rec_size i = 0; i < c->pitch; i += VL) v_store(c->whole + i, v_set1(1));
    for (rec_size b = first; b < end; b += BLOCK) {
        float q_dots[DOTS], k_dots[DOTS];
        float *own = c->own + b * CHUNK, *rest = c->rest + b * CHUNK;
        dot_block(c, delta, old, b, q_dots, k_dots);
        for (rec_size j = first; j < b; j += DOT_COLUMNS) {
            if (delta) dot_rows(c, false, c->hats + BLOCK * c->pitch, j, rest);
            dot_rows(c, true, c->hats, j, own);
        }
        for (rec_size i = 0; i < BLOCK; i++) {
            for (rec_size j = 0; j <= i; j++) own[i * CHUNK + b + j] = q_dots[i * BLOCK + j];
            if (old) own[i * CHUNK + b + i] = c->bonus[b + i];
            for (rec_size j = 0; j < i && delta; j++)
                rest[i * CHUNK + b + j] = k_dots[i * BLOCK + j];
            for (rec_size j = first; j < b + i && delta; j += VL) {
                float *at = rest + i * CHUNK + j;
                v_store(at, v_sub(v_zero(), v_load(at)));
            }
        }
    }
}

INLINE void channel_products(chunk *c, const bool delta, const bool old) {
    channel_blocks(c, delta, old, 0, c->rows);
}

#endif
