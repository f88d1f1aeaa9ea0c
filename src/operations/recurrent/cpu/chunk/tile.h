/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk of a head in memory, and the products it is made of. Operands whose rows are multiplied from lie so that
 * neighbouring rows are neighbours in memory, what is multiplied with in slabs of TILE_COLUMNS columns: at a stride of
 * 512 bytes a slab would use a quarter of an L1 cache (measured: 0.55 of peak instead of 0.77).
 */
#ifndef EJKI_RECURRENT_CHUNK_TILE_H
#define EJKI_RECURRENT_CHUNK_TILE_H

/* 8 rows keep the adders of AVX-512 busy and divide a chunk; 16 registers hold 4. */
#if defined(EJKI_TIER_AVX2) || defined(EJKI_TIER_SCALAR)
#define TILE_ROWS 4
#else
#define TILE_ROWS 8
#endif
#define TILE_VECTORS       2
#define TILE_STREAMS       0
#define TILE_ROW_COUNTS(X) X(TILE_ROWS)
#include "base/base.h"
#include "kernels/simd/pack_body.h"
#include "operations/recurrent/shared/problem.cuh"

/*
 * Tokens of a chunk. FLOPs inside of chunks grow with it, passes over the state fall: 16, 32 and 64 take 21.5, 20.5
 * and 22.9 ms for the delta rule (T 4096, 4 heads of 128 x 128, Zen 4). A multiple of TILE_COLUMNS and TILE_ROWS.
 */
enum { CHUNK = 32 };
_Static_assert((int)CHUNK == (int)REC_KEPT_STEPS, "states before chunks are those that are kept");

/*
 * Rows of tensors that the next chunk needs, prefetched between products: else 38 % of the time goes into waiting for
 * them. Rows of the output are among them, and what gradients keep of a chunk. Each CHUNK steps of a tile ask for as
 * much: more lines at once than a core waits for, 12 on many, stop it, and loads of operands with it.
 */
enum { MOST_AHEAD = 9, PIECE = 4 * 64 };
typedef struct ahead {
    const char *row[MOST_AHEAD];
    rec_size step[MOST_AHEAD], bytes[MOST_AHEAD];
    int count, next;
    rec_size rows, done;         /* done: bytes of the row at hand */
    rec_size pieces, units, due; /* pieces of rows that are asked for in so many times */
} ahead;

INLINE void prefetch_piece(ahead *a) {
    const char *at = a->row[a->next] + a->done;
    const rec_size left = a->bytes[a->next] - a->done;
    if (a->rows <= 0) return;
    EJKI_UNROLL for (int i = 0; i < PIECE; i += 64) if (i < left) __builtin_prefetch(at + i, 0, 2);
    a->done += PIECE;
    if (left > PIECE) return;
    a->done = 0;
    a->row[a->next] += a->step[a->next];
    if (++a->next < a->count) return;
    a->next = 0;
    a->rows--;
}
INLINE void prefetch(ahead *a) {
    for (a->due += a->pieces; a->due > 0; a->due -= a->units) prefetch_piece(a);
}
/* All rows in `units` times. */
static void share_out(ahead *a, rec_size units) {
    a->pieces = 0;
    for (int i = 0; i < a->count; i++) a->pieces += a->rows * ejki_cdiv(a->bytes[i], PIECE);
    a->units = units;
}

typedef struct chunk {
    const rec_problem *p;
    float scale; /* of queries; gradients have it in d_out */
    ahead ahead;
    rec_sequence sequence;
    int count, rows; /* tokens; rows of tiles, those behind the tokens are 0 */
    rec_size token[CHUNK];
    rec_size pitch;      /* of rows of key channels, whose rest is 0 */
    float *q, *k, *d;    /* [CHUNK][pitch]; d: decays of channels */
    float *carried;      /* [CHUNK][pitch]: k with the decays since the chunk began */
    float *hats, *total; /* [8][pitch], [pitch]: channels.h */
    float *qt, *kt;      /* slabs [pitch][TILE_COLUMNS] of tokens; qt: of gradients */
    float *qk, *kk;      /* [CHUNK][CHUNK]: products of rows */
    float *own, *rest;   /* [CHUNK][CHUNK]: of U in the outputs, and in X, below the diagonal */
    float *u, *x;        /* [CHUNK][TILE_COLUMNS] */
    float *whole;        /* [pitch]: what remains of a row of the state after the chunk */
    float since[CHUNK];  /* decays of the head since the chunk began */
    float until[CHUNK];  /* decays to the end of the chunk; of sums times beta */
    float seen
        [CHUNK]; /* of since, what the query reads: the token before, if it reads before the update */
    float bonus[CHUNK]; /* what a value is multiplied by in its own output then */
    float beta[CHUNK];
    float q_norm[CHUNK], k_norm[CHUNK]; /* what rows were multiplied by */
    struct chunk_pairs *pairs;          /* operands in bf16: bf16_dot/pairs.h */
    int paddings;                       /* tokens that do not count, among those of the chunk */
    rec_size padding[CHUNK];
} chunk;

/* sum += a[i a_row] b[j]. Each number of a is broadcast once: with gemm_step() the loads take as long as the
 * multiply-adds of so few rows. */
INLINE void tile_step(const float *a, const rec_size a_row, const float *b,
                      vf sum[TILE_ROWS][TILE_VECTORS]) {
    vf column[TILE_VECTORS];
    EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) column[j] = v_load(b + j * VL);
    EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
        const vf row = v_set1(a[i * a_row]);
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
            v_fma(row, column[j], sum[i][j]);
    }
}

