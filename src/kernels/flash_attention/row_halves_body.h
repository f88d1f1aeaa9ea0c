/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of 16 bits used where they lie, for the row-wise kernel: they become floats on their way into the
 * multiply-adds, once for all rows of a group. Include after product_body.h and vec_element.h.
 *
 * 2 · VL elements become two vectors. Of bf16, one shift makes floats of those with even numbers, one mask of
 * those with odd ones, where bringing neighbours into one vector would take a permutation besides. So what
 * meets keys and what values are added to is in the same order until a row is written. A rest shorter than
 * 2 · VL is in its own order.
 */
#ifndef EJKI_FLASH_ROW_HALVES_BODY_H
#define EJKI_FLASH_ROW_HALVES_BODY_H

#include <string.h>

/* Elements of a step. */
#define HALVES (2 * VL)

#if defined(__AVX512F__)
#define HALVES_REGISTER(v) "+v"(v)
#elif defined(__x86_64__)
#define HALVES_REGISTER(v) "+x"(v)
#elif defined(__aarch64__)
#define HALVES_REGISTER(v) "+w"(v)
#else
#define HALVES_REGISTER(v) "+m"(v)
#endif

static inline __attribute__((always_inline)) void halves_load(const ejk_dtype dtype, const void *p,
                                                              vf out[2]) {
    typedef uint32_t vu __attribute__((vector_size(4 * VL)));
    if (dtype == EJK_DTYPE_F16) {
        out[0] = v_load_f16(p);
        out[1] = v_load_f16(element_at(dtype, p, VL));
        return;
    }
    vu pairs;
    memcpy(&pairs, p, sizeof pairs);
    /* One load: a compiler would make it two, as operands of shift and mask, and both miss the cache. */
    __asm__("" : HALVES_REGISTER(pairs));
    out[0] = (vf)(pairs << 16);
    out[1] = (vf)(pairs & 0xffff0000u);
}

/* A row as floats in that order; beyond it, up to a multiple of VL, 0. */
static inline __attribute__((always_inline)) void
halves_widen_of(const ejk_dtype dtype, const void *row, int64_t width, float *target) {
    int64_t d = 0;
    for (; dtype != EJK_DTYPE_F32 && d + HALVES <= width; d += HALVES) {
        vf pair[2];
        halves_load(dtype, element_at(dtype, row, d), pair);
        v_store(target + d, pair[0]);
        v_store(target + d + VL, pair[1]);
    }
    for (; d < width; d += VL)
        v_store(target + d,
                v_widen_first(dtype, element_at(dtype, row, d), width - d < VL ? width - d : VL));
}

static inline void halves_widen(ejk_dtype dtype, const void *row, int64_t width, float *target) {
    if (dtype == EJK_DTYPE_F32)
        halves_widen_of(EJK_DTYPE_F32, row, width, target);
    else if (dtype == EJK_DTYPE_BF16)
        halves_widen_of(EJK_DTYPE_BF16, row, width, target);
    else
        halves_widen_of(EJK_DTYPE_F16, row, width, target);
}

/* Back to the order of elements. */
static inline void halves_sort(ejk_dtype dtype, const float *row, int64_t width, float *target) {
    int64_t d = 0;
    for (; dtype == EJK_DTYPE_BF16 && d + HALVES <= width; d += HALVES)
        for (int64_t i = 0; i < VL; i++) {
            target[d + 2 * i] = row[d + i];
            target[d + 2 * i + 1] = row[d + VL + i];
        }
    for (; d < width; d++) target[d] = row[d];
}

/*
 * sums[i] += Σ_k weights[i][k] · values[k] for a few rows. `line` is memory to ask for meanwhile, one line for
 * each HALVES elements: rows as far apart as those of values; or, with `in_order`, one line after the other, less
 * the `asked` ones that were asked for before.
 * Returns where it came to.
 */
#define HALVES_OPERANDS                                                                            \
    int64_t width, int64_t depth, const float *weights, const void *values, int64_t stride,        \
        float *sums, int64_t sums_stride, const char *line, bool in_order, int64_t asked
typedef const char *(*halves_fn)(HALVES_OPERANDS);

