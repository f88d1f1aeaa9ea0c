/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of a tensor brought into the order in which gemm_body.h reads them, and into
 * f32: bf16 and f16 become floats here and nowhere else; with TILE_BF16_DOT bf16 may also become pairs, which take the
 * place of a float each. Strides count elements.
 */
#ifndef EJKI_PACK_BODY_H
#define EJKI_PACK_BODY_H

#include "kernels/simd/gemm_body.h"
#include "kernels/simd/vec_element.h"

/* The first VL of n elements, or pairs of elements, of a row. */
static inline __attribute__((always_inline)) vf pack_load(const ejk_dtype dtype, const int unit,
                                                          const void *p, int64_t n) {
#ifdef TILE_BF16_DOT
    if (unit == 2) return n >= 2 * VL ? v_load_pairs(p) : v_load_pairs_first(p, n);
#endif
    (void)unit;
    return v_widen_some(dtype, p, n);
}

/* `unit` elements, 1 or 2, lie side by side in a column; those beyond `dim` are 0. */
static inline __attribute__((always_inline)) void
pack_transposed_of(const ejk_dtype dtype, const int unit, const void *source, int64_t stride,
                   int64_t count, int64_t dim, float *target) {
    const int64_t steps = (dim + unit - 1) / unit;
    for (int64_t panel = 0; panel < count; panel += TILE_COLUMNS, target += steps * TILE_COLUMNS)
        for (int64_t column = 0; column < TILE_COLUMNS; column += VL) {
            const char *rows = element_at(dtype, source, (panel + column) * stride);
            const int64_t left = count - panel - column;
            int64_t d = 0;
            vf block[VL];
            for (; left >= VL && (d + VL) * unit <= dim; d += VL) {
                EJKI_UNROLL for (int i = 0; i < VL; i++) block[i] = pack_load(
                    dtype, unit, element_at(dtype, rows, i * stride + d * unit), VL * unit);
                v_transpose(block);
                EJKI_UNROLL for (int i = 0; i < VL; i++)
                    v_store(target + (d + i) * TILE_COLUMNS + column, block[i]);
            }
            for (; left <= 0 && d < steps; d++)
                v_store(target + d * TILE_COLUMNS + column, v_zero());
            for (; d < steps; d += VL) { /* at the edges */
                const int64_t width = steps - d < VL ? steps - d : VL, own = dim - d * unit;
                for (int i = 0; i < VL; i++)
                    block[i] = i < left
                                   ? pack_load(dtype, unit,
                                               element_at(dtype, rows, i * stride + d * unit), own)
                                   : v_zero();
                v_transpose(block);
                for (int64_t i = 0; i < width; i++)
                    v_store(target + (d + i) * TILE_COLUMNS + column, block[i]);
            }
        }
}

static inline __attribute__((always_inline)) bool
pack_rows_of(const ejk_dtype dtype, const void *source, int64_t stride, int64_t rows, int64_t width,
             float *target, int64_t target_stride) {
    vf probe = v_zero();
    for (int64_t i = 0; i < rows; i++, target += target_stride) {
        const char *row = element_at(dtype, source, i * stride);
        int64_t d = 0;
        for (; d + VL <= width; d += VL) {
            const vf v = v_widen(dtype, element_at(dtype, row, d));
            probe = v_fma(v, v_zero(), probe); /* 0 · v is NaN for an infinite v and for NaN */
            v_store(target + d, v);
        }
        if (d < width) {
            const vf v = v_widen_first(dtype, element_at(dtype, row, d), width - d);
            probe = v_fma(v, v_zero(), probe);
            v_store(target + d, v);
            d += VL;
        }
        for (; d < target_stride; d += VL) v_store(target + d, v_zero());
    }
    const float sum = v_sum(probe);
    return sum == sum;
}

/*
 * Packs `count` rows of `dim` elements into panels of TILE_COLUMNS columns: panel[d][column], so that a
 * product finds consecutive columns side by side. Columns beyond `count` become 0.
 */
static inline void pack_transposed_any(ejk_dtype dtype, const void *source, int64_t stride,
                                       int64_t count, int64_t dim, float *target) {
    if (dtype == EJK_DTYPE_F32)
        pack_transposed_of(EJK_DTYPE_F32, 1, source, stride, count, dim, target);
    else if (dtype == EJK_DTYPE_BF16)
        pack_transposed_of(EJK_DTYPE_BF16, 1, source, stride, count, dim, target);
    else
        pack_transposed_of(EJK_DTYPE_F16, 1, source, stride, count, dim, target);
}

/*
 * Copies `rows` rows of `width` elements into rows of `target_stride` ≥ width floats, a multiple of VL, the
 * rest 0. True if all of them are finite.
 */
static inline bool pack_rows_any(ejk_dtype dtype, const void *source, int64_t stride, int64_t rows,
                                 int64_t width, float *target, int64_t target_stride) {
    if (dtype == EJK_DTYPE_F32)
        return pack_rows_of(EJK_DTYPE_F32, source, stride, rows, width, target, target_stride);
    if (dtype == EJK_DTYPE_BF16)
        return pack_rows_of(EJK_DTYPE_BF16, source, stride, rows, width, target, target_stride);
    return pack_rows_of(EJK_DTYPE_F16, source, stride, rows, width, target, target_stride);
}

/* The same of floats. */
static inline void pack_transposed(const float *source, int64_t stride, int64_t count, int64_t dim,
                                   float *target) {
    pack_transposed_of(EJK_DTYPE_F32, 1, source, stride, count, dim, target);
}
static inline bool pack_rows(const float *source, int64_t stride, int64_t rows, int64_t width,
                             float *target, int64_t target_stride) {
    return pack_rows_of(EJK_DTYPE_F32, source, stride, rows, width, target, target_stride);
}

#ifdef TILE_BF16_DOT
/* pack_transposed() of rows of bf16 as pairs: panel[pair][column]. */
static inline void pack_transposed_pairs(const void *source, int64_t stride, int64_t count,
                                         int64_t dim, float *target) {
    pack_transposed_of(EJK_DTYPE_BF16, 2, source, stride, count, dim, target);
}

/*
 * Rows 2i and 2i + 1 of bf16 become row i of pairs, one of each: target_stride ≥ width pairs, a multiple of VL, the
 * rest 0. So is what an odd last row lacks. True if all elements are fit for products.
 */
static inline bool pack_row_pairs(const void *source, int64_t stride, int64_t rows, int64_t width,
                                  float *target, int64_t target_stride) {
    v_range range = v_range_none();
    for (int64_t i = 0; i < rows; i += 2, target += target_stride) {
        const bool lacks = i + 1 == rows;
        const char *row = element_at(EJK_DTYPE_BF16, source, i * stride);
        const char *other = lacks ? row : element_at(EJK_DTYPE_BF16, row, stride);
        for (int64_t d = 0; d < target_stride; d += VL) {
            const int64_t n = d >= width ? 0 : width - d < VL ? width - d : VL;
            const vf v = v_zip_bf16(element_at(EJK_DTYPE_BF16, row, d), n,
                                    element_at(EJK_DTYPE_BF16, other, d), lacks ? 0 : n);
            range = v_range_with(range, v);
            v_store(target + d, v);
        }
    }
    return v_within(range);
}
#endif

#endif
