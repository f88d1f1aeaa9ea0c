/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a chunk's gradients. d_out, u and y lie in slabs of TILE_COLUMNS columns as in a chunk, and once more
 * turned, [tokens / TILE_COLUMNS][columns][TILE_COLUMNS], to be multiplied with.
 */
#ifndef EJKI_RECURRENT_CHUNK_BACK_TILE_H
#define EJKI_RECURRENT_CHUNK_BACK_TILE_H

#include "operations/recurrent/cpu/chunk/rows_body.h"

enum { PANELS = CHUNK / TILE_COLUMNS, SQUARE = CHUNK * CHUNK };

/* Memory of a chunk's gradients. y is -dX, or dU where nothing is solved for. */
typedef struct back {
    float *d_out, *u, *y;                      /* [slabs][CHUNK][TILE_COLUMNS] */
    float *d_out_turned, *u_turned, *y_turned; /* [PANELS][columns][TILE_COLUMNS] */
    float *d_own, *d_rest;                     /* [CHUNK][CHUNK]: of own and -rest */
    float *m, *n, *m_turned, *n_turned; /* the same with decays; and as operands, in panels */
    float *dq, *dk, *dl; /* [PANELS][pitch][TILE_COLUMNS]: of rows, by state and cotangent */
    float *q, *k, *left; /* [CHUNK][pitch]: decayed from the chunk's begin, k to its end */
    float
        *d_state; /* [slabs][pitch][TILE_COLUMNS]: of the state behind the chunk, then before it */
    float *met;   /* [pitch]: sums over columns of the state times d_state */
    float *rows;  /* [3][CHUNK][pitch]: gradients of query, key and gates */
    float *betas,
        *skips; /* [CHUNK][VL]: what sums up to gradients of beta, and of what passes by */
    float since[CHUNK], until[CHUNK],
        gate[CHUNK]; /* of gates: from the state on, up to d_state; all */
    rec_size slabs, columns;
} back;

/*
 * Backwards through the solve, columns of one slab, with K that has its decays to the end of the chunk: dU = K dS +
 * own' d_out + rest' dX, dX = beta dU, a tile of rows after the other from the last one on. betas adds up dU X.
 */
INLINE void back_solve(const chunk *c, const bool delta, const float *keys, const float *d_state,
                       const float *d_out, const float *x, float *y, float *betas) {
    for (rec_size r = c->rows - TILE_ROWS; r >= 0; r -= TILE_ROWS) {
        vf sum[TILE_ROWS][TILE_VECTORS];
        const rec_size later = r + TILE_ROWS;
        const float *own = c->own + r * CHUNK + r, *rest = c->rest + r * CHUNK + r;
        tile_clear(sum);
        tile(c->p->key_size, keys + r * c->pitch, c->pitch, 1, d_state, sum);
        EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
            const vf until = v_set1(c->until[r + i]);
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] = v_mul(until, sum[i][j]);
        }
        tile(c->rows - later, own + TILE_ROWS * CHUNK, 1, CHUNK, d_out + later * TILE_COLUMNS, sum);
        if (delta)
            tile(c->rows - later, rest + TILE_ROWS * CHUNK, 1, CHUNK, y + later * TILE_COLUMNS,
                 sum);
        EJKI_UNROLL for (int k = TILE_ROWS - 1; k >= 0; k--) {
            const float *at = d_out + (r + k) * TILE_COLUMNS;
            EJKI_UNROLL for (int i = 0; i <= k; i++)
                EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
                    v_fma_one(own + k * CHUNK + i, v_load(at + j * VL), sum[i][j]);
        }
        EJKI_UNROLL for (int k = TILE_ROWS - 1; k >= 0 && delta; k--) {
            const vf beta = v_set1(-c->beta[r + k]);
            vf d_beta = v_load(betas + (r + k) * VL);
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
                d_beta = v_fma(sum[k][j], v_load(x + (r + k) * TILE_COLUMNS + j * VL), d_beta);
                sum[k][j] = v_mul(beta, sum[k][j]);
            }
            v_store(betas + (r + k) * VL, d_beta);
            EJKI_UNROLL for (int i = 0; i < k; i++)
                EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
                    v_fma_one(rest + k * CHUNK + i, sum[k][j], sum[i][j]);
        }
        tile_store(y + r * TILE_COLUMNS, TILE_COLUMNS, sum);
    }
}

