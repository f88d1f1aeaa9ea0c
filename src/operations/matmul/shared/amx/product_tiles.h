/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products on AMX: 32 x 32 sums are four tiles of 16 x 16, two tiles of a and two of b make them, TILE_STEP words of
 * the depth at a time, pairs of bf16 or four bytes each. Tiles 0 to 3 hold sums, 4 and 5 b, 6 and 7 a.
 *
 * a lies in tiles of TILE_ROWS rows, of which each step has 16 words of every row side by side; b in panels of
 * TILE_COLUMNS columns as everywhere, a row of words after the other. Both are filled with 0 to whole steps.
 *
 * With pairs a step adds to a sum first the products of first elements of pairs, then those of second ones, each a
 * chain of multiply-adds from 0, and both as one number. What is not made of tiles does the same in floats, so that a
 * row's bits do not depend on others: few rows of codes, and numbers so tiny that tiles take their products for 0.
 */
#ifndef EJKI_PRODUCT_TILES_H
#define EJKI_PRODUCT_TILES_H

#include "base/base.h"
#include "kernels/simd/amx.h"
#include "operations/matmul/shared/product_pack.h"

enum { TILE_HALF = 16 * TILE_STEP };

/* Bytes are signed. */
#ifdef TILE_BYTE_DOT
#define TILE_DOT(sums, a, b) _tile_dpbssd(sums, a, b)
#else
#define TILE_DOT(sums, a, b) _tile_dpbf16ps(sums, a, b)
#endif
/* What `passes` leaves the first-level cache to others. */
#define TILE_LOAD(passes, tile, from, stride)                                                      \
    do {                                                                                           \
        if (passes)                                                                                \
            _tile_stream_loadd(tile, from, stride);                                                \
        else                                                                                       \
            _tile_loadd(tile, from, stride);                                                       \
    } while (0)

/* ---- Operands ----------------------------------------------------------------------------------------- */

/* Where word `word` of row `row` of a tile of rows lies. */
static int64_t tiles_place(int64_t row, int64_t word) {
    return (word / TILE_STEP * TILE_ROWS + row) * TILE_STEP + word % TILE_STEP;
}

#ifdef TILE_BF16_DOT
/* `depth` elements of TILE_ROWS rows, each contiguous; true if all are fit for products. */
INLINE bool tiles_pack_rows(const void *const *row, int64_t depth, float *target) {
    PACK_RANGE range = PACK_RANGE_NONE;
    for (int i = 0; i < TILE_ROWS; i++, target += TILE_STEP) {
        float *to = target;
        for (int64_t d = 0; d < depth; d += 2 * TILE_STEP, to += 2 * TILE_HALF) {
            const vf v =
                pack_load(EJK_DTYPE_BF16, 2, element_at(EJK_DTYPE_BF16, row[i], d), depth - d);
            range = PACK_RANGE_WITH(range, v);
            v_store(to, v);
        }
    }
    return PACK_FIT(range);
}

/* A step of `rows` rows whose elements lie apart: element k of the depth begins at from[k]. */
INLINE bool tiles_pack_across(const void *const *from, int64_t rows, int64_t depth, float *target) {
    PACK_RANGE range = PACK_RANGE_NONE;
    for (int64_t d = 0; d < depth; d += 2 * TILE_STEP)
        for (int place = 0; place < TILE_ROWS; place += VL) {
            vf block[VL];
            for (int i = 0; i < VL; i++) {
                const int64_t k = d + 2 * i;
                const void *a = k < depth ? element_at(EJK_DTYPE_BF16, from[k], place) : NULL;
                const void *b =
                    k + 1 < depth ? element_at(EJK_DTYPE_BF16, from[k + 1], place) : NULL;
                block[i] = a ? pack_word(EJK_DTYPE_BF16, a, b, rows - place) : v_zero();
                range = PACK_RANGE_WITH(range, block[i]);
            }
            v_transpose(block);
            for (int i = 0; i < VL; i++, target += TILE_STEP) v_store(target, block[i]);
        }
    return PACK_FIT(range);
}

/* Panels of b whose columns are contiguous, `stride` elements apart. */
INLINE bool tiles_pack_columns(const void *b, int64_t stride, int64_t depth, int64_t count,
                               float *target) {
    const int64_t words = ejki_round_up(ejki_cdiv(depth, 2), TILE_STEP);
    PACK_RANGE range = PACK_RANGE_NONE;
    for (int64_t j = 0; j < ejki_round_up(count, TILE_COLUMNS); j += VL)
        for (int64_t word = 0; word < words; word += VL) {
            float *to = target + j / TILE_COLUMNS * words * TILE_COLUMNS + word * TILE_COLUMNS +
                        j % TILE_COLUMNS;
            vf block[VL];
            for (int i = 0; i < VL; i++) {
                const void *column = element_at(EJK_DTYPE_BF16, b, (j + i) * stride + 2 * word);
                block[i] = j + i < count ? pack_load(EJK_DTYPE_BF16, 2, column, depth - 2 * word)
                                         : v_zero();
                range = PACK_RANGE_WITH(range, block[i]);
            }
            v_transpose(block);
            for (int i = 0; i < VL; i++) v_store(to + i * TILE_COLUMNS, block[i]);
        }
    return PACK_FIT(range);
}

/* Zeros behind `words` words of each panel of `count` columns, which lie `room` words apart. */
INLINE void tiles_fill(int64_t words, int64_t room, int64_t count, float *target) {
    for (int64_t j = 0; j < count; j += TILE_COLUMNS, target += room * TILE_COLUMNS)
        for (int64_t i = words * TILE_COLUMNS; i < room * TILE_COLUMNS; i += VL)
            v_store(target + i, v_zero());
}