/*
 * `pairs` times HALVES columns, or, with 0, the first `columns` of VL. Besides `line`, which comes from memory, the
 * first-level cache is given values NEAR keys early: loads that miss it wait behind all that memory still owes.
 */
static inline __attribute__((always_inline)) void
halves_columns(const ejk_dtype dtype, const int rows, const int pairs, int64_t columns,
               int64_t depth, const float *weights, const void *values, int64_t stride, float *sums,
               int64_t sums_stride, const char *line, int64_t line_step, int64_t asking) {
    enum { MOST = TILE_VECTORS < 2 ? 2 : TILE_VECTORS, NEAR = 16 };
    const int vectors = pairs > 0 ? 2 * pairs : 1;
    vf sum[TILE_ROWS][MOST], column[MOST];
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        sum[i][j] = v_load(sums + i * sums_stride + j * VL);
    for (int64_t k = 0; k < depth; k++, line += k < asking ? line_step : 0) {
        const void *row = element_at(dtype, values, k * stride);
        const char *near = element_at(dtype, row, NEAR * stride);
        if (pairs == 0) column[0] = v_widen_first(dtype, row, columns);
        EJKI_UNROLL for (int j = 0; j < pairs; j++) {
            __builtin_prefetch(near + j * HALVES * 2, 0, 3);
            __builtin_prefetch(line + j * HALVES * 2, 0, 2);
            halves_load(dtype, element_at(dtype, row, j * HALVES), column + 2 * j);
        }
        EJKI_UNROLL for (int i = 0; i < rows; i++) {
            const vf weight = v_set1(weights[i * SCORE_STRIDE + k]);
            EJKI_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] =
                v_fma(weight, column[j], sum[i][j]);
        }
    }
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        v_store(sums + i * sums_stride + j * VL, sum[i][j]);
}

static inline __attribute__((always_inline)) const char *
halves_values(const ejk_dtype dtype, const int rows, HALVES_OPERANDS) {
    enum { PAIRS = TILE_VECTORS < 2 ? 1 : TILE_VECTORS / 2 };
    const int64_t full = PAIRS * HALVES, row_step = in_order ? full * 2 : stride * 2;
    int64_t d = 0;
    for (; d + full <= width; d += full) {
        const int64_t asking = depth - (d == 0 ? asked / PAIRS : 0);
        halves_columns(dtype, rows, PAIRS, 0, depth, weights, element_at(dtype, values, d), stride,
                       sums + d, sums_stride, line, row_step, asking);
        line += in_order ? asking * full * 2 : full * 2;
    }
    for (; d + HALVES <= width; d += HALVES) {
        halves_columns(dtype, rows, 1, 0, depth, weights, element_at(dtype, values, d), stride,
                       sums + d, sums_stride, line, in_order ? HALVES * 2 : stride * 2, depth);
        line += in_order ? depth * HALVES * 2 : HALVES * 2;
    }
    for (; d < width; d += VL)
        halves_columns(dtype, rows, 0, width - d < VL ? width - d : VL, depth, weights,
                       element_at(dtype, values, d), stride, sums + d, sums_stride, line, 0, depth);
    return line;
}

#define HALVES_CALL width, depth, weights, values, stride, sums, sums_stride, line, in_order, asked
#define HALVES_FUNCTIONS(n)                                                                        \
    static __attribute__((noinline)) const char *halves_values_bf16_##n(HALVES_OPERANDS) {         \
        return halves_values(EJK_DTYPE_BF16, n, HALVES_CALL);                                      \
    }                                                                                              \
    static __attribute__((noinline)) const char *halves_values_f16_##n(HALVES_OPERANDS) {          \
        return halves_values(EJK_DTYPE_F16, n, HALVES_CALL);                                       \
    }
TILE_ROW_COUNTS(HALVES_FUNCTIONS)

/* For `rows` of product_rows(). */
static inline halves_fn halves_values_for(ejk_dtype dtype, int rows) {
#define HALVES_CASE(n)                                                                             \
    if (rows == n) return dtype == EJK_DTYPE_BF16 ? halves_values_bf16_##n : halves_values_f16_##n;
    TILE_ROW_COUNTS(HALVES_CASE)
#undef HALVES_CASE
    return halves_values_bf16_1;
}

#endif
