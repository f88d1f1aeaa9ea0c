/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of products as pairs of bf16 (VDPBF16PS), with the words of paged_f32.h: queries and keys as pairs of
 * neighbouring components, weights and values as pairs of neighbouring keys. Elements of 8 bits are bf16 numbers.
 *
 * Weights are rounded to nearest, and summed once more as they were rounded: by that sum rows are divided, so that
 * values that are all the same come out as they are. Where rows of the cache have scales, those are rounded with the
 * weights, and the sum is of the weights alone.
 *
 * The instruction takes numbers below 2^-126 for 0, which no result shows that is not small itself: has_lost().
 */
#ifndef EJKI_PAGED_BF16_DOT_H
#define EJKI_PAGED_BF16_DOT_H

#include "operations/paged/cpu/paged_prefetch.h"

/* Elements of caches that this tier multiplies. */
#define OPERAND_TYPES(X) X(BF16) X(I8) X(F8E4M3) X(F8E5M2)
#define OPERAND_TERM     v_dot
#define VALUES_AT_ONCE   8

static inline __attribute__((always_inline)) vf v_byte_pairs(ejk_dtype dtype, const uint8_t *p) {
    if (dtype == EJK_DTYPE_I8) return v_load_pairs_i8(p);
    return dtype == EJK_DTYPE_F8E4M3 ? v_load_pairs_e4m3(p) : v_load_pairs_e5m2(p);
}
static inline __attribute__((always_inline)) vf v_operand(ejk_dtype dtype, const void *p) {
    return dtype == EJK_DTYPE_BF16 ? v_load_pairs(p) : v_byte_pairs(dtype, p);
}
static inline __attribute__((always_inline)) vf v_operand_first(ejk_dtype dtype, const void *p,
                                                                int64_t n) {
    uint8_t bytes[LANES] = {0};
    if (dtype == EJK_DTYPE_BF16) return v_load_pairs_first(p, n);
    memcpy(bytes, p, (size_t)n);
    return v_byte_pairs(dtype, bytes);
}

/* Lines of elements, and the rest of a row, in the order of memory. */
typedef struct operand_line {
    char none;
} operand_line;
typedef struct operand_seen {
    char none;
} operand_seen;

static inline float line_unit(ejk_dtype dtype) {
    (void)dtype;
    return 1;
}
static inline operand_seen operand_seen_none(void) {
    return (operand_seen){0};
}
static inline void begin_line(ejk_dtype dtype, const void *p, operand_line *line,
                              operand_seen *seen) {
    (void)dtype, (void)p, (void)line, (void)seen;
}
static inline __attribute__((always_inline)) vf v_line_operand(ejk_dtype dtype, const void *p,
                                                               const operand_line *line, int part) {
    (void)line;
    return v_operand(dtype, (const char *)p + part * LANES * stored_size(dtype));
}
static inline __attribute__((always_inline)) vf v_rest_operand(ejk_dtype dtype, const void *p,
                                                               int64_t n) {
    return n == LANES ? v_operand(dtype, p) : v_operand_first(dtype, p, n);
}
static inline bool operand_seen_nan(operand_seen seen) {
    (void)seen;
    return false;
}
static inline bool operand_is_nan(uint8_t code) {
    (void)code;
    return false;
}
static void put_in_order(int dtype, bool back, float *row, paged_size dim) {
    (void)dtype, (void)back, (void)row, (void)dim;
}

/* Whether weights of 0 leave sums as they are, and none of the values is lost. */
typedef v_range paged_range;

static inline paged_range range_none(void) {
    return v_range_none();
}
static inline paged_range range_with(paged_range r, vf operand) {
    return v_range_with(r, operand);
}
static inline bool range_is_fit(paged_range r) {
    return v_within(r);
}

/* Weights of columns low to high - 1 become operands, with the scales of their values, if there are any: the pair of
 * column c lies where the weight c / 2 was. Totals follow. */
static void end_weights(float *weights, paged_size low, paged_size high, const float *scales,
                        float factor, float *totals) {
    const vf ones = v_pairs(v_set1(1), v_set1(1));
    vf total = v_mul(v_load(totals), v_set1(factor));
    for (paged_size c = low; c < high; c += LANES) {
        vf a = v_load(weights + c), b = v_load(weights + c + VL);
        if (scales) {
            total = v_add(total, v_add(a, b));
            a = v_select_gt(a, v_zero(), v_mul(a, v_load(scales + c)), a);
            b = v_select_gt(b, v_zero(), v_mul(b, v_load(scales + c + VL)), b);
        }
        const vf pairs = v_pairs(a, b);
        if (!scales) total = v_dot(pairs, ones, total);
        v_store(weights + c / 2, pairs);
    }
    v_store(totals, total);
}

static float total_of(float sum, const float *totals) {
    (void)sum;
    return v_sum(v_load(totals));
}
static float weight_at(const float *weights, paged_size t) {
    return element_load(EJK_DTYPE_BF16, weights, t);
}

/*
 * Results that products may have got wrong: each of at most 2^20 products lost less than 2^-126, which counts where
 * what is left is below 2^-90. Elements of 8 bits are 0 or larger. Tiles of AMX take neighbours along, which matters
 * where one is not finite.
 */
