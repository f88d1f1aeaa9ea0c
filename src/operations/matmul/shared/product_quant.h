/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised rows as floats, in vectors where codes are whole bytes or halves. */
#ifndef EJKI_PRODUCT_QUANT_H
#define EJKI_PRODUCT_QUANT_H

#include "base/base.h"
#include "kernels/simd/vec_element.h"
#include "operations/matmul/shared/product_pack.h"
#include "operations/matmul/shared/quant.h"

/* VL codes from p on, without scales; bits is 4 or 8. */
INLINE vf quant_numbers(const int mode, const int bits, const uint8_t *p, vf zero) {
    if (mode == MM_NF4) return v_load_u4_of(p, ejki_nf4);
    if (mode == MM_FP4) return v_load_u4_of(p, ejki_fp4);
    const vf code = bits == 4 ? v_load_u4(p) : v_load_u8(p);
    if (mode == MM_AFFINE) return v_sub(code, zero);
    return v_sub(code, v_select_gt(code, v_set1(127), v_set1(256), v_zero()));
}

/* Codes first to end - 1 of a group, of which whole vectors are made in this way; returns the first that is left. */
INLINE mm_size quant_vectors(const int mode, const int bits, const mm_quant *q, const uint8_t *row,
                             const ejki_quant_group *g, mm_size first, mm_size end, float *to) {
    const vf zero = v_set1(g->zero), scale = v_set1(g->scale), factor = v_set1(g->factor);
    const uint8_t *p = row + first * bits / 8;
    mm_size at = first;
    for (; at + VL <= end; at += VL, p += VL * bits / 8, to += VL) {
        const vf v = v_mul(quant_numbers(mode, bits, p, zero), scale);
        v_store(to, q->has_factor ? v_mul(v, factor) : v);
    }
    return at;
}

static mm_size quant_group(const mm_quant *q, const uint8_t *row, const ejki_quant_group *g,
                           mm_size first, mm_size end, float *to) {
    if (q->mode == MM_INT8) return quant_vectors(MM_INT8, 8, q, row, g, first, end, to);
    if (q->mode == MM_AFFINE && q->bits == 8)
        return quant_vectors(MM_AFFINE, 8, q, row, g, first, end, to);
    if (q->bits != 4 || first % 2 != 0) return first;
    if (q->mode == MM_NF4) return quant_vectors(MM_NF4, 4, q, row, g, first, end, to);
    if (q->mode == MM_FP4) return quant_vectors(MM_FP4, 4, q, row, g, first, end, to);
    return quant_vectors(MM_AFFINE, 4, q, row, g, first, end, to);
}

/* Values first to first + count - 1 of a row. */
static void quant_run(const mm_quant *q, mm_size matrix, mm_size row, mm_size first, mm_size count,
                      float *to) {
    const uint8_t *codes = ejki_quant_row(q, matrix, row);
    for (mm_size at = first, stop = first + count; at < stop;) {
        const mm_size group = at / q->size, end = ejki_min((group + 1) * q->size, stop);
        const ejki_quant_group g = ejki_quant_group_of(q, matrix, row, group);
        for (at = quant_group(q, codes, &g, at, end, to + at - first); at < end; at++)
            to[at - first] = ejki_quant_value(q, &g, ejki_quant_code(codes, q->bits, at));
    }
}

/* A block of b to panels of floats, as pack_b_rows() and pack_b_columns() make them. */
static void pack_quant(const mm_quant *q, mm_size matrix, bool flipped, mm_size step, mm_size depth,
                       mm_size column, mm_size columns, float *target) {
    float some[VL * PRODUCT_DEPTH];
    for (mm_size d = 0; d < depth && !flipped; d++)
        for (mm_size j = 0; j < columns; j += TILE_COLUMNS) {
            float *to = target + (j * depth + d * TILE_COLUMNS);
            const mm_size own = ejki_min(columns - j, TILE_COLUMNS);
            for (mm_size i = own; i < TILE_COLUMNS; i++) to[i] = 0;
            quant_run(q, matrix, step + d, column + j, own, to);
        }
    for (mm_size j = 0; flipped && j < ejki_round_up(columns, TILE_COLUMNS); j += VL) {
        const mm_size own = ejki_min(ejki_max(columns - j, 0), VL);
        float *to = target + j / TILE_COLUMNS * depth * TILE_COLUMNS + j % TILE_COLUMNS;
        for (mm_size i = 0; i < own; i++)
            quant_run(q, matrix, column + j + i, step, depth, some + i * PRODUCT_DEPTH);
        for (mm_size i = own; i < VL; i++)
            memset(some + i * PRODUCT_DEPTH, 0, sizeof(float) * (size_t)depth);
        for (mm_size d = 0; d < depth; d += VL) {
            const mm_size steps = ejki_min(depth - d, VL);
            vf block[VL];
            EJKI_UNROLL for (int i = 0; i < VL; i++) block[i] =
                v_load(some + i * PRODUCT_DEPTH + d);
            v_transpose(block);
            if (steps == VL) {
                EJKI_UNROLL for (int i = 0; i < VL; i++)
                    v_store(to + (d + i) * TILE_COLUMNS, block[i]);
            } else {
                for (mm_size i = 0; i < steps; i++) v_store(to + (d + i) * TILE_COLUMNS, block[i]);
            }
        }
    }
}

#endif