/* Columns of a slab as rows. */
static void turn(const chunk *c, const back *b, rec_size slab, const float *rows, float *turned) {
    const float *from = rows + slab * CHUNK * TILE_COLUMNS;
    for (rec_size j = 0; j < PANELS; j++)
        pack_transposed(from + j * TILE_COLUMNS * TILE_COLUMNS, TILE_COLUMNS,
                        ejki_min(c->rows - j * TILE_COLUMNS, TILE_COLUMNS), TILE_COLUMNS,
                        turned + (j * b->columns + slab * TILE_COLUMNS) * TILE_COLUMNS);
}

/* Products of rows with those of u, up to the diagonal, over all columns. */
static void multiply_columns(chunk *c, const back *b, const float *rows, float *to) {
    for (rec_size r = 0; r < c->rows; r += TILE_ROWS)
        for (rec_size j = 0; j < r + TILE_ROWS; j += TILE_COLUMNS) {
            vf sum[TILE_ROWS][TILE_VECTORS];
            tile_clear(sum);
            for (rec_size s = 0; s < b->slabs; s++) {
                prefetch(&c->ahead);
                const float *own = rows + (s * CHUNK + r) * TILE_COLUMNS;
                const float *u = b->u_turned + j * b->columns + s * TILE_COLUMNS * TILE_COLUMNS;
                if (j + VL < r + TILE_ROWS)
                    tile(TILE_COLUMNS, own, TILE_COLUMNS, 1, u, sum);
                else
                    narrow_tile(TILE_COLUMNS, own, TILE_COLUMNS, 1, u, 0, sum);
            }
            tile_store(to + r * CHUNK + j, CHUNK, sum);
        }
}

/* Rows r on of a state, over all columns, times a panel of what is turned. */
INLINE void multiply_state(chunk *c, const back *b, const float *state, rec_size r,
                           const float *turned, vf sum[TILE_ROWS][TILE_VECTORS]) {
    tile_clear(sum);
    for (rec_size s = 0; s < b->slabs; s++) {
        prefetch(&c->ahead);
        tile(TILE_COLUMNS, state + (s * c->pitch + r) * TILE_COLUMNS, TILE_COLUMNS, 1,
             turned + s * TILE_COLUMNS * TILE_COLUMNS, sum);
    }
}

/* Sums over columns of a state times d_state, for each row. */
static void meet_states(const chunk *c, const back *b, const float *state) {
    for (rec_size d = 0; d < c->pitch; d += VL) {
        vf sum[VL];
        for (rec_size i = 0; i < VL; i++) {
            sum[i] = v_zero();
            for (rec_size s = 0; s < b->slabs; s++)
                for (rec_size j = 0; j < TILE_COLUMNS; j += VL) {
                    const rec_size at = (s * c->pitch + d + i) * TILE_COLUMNS + j;
                    sum[i] = v_fma(v_load(state + at), v_load(b->d_state + at), sum[i]);
                }
        }
        v_store(b->met + d, v_sums(sum));
    }
}

/* d_state of before the chunk: e^(G of the chunk) d_state + Q' d_out + K' y, rows with their decays. Unless `state` is
 * NULL the sum of its products with d_state is returned. */
INLINE float back_state(chunk *c, const back *b, const bool delta, const float *q, const float *k,
                        const float *state) {
    vf met[2] = {v_zero(), v_zero()};
    for (rec_size s = 0; s < b->slabs; s++)
        for (rec_size r = 0; r < c->pitch; r += TILE_ROWS) {
            vf sum[TILE_ROWS][TILE_VECTORS];
            float *at = b->d_state + (s * c->pitch + r) * TILE_COLUMNS;
            prefetch(&c->ahead);
            EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
                const vf factor = v_set1(c->whole[r + i]);
                EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
                    const rec_size own = i * TILE_COLUMNS + j * VL;
                    const vf d = v_load(at + own);
                    if (state)
                        met[i % 2] = v_fma(v_load(state + (at - b->d_state) + own), d, met[i % 2]);
                    sum[i][j] = v_mul(factor, d);
                }
            }
            tile(c->rows, q + r, 1, c->pitch, b->d_out + s * CHUNK * TILE_COLUMNS, sum);
            if (delta) prefetch(&c->ahead);
            if (delta) tile(c->rows, k + r, 1, c->pitch, b->y + s * CHUNK * TILE_COLUMNS, sum);
            tile_store(at, TILE_COLUMNS, sum);
        }
    return v_sum(v_add(met[0], met[1]));
}

#endif
