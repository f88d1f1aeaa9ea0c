/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of products as floats: a lane is an element. paged_bf16_dot.h has the same words for pairs of bf16. */
#ifndef EJKI_PAGED_F32_H
#define EJKI_PAGED_F32_H

#include "operations/paged/cpu/paged_prefetch.h"

#include "kernels/simd/vec_bytes_line.h"
#include "kernels/simd/vec_halves.h"

/* Elements of caches that this tier multiplies. */
#define OPERAND_TYPES(X) X(F32) X(BF16) X(F16) X(I8) X(F8E4M3) X(F8E5M2)
#define OPERAND_TERM     v_fma
#define VALUES_AT_ONCE   (VL == 16 ? 4 : 2)

static inline __attribute__((always_inline)) vf v_operand(ejk_dtype dtype, const void *p) {
    return v_stored(dtype, p);
}
static inline __attribute__((always_inline)) vf v_operand_first(ejk_dtype dtype, const void *p,
                                                                int64_t n) {
    return v_stored_first(dtype, p, n);
}

static inline __attribute__((always_inline)) bool in_f8_lines(ejk_dtype dtype) {
    return V_F8_LINES && (dtype == EJK_DTYPE_F8E4M3 || dtype == EJK_DTYPE_F8E5M2);
}
/* Lines of elements, whose parts are vectors, and the rest of a row: divided by line_unit(), a power of two. Where
 * parts are halves of bf16 or 8-bit floats, elements, and what they are multiplied with, have an order of their own,
 * which put_in_order() makes. */
static inline __attribute__((always_inline)) float line_unit(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F8E4M3 ? V_E4M3_UNIT : 1;
}
static inline __attribute__((always_inline)) vf v_rest_operand(ejk_dtype dtype, const void *p,
                                                               int64_t n) {
    const vf v = n == VL ? v_stored(dtype, p) : v_stored_first(dtype, p, n);
    return line_unit(dtype) == 1 ? v : v_mul(v, v_set1(1 / line_unit(dtype)));
}
typedef v_f8_line operand_line;
typedef v_f8_seen operand_seen;

static inline operand_seen operand_seen_none(void) {
    return v_f8_seen_none();
}
static inline __attribute__((always_inline)) void
begin_line(ejk_dtype dtype, const void *p, operand_line *line, operand_seen *seen) {
    if (in_f8_lines(dtype)) v_begin_f8(dtype, p, line, seen);
}
static inline __attribute__((always_inline)) vf v_line_operand(ejk_dtype dtype, const void *p,
                                                               const operand_line *line, int part) {
    const char *from = p;
    if (in_f8_lines(dtype)) return v_f8_part(line, part);
    if (dtype == EJK_DTYPE_BF16)
        return v_load_bf16_half(from + part / 2 * VL * 2 * stored_size(dtype), part % 2);
    return v_stored(dtype, from + part * VL * stored_size(dtype));
}
/* Whether an element was a NaN that its operand is not: those who multiplied it find it with operand_is_nan(). */
static inline bool operand_seen_nan(operand_seen seen) {
    return v_f8_nan(seen);
}
static inline bool operand_is_nan(uint8_t code) {
    return (code & 0x7f) == 0x7f;
}
/* A row of `dim` floats that meet elements of a type, into the order of its lines or, `back`, out of it. */
static void put_in_order(int dtype, bool back, float *row, paged_size dim) {
    const paged_size size = stored_size((ejk_dtype)dtype),
                     whole = dim / (LINE / size) * (LINE / size);
    float moved[LINE];
    if (dtype == EJK_DTYPE_BF16) v_put_in_order(EJK_DTYPE_BF16, back, row, whole);
    for (paged_size d = 0; in_f8_lines((ejk_dtype)dtype) && d < whole; d += LINE, row += LINE) {
        for (int i = 0; i < LINE; i++) {
            const int from = i < LINE / 2 ? 2 * i : 2 * i - LINE + 1;
            moved[back ? from : i] = row[back ? i : from];
        }
        memcpy(row, moved, sizeof moved);
    }
}

/* Sums have the order of values. */
static void put_sums_in_order(int dtype, bool back, float *row, paged_size dim) {
    put_in_order(dtype, back, row, dim);
}

/* Whether weights of 0 leave sums as they are: what was seen is finite. */
typedef struct paged_range {
    vf probe;
} paged_range;

