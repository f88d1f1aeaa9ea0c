/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of a block with few rows: b is read once, straight from its own memory, and not packed. STREAM_WORDS words of
 * the depth of a panel's columns stay in registers while all rows meet them; sums lie in memory between, as they do
 * between blocks of the depth. Each is the chain of multiply-adds that tiles make of packed operands: the same bits.
 *
 * Where rows of b are contiguous, STREAM_WORDS of them are read side by side from the left to the right. Where columns
 * are, VL of them are, VL words at a time, which are transposed in registers. The line that comes one group of rows, or
 * of columns, later in the order of reading is asked for with each line read (PREFETCHT1).
 *
 * Zen 5, one core, N = K = 4096, M = 1, cold, shares of the bandwidth of reading: float32 25 % packed, 75 % so; bf16 19
 * and 75 %; columns that are contiguous 24 and 62 %. STREAM_WORDS 12 instead of 8: bf16 with 64 rows 57 % of the peak
 * instead of 67, as sums and words do not fit the registers.
 */
#ifndef EJKI_PRODUCT_STREAM_H
#define EJKI_PRODUCT_STREAM_H

#include "operations/matmul/shared/product_block.h"
#include "operations/matmul/shared/product_pack.h"

#if VL == 16
#define STREAM_WORDS 8
#else
#define STREAM_WORDS 4 /* what 16 registers hold, or with four vectors 32 */
#endif

/* What a block's rows meet: sums of `rows` rows in panels of `capacity` rows, rows of a side by side in tiles. */
typedef struct stream {
    const float *a;
    float *sums;
    int64_t rows, capacity;
    const bool *fit;
} stream;

/* sum += the products of `count` words from `word` on; `exact`: in floats, in the order of VDPBF16PS. */
INLINE void stream_row(const bool exact, const int count, const int vectors, const float *a,
                       const vf *w, bool add, float *sums) {
    vf sum[TILE_VECTORS];
    EJKI_UNROLL for (int j = 0; j < vectors; j++) sum[j] = add ? v_load(sums + j * VL) : v_zero();
    EJKI_UNROLL for (int g = 0; g < count; g++) {
        const vf x = v_set1(a[g * TILE_ROWS]);
        EJKI_UNROLL for (int j = 0; j < vectors; j++) {
#ifdef TILE_BF16_DOT
            if (exact) {
                sum[j] = v_fma(v_of_second(x), v_of_second(w[g * vectors + j]), sum[j]);
                sum[j] = v_fma(v_of_first(x), v_of_first(w[g * vectors + j]), sum[j]);
                continue;
            }
#endif
            sum[j] = GEMM_TERM(x, w[g * vectors + j], sum[j]);
        }
    }
    (void)exact;
    EJKI_UNROLL for (int j = 0; j < vectors; j++) v_store(sums + j * VL, sum[j]);
}

/* All rows with `count` words of the `vectors` vectors of columns from `column` on. */
INLINE void stream_words(const int count, const int vectors, const stream *s, int64_t word,
                         int64_t column, const vf *w, bool add) {
    float *sums =
        s->sums + column / TILE_COLUMNS * s->capacity * TILE_COLUMNS + column % TILE_COLUMNS;
#ifdef TILE_BF16_DOT
    PACK_RANGE range = PACK_RANGE_NONE;
    EJKI_UNROLL for (int g = 0; g < count; g++) EJKI_UNROLL for (int j = 0; j < vectors; j++)
        range = PACK_RANGE_WITH(range, w[g * vectors + j]);
    const bool fit = PACK_FIT(range);
#endif
    for (int64_t t = 0; t < s->rows; t += TILE_ROWS, sums += TILE_ROWS * TILE_COLUMNS) {
        const int64_t rows = ejki_min(s->rows - t, TILE_ROWS);
        const float *a = s->a + t * PRODUCT_DEPTH + word * TILE_ROWS;
#ifdef TILE_BF16_DOT
        if (!fit || !s->fit[t / TILE_ROWS]) {
            for (int64_t i = 0; i < rows; i++)
                stream_row(true, count, vectors, a + i, w, add, sums + i * TILE_COLUMNS);
            continue;
        }
#endif
        for (int64_t i = 0; i < rows; i++)
            stream_row(false, count, vectors, a + i, w, add, sums + i * TILE_COLUMNS);
    }
}

/* `count` words of a panel of `columns` columns whose rows are `stride` elements apart. */
INLINE void stream_panel(const ejk_dtype dtype, const int count, const stream *s, const void *b,
                         int64_t stride, int64_t depth, int64_t word, int64_t column,
                         int64_t columns, bool add) {
    const int vectors = TILE_VECTORS;
    vf w[STREAM_WORDS * TILE_VECTORS];
    EJKI_UNROLL for (int g = 0; g < count; g++) {
        const void *row = element_at(dtype, b, (word + g) * TILE_UNIT * stride + column);
        const bool pairs = TILE_UNIT == 2 && (word + g) * TILE_UNIT + 1 < depth;
        EJKI_UNROLL for (int j = 0; j < TILE_VECTORS; j++) w[g * vectors + j] =
            pack_word(dtype, element_at(dtype, row, j * VL),
                      pairs ? element_at(dtype, row, stride + j * VL) : NULL, columns - j * VL);
    }
    stream_words(count, TILE_VECTORS, s, word, column, w, add);
}

/* One word of columns that may be fewer than a panel. */
INLINE void stream_one(const ejk_dtype dtype, const stream *s, const void *b, int64_t stride,
                       int64_t depth, int64_t word, int64_t column, int64_t columns, bool add) {
    stream_panel(dtype, 1, s, b, stride, depth, word, column, columns, add);
}
TYPED_DEFINE(void, stream_one,
             (const stream *s, const void *b, int64_t stride, int64_t depth, int64_t word,
              int64_t column, int64_t columns, bool add),
             s, b, stride, depth, word, column, columns, add)

