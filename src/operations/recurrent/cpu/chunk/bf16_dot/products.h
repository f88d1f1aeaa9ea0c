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

/* Rows of a slab get the decays of the chunk, take in `terms` terms of what tokens add, the smallest first, and become
 * an operand of `parts` terms. */
INLINE void update_pairs(const int terms, const int parts, chunk *c, float *state, uint16_t *to) {
    const chunk_pairs *t = c->pairs;
    const rec_size apart = t->steps * 2 * BLOCK_SIZE;
    for (rec_size d = 0; d < c->pitch; d += TILE_ROWS) {
        float *at = state + d * TILE_COLUMNS;
        uint16_t *operand = to + d / STEP * 2 * BLOCK_SIZE + d % STEP * VL;
        vf sum[TILE_ROWS][TILE_VECTORS];
        prefetch(&c->ahead);
        EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
            const vf factor = v_set1(c->whole[d + i]);
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
                v_mul(factor, v_load(at + i * TILE_COLUMNS + j * VL));
        }
        for (int n = terms - 1; n >= 0; n--)
            block_product(t->k_columns + d * STEP, t->u + n * 2 * BLOCK_SIZE, TILE_VECTORS, sum);
        tile_store(at, TILE_COLUMNS, sum);
        EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i += 2) EJKI_UNROLL for (int j = 0;
                                                                            j < TILE_VECTORS; j++)
            pair_rows(parts, sum[i][j], sum[i + 1][j], apart, operand + i * VL + j * BLOCK_SIZE);
    }
}

/* to[32][16] = left right: the first block of columns alone. */
static void narrow_product(rec_size steps, const uint16_t *left, const uint16_t *right, float *to) {
    for (rec_size r = 0; r < CHUNK; r += TILE_ROWS, to += TILE_ROWS * VL) {
        vf sum[TILE_ROWS][TILE_VECTORS];
        const uint16_t *rows = left + r / BLOCK_ROWS * steps * BLOCK_SIZE + r % BLOCK_ROWS * STEP;
        tile_clear(sum);
        for (rec_size s = 0; s < steps; s++)
            block_product(rows + s * BLOCK_SIZE, right + s * BLOCK_SIZE, 1, sum);
        EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++) v_store(to + i * VL, sum[i][0]);
    }
}

#endif
