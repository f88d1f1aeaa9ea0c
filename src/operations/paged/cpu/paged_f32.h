/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of products as floats: a lane is an element. paged_bf16_dot.h has the same words for pairs of bf16. */
#ifndef EJKI_PAGED_F32_H
#define EJKI_PAGED_F32_H

#include "operations/paged/cpu/paged_prefetch.h"

#include "kernels/simd/vec_bytes_two.h"
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

/* Vectors that are cheapest to make together, of lines of elements. Those of bf16 are halves: their elements, and what
 * they are multiplied with, have an order of their own, which put_in_order() makes. */
static inline __attribute__((always_inline)) int operands_at_once(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_BF16 || dtype == EJK_DTYPE_F8E4M3 ? 2 : 1;
}
static inline __attribute__((always_inline)) void v_operands(ejk_dtype dtype, const void *p,
                                                             vf out[2]) {
    if (dtype == EJK_DTYPE_BF16) {
        out[0] = v_load_bf16_half(p, 0);
        out[1] = v_load_bf16_half(p, 1);
    } else if (dtype == EJK_DTYPE_F8E4M3) {
        v_load_two_e4m3(p, out);
    } else {
        out[0] = v_stored(dtype, p);
    }
}
/* A row of `dim` floats that meet elements of a type, into the order of its lines or, `back`, out of it. */
static void put_in_order(int dtype, bool back, float *row, paged_size dim) {
    const paged_size in_lines = LINE / 2;
    if (dtype == EJK_DTYPE_BF16)
        v_put_in_order(EJK_DTYPE_BF16, back, row, dim / in_lines * in_lines);
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

/* Sums of `rows` rows, whose vectors take turns, take in VALUES_AT_ONCE values; weights are BLOCK floats from row to
 * row. */
static inline __attribute__((always_inline)) void
add_columns(const ejk_dtype dtype, const int rows, const char *const *value, const float *weights,
            paged_size dim, float *sums, const paged_lines *prefetch) {
    const int size = (int)stored_size(dtype), at_once = operands_at_once(dtype);
    const int in_line = LINE / size;
    paged_size d = 0;
    vf weight[4][VALUES_AT_ONCE];
    EJKI_UNROLL for (int r = 0; r < rows; r++) EJKI_UNROLL for (int k = 0; k < VALUES_AT_ONCE; k++)
        weight[r][k] = v_set1(weights[r * BLOCK + k]);
    for (uintptr_t ahead = 0; d + in_line <= dim; d += in_line, ahead += prefetch->step) {
        for (int part = 0; part < in_line; part += at_once * VL) {
            vf sum[2][4];
            EJKI_UNROLL for (int i = 0; i < at_once; i++) EJKI_UNROLL for (int r = 0; r < rows; r++)
                sum[i][r] = v_load(sums + (i * rows + r) * VL);
            EJKI_UNROLL for (int k = 0; k < VALUES_AT_ONCE; k++) {
                vf v[2];
                v_operands(dtype, value[k] + (d + part) * size, v);
                EJKI_UNROLL for (int i = 0; i < at_once; i++)
                    EJKI_UNROLL for (int r = 0; r < rows; r++) sum[i][r] =
                        v_fma(weight[r][k], v[i], sum[i][r]);
            }
            EJKI_UNROLL for (int i = 0; i < at_once; i++) EJKI_UNROLL for (int r = 0; r < rows; r++)
                v_store(sums + (i * rows + r) * VL, sum[i][r]);
            sums += at_once * rows * VL;
        }
        prefetch_beside(prefetch, VALUES_AT_ONCE, ahead);
    }
    for (; d < dim; d += VL, sums += rows * VL)
        for (int k = 0; k < VALUES_AT_ONCE; k++) {
            const vf v = v_stored_first(dtype, value[k] + d * size, paged_least(dim - d, VL));
            EJKI_UNROLL for (int r = 0; r < rows; r++) v_store(
                sums + r * VL, v_fma(v_set1(weights[r * BLOCK + k]), v, v_load(sums + r * VL)));
        }
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
