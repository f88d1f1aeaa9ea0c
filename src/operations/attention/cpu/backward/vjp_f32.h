/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of vjp_products.h as floats: what comes in bf16 or f16 is widened when it is packed. Rows are packed once:
 * products along rows and products along columns read the same panels, and so do those of weights and dS.
 */
#ifndef EJKI_VJP_F32_H
#define EJKI_VJP_F32_H

#include "operations/attention/cpu/tile/tile_shape.h"

#include "kernels/simd/gemm_body.h"
#include "kernels/simd/pack_body.h"

#define VJP_DEPTH 1 /* steps of the depth that lie in one lane */

/* sum += a · b, a step of the depth; exact whatever the numbers are. */
static inline __attribute__((always_inline)) void vjp_step(const bool exact, const int rows,
                                                           const int vectors, const float *a,
                                                           const int64_t a_row, const float *b,
                                                           vf sum[TILE_ROWS][TILE_VECTORS]) {
    (void)exact;
    gemm_step(rows, vectors, a, a_row, b, sum);
}

/* What has been seen of packed elements: 0 times all of them. */
typedef vf vjp_probe;
static inline vjp_probe vjp_probe_none(void) {
    return v_zero();
}
static inline bool vjp_is_finite(vjp_probe probe) {
    const float sum = v_sum(probe);
    return sum == sum;
}
/* Whether products have to be exact for small numbers: see vjp_step(). */
static inline bool vjp_is_small(vjp_probe probe) {
    (void)probe;
    return false;
}

/* VL numbers of each of `count` rows, a column in each vector, 0 beyond `left` numbers. */
static inline void vjp_columns(ejk_dtype dtype, const void *const row[VL], int64_t count, int64_t d,
                               int64_t left, vf column[VL]) {
    for (int i = 0; i < VL; i++)
        column[i] = i < count ? v_widen_some(dtype, element_at(dtype, row[i], d), left) : v_zero();
    v_transpose(column);
}

/* Products <a, b> of `count` rows, NULL beyond them up to VL, added up as products of the same along rows are. */
static inline vf vjp_dots(ejk_dtype dtype, const void *const a[VL], const void *const b[VL],
                          int64_t count, int64_t width) {
    vf sum = v_zero(), x[VL], y[VL];
    for (int64_t d = 0; d < width; d += VL) {
        vjp_columns(dtype, a, count, d, width - d, x);
        vjp_columns(dtype, b, count, d, width - d, y);
        for (int k = 0; k < VL && k < width - d; k++) sum = v_fma(y[k], x[k], sum);
    }
    return sum;
}

static inline vjp_probe vjp_pack_transposed(ejk_dtype dtype, const void *source, int64_t stride,
                                            int64_t count, int64_t dim, float *target,
                                            vjp_probe probe) {
    pack_transposed_any(dtype, source, stride, count, dim, target);
    return probe;
}

static inline __attribute__((always_inline)) vjp_probe
vjp_pack_of(const ejk_dtype dtype, const void *source, int64_t width, float *target,
            int64_t panel_stride, vjp_probe probe) {
    for (int64_t d = 0; d < width; d += TILE_COLUMNS, target += panel_stride)
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

/* Copies VJP_DEPTH rows of `width` elements, NULL for one of zeros, into panels: `along`, where given, as products
 * along rows take them, `down` for those along columns. What a last panel has beyond them is 0. */
static inline vjp_probe vjp_pack(ejk_dtype dtype, const void *const row[VJP_DEPTH], int64_t width,
                                 float *along, int64_t along_stride, float *down,
                                 int64_t down_stride, vjp_probe probe) {
    (void)along, (void)along_stride;
    if (!row[0]) {
        for (int64_t d = 0; d < width; d += TILE_COLUMNS, down += down_stride)
            memset(down, 0, TILE_COLUMNS * sizeof *down);
        return probe;
    }
    if (dtype == EJK_DTYPE_F32)
        return vjp_pack_of(EJK_DTYPE_F32, row[0], width, down, down_stride, probe);
    if (dtype == EJK_DTYPE_BF16)
        return vjp_pack_of(EJK_DTYPE_BF16, row[0], width, down, down_stride, probe);
    return vjp_pack_of(EJK_DTYPE_F16, row[0], width, down, down_stride, probe);
}

/* Numbers of a tile as operands of products along its rows and along its columns: they are so. */
static inline void vjp_round(const bool exact, int64_t rows, const float *numbers, float *along,
                             float *down) {
    (void)exact, (void)rows, (void)numbers, (void)along, (void)down;
}

/* Stores a row of a panel to lines of memory, past the caches. */
static inline void vjp_stream(void *lines, const vf row[TILE_VECTORS]) {
    EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) v_stream((float *)lines + j * VL, row[j]);
}

/* The number of a row and a column of a panel: as an operand along rows, and along columns. */
static inline float vjp_along(const float *panel, int64_t row, int64_t column) {
    return panel[row * TILE_COLUMNS + column];
}
static inline float vjp_down(const float *panel, int64_t row, int64_t column) {
    return panel[row * TILE_COLUMNS + column];
}

#endif
