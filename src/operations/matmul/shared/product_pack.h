/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands in the order in which tiles read them. Rows of a lie TILE_ROWS side by side, a word
 * of each in turn; columns of b in panels of TILE_COLUMNS, a row of words after the other. What a tile has too much is
 * anything (rows) or 0 (columns); what a pair lacks is 0.
 */
#ifndef EJKI_PRODUCT_PACK_H
#define EJKI_PRODUCT_PACK_H

#include "operations/matmul/shared/product.cuh"
#include "operations/matmul/shared/product_shape.h"
/* With the sizes of a tile. */
#include "kernels/simd/pack_body.h"

/*
 * TYPED_DEFINE(result, name, (parameters), arguments) makes functions of name(type, arguments), one for each type of
 * elements; CALL_TYPED(type, name, arguments) calls one. They are not inlined: the time to compile a function grows
 * faster than its size.
 */
#define TYPED_ONE(type, result, name, parameters, ...)                                             \
    static __attribute__((noinline)) result name##_##type parameters {                             \
        return name(EJK_DTYPE_##type, __VA_ARGS__);                                                \
    }
#ifdef TILE_BF16_DOT
#define TYPED_DEFINE(...)            TYPED_ONE(BF16, __VA_ARGS__)
#define CALL_TYPED(dtype, name, ...) ((void)(dtype), name##_BF16(__VA_ARGS__))
#else
#define TYPED_DEFINE(...)                                                                          \
    TYPED_ONE(F32, __VA_ARGS__)                                                                    \
    TYPED_ONE(BF16, __VA_ARGS__)                                                                   \
    TYPED_ONE(F16, __VA_ARGS__)
