/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products that gradients of attention are made of. Every operand is a panel: rows of TILE_COLUMNS lanes
 * of 32 bits, one after the other, so that all strides are constants. Lanes of a and b are floats
 * (vjp_f32.h) or pairs of bf16 (vjp_bf16_dot.h); the depth counts lanes.
 *
 *     vjp_raw      c  = a · b      a: TILE_COLUMNS of depth per panel, the next panel `panel_stride` lanes further
 *     vjp_weights  c  = exp(scale · a · b − statistic of the row)
 *     vjp_d_scores   c  = weights ∘ (a · b − statistic of the row)
 *     vjp_add      c += aᵀ · b     a: one panel, its columns are rows of c
 *
 * Sums run over the depth in order: how rows are cut into tiles changes no bit. Those of vjp_raw_exact and
 * vjp_add_exact are right for pairs of small numbers, too.
 */
#ifndef EJKI_VJP_PRODUCTS_H
#define EJKI_VJP_PRODUCTS_H

#include "operations/attention/cpu/tile/tile_shape.h"

#include <float.h>

#ifdef TILE_BF16_DOT
#include "operations/attention/cpu/backward/vjp_bf16_dot.h"
#else
#include "operations/attention/cpu/backward/vjp_f32.h"
#endif

#define VJP_OPERANDS                                                                               \
    int64_t depth, const float *a, int64_t panel_stride, const float *b, float *c,                 \
        const float *statistic, const float *weights, float scale
typedef void (*vjp_product)(VJP_OPERANDS);

/* sum += a · b, panel by panel. */
static inline __attribute__((always_inline)) void
vjp_sums(const bool exact, const int rows, const int vectors, int64_t depth, const float *a,
         int64_t panel_stride, const float *b, vf sum[TILE_ROWS][TILE_VECTORS]) {
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        sum[i][j] = v_zero();
    for (; depth > 0; depth -= TILE_COLUMNS, a += panel_stride) {
        const float *at = a, *end = a + (depth < TILE_COLUMNS ? depth : TILE_COLUMNS);
        EJKI_UNROLL_TWICE for (; at < end; at++, b += TILE_COLUMNS)
            vjp_step(exact, rows, vectors, at, TILE_COLUMNS, b, sum);
    }
}

static inline __attribute__((always_inline)) void vjp_raw_tile(const bool exact, const int rows,
                                                               const int vectors, int64_t depth,
                                                               const float *a, int64_t panel_stride,
                                                               const float *b, float *c) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    vjp_sums(exact, rows, vectors, depth, a, panel_stride, b, sum);
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        v_store(c + i * TILE_COLUMNS + j * VL, sum[i][j]);
}

/* exp of a natural score by 2^y: the difference is taken before it is rounded to base 2, so that scores and
 * statistic, which are large together, lose nothing. */
static inline vf vjp_exp(vf difference) {
    return v_exp2(v_mul(difference, v_set1(1.44269504f)));
}

/* The weight of a score, which is 0 for -inf, whatever the statistic of the row is. */
static inline vf vjp_weight_of(vf score, vf weight) {
    return v_select_gt(v_set1(-FLT_MAX), score, v_zero(), weight);
}

/* What a weight makes of a number: 0 where it is 0, even of NaN; NaN where it is NaN. */
static inline vf vjp_weighted(vf weight, vf number) {
    return v_select_gt(weight, v_zero(), v_mul(weight, number), weight);
}

static inline __attribute__((always_inline)) void
vjp_weights_tile(const int rows, int64_t depth, const float *a, int64_t panel_stride,
                 const float *b, float *c, const float *statistic, float scale) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    vjp_sums(false, rows, TILE_VECTORS, depth, a, panel_stride, b, sum);
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++)
        v_store(c + i * TILE_COLUMNS + j * VL,
                vjp_weight_of(v_mul(sum[i][j], v_set1(scale)),
                              vjp_exp(v_fms(sum[i][j], v_set1(scale), v_set1(statistic[i])))));
}

static inline __attribute__((always_inline)) void
vjp_d_scores_tile(const int rows, int64_t depth, const float *a, int64_t panel_stride,
                  const float *b, float *c, const float *statistic, const float *weights) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    vjp_sums(false, rows, TILE_VECTORS, depth, a, panel_stride, b, sum);
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
        const vf weight = v_load(weights + i * TILE_COLUMNS + j * VL);
        v_store(c + i * TILE_COLUMNS + j * VL,
                vjp_weighted(weight, v_sub(sum[i][j], v_set1(statistic[i]))));
    }
}

