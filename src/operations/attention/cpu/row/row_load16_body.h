/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements used where they lie, for the row-wise kernel: those of 16 bits become floats on their way into the
 * multiply-adds, once for all rows of a group.
 *
 * 2 · VL elements become two vectors. Of bf16, one shift makes floats of those with even numbers, one mask of
 * those with odd ones, where bringing neighbours into one vector would take a permutation besides. So what
 * meets keys and what values are added to is in the same order until a row is written. A rest shorter than
 * 2 · VL is in its own order.
 */
#ifndef EJKI_FLASH_ROW_LOAD16_BODY_H
#define EJKI_FLASH_ROW_LOAD16_BODY_H

#include "operations/attention/cpu/row/row_types.h"

#include <string.h>

/* Elements of a step. */
#define LOAD16 (2 * VL)

#if defined(__AVX512F__)
#define LOAD16_REGISTER(v) "+v"(v)
#elif defined(__x86_64__)
#define LOAD16_REGISTER(v) "+x"(v)
#elif defined(__aarch64__)
#define LOAD16_REGISTER(v) "+w"(v)
#else
#define LOAD16_REGISTER(v) "+m"(v)
#endif

static inline __attribute__((always_inline)) void load16_load(const ejk_dtype dtype, const void *p,
                                                              vf out[2]) {
    typedef uint32_t vu __attribute__((vector_size(4 * VL)));
    if (dtype != EJK_DTYPE_BF16) {
        out[0] = v_widen(dtype, p);
        out[1] = v_widen(dtype, element_at(dtype, p, VL));
        return;
    }
    vu pairs;
    memcpy(&pairs, p, sizeof pairs);
    /* One load: a compiler would make it two, as operands of shift and mask, and both miss the cache. */
    __asm__("" : LOAD16_REGISTER(pairs));
    out[0] = (vf)(pairs << 16);
    out[1] = (vf)(pairs & 0xffff0000u);
}

/* A row as floats in that order; beyond it, up to a multiple of VL, 0. */
static inline __attribute__((always_inline)) void
load16_widen_of(const ejk_dtype dtype, const void *row, int64_t width, float *target) {
    int64_t d = 0;
    for (; dtype != EJK_DTYPE_F32 && d + LOAD16 <= width; d += LOAD16) {
        vf pair[2];
        load16_load(dtype, element_at(dtype, row, d), pair);
        v_store(target + d, pair[0]);
        v_store(target + d + VL, pair[1]);
    }
    for (; d < width; d += VL)
        v_store(target + d,
                v_widen_first(dtype, element_at(dtype, row, d), width - d < VL ? width - d : VL));
}

static inline void load16_widen(ejk_dtype dtype, const void *row, int64_t width, float *target) {
    if (dtype == EJK_DTYPE_F32)
        load16_widen_of(EJK_DTYPE_F32, row, width, target);
    else if (dtype == EJK_DTYPE_BF16)
        load16_widen_of(EJK_DTYPE_BF16, row, width, target);
    else
        load16_widen_of(EJK_DTYPE_F16, row, width, target);
}

/* Back to the order of elements. */
static inline void load16_sort(ejk_dtype dtype, const float *row, int64_t width, float *target) {
    int64_t d = 0;
    for (; dtype == EJK_DTYPE_BF16 && d + LOAD16 <= width; d += LOAD16)
        for (int64_t i = 0; i < VL; i++) {
            target[d + 2 * i] = row[d + i];
            target[d + 2 * i + 1] = row[d + VL + i];
        }
    for (; d < width; d++) target[d] = row[d];
}

/* sums[i] += Σ_k weights[i][k] · values[k] for a few rows. Moves `lines` on. */
#define PV_OPERANDS                                                                                \
    int64_t width, int64_t depth, const float *weights, const void *values, int64_t stride,        \
        float *sums, int64_t sums_stride, row_prefetches *lines
typedef void (*pv_fn)(PV_OPERANDS);

/* `pairs` times LOAD16 columns, or, with 0, the first `columns` of VL. */
static inline __attribute__((always_inline)) void
pv_columns(const ejk_dtype dtype, const int rows, const int pairs, int64_t columns, int64_t depth,
           const float *weights, const void *values, int64_t stride, float *sums,
           int64_t sums_stride, row_prefetches *lines) {
    enum { MOST = TILE_VECTORS < 2 ? 2 : TILE_VECTORS };
    const int vectors = pairs > 0 ? 2 * pairs : 1;
    const int bytes = pairs * LOAD16 * (int)element_size(dtype), line = bytes < 64 ? bytes : 64;
    vf sum[TILE_ROWS][MOST], column[MOST];
    const bool in_order = lines->at[0] != NULL, second_level = lines->second_level;
    const char *a = lines->at[0], *b = lines->at[1], *c = lines->at[2], *d = lines->at[3];
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        sum[i][j] = v_load(sums + i * sums_stride + j * VL);
    for (int64_t k = 0; k < depth; k++) {
        const void *row = element_at(dtype, values, k * stride);
        if (pairs == 0) column[0] = v_widen_first(dtype, row, columns);
        EJKI_UNROLL for (int j = 0; j < bytes; j += line) {
            const char *same = (const char *)((uintptr_t)row + (uintptr_t)lines->distance) + j;
            row_prefetch(in_order ? a : same, second_level);
            const char *next = (const char *)((uintptr_t)a + (uintptr_t)line);
            a = b, b = c, c = d, d = next;
        }
        EJKI_UNROLL for (int j = 0; j < pairs; j++)
            load16_load(dtype, element_at(dtype, row, j * LOAD16), column + 2 * j);
        EJKI_UNROLL for (int i = 0; i < rows; i++) {
            const vf weight = v_set1(weights[i * SCORE_STRIDE + k]);
            EJKI_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] =
                v_fma(weight, column[j], sum[i][j]);
        }
    }
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        v_store(sums + i * sums_stride + j * VL, sum[i][j]);
    if (in_order) *lines = (row_prefetches){.at = {a, b, c, d}, .second_level = second_level};
}

