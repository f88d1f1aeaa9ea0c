/* SPDX-License-Identifier: Apache-2.0 */
/* Products of pairs.h by VDPBF16PS: pairs of the left operand are broadcast to rows of pairs of the right one. */
#ifndef EJKI_RECURRENT_CHUNK_PAIR_PRODUCTS_H
#define EJKI_RECURRENT_CHUNK_PAIR_PRODUCTS_H

#include <immintrin.h>

#include "operations/recurrent/cpu/chunk/bf16_dot/operands.h"

/* Three products where one of floats would do take longer than that. */
enum { EXACT_STATES = 0 };

static void open_products(void) {}
static void close_products(void) {}

INLINE vf set_pair(const uint16_t *pair) {
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return _mm512_castsi512_ps(_mm512_set1_epi32(both));
}

/* sum += rows of a block of the left operand by the first `vectors` of two blocks of the right one. */
INLINE void block_product(const uint16_t *left, const uint16_t *right, const int vectors,
                          vf sum[TILE_ROWS][TILE_VECTORS]) {
    EJKI_UNROLL_TWICE for (int i = 0; i < BLOCK_ROWS; i++, left += 2, right += STEP) {
        vf column[TILE_VECTORS];
        EJKI_UNROLL for (int j = 0; j < vectors; j++) column[j] =
            v_load_pairs(right + j * BLOCK_SIZE);
        EJKI_UNROLL for (int r = 0; r < TILE_ROWS; r++) {
            const vf pair = set_pair(left + r * STEP);
            EJKI_UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
                v_dot(pair, column[j], sum[r][j]);
        }
    }
}

/* to[32][32] = left right, over the key channels and terms of the right one; `lower`: only what is not above the
 * diagonal is used. */
static void pair_product(rec_size steps, int terms, const uint16_t *left, const uint16_t *right,
                         bool lower, float *to) {
    for (rec_size r = 0; r < CHUNK; r += TILE_ROWS, to += TILE_ROWS * TILE_COLUMNS) {
        vf sum[TILE_ROWS][TILE_VECTORS];
        const uint16_t *rows = left + r / BLOCK_ROWS * steps * BLOCK_SIZE + r % BLOCK_ROWS * STEP;
        tile_clear(sum);
        for (rec_size n = 0, s = 0; n < terms * steps; n++, s = s + 1 == steps ? 0 : s + 1) {
            const uint16_t *from = rows + s * BLOCK_SIZE, *with = right + n * 2 * BLOCK_SIZE;
            if (lower && r < BLOCK_ROWS)
                block_product(from, with, 1, sum);
            else
                block_product(from, with, TILE_VECTORS, sum);
        }
        tile_store(to, TILE_COLUMNS, sum);
    }
}

/* A slab of the state takes in what the tokens add, one term of U after the other. */
static void add_term(chunk *c, const uint16_t *u, float *state, bool asks) {
    for (rec_size d = 0; d < c->pitch; d += TILE_ROWS) {
        float *at = state + d * TILE_COLUMNS;
        vf sum[TILE_ROWS][TILE_VECTORS];
        if (asks) prefetch(&c->ahead);
        EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++)
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
                v_load(at + i * TILE_COLUMNS + j * VL);
        block_product(c->pairs->k_columns + d * STEP, u, TILE_VECTORS, sum);
        tile_store(at, TILE_COLUMNS, sum);
    }
}

#endif
