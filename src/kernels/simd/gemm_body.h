/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix product in registers that tiled kernels are made of: TILE_ROWS x (TILE_VECTORS · VL) sums
 * stay in registers while the depth runs.
 *
 *     c[i][j] (+)= Σ_k a[i · a_row + k · a_step] · b[k · b_stride + j]
 *
 * The sum runs over k in order, one fused multiply-add each, so a result does not depend on which of
 * the sizes below computed it. With TILE_BF16_DOT elements of a and b are pairs of bf16, which count as one float, and
 * k counts pairs: two multiply-adds each. a_row, a_step and, where it can be, c_stride are constants of the kernel:
 * then one register addresses all rows, where variable strides take twelve, most of them spilled.
 *
 * The includer defines before it:
 *   TILE_ROWS, TILE_VECTORS   the full tile
 *   TILE_ROW_COUNTS(X)        X(n) for each number of rows that gets a function of its own, descending,
 *                             from TILE_ROWS down to 1
 *   TILE_STREAMS              1 if b comes from memory and is read once, else 0
 *   TILE_BF16_DOT                if a and b are pairs; the vec_*.h has to have these
 *   TILE_BYTE_DOT                if they are four bytes each, and sums whole numbers; likewise
 *   TILE_LOADS_ONCE           if rows are broadcast once for all columns, whatever the limit of instructions
 * and makes name(rows, columns, GEMM_OPERANDS) for its own a_row, a_step and c_row, which is a constant
 * or the word c_stride: GEMM_PAIR for each n, then GEMM_DISPATCH with a GEMM_CASE for each n.
 */
#ifndef EJKI_GEMM_BODY_H
#define EJKI_GEMM_BODY_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/simd/unroll.h"
#include "kernels/simd/vec.h"

/* Columns of a full tile. */
#define TILE_COLUMNS (TILE_VECTORS * VL)

/* The most lines of memory that one product prefetches. */
#define GEMM_LINES 80

/*
 * Memory that will be needed after a product: one line is prefetched at each step of its depth, so that
 * requests never queue up. With TILE_STREAMS it is a row of a tile's width per step, from line[0] on and
 * `step` floats apart; else the lines listed, into the second-level cache or, if `near`, the first.
 */
typedef struct gemm_prefetch {
    bool near;
    int64_t step;
    int64_t count;
    const float *line[GEMM_LINES];
} gemm_prefetch;

/* By value, not in a struct: written as words and read back as vectors, that would wait for the store
 * buffer at every call (measured: 3 % of the tiled kernel). */
#define GEMM_OPERANDS                                                                              \
    int64_t depth, const float *a, const float *b, int64_t b_stride, float *c, int64_t c_stride,   \
        bool add, const gemm_prefetch *ahead
typedef void (*gemm_fn)(GEMM_OPERANDS);

#ifdef TILE_BF16_DOT
#define GEMM_TERM     v_dot
#define GEMM_TERM_ONE v_dot_one
#elif defined(TILE_BYTE_DOT)
#define GEMM_TERM     v_dot_bytes
#define GEMM_TERM_ONE v_dot_bytes_one
#else
#define GEMM_TERM     v_fma
#define GEMM_TERM_ONE v_fma_one
#endif

#ifdef TILE_LOADS_ONCE
#define GEMM_LOADS_TWICE 0
#else
#define GEMM_LOADS_TWICE 1
#endif

/* sum[i][j] += a[i · a_row] · b[j]. Every other row is multiplied straight from memory, which takes fewer
 * instructions but more loads: half of each keeps clear of either limit. With TILE_LOADS_ONCE none is: where b comes
 * from the second-level cache, its lines need the cycles that loads would take. */