#endif

/* ---- Products ----------------------------------------------------------------------------------------- */

/* Tiles 0 to 3 take in a step; the lower half of the rows only if `both`. */
INLINE void tiles_add(const bool both, const bool a_passes, const bool b_passes, const float *a,
                      const float *b) {
    TILE_LOAD(b_passes, 4, b, 4 * TILE_COLUMNS);
    TILE_LOAD(a_passes, 6, a, 4 * TILE_STEP);
    TILE_DOT(0, 6, 4);
    TILE_LOAD(b_passes, 5, b + TILE_STEP, 4 * TILE_COLUMNS);
    TILE_DOT(1, 6, 5);
    if (!both) return;
    TILE_LOAD(a_passes, 7, a + TILE_HALF, 4 * TILE_STEP);
    TILE_DOT(2, 7, 4);
    TILE_DOT(3, 7, 5);
}

/* Sums in memory, in rows of TILE_COLUMNS. */
INLINE void tiles_begin(const bool both, const float *sums, bool add) {
    const float *lower = sums + 16 * TILE_COLUMNS;
    AMX_BARRIER();
    if (add) {
        _tile_loadd(0, sums, 4 * TILE_COLUMNS);
        _tile_loadd(1, sums + 16, 4 * TILE_COLUMNS);
        if (both) _tile_loadd(2, lower, 4 * TILE_COLUMNS);
        if (both) _tile_loadd(3, lower + 16, 4 * TILE_COLUMNS);
        return;
    }
    _tile_zero(0);
    _tile_zero(1);
    if (both) _tile_zero(2);
    if (both) _tile_zero(3);
}
INLINE void tiles_end(const bool both, float *sums) {
    float *lower = sums + 16 * TILE_COLUMNS;
    _tile_stored(0, sums, 4 * TILE_COLUMNS);
    _tile_stored(1, sums + 16, 4 * TILE_COLUMNS);
    if (both) _tile_stored(2, lower, 4 * TILE_COLUMNS);
    if (both) _tile_stored(3, lower + 16, 4 * TILE_COLUMNS);
    AMX_BARRIER();
}

/* One of the four tiles of sums. */
INLINE void tiles_put(const int tile, float *sums) {
    float *lower = sums + 16 * TILE_COLUMNS;
    if (tile == 0) _tile_stored(0, sums, 4 * TILE_COLUMNS);
    if (tile == 1) _tile_stored(1, sums + 16, 4 * TILE_COLUMNS);
    if (tile == 2) _tile_stored(2, lower, 4 * TILE_COLUMNS);
    if (tile == 3) _tile_stored(3, lower + 16, 4 * TILE_COLUMNS);
}

/* The first step of a block, from 0 on; tiles of the sums before are stored to `before` until they are needed. */
INLINE void tiles_first(const bool both, const float *a, const float *b, float *before) {
    _tile_loadd(4, b, 4 * TILE_COLUMNS);
    _tile_stream_loadd(6, a, 4 * TILE_STEP);
    _tile_zero(0);
    TILE_DOT(0, 6, 4);
    if (before) tiles_put(1, before);
    _tile_loadd(5, b + TILE_STEP, 4 * TILE_COLUMNS);
    _tile_zero(1);
    TILE_DOT(1, 6, 5);
    if (!both) return;
    if (before) tiles_put(2, before);
    _tile_stream_loadd(7, a + TILE_HALF, 4 * TILE_STEP);
    _tile_zero(2);
    TILE_DOT(2, 7, 4);
    if (before) tiles_put(3, before);
    _tile_zero(3);
    TILE_DOT(3, 7, 5);
}

/*
 * Sums of `count` blocks of steps[n] words each, every one from 0 on, to c and behind it. A product is there only 52
 * cycles after it has begun: so a tile is stored three products later, 16 cycles each, beside those of the next block.
 */
INLINE void tiles_blocks(const bool both, int64_t count, const int64_t *steps, const float *a,
                         const float *b, float *c) {
    float *before = NULL;
    AMX_BARRIER();
    for (int64_t n = 0; n < count; n++, c += TILE_ROWS * TILE_COLUMNS) {
        tiles_first(both, a, b, before);
        for (int64_t w = TILE_STEP; w < steps[n]; w += TILE_STEP)
            tiles_add(both, true, false, a + w * TILE_ROWS, b + w * TILE_COLUMNS);
        tiles_put(0, c);
        a += steps[n] * TILE_ROWS;
        b += steps[n] * TILE_COLUMNS;
        before = c;
    }
    tiles_put(1, before);
    if (both) tiles_put(2, before);
    if (both) tiles_put(3, before);
    AMX_BARRIER();
}

#ifdef TILE_BF16_DOT
/* The same in floats. */
INLINE void tiles_exact(int64_t rows, int64_t words, const float *a, const float *b, float *c,
                        bool add) {
    for (int64_t i = 0; i < rows; i++)
        for (int j = 0; j < TILE_COLUMNS; j += VL) {
            float *place = c + i * TILE_COLUMNS + j;
            vf sum = add ? v_load(place) : v_zero();
            for (int64_t w = 0; w < words; w += TILE_STEP) {
                vf first = v_zero(), second = v_zero();
                for (int64_t k = w; k < w + TILE_STEP; k++) {
                    const vf x = v_set1(a[tiles_place(i, k)]), y = v_load(b + k * TILE_COLUMNS + j);
                    first = v_fma(v_of_first(x), v_of_first(y), first);
                    second = v_fma(v_of_second(x), v_of_second(y), second);
                }
                sum = v_add(sum, v_add(first, second));
            }
            v_store(place, sum);
        }
}
#endif

#endif