/* sum += a b over the depth; row i of a lies a_row after row i - 1. */
INLINE void tile(rec_size depth, const float *a, const rec_size a_row, const rec_size a_step,
                 const float *b, vf sum[TILE_ROWS][TILE_VECTORS]) {
    const float *end = a + depth * a_step;
    EJKI_UNROLL_TWICE for (; a < end; a += a_step, b += TILE_COLUMNS) tile_step(a, a_row, b, sum);
}

/* The same of vector v of the columns alone. */
INLINE void narrow_tile(rec_size depth, const float *a, const rec_size a_row, const rec_size a_step,
                        const float *b, const int v, vf sum[TILE_ROWS][TILE_VECTORS]) {
    const float *end = a + depth * a_step;
    EJKI_UNROLL_TWICE for (; a < end; a += a_step, b += TILE_COLUMNS) {
        const vf own = v_load(b + v * VL);
        EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++) sum[i][v] =
            v_fma_one(a + i * a_row, own, sum[i][v]);
    }
}

INLINE void tile_clear(vf sum[TILE_ROWS][TILE_VECTORS]) {
    EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++)
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] = v_zero();
}

INLINE void tile_store(float *to, rec_size stride, vf sum[TILE_ROWS][TILE_VECTORS]) {
    EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++)
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++)
            v_store(to + i * stride + j * VL, sum[i][j]);
}

/* sum = products of `rows`, [CHUNK][pitch], from r on with the state, unless `met` has them. */
INLINE void tile_met(chunk *c, const float *rows, rec_size r, const float *state, const float *met,
                     vf sum[TILE_ROWS][TILE_VECTORS]) {
    const rec_size depth = c->p->key_size, pitch = c->pitch;
    if (met) prefetch(&c->ahead);
    tile_clear(sum);
    for (rec_size d = 0; !met && d < depth; d += CHUNK) {
        prefetch(&c->ahead);
        tile(ejki_min(depth - d, CHUNK), rows + r * pitch + d, pitch, 1, state + d * TILE_COLUMNS,
             sum);
    }
    EJKI_UNROLL for (int i = 0; met && i < TILE_ROWS; i++)
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
            v_load(met + (r + i) * TILE_COLUMNS + j * VL);
}

/* Products of `all`, [CHUNK][pitch], and k, up to the diagonal. */
static void multiply_rows(const chunk *c, const float *all, float *to) {
    const rec_size pitch = c->pitch;
    for (rec_size r = 0; r < c->rows; r += TILE_ROWS)
        for (rec_size j = 0; j < r + TILE_ROWS; j += TILE_COLUMNS) {
            const float *rows = all + r * pitch, *k = c->kt + j * pitch;
            vf sum[TILE_ROWS][TILE_VECTORS];
            tile_clear(sum);
            if (j + VL < r + TILE_ROWS)
                tile(c->p->key_size, rows, pitch, 1, k, sum);
            else
                narrow_tile(c->p->key_size, rows, pitch, 1, k, 0, sum);
            tile_store(to + r * CHUNK + j, CHUNK, sum);
        }
}

/*
 * X = V - e^G K S - (K K' decays, below the diagonal) U and U = beta X, a tile of rows after the other: what is above
 * it by a product, its own triangle in registers. u has V. X goes to `x`, unless that is NULL. K S is `met`, or made.
 */
INLINE void solve(chunk *c, const float *state, const float *met, float *x) {
    for (rec_size r = 0; r < c->rows; r += TILE_ROWS) {
        vf sum[TILE_ROWS][TILE_VECTORS];
        const float *rest = c->rest + r * CHUNK;
        float *u = c->u + r * TILE_COLUMNS;
        tile_met(c, c->p->key_decay ? c->carried : c->k, r, state, met, sum);
        EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
            const vf since = v_set1(-c->since[r + i]);
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
                v_fma(since, sum[i][j], v_load(u + i * TILE_COLUMNS + j * VL));
        }
        tile(r, rest, CHUNK, 1, c->u, sum);
        EJKI_UNROLL for (int k = 0; k < TILE_ROWS; k++) {
            const vf beta = v_set1(c->beta[r + k]);
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
                if (x) v_store(x + (r + k) * TILE_COLUMNS + j * VL, sum[k][j]);
                sum[k][j] = v_mul(beta, sum[k][j]);
            }
            EJKI_UNROLL for (int i = k + 1; i < TILE_ROWS; i++) {
                const vf factor = v_set1(rest[i * CHUNK + r + k]);
                EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
                    v_fma(factor, sum[k][j], sum[i][j]);
            }
        }
        tile_store(u, TILE_COLUMNS, sum);
    }
}

/* Rows of a slab times a number for each. */
INLINE void scale_tokens(const chunk *c, const float *by, float *rows) {
    for (rec_size r = 0; r < c->rows; r++)
        for (rec_size j = 0; j < TILE_COLUMNS; j += VL) {
            float *at = rows + r * TILE_COLUMNS + j;
            v_store(at, v_mul(v_set1(by[r]), v_load(at)));
        }
}

/* The state after the chunk is e^(G of the chunk) S + K' U, whose rows get the decays that are left. */
static void update_state(chunk *c, const float *state, float *after) {
    scale_tokens(c, c->until, c->u);
    for (rec_size r = 0; r < c->pitch; r += TILE_ROWS) {
        vf sum[TILE_ROWS][TILE_VECTORS];
        prefetch(&c->ahead);
        const float *at = state + r * TILE_COLUMNS;
        EJKI_UNROLL for (int i = 0; i < TILE_ROWS; i++) {
            const vf factor = v_set1(c->whole[r + i]);
            EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] =
                v_mul(factor, v_load(at + i * TILE_COLUMNS + j * VL));
        }
        tile(c->rows, c->k + r, 1, c->pitch, c->u, sum);
        tile_store(after + r * TILE_COLUMNS, TILE_COLUMNS, sum);
    }
}

#endif