static inline __attribute__((always_inline)) void gemm_step(const int rows, const int vectors,
                                                            const float *a, const int64_t a_row,
                                                            const float *b,
                                                            vf sum[TILE_ROWS][TILE_VECTORS]) {
    vf column[TILE_VECTORS];
    EJKI_UNROLL for (int j = 0; j < vectors; j++) column[j] = v_load(b + j * VL);
    EJKI_UNROLL for (int i = 0; i < rows; i++) {
        if (GEMM_LOADS_TWICE && i % 2) {
            EJKI_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] =
                GEMM_TERM_ONE(a + i * a_row, column[j], sum[i][j]);
        } else {
            const vf row = v_set1(a[i * a_row]);
            EJKI_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] =
                GEMM_TERM(row, column[j], sum[i][j]);
        }
    }
}

/* rows, vectors and a's strides are constants wherever this is inlined; the array's bounds have to be the
 * macros, or it would live in memory. */
static inline __attribute__((always_inline)) void
gemm(const int rows, const int vectors, const int64_t a_row, const int64_t a_step, GEMM_OPERANDS) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        sum[i][j] = add ? v_load(c + i * c_stride + j * VL) : v_zero();
    const float *end = a + depth * a_step;
    if (TILE_STREAMS) {
        const float *line = ahead->line[0];
        for (; a < end; a += a_step, b += b_stride, line += ahead->step) {
            EJKI_UNROLL for (int j = 0; j < vectors; j++) __builtin_prefetch(line + j * VL, 0, 2);
            gemm_step(rows, vectors, a, a_row, b, sum);
        }
    } else {
        const int64_t count = ahead->count < depth ? ahead->count : depth;
        const float *const *line = ahead->line, *const *last = line + count;
        for (; ahead->near && line < last; line++, a += a_step, b += b_stride) {
            __builtin_prefetch(*line, 0, 3);
            gemm_step(rows, vectors, a, a_row, b, sum);
        }
        for (; line < last; line++, a += a_step, b += b_stride) {
            __builtin_prefetch(*line, 0, 2);
            gemm_step(rows, vectors, a, a_row, b, sum);
        }
        EJKI_UNROLL_TWICE for (; a < end; a += a_step, b += b_stride)
            gemm_step(rows, vectors, a, a_row, b, sum);
    }
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        v_store(c + i * c_stride + j * VL, sum[i][j]);
}

/* The largest number of rows with a function of its own that is at most `rows` (≥ 1). */
static inline int gemm_rows(int64_t rows) {
#define GEMM_STEP(n)                                                                               \
    if (rows >= n) return n;
    TILE_ROW_COUNTS(GEMM_STEP)
#undef GEMM_STEP
    return 1;
}

/* Functions for each number of rows, with all vectors of a tile and with one. */
#define GEMM_PAIR(name, n, a_row, a_step, c_row)                                                   \
    static __attribute__((noinline)) void name##_##n##_full(GEMM_OPERANDS) {                       \
        (void)c_stride;                                                                            \
        gemm(n, TILE_VECTORS, a_row, a_step, depth, a, b, b_stride, c, c_row, add, ahead);         \
    }                                                                                              \
    static __attribute__((noinline)) void name##_##n##_one(GEMM_OPERANDS) {                        \
        (void)c_stride;                                                                            \
        gemm(n, 1, a_row, a_step, depth, a, b, b_stride, c, c_row, add, ahead);                    \
    }
#define GEMM_CASE(name, n)                                                                         \
    case n:                                                                                        \
        full = name##_##n##_full;                                                                  \
        one = name##_##n##_one;                                                                    \
        break;

/*
 * The product for `rows` of gemm_rows() and any number of columns that is a multiple of VL: full
 * tiles first, then single vectors.
 */
#define GEMM_DISPATCH(name, cases)                                                                 \
    static inline void name(int rows, int64_t columns, GEMM_OPERANDS) {                            \
        gemm_fn full = name##_1_full, one = name##_1_one;                                          \
        switch (rows) { cases }                                                                    \
        int64_t j = 0;                                                                             \
        for (; j + TILE_COLUMNS <= columns; j += TILE_COLUMNS)                                     \
            full(depth, a, b + j, b_stride, c + j, c_stride, add, ahead);                          \
        for (; j < columns; j += VL) one(depth, a, b + j, b_stride, c + j, c_stride, add, ahead);  \
    }

#endif