#define CALL_TYPED(dtype, name, ...)                                                               \
    ((dtype) == EJK_DTYPE_F32    ? name##_F32(__VA_ARGS__)                                         \
     : (dtype) == EJK_DTYPE_BF16 ? name##_BF16(__VA_ARGS__)                                        \
                                 : name##_F16(__VA_ARGS__))
#endif

/* Stores behind a row's own place are put right by the next row; the last one needs VL floats of room. */
INLINE void pack_store(float *target, int64_t place, vf v) {
    if (place == 0 || TILE_ROWS % VL == 0)
        v_store(target + place, v);
    else
        v_store_first(target + place, v, TILE_ROWS % VL);
}

#ifdef TILE_BF16_DOT
#define PACK_RANGE            v_range
#define PACK_RANGE_NONE       v_range_none()
#define PACK_RANGE_WITH(r, v) v_range_with(r, v)
/* VDPBF16PS takes tiny numbers for 0. */
#define PACK_FIT(r) v_large(r)
#else
#define PACK_RANGE            int
#define PACK_RANGE_NONE       0
#define PACK_RANGE_WITH(r, v) (r)
#define PACK_FIT(r)           ((void)(r), true)
#endif

/* TILE_ROWS rows whose elements are contiguous: `depth` of them. True if all are fit for products. */
INLINE bool pack_rows_side_by_side(const ejk_dtype dtype, const void *const *row, int64_t depth,
                                   float *target) {
    const int64_t words = (depth + TILE_UNIT - 1) / TILE_UNIT;
    PACK_RANGE range = PACK_RANGE_NONE;
    for (int64_t d = 0; d < words; d += VL)
        for (int place = 0; place < TILE_ROWS; place += VL) {
            const int64_t left = depth - d * TILE_UNIT, count = words - d < VL ? words - d : VL;
            vf block[VL];
            EJKI_UNROLL for (int i = 0; i < VL; i++) block[i] =
                place + i < TILE_ROWS
                    ? pack_load(dtype, TILE_UNIT,
                                element_at(dtype, row[place + i < TILE_ROWS ? place + i : 0],
                                           d * TILE_UNIT),
                                left)
                    : v_zero();
            EJKI_UNROLL for (int i = 0; i < VL; i++) range = PACK_RANGE_WITH(range, block[i]);
            v_transpose(block);
            float *to = target + d * TILE_ROWS;
            if (count == VL) {
                EJKI_UNROLL for (int i = 0; i < VL; i++)
                    pack_store(to + i * TILE_ROWS, place, block[i]);
            } else {
                for (int i = 0; i < count; i++) pack_store(to + i * TILE_ROWS, place, block[i]);
            }
        }
    return PACK_FIT(range);
}

/* VL words of which `count` columns are there: row `a` and, for pairs, `b`, or NULL. */
INLINE vf pack_word(const ejk_dtype dtype, const void *a, const void *b, int64_t count) {
    const int64_t n = count < 0 ? 0 : count < VL ? count : VL;
#ifdef TILE_BF16_DOT
    (void)dtype;
    return v_zip_bf16(a, n, b ? b : a, b ? n : 0);
#else
    (void)b;
    return v_widen_some(dtype, a, n);
#endif
}

/* Word d of rows that are contiguous themselves: element k of the depth begins at from[k]. */
INLINE bool pack_columns_side_by_side(const ejk_dtype dtype, const void *const *from, int64_t rows,
                                      int64_t depth, float *target) {
    PACK_RANGE range = PACK_RANGE_NONE;
    for (int64_t k = 0; k < depth; k += TILE_UNIT, target += TILE_ROWS)
        for (int place = 0; place < TILE_ROWS; place += VL) {
            const void *next =
                TILE_UNIT == 2 && k + 1 < depth ? element_at(dtype, from[k + 1], place) : NULL;
            const vf v = pack_word(dtype, element_at(dtype, from[k], place), next, rows - place);
            range = PACK_RANGE_WITH(range, v);
            pack_store(target, place, v);
        }
    return PACK_FIT(range);
}

#ifdef TILE_BF16_DOT
/* Whole panels of whole pairs: the same in fewer instructions. */
INLINE bool pack_b_pairs(const void *b, int64_t stride, int64_t words, int64_t panels,
                         float *target) {
    const int64_t room = pack_room(words);
    v_tiny tiny = v_tiny_none();
    for (int64_t w = 0; w < words; w++, target += TILE_COLUMNS) {
        const void *row = element_at(EJK_DTYPE_BF16, b, 2 * w * stride);
        const void *next = element_at(EJK_DTYPE_BF16, row, stride);
        float *to = target;
        for (int64_t i = 0; i < panels; i++, to += room * TILE_COLUMNS) {
            const vf first = v_load_pairs(element_at(EJK_DTYPE_BF16, row, i * TILE_COLUMNS));
            const vf second = v_load_pairs(element_at(EJK_DTYPE_BF16, next, i * TILE_COLUMNS));
            tiny = v_tiny_with(v_tiny_with(tiny, first), second);
            v_zip_rows(first, second, to, to + VL);
        }
    }
    return !v_tiny_found(tiny);
}
#endif

/* Columns of b that are contiguous in its rows: `depth` rows, `stride` elements apart, of `count` columns. */
INLINE bool pack_b_rows(const ejk_dtype dtype, const void *b, int64_t stride, int64_t depth,
                        int64_t count, float *target) {
    const int64_t words = (depth + TILE_UNIT - 1) / TILE_UNIT, room = pack_room(words);
    PACK_RANGE range = PACK_RANGE_NONE;
#ifdef TILE_BF16_DOT
    if (depth % 2 == 0 && count % TILE_COLUMNS == 0)
        return pack_b_pairs(b, stride, words, count / TILE_COLUMNS, target);
#endif
    for (int64_t w = 0; w < words; w++, target += TILE_COLUMNS) {
        const void *row = element_at(dtype, b, w * TILE_UNIT * stride);
        const void *next =
            TILE_UNIT == 2 && w * TILE_UNIT + 1 < depth ? element_at(dtype, row, stride) : NULL;
        float *to = target;
        for (int64_t panel = 0; panel < count; panel += TILE_COLUMNS, to += room * TILE_COLUMNS)
            EJKI_UNROLL for (int j = 0; j < TILE_COLUMNS; j += VL) {
                const vf v =
                    pack_word(dtype, element_at(dtype, row, panel + j),
                              next ? element_at(dtype, next, panel + j) : NULL, count - panel - j);
                range = PACK_RANGE_WITH(range, v);
                v_store(to + j, v);
            }
    }
    return PACK_FIT(range);
}

/* The same where a column's elements are contiguous, and columns `stride` apart. */
INLINE bool pack_b_columns(const ejk_dtype dtype, const void *b, int64_t stride, int64_t depth,
                           int64_t count, float *target) {
    pack_transposed_of(dtype, TILE_UNIT, b, stride, count, depth, target);
#ifdef TILE_BF16_DOT
    const int64_t panels = (count + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const int64_t floats = panels * TILE_COLUMNS * ((depth + 1) / 2);
    PACK_RANGE range = PACK_RANGE_NONE;
    for (int64_t i = 0; i < floats; i += VL) range = PACK_RANGE_WITH(range, v_load(target + i));
    return PACK_FIT(range);
#else
    return true;
#endif
}

/* Packed words of floats times the scales of their columns: `words` rows of each panel. */
INLINE void pack_scaled(const ejk_dtype dtype, const void *scale, int64_t words, int64_t first,
                        int64_t end, int64_t count, float *target) {
    for (int64_t panel = 0; panel < count; panel += TILE_COLUMNS, target += words * TILE_COLUMNS)
        for (int j = 0; j < TILE_COLUMNS; j += VL) {
            const int64_t left = count - panel - j;
            const vf factor = left > 0
                                  ? v_widen_some(dtype, element_at(dtype, scale, panel + j), left)
                                  : v_zero();
            for (int64_t w = first; w < end; w++)
                v_store(target + w * TILE_COLUMNS + j,
                        v_mul(v_load(target + w * TILE_COLUMNS + j), factor));
        }
}

INLINE void pack_ones(int64_t floats, float *target) {
#ifdef TILE_BF16_DOT
    const vf one = v_pairs(v_set1(1), v_set1(1));
#else
    const vf one = v_set1(1);
#endif
    for (int64_t i = 0; i < floats; i += VL) v_store(target + i, one);
}

#endif