static inline __attribute__((always_inline)) void pv_any(const ejk_dtype dtype, const int rows,
                                                         PV_OPERANDS) {
    enum { BF16_LANES = TILE_VECTORS < 2 ? 1 : TILE_VECTORS / 2 };
    int64_t d = 0;
    for (; d + BF16_LANES * LOAD16 <= width; d += BF16_LANES * LOAD16)
        pv_columns(dtype, rows, BF16_LANES, 0, depth, weights, element_at(dtype, values, d), stride,
                   sums + d, sums_stride, lines);
    for (; d + LOAD16 <= width; d += LOAD16)
        pv_columns(dtype, rows, 1, 0, depth, weights, element_at(dtype, values, d), stride,
                   sums + d, sums_stride, lines);
    for (; d < width; d += VL)
        pv_columns(dtype, rows, 0, width - d < VL ? width - d : VL, depth, weights,
                   element_at(dtype, values, d), stride, sums + d, sums_stride, lines);
}

/* The same for two keys: weights stay in registers while the sums pass by. Moves on only what is prefetched from
 * lines->next. */
static inline __attribute__((always_inline)) void pv_two(const ejk_dtype dtype, const int rows,
                                                         PV_OPERANDS) {
    const int bytes = LOAD16 * (int)element_size(dtype), line = bytes < 64 ? bytes : 64;
    const char *first = values, *second = element_at(dtype, values, stride), *next = lines->next;
    const bool in_order = next != NULL, second_level = lines->second_level;
    vf weight[TILE_ROWS][2], a[2], b[2];
    int64_t d = 0;
    (void)depth;
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int k = 0; k < 2; k++)
        weight[i][k] = v_set1(weights[i * SCORE_STRIDE + k]);
    for (; d + LOAD16 <= width; d += LOAD16) {
        const char *x = element_at(dtype, first, d), *y = element_at(dtype, second, d);
        EJKI_UNROLL for (int j = 0; j < bytes; j += line) {
            const char *a_line = (const char *)((uintptr_t)x + (uintptr_t)lines->distance) + j;
            const char *b_line = (const char *)((uintptr_t)y + (uintptr_t)lines->distance) + j;
            const char *after = (const char *)((uintptr_t)next + (uintptr_t)line);
            row_prefetch(in_order ? next : a_line, second_level);
            row_prefetch(in_order ? after : b_line, second_level);
            next = (const char *)((uintptr_t)after + (uintptr_t)line);
        }
        load16_load(dtype, x, a);
        load16_load(dtype, y, b);
        EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < 2; j++) {
            float *sum = sums + i * sums_stride + d + j * VL;
            v_store(sum, v_fma(weight[i][1], b[j], v_fma(weight[i][0], a[j], v_load(sum))));
        }
    }
    for (; d < width; d += VL) {
        const int64_t columns = width - d < VL ? width - d : VL;
        a[0] = v_widen_first(dtype, element_at(dtype, first, d), columns);
        b[0] = v_widen_first(dtype, element_at(dtype, second, d), columns);
        EJKI_UNROLL for (int i = 0; i < rows; i++) {
            float *sum = sums + i * sums_stride + d;
            v_store(sum, v_fma(weight[i][1], b[0], v_fma(weight[i][0], a[0], v_load(sum))));
        }
    }
    if (in_order) lines->next = next;
}

#define PV_CALL width, depth, weights, values, stride, sums, sums_stride, lines
#define PV_FUNCTION(name, dtype, n)                                                                \
    static __attribute__((noinline)) void pv_any_##name##_##n(PV_OPERANDS) {                       \
        pv_any(dtype, n, PV_CALL);                                                                 \
    }                                                                                              \
    static __attribute__((noinline)) void pv_two_##name##_##n(PV_OPERANDS) {                       \
        pv_two(dtype, n, PV_CALL);                                                                 \
    }
#define PV_FUNCTIONS(n)                                                                            \
    PV_FUNCTION(f32, EJK_DTYPE_F32, n)                                                             \
    PV_FUNCTION(bf16, EJK_DTYPE_BF16, n)                                                           \
    PV_FUNCTION(f16, EJK_DTYPE_F16, n)
TILE_ROW_COUNTS(PV_FUNCTIONS)

#define PV_CASE(what, n)                                                                           \
    if (rows == n)                                                                                 \
        return dtype == EJK_DTYPE_F32    ? pv_##what##_f32_##n                                     \
               : dtype == EJK_DTYPE_BF16 ? pv_##what##_bf16_##n                                    \
                                         : pv_##what##_f16_##n;
#define PV_ANY_CASE(n) PV_CASE(any, n)
#define PV_TWO_CASE(n) PV_CASE(two, n)

/* For `rows` of gemm_rows(), any number of keys. */
static inline pv_fn pv_any_for(ejk_dtype dtype, int rows) {
    TILE_ROW_COUNTS(PV_ANY_CASE)
    return pv_any_f32_1;
}

/* For two keys. */
static inline pv_fn pv_two_for(ejk_dtype dtype, int rows) {
    TILE_ROW_COUNTS(PV_TWO_CASE)
    return pv_two_f32_1;
}

#endif