/* `bytes` bytes of each of `rows` rows. */
INLINE void stream_ask(const char *row, int64_t rows, int64_t stride, int64_t bytes) {
    for (int64_t i = 0; i < rows; i++, row += stride)
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}

/* `count` words of all columns; `ahead`: the rows that are read next. */
INLINE void stream_step(const ejk_dtype dtype, const int count, const stream *s, const void *b,
                        int64_t stride, int64_t depth, int64_t word, int64_t columns,
                        const char *ahead, bool add) {
    const int64_t step = stride * element_size(dtype), line = TILE_COLUMNS * element_size(dtype);
    for (int64_t j = 0; j < columns; j += TILE_COLUMNS) {
        const int64_t left = columns - j;
        if (ahead) stream_ask(ahead + j * element_size(dtype), count * TILE_UNIT, step, line);
        if (left >= TILE_COLUMNS && count > 1)
            stream_panel(dtype, count, s, b, stride, depth, word, j, TILE_COLUMNS, add);
        else
            for (int g = 0; g < count; g++)
                CALL_TYPED(dtype, stream_one, s, b, stride, depth, word + g, j, left, add || g > 0);
    }
}

#define STREAM_PARAMETERS                                                                          \
    const stream *s, const void *b, int64_t stride, int64_t depth, int64_t word, int64_t columns,  \
        const char *ahead, bool add
INLINE void stream_1(const ejk_dtype dtype, STREAM_PARAMETERS) {
    stream_step(dtype, 1, s, b, stride, depth, word, columns, ahead, add);
}
INLINE void stream_4(const ejk_dtype dtype, STREAM_PARAMETERS) {
    stream_step(dtype, 4, s, b, stride, depth, word, columns, ahead, add);
}
TYPED_DEFINE(void, stream_1, (STREAM_PARAMETERS), s, b, stride, depth, word, columns, ahead, add)
TYPED_DEFINE(void, stream_4, (STREAM_PARAMETERS), s, b, stride, depth, word, columns, ahead, add)
#if STREAM_WORDS == 8
INLINE void stream_8(const ejk_dtype dtype, STREAM_PARAMETERS) {
    stream_step(dtype, 8, s, b, stride, depth, word, columns, ahead, add);
}
TYPED_DEFINE(void, stream_8, (STREAM_PARAMETERS), s, b, stride, depth, word, columns, ahead, add)
#endif

/* Rows of b that are contiguous; `after` is where reading goes on behind the last one. */
static void stream_rows(ejk_dtype dtype, const stream *s, const void *b, int64_t stride,
                        int64_t depth, int64_t columns, const void *after, bool add) {
    const int64_t words = ejki_cdiv(depth, TILE_UNIT), whole = depth / TILE_UNIT;
    for (int64_t word = 0, count; word < words; word += count, add = true) {
        const int64_t left = whole - word;
        count = left >= STREAM_WORDS ? STREAM_WORDS : left >= 4 ? 4 : 1;
        const char *ahead = word + count < words
                                ? element_at(dtype, b, (word + count) * TILE_UNIT * stride)
                                : after;
        if (count == 1)
            CALL_TYPED(dtype, stream_1, s, b, stride, depth, word, columns, ahead, add);
        else if (count == 4)
            CALL_TYPED(dtype, stream_4, s, b, stride, depth, word, columns, ahead, add);
#if STREAM_WORDS == 8
        else
            CALL_TYPED(dtype, stream_8, s, b, stride, depth, word, columns, ahead, add);
#endif
    }
}

/* Columns of b that are contiguous, `stride` elements apart. */
INLINE void stream_columns(const ejk_dtype dtype, const stream *s, const void *b, int64_t stride,
                           int64_t depth, int64_t columns, const void *after, bool add) {
    const int64_t words = ejki_cdiv(depth, TILE_UNIT), step = stride * element_size(dtype);
    for (int64_t j = 0; j < columns; j += VL) {
        const int64_t count = ejki_min(columns - j, VL);
        const char *column = element_at(dtype, b, j * stride);
        const char *ahead = columns - j > VL ? column + VL * step : after;
        for (int64_t word = 0; word < words; word += VL) {
            const int64_t at = word * TILE_UNIT, bytes = at * element_size(dtype);
            vf block[VL];
            if (ahead) stream_ask(ahead + bytes, VL, step, 1);
            if (count == VL && depth - at >= VL * TILE_UNIT) {
                EJKI_UNROLL for (int i = 0; i < VL; i++) block[i] =
                    pack_load(dtype, TILE_UNIT, column + i * step + bytes, VL * TILE_UNIT);
                v_transpose(block);
                stream_words(VL, 1, s, word, j, block, add || word > 0);
                continue;
            }
            for (int64_t i = 0; i < VL; i++)
                block[i] = i < count ? pack_load(dtype, TILE_UNIT, column + i * step + bytes,
                                                 ejki_min(depth - at, VL * TILE_UNIT))
                                     : v_zero();
            v_transpose(block);
            for (int64_t g = 0; g < VL && word + g < words; g++)
                stream_words(1, 1, s, word + g, j, block + g, add || word + g > 0);
        }
    }
}
TYPED_DEFINE(void, stream_columns,
             (const stream *s, const void *b, int64_t stride, int64_t depth, int64_t columns,
              const void *after, bool add),
             s, b, stride, depth, columns, after, add)

#endif
