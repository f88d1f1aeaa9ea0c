/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products that gradients of attention are made of. Every operand is a panel: rows of TILE_COLUMNS floats,
 * one after the other, so that all strides are constants.
 *
 *     vjp_raw      c  = a · b      a: TILE_COLUMNS of depth per panel, the next panel `turn` floats further
 *     vjp_weights  c  = exp(scale · a · b − statistic of the row)
 *     vjp_slopes   c  = weights ∘ (a · b − statistic of the row)
 *     vjp_add      c += aᵀ · b     a: one panel, its columns are rows of c
 *
 * Sums run over the depth in order, one fused multiply-add each: how rows are cut into tiles changes no bit.
 * The includer defines what product_body.h asks for.
 */
#ifndef EJKI_VJP_PRODUCTS_H
#define EJKI_VJP_PRODUCTS_H

#include "kernels/simd/product_body.h"

#define VJP_OPERANDS                                                                               \
    int64_t depth, const float *a, int64_t turn, const float *b, float *c, const float *statistic, \
        const float *weights, float scale
typedef void (*vjp_product)(VJP_OPERANDS);

/* sum += a · b, panel by panel. */
static inline __attribute__((always_inline)) void vjp_sums(const int rows, const int vectors,
                                                           int64_t depth, const float *a,
                                                           int64_t turn, const float *b,
                                                           vf sum[TILE_ROWS][TILE_VECTORS]) {
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        sum[i][j] = v_zero();
    for (; depth > 0; depth -= TILE_COLUMNS, a += turn) {
        const float *at = a, *end = a + (depth < TILE_COLUMNS ? depth : TILE_COLUMNS);
        EJKI_UNROLL_TWICE for (; at < end; at++, b += TILE_COLUMNS)
            product_step(rows, vectors, at, TILE_COLUMNS, b, sum);
    }
}

static inline __attribute__((always_inline)) void vjp_raw_tile(const int rows, const int vectors,
                                                               int64_t depth, const float *a,
                                                               int64_t turn, const float *b,
                                                               float *c) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    vjp_sums(rows, vectors, depth, a, turn, b, sum);
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        v_store(c + i * TILE_COLUMNS + j * VL, sum[i][j]);
}

/* exp of a natural score by 2^y: the difference is taken before it is rounded to base 2, so that scores and
 * statistic, which are large together, lose nothing. */
static inline vf vjp_exp(vf difference) {
    return v_exp2(v_mul(difference, v_set1(1.44269504f)));
}

static inline __attribute__((always_inline)) void
vjp_weights_tile(const int rows, int64_t depth, const float *a, int64_t turn, const float *b,
                 float *c, const float *statistic, float scale) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    vjp_sums(rows, TILE_VECTORS, depth, a, turn, b, sum);
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++)
        v_store(c + i * TILE_COLUMNS + j * VL,
                vjp_exp(v_fms(sum[i][j], v_set1(scale), v_set1(statistic[i]))));
}

static inline __attribute__((always_inline)) void
vjp_slopes_tile(const int rows, int64_t depth, const float *a, int64_t turn, const float *b,
                float *c, const float *statistic, const float *weights) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    vjp_sums(rows, TILE_VECTORS, depth, a, turn, b, sum);
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
        const vf weight = v_load(weights + i * TILE_COLUMNS + j * VL);
        v_store(c + i * TILE_COLUMNS + j * VL,
                v_mul(weight, v_sub(sum[i][j], v_set1(statistic[i]))));
    }
}

static inline __attribute__((always_inline)) void vjp_add_tile(const int rows, const int vectors,
                                                               int64_t depth, const float *a,
                                                               const float *b, float *c) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        sum[i][j] = v_load(c + i * TILE_COLUMNS + j * VL);
    const float *end = a + depth * TILE_COLUMNS;
    EJKI_UNROLL_TWICE for (; a < end; a += TILE_COLUMNS, b += TILE_COLUMNS)
        product_step(rows, vectors, a, 1, b, sum);
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        v_store(c + i * TILE_COLUMNS + j * VL, sum[i][j]);
}

#define VJP_FUNCTION(name, n, call)                                                                \
    static __attribute__((noinline)) void name##_##n(VJP_OPERANDS) {                               \
        (void)turn, (void)statistic, (void)weights, (void)scale;                                   \
        call;                                                                                      \
    }
