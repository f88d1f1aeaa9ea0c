/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of vjp_products.h as pairs of bf16 for VDPBF16PS, two steps of the depth in a lane. What products along
 * rows and along columns read therefore differs: neighbours of a row are a pair for the one, neighbours of a column
 * for the other. Rows are packed both ways; weights and dS is made as floats and rounded.
 *
 *     along rows      panel[row][32 lanes]          lane n: elements 2n and 2n + 1 of the row
 *     along columns   panel[row / 2][32 lanes]      lane n: element n of rows 2i and 2i + 1
 *
 * VDPBF16PS counts numbers below 2^-126 as 0. Where elements that are not 0 are below 2^-60, so that products could
 * be, pairs are multiplied as floats, exactly but slowly, and dS keeps subnormal numbers.
 */
#ifndef EJKI_VJP_BF16_DOT_H
#define EJKI_VJP_BF16_DOT_H

#include "operations/attention/cpu/tile/tile_shape.h"

#include "base/base.h"
#include "kernels/simd/gemm_body.h"
#include "kernels/simd/pack_body.h"

#define VJP_DEPTH 2 /* steps of the depth that lie in one lane */

/* v_dot() of any numbers: the same bits, unless that makes 0 of something. */
static inline vf vjp_exact_dot(vf a, vf b, vf sum) {
    return v_fma(v_of_first(a), v_of_first(b), v_fma(v_of_second(a), v_of_second(b), sum));
}

/* sum += a · b, a step of the depth for pairs; exact whatever the numbers are, or not if they are small. */
static inline __attribute__((always_inline)) void vjp_step(const bool exact, const int rows,
                                                           const int vectors, const float *a,
                                                           const int64_t a_row, const float *b,
                                                           vf sum[TILE_ROWS][TILE_VECTORS]) {
    if (!exact) {
        gemm_step(rows, vectors, a, a_row, b, sum);
        return;
    }
    EJKI_UNROLL for (int i = 0; i < rows; i++) {
        const vf row = v_set1(a[i * a_row]);
        EJKI_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] =
            vjp_exact_dot(row, v_load(b + j * VL), sum[i][j]);
    }
}

/* What has been seen of packed elements. */
typedef v_range vjp_probe;
static inline vjp_probe vjp_probe_none(void) {
    return v_range_none();
}
static inline bool vjp_is_finite(vjp_probe probe) {
    return v_finite(probe);
}
/* Whether products have to be exact for small numbers: see vjp_step(). */
static inline bool vjp_is_small(vjp_probe probe) {
    return !v_large(probe);
}

static inline vf vjp_load_bf16_pairs(const void *row, int64_t d, int64_t width) {
    if (!row) return v_zero();
    const void *at = element_at(EJK_DTYPE_BF16, row, d);
    return width - d >= 2 * VL ? v_load_pairs(at) : v_load_pairs_first(at, width - d);
}

/* VL pairs of each row, a column in each vector. */
static inline void vjp_columns(const void *const row[VL], int64_t d, int64_t width, vf column[VL]) {
    for (int i = 0; i < VL; i++) column[i] = vjp_load_bf16_pairs(row[i], d, width);
    v_transpose(column);
}

/* Products <a, b> of VL rows, NULL for one of zeros, added up as products of the same along rows are. */
static inline vf vjp_dots(ejk_dtype dtype, const void *const a[VL], const void *const b[VL],
                          int64_t count, int64_t width) {
    (void)dtype, (void)count;
    vf sum = v_zero(), x[VL], y[VL];
    for (int64_t d = 0; d < width; d += 2 * VL) {
        vjp_columns(a, d, width, x);
        vjp_columns(b, d, width, y);
        for (int k = 0; k < VL && 2 * k < width - d; k++) sum = vjp_exact_dot(y[k], x[k], sum);
    }
    return sum;
}

static inline vjp_probe vjp_pack_transposed(ejk_dtype dtype, const void *source, int64_t stride,
                                            int64_t count, int64_t dim, float *target,
                                            vjp_probe probe) {
    (void)dtype;
    pack_transposed_pairs(source, stride, count, dim, target);
    const int64_t lanes = ejki_round_up(count, TILE_COLUMNS) * ejki_cdiv(dim, 2);
    for (int64_t n = 0; n < lanes; n += VL) probe = v_range_with(probe, v_load(target + n));
    return probe;
}

/* Copies VJP_DEPTH rows of `width` elements, NULL for one of zeros, into panels: `along`, where given, as products
 * along rows take them, `down` for those along columns. What a last panel of these has beyond them is 0. */
static inline vjp_probe vjp_pack(ejk_dtype dtype, const void *const row[VJP_DEPTH], int64_t width,
                                 float *along, int64_t along_stride, float *down,
                                 int64_t down_stride, vjp_probe probe) {
    (void)dtype;
    for (int64_t d = 0; d < width; d += 2 * VL) {
        const vf a = vjp_load_bf16_pairs(row[0], d, width),
                 b = vjp_load_bf16_pairs(row[1], d, width);
        probe = v_range_with(v_range_with(probe, a), b);
        float *to = down + d / TILE_COLUMNS * down_stride + d % TILE_COLUMNS;
        v_store(to, v_zip_first(a, b));
        v_store(to + VL, v_zip_last(a, b));
        if (!along) continue;
        to = along + d / 2 / TILE_COLUMNS * along_stride + d / 2 % TILE_COLUMNS;
        v_store(to, a);
        v_store(to + TILE_COLUMNS, b);
    }
    return probe;
}

/* 2 VL floats as VL pairs; exactly rounded if they are subnormal, too. */
static inline __attribute__((always_inline)) vf vjp_rounded(const bool exact, const float *from) {
    const vf a = v_load(from), b = v_load(from + VL);
    return exact ? v_pairs_exact(a, b) : v_pairs(a, b);
}

/* Stores a row of a panel to a line of memory, past the caches. */
static inline void vjp_stream(void *line, const vf row[TILE_VECTORS]) {
    v_stream(line, v_pairs_exact(row[0], row[1]));
}

/* Numbers of a tile, whose first row is an even one, as operands of products along its rows, unless NULL, and along
 * its columns. */
static inline __attribute__((always_inline)) void
vjp_round(const bool exact, int64_t rows, const float *numbers, float *along, float *down) {
    for (int64_t i = 0; i < rows; i += 2, numbers += 2 * TILE_COLUMNS, down += TILE_COLUMNS) {
        const vf a = vjp_rounded(exact, numbers);
        const vf b = i + 1 < rows ? vjp_rounded(exact, numbers + TILE_COLUMNS) : v_zero();
        v_store(down, v_zip_first(a, b));
        v_store(down + VL, v_zip_last(a, b));
        if (!along) continue;
        v_store(along + i * TILE_COLUMNS, a);
        if (i + 1 < rows) v_store(along + (i + 1) * TILE_COLUMNS, b);
    }
}

static inline float vjp_element(const float *lane, int64_t which) {
    uint16_t bits[2];
    memcpy(bits, lane, sizeof bits);
    return ejki_bf16_to_f32(bits[which]);
}
/* The number of a row and a column of a panel: as an operand along rows, and along columns. */
static inline float vjp_along(const float *panel, int64_t row, int64_t column) {
    return vjp_element(panel + row * TILE_COLUMNS + column / 2, column % 2);
}
static inline float vjp_down(const float *panel, int64_t row, int64_t column) {
    return vjp_element(panel + row / 2 * TILE_COLUMNS + column, row % 2);
}

#endif