static inline __attribute__((always_inline)) void vjp_add_tile(const bool exact, const int rows,
                                                               const int vectors, int64_t depth,
                                                               const float *a, const float *b,
                                                               float *c) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        sum[i][j] = v_load(c + i * TILE_COLUMNS + j * VL);
    const float *end = a + depth * TILE_COLUMNS;
    EJKI_UNROLL_TWICE for (; a < end; a += TILE_COLUMNS, b += TILE_COLUMNS)
        vjp_step(exact, rows, vectors, a, 1, b, sum);
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        v_store(c + i * TILE_COLUMNS + j * VL, sum[i][j]);
}

#define VJP_FUNCTION(name, n, call)                                                                \
    static __attribute__((noinline)) void name##_##n(VJP_OPERANDS) {                               \
        (void)panel_stride, (void)statistic, (void)weights, (void)scale;                           \
        call;                                                                                      \
    }
#define VJP_FUNCTIONS(n)                                                                           \
    VJP_FUNCTION(vjp_raw, n, vjp_raw_tile(false, n, TILE_VECTORS, depth, a, panel_stride, b, c))   \
    VJP_FUNCTION(vjp_raw_one, n, vjp_raw_tile(false, n, 1, depth, a, panel_stride, b, c))          \
    VJP_FUNCTION(vjp_weights, n,                                                                   \
                 vjp_weights_tile(n, depth, a, panel_stride, b, c, statistic, scale))              \
    VJP_FUNCTION(vjp_d_scores, n,                                                                  \
                 vjp_d_scores_tile(n, depth, a, panel_stride, b, c, statistic, weights))           \
    VJP_FUNCTION(vjp_add, n, vjp_add_tile(false, n, TILE_VECTORS, depth, a, b, c))                 \
    VJP_FUNCTION(vjp_add_one, n, vjp_add_tile(false, n, 1, depth, a, b, c))                        \
    VJP_FUNCTION(vjp_raw_exact, n,                                                                 \
                 vjp_raw_tile(true, n, TILE_VECTORS, depth, a, panel_stride, b, c))                \
    VJP_FUNCTION(vjp_add_exact, n, vjp_add_tile(true, n, TILE_VECTORS, depth, a, b, c))
TILE_ROW_COUNTS(VJP_FUNCTIONS)

/* The function for a number of rows that gemm_rows() answers. */
#define VJP_CHOOSE(name, cases)                                                                    \
    static inline vjp_product name(int rows) {                                                     \
        vjp_product chosen = name##_1;                                                             \
        switch (rows) { cases }                                                                    \
        return chosen;                                                                             \
    }
#define VJP_CASE(name, n)                                                                          \
    case n:                                                                                        \
        chosen = name##_##n;                                                                       \
        break;
#define VJP_RAW_CASE(n)       VJP_CASE(vjp_raw, n)
#define VJP_RAW_ONE_CASE(n)   VJP_CASE(vjp_raw_one, n)
#define VJP_WEIGHTS_CASE(n)   VJP_CASE(vjp_weights, n)
#define VJP_D_SCORES_CASE(n)  VJP_CASE(vjp_d_scores, n)
#define VJP_ADD_CASE(n)       VJP_CASE(vjp_add, n)
#define VJP_ADD_ONE_CASE(n)   VJP_CASE(vjp_add_one, n)
#define VJP_RAW_EXACT_CASE(n) VJP_CASE(vjp_raw_exact, n)
#define VJP_ADD_EXACT_CASE(n) VJP_CASE(vjp_add_exact, n)
VJP_CHOOSE(vjp_raw, TILE_ROW_COUNTS(VJP_RAW_CASE))
VJP_CHOOSE(vjp_raw_one, TILE_ROW_COUNTS(VJP_RAW_ONE_CASE))
VJP_CHOOSE(vjp_weights, TILE_ROW_COUNTS(VJP_WEIGHTS_CASE))
VJP_CHOOSE(vjp_d_scores, TILE_ROW_COUNTS(VJP_D_SCORES_CASE))
VJP_CHOOSE(vjp_add, TILE_ROW_COUNTS(VJP_ADD_CASE))
VJP_CHOOSE(vjp_add_one, TILE_ROW_COUNTS(VJP_ADD_ONE_CASE))
VJP_CHOOSE(vjp_raw_exact, TILE_ROW_COUNTS(VJP_RAW_EXACT_CASE))
VJP_CHOOSE(vjp_add_exact, TILE_ROW_COUNTS(VJP_ADD_EXACT_CASE))

/* c[j] += coefficient · elements of a row, `width` of them, in panels that lie `panel_stride` apart. */
static inline void vjp_add_row(float coefficient, ejk_dtype dtype, const void *row, int64_t width,
                               float *c, int64_t panel_stride) {
    const vf factor = v_set1(coefficient);
    for (int64_t d = 0; d < width; d += VL) {
        float *to = c + d / TILE_COLUMNS * panel_stride + d % TILE_COLUMNS;
        const vf v = v_widen_some(dtype, element_at(dtype, row, d), width - d);
        v_store(to, v_fma(factor, v, v_load(to)));
    }
}

#endif