static bool has_lost(int dtype, const float *sums, paged_size count) {
    bool lost = false;
    for (paged_size d = 0; dtype == EJK_DTYPE_BF16 && d < count; d++)
        lost = lost || fabsf(sums[d]) < 0x1p-90f;
#ifdef PAGED_AMX
    for (paged_size d = 0; d < count; d++) lost = lost || !(fabsf(sums[d]) < INFINITY);
#endif
    return lost;
}

/* Sums of rows have the order of v_zip_low() and v_zip_high() in each LANES components. */
static void put_sums_in_order(int dtype, bool back, float *row, paged_size dim) {
    enum { FOUR = 4 };
    float moved[LANES];
    (void)dtype;
    for (paged_size d = 0; d + LANES <= dim; d += LANES, row += LANES) {
        for (int i = 0; i < LANES; i += FOUR) {
            const int to = i / FOUR % 2 * VL + i / (2 * FOUR) * FOUR;
            memcpy(moved + (back ? i : to), row + (back ? to : i), FOUR * sizeof(float));
        }
        memcpy(row, moved, sizeof moved);
    }
}

/* What LANES leave of values, from d on, for all types and numbers of rows. */
static EJKI_SHARED void add_rest(ejk_dtype dtype, int rows, const char *const *value,
                                 const float *weights, paged_size d, paged_size dim, float *sums) {
    for (int k = 0; k < VALUES_AT_ONCE; k += 2) {
        const char *first = value[k] + d * stored_size(dtype);
        const char *second = value[k + 1] + d * stored_size(dtype);
        const vf a = v_operand_first(dtype, first, dim - d);
        const vf b = v_operand_first(dtype, second, dim - d);
        for (int r = 0; r < rows; r++) {
            const vf weight = v_set1(weights[r * BLOCK + k / 2]);
            float *to = sums + r * VL;
            v_store(to, v_dot(weight, v_zip_first(a, b), v_load(to)));
            to += rows * VL;
            if (d + VL < dim) v_store(to, v_dot(weight, v_zip_last(a, b), v_load(to)));
        }
    }
}

/* Sums of `rows` rows, whose vectors take turns, take in VALUES_AT_ONCE values; weights are BLOCK floats from row to
 * row. */
static inline __attribute__((always_inline)) void
add_columns(const ejk_dtype dtype, const int rows, const char *const *value, const float *weights,
            paged_size dim, float *sums, operand_seen *seen, const paged_lines *prefetch) {
    enum { PAIRS = VALUES_AT_ONCE / 2 };
    const int size = (int)stored_size(dtype);
    uintptr_t ahead = 0;
    paged_size d = 0;
    (void)seen;
    vf weight[4][PAIRS];
    EJKI_UNROLL for (int r = 0; r < rows; r++) EJKI_UNROLL for (int k = 0; k < PAIRS; k++)
        weight[r][k] = v_set1(weights[r * BLOCK + k]);
    for (; d + LANES <= dim; d += LANES, sums += 2 * rows * VL) {
        vf sum[4][2];
        EJKI_UNROLL for (int r = 0; r < rows; r++) {
            sum[r][0] = v_load(sums + r * VL);
            sum[r][1] = v_load(sums + (rows + r) * VL);
        }
        EJKI_UNROLL for (int k = 0; k < PAIRS; k++) {
            const vf a = v_operand(dtype, value[2 * k] + d * size);
            const vf b = v_operand(dtype, value[2 * k + 1] + d * size);
            const vf low = v_zip_low(a, b), high = v_zip_high(a, b);
            EJKI_UNROLL for (int r = 0; r < rows; r++) {
                sum[r][0] = v_dot(weight[r][k], low, sum[r][0]);
                sum[r][1] = v_dot(weight[r][k], high, sum[r][1]);
            }
        }
        EJKI_UNROLL for (int r = 0; r < rows; r++) {
            v_store(sums + r * VL, sum[r][0]);
            v_store(sums + (rows + r) * VL, sum[r][1]);
        }
        if (d * size % LINE == 0) {
            prefetch_beside(prefetch, VALUES_AT_ONCE, ahead);
            ahead += prefetch->step;
        }
    }
    if (d < dim) add_rest(dtype, rows, value, weights, d, dim, sums);
}

/* PAGED_PACK values packed for tiles, padded with zeros to whole vectors. */
static inline __attribute__((always_inline)) paged_range pack_values(const ejk_dtype dtype,
                                                                     const char *const *value,
                                                                     paged_size dim, float *target,
                                                                     paged_range range) {
    const int64_t size = stored_size(dtype);
    for (paged_size d = 0; d < dim; d += LANES) {
        const char *first = value[0] + d * size, *second = value[1] + d * size;
        const bool whole = d + LANES <= dim;
        const vf a = whole ? v_operand(dtype, first) : v_operand_first(dtype, first, dim - d);
        const vf b = whole ? v_operand(dtype, second) : v_operand_first(dtype, second, dim - d);
        range = range_with(range_with(range, a), b);
        v_store(target + d, v_zip_first(a, b));
        if (d + VL < dim) v_store(target + d + VL, v_zip_last(a, b));
    }
    return range;
}

/* Columns d to d + VL - 1 of packed value t. */
static inline vf packed_value(const float *values, paged_size width, paged_size t, paged_size d) {
    const vf pairs = v_load(values + t / 2 * width + d);
    return t % 2 ? v_of_second(pairs) : v_of_first(pairs);
}

#endif