static inline paged_range range_none(void) {
    return (paged_range){v_zero()};
}
static inline paged_range range_with(paged_range r, vf operand) {
    return (paged_range){v_fma(operand, v_zero(), r.probe)};
}
static inline bool range_is_fit(paged_range r) {
    return v_sum(r.probe) == 0;
}

/* Weights of columns low to high - 1 become operands, with the scales of their values, if there are any. */
static void end_weights(float *weights, paged_size low, paged_size high, const float *scales,
                        float factor, float *totals) {
    (void)factor, (void)totals;
    for (paged_size c = low; scales && c < high; c += VL) {
        const vf w = v_load(weights + c);
        v_store(weights + c, v_select_gt(w, v_zero(), v_mul(w, v_load(scales + c)), w));
    }
}

/* The sum that a row is divided by. */
static float total_of(float sum, const float *totals) {
    (void)totals;
    return sum;
}
static float weight_at(const float *weights, paged_size t) {
    return weights[t];
}

/* Results that products got wrong. */
static bool has_lost(int dtype, const float *sums, paged_size count) {
    (void)dtype, (void)sums, (void)count;
    return false;
}

/* What lines leave of values, from d on, for all types and numbers of rows. */
static EJKI_SHARED void add_rest(ejk_dtype dtype, int rows, const char *const *value,
                                 const float *weights, paged_size d, paged_size dim, float *sums) {
    for (; d < dim; d += VL, sums += rows * VL)
        for (int k = 0; k < VALUES_AT_ONCE; k++) {
            const char *from = value[k] + d * stored_size(dtype);
            const vf v = v_rest_operand(dtype, from, paged_least(dim - d, VL));
            for (int r = 0; r < rows; r++)
                v_store(sums + r * VL,
                        v_fma(v_set1(weights[r * BLOCK + k]), v, v_load(sums + r * VL)));
        }
}

/* Sums of `rows` rows, whose vectors take turns, take in VALUES_AT_ONCE values; weights are BLOCK floats from row to
 * row. */
static inline __attribute__((always_inline)) void
add_columns(const ejk_dtype dtype, const int rows, const char *const *value, const float *weights,
            paged_size dim, float *sums, operand_seen *seen, const paged_lines *prefetch) {
    const int size = (int)stored_size(dtype), in_line = LINE / size;
    paged_size d = 0;
    vf weight[4][VALUES_AT_ONCE];
    EJKI_UNROLL for (int r = 0; r < rows; r++) EJKI_UNROLL for (int k = 0; k < VALUES_AT_ONCE; k++)
        weight[r][k] = v_set1(weights[r * BLOCK + k]);
    for (uintptr_t ahead = 0; d + in_line <= dim; d += in_line, ahead += prefetch->step) {
        operand_line line[VALUES_AT_ONCE];
        EJKI_UNROLL for (int k = 0; k < VALUES_AT_ONCE; k++)
            begin_line(dtype, value[k] + d * size, &line[k], seen);
        UNROLL_PARTS for (int part = 0; part < in_line / VL; part++, sums += rows * VL) {
            vf sum[4];
            EJKI_UNROLL for (int r = 0; r < rows; r++) sum[r] = v_load(sums + r * VL);
            EJKI_UNROLL for (int k = 0; k < VALUES_AT_ONCE; k++) {
                const vf v = v_line_operand(dtype, value[k] + d * size, &line[k], part);
                EJKI_UNROLL for (int r = 0; r < rows; r++) sum[r] = v_fma(weight[r][k], v, sum[r]);
            }
            EJKI_UNROLL for (int r = 0; r < rows; r++) v_store(sums + r * VL, sum[r]);
        }
        prefetch_beside(prefetch, VALUES_AT_ONCE, ahead);
    }
    if (d < dim) add_rest(dtype, rows, value, weights, d, dim, sums);
}

/* PAGED_PACK values packed for tiles, padded with zeros to whole vectors. */
static inline __attribute__((always_inline)) paged_range pack_values(const ejk_dtype dtype,
                                                                     const char *const *value,
                                                                     paged_size dim, float *target,
                                                                     paged_range range) {
    const int64_t size = stored_size(dtype);
    for (paged_size d = 0; d < dim; d += VL) {
        const vf v = d + VL <= dim ? v_stored(dtype, value[0] + d * size)
                                   : v_stored_first(dtype, value[0] + d * size, dim - d);
        range = range_with(range, v);
        v_store(target + d, v);
    }
    return range;
}

/* Columns d to d + VL - 1 of packed value t. */
static inline vf packed_value(const float *values, paged_size width, paged_size t, paged_size d) {
    return v_load(values + t * width + d);
}

#endif