#define VJP_FUNCTIONS(n)                                                                           \
    VJP_FUNCTION(vjp_raw, n, vjp_raw_tile(n, TILE_VECTORS, depth, a, turn, b, c))                  \
    VJP_FUNCTION(vjp_raw_one, n, vjp_raw_tile(n, 1, depth, a, turn, b, c))                         \
    VJP_FUNCTION(vjp_weights, n, vjp_weights_tile(n, depth, a, turn, b, c, statistic, scale))      \
    VJP_FUNCTION(vjp_slopes, n, vjp_slopes_tile(n, depth, a, turn, b, c, statistic, weights))      \
    VJP_FUNCTION(vjp_add, n, vjp_add_tile(n, TILE_VECTORS, depth, a, b, c))                        \
    VJP_FUNCTION(vjp_add_one, n, vjp_add_tile(n, 1, depth, a, b, c))
TILE_ROW_COUNTS(VJP_FUNCTIONS)

/* The function for a number of rows that product_rows() answers. */
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
#define VJP_RAW_CASE(n)     VJP_CASE(vjp_raw, n)
#define VJP_RAW_ONE_CASE(n) VJP_CASE(vjp_raw_one, n)
#define VJP_WEIGHTS_CASE(n) VJP_CASE(vjp_weights, n)
#define VJP_SLOPES_CASE(n)  VJP_CASE(vjp_slopes, n)
#define VJP_ADD_CASE(n)     VJP_CASE(vjp_add, n)
#define VJP_ADD_ONE_CASE(n) VJP_CASE(vjp_add_one, n)
VJP_CHOOSE(vjp_raw, TILE_ROW_COUNTS(VJP_RAW_CASE))
VJP_CHOOSE(vjp_raw_one, TILE_ROW_COUNTS(VJP_RAW_ONE_CASE))
VJP_CHOOSE(vjp_weights, TILE_ROW_COUNTS(VJP_WEIGHTS_CASE))
VJP_CHOOSE(vjp_slopes, TILE_ROW_COUNTS(VJP_SLOPES_CASE))
VJP_CHOOSE(vjp_add, TILE_ROW_COUNTS(VJP_ADD_CASE))
VJP_CHOOSE(vjp_add_one, TILE_ROW_COUNTS(VJP_ADD_ONE_CASE))

/* c[j] += coefficient · b, over `width` floats of panels that lie b_turn and c_turn apart. */
static inline void vjp_add_row(float coefficient, int64_t width, const float *b, int64_t b_turn,
                               float *c, int64_t c_turn) {
    const vf factor = v_set1(coefficient);
    for (int64_t d = 0; d < width; d += TILE_COLUMNS, b += b_turn, c += c_turn)
        for (int64_t j = 0; j < TILE_COLUMNS; j += VL)
            v_store(c + j, v_fma(factor, v_load(b + j), v_load(c + j)));
}

static inline __attribute__((always_inline)) vf vjp_pack_row_of(const ejk_dtype dtype,
                                                                const void *source, int64_t width,
                                                                float *target, int64_t turn,
                                                                vf probe) {
    for (int64_t d = 0; d < width; d += TILE_COLUMNS, target += turn)
        for (int64_t j = 0; j < TILE_COLUMNS; j += VL) {
            const void *at = element_at(dtype, source, d + j);
            const int64_t left = width - d - j;
            const vf v = left >= VL ? v_widen(dtype, at)
                         : left > 0 ? v_widen_first(dtype, at, left)
                                    : v_zero();
            probe = v_fma(v, v_zero(), probe);
            v_store(target + j, v);
        }
    return probe;
}

/* Copies a row of `width` elements into panels `turn` floats apart, the rest of the last one 0. Returns
 * `probe` plus 0 · row, NaN if any of it is not finite. */
static inline vf vjp_pack_row(ejk_dtype dtype, const void *source, int64_t width, float *target,
                              int64_t turn, vf probe) {
    if (dtype == EJK_DTYPE_F32)
        return vjp_pack_row_of(EJK_DTYPE_F32, source, width, target, turn, probe);
    if (dtype == EJK_DTYPE_BF16)
        return vjp_pack_row_of(EJK_DTYPE_BF16, source, width, target, turn, probe);
    return vjp_pack_row_of(EJK_DTYPE_F16, source, width, target, turn, probe);
}

static inline bool vjp_is_finite(vf probe) {
    const float sum = v_sum(probe);
    return sum == sum;
}

#endif
