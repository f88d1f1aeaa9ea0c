/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of a in the order in which products with packed codes read them. The depth runs over the
 * blocks of packed.h, each filled with 0 to whole words of codes. Tiles of rows lie one behind the other, a word of
 * each row of a tile in turn. Beside them are, for each block and row, the sum of the row's elements, by which zeros
 * of codes count, and where rows are rounded the scale; these are the same whatever tile a row is in.
 */
#ifndef EJKI_PRODUCT_ROWS_H
#define EJKI_PRODUCT_ROWS_H

#include "operations/matmul/shared/product_codes.h"
#ifdef TILE_AMX
#include "operations/matmul/shared/amx/product_tiles.h"
#endif

typedef struct group_rows {
    float *words;         /* of tiles of `tile` rows, of `depth` words each */
    float *sums, *scales; /* [blocks][capacity] */
    int32_t *begins;      /* of bytes: where inner sums begin, so that codes lie around 0 */
    int64_t tile, depth, capacity;
    bool unfit[PRODUCT_ROWS]; /* has elements that ejki_packed_fit() refuses */
    bool some_unfit;
} group_rows;

/* Words of `count` codes, and words and blocks of a row. */
static int64_t group_steps(const packed_form *f, int64_t count) {
    return pack_room(ejki_cdiv(count, (int64_t)f->unit) * (f->unit / CODES_STEP));
}
static int64_t group_words(const packed_form *f) {
    const int64_t block = group_steps(f, PACKED_BLOCK), rest = f->columns % f->size;
    const int64_t whole = f->size / PACKED_BLOCK * block + group_steps(f, f->size % PACKED_BLOCK);
    const int64_t last = rest / PACKED_BLOCK * block + group_steps(f, rest % PACKED_BLOCK);
    return f->columns / f->size * whole + last;
}
static int64_t group_blocks(const packed_form *f) {
    return f->columns / f->size * ejki_cdiv(f->size, PACKED_BLOCK) +
           ejki_cdiv(f->columns % f->size, PACKED_BLOCK);
}

/* Whether tiles of that many rows are those of AMX. */
static inline bool group_in_tiles(int64_t rows) {
#ifdef TILE_AMX
    return rows == TILE_ROWS;
#else
    (void)rows;
    return false;
#endif
}

/* Bits of lanes that are not fit for products: not finite, above 2^60, or below 2^-100 but not 0. */
INLINE v_words rows_unfit(vf v) {
    const v_words size = v_bits(v) & 0x7fffffffu;
    return (v_words)(size > 0x5d800000u) | (v_words)(size - 1 < 0x0d800000u - 1);
}

/* Elements of a row as floats, 0 behind the last one; false if one is not fit. */
INLINE bool rows_load(const ejk_dtype dtype, const void *from, int64_t count, float *to) {
    v_words bad = v_bits(v_zero());
    for (int64_t k = 0; k < ejki_round_up(count, ejki_max(VL, 8)); k += VL) {
        const int64_t left = count - k;
        const vf v = left > 0 ? v_widen_some(dtype, element_at(dtype, from, k), left) : v_zero();
        bad |= rows_unfit(v);
        v_store(to + k, v);
    }
    return !v_any_gt(v_numbers(bad & 1), v_zero());
}

/* Adding it leaves no room for a fraction. */
#define ROUNDS_TO_WHOLE 0x1.8p23f

/* Rounds `count` elements, and what is 0 behind them, to whole numbers up to 127; returns their scale. */
INLINE float rows_round(int64_t count, float *x) {
    vf size = v_zero();
    for (int64_t k = 0; k < count; k += VL)
        size = v_max(size, v_of_bits(v_bits(v_load(x + k)) & 0x7fffffffu));
    const float most = v_largest(size);
    if (most == 0) return 0;
    const vf by = v_set1(127.0f / most), whole = v_set1(ROUNDS_TO_WHOLE);
    for (int64_t k = 0; k < count; k += VL)
        v_store(x + k, v_sub(v_add(v_mul(v_load(x + k), by), whole), whole));
    return most / 127.0f;
}

/* Elements of a block as words side by side, and zeros up to a whole vector of elements. */
INLINE void rows_words(const int unit, int64_t lines, const float *x, float *to) {
    for (int64_t i = 0; i < lines * unit; i += VL) {
#if defined(TILE_BYTE_DOT)
        v_store_words(to + i / CODES_STEP, v_load(x + i), unit == 8);
#elif defined(TILE_BF16_DOT)
        v_store_pairs(to + i / CODES_STEP, v_load(x + i), unit == 4);
#else
        v_store(to + i, v_load(x + i));
#endif
    }
}

/* A block of row `i`, `at` words into the row; returns where the next one begins. */
INLINE int64_t rows_place(const int unit, const packed_block *b, const float *x, int64_t i,
                          int64_t at, group_rows *r) {
    const int64_t count = b->words * (unit / CODES_STEP);
    float *tile = r->words + i / r->tile * r->tile * r->depth;
#ifdef FEW_IN_STEPS
    if (r->tile < TILE_ROWS) {
        for (int64_t w = 0; w < count; w++)
            for (int k = 0; k < 2; k++)
                tile[FEW_WORDS((at + w) * r->tile + i) + k] =
                    x[w / (unit / 2) * unit + codes_order(unit, (int)(w % (unit / 2)), k)];
        return at + count;
    }
#endif
    float words[PACKED_BLOCK + VL] = {0};
    rows_words(unit, b->words, x, words);
#ifdef TILE_AMX
    for (int64_t w = 0; group_in_tiles(r->tile) && w < count; w += TILE_STEP)
        memcpy(tile + tiles_place(i % TILE_ROWS, at + w), words + w, TILE_STEP * 4);
#endif
    if (group_in_tiles(r->tile)) return at + pack_room(count);
    for (int64_t w = 0; w < count; w++) tile[(at + w) * r->tile + i % r->tile] = words[w];
    return at + count;
}

#if defined(TILE_AMX) && defined(TILE_BF16_DOT)
/* A block of bf16 whose pairs fill steps of tiles, without floats in between; false if an element is not fit. */
INLINE bool rows_copy(const int unit, const void *from, int64_t count, int64_t i, int64_t at,
                      group_rows *r, float *all) {
    float *tile = r->words + i / TILE_ROWS * TILE_ROWS * r->depth;
    v_words bad = v_bits(v_zero());
    vf sum = v_zero();
    for (int64_t k = 0; k < count; k += 2 * VL) {
        const void *line = element_at(EJK_DTYPE_BF16, from, k);
        const vf pairs = v_load_pairs(line);
        v_store(tile + tiles_place(i % TILE_ROWS, at + k / 2),
                unit == 4 ? v_turn_pairs(pairs) : pairs);
        for (int half = 0; half < 2; half++) {
            const vf v = v_load_bf16(element_at(EJK_DTYPE_BF16, line, half * VL));
            bad |= rows_unfit(v);
            sum = v_add(sum, v);
        }
    }
    *all = v_sum(sum);
    return !v_any_gt(v_numbers(bad & 1), v_zero());
}
#endif

#if defined(TILE_AMX) && defined(TILE_BYTE_DOT)
/* A block of a row that fills steps of tiles, in registers; false if an element is not fit. */
INLINE bool rows_bytes(const ejk_dtype dtype, const int unit, const void *from, int64_t count,
                       int64_t i, int64_t at, group_rows *r, float *scale, float *all) {
    float *tile = r->words + i / TILE_ROWS * TILE_ROWS * r->depth;
    v_words bad = v_bits(v_zero());
    vf size = v_zero(), sum = v_zero();
    for (int64_t k = 0; k < count; k += VL) {
        const vf v = v_widen(dtype, element_at(dtype, from, k));
        bad |= rows_unfit(v);
        size = v_max(size, v_of_bits(v_bits(v) & 0x7fffffffu));
    }
    const float most = v_largest(size);
    const vf by = v_set1(most > 0 ? 127.0f / most : 0), whole = v_set1(ROUNDS_TO_WHOLE);
    for (int64_t k = 0; k < count; k += VL) {
        const vf v = v_mul(v_widen(dtype, element_at(dtype, from, k)), by);
        const vf rounded = v_sub(v_add(v, whole), whole);
        sum = v_add(sum, rounded);
        float *step = tile + tiles_place(i % TILE_ROWS, at + k / 4);
        v_store_words(step, rounded, unit == 8);
    }
    *all = v_sum(sum);
    *scale = most / 127.0f;
    return !v_any_gt(v_numbers(bad & 1), v_zero());
}
#endif

/* What is kept of a block of a row beside its words. */
INLINE void rows_end(group_rows *r, int64_t at, float all, float scale, int middle) {
    r->scales[at] = scale;
    r->sums[at] = all;
    (void)middle;
#ifdef TILE_BYTE_DOT
    r->begins[at] = -middle * (int32_t)all;
#endif
}

/* Row `i`; its elements are those at `from`. Bytes of codes have `middle` in theirs. */
static inline void rows_pack(ejk_dtype dtype, const packed_form *f, bool rounds, int middle,
                             const void *from, int64_t i, group_rows *r) {
    float x[PACKED_BLOCK + VL];
    int64_t at = 0; /* words before the block */
    packed_block b = {0};
    bool fit = true;
    for (int64_t n = 0; packed_next(f, &b); n++) {
        vf sum = v_zero();
        float scale = 1;
#if defined(TILE_AMX) && defined(TILE_BF16_DOT)
        if (dtype == EJK_DTYPE_BF16 && group_in_tiles(r->tile) && !rounds &&
            b.count % (2 * TILE_STEP) == 0) {
            const void *own = element_at(dtype, from, b.first);
            float *all = &r->sums[n * r->capacity + i];
            fit &= f->unit == 8 ? rows_copy(8, own, b.count, i, at, r, all)
                                : rows_copy(4, own, b.count, i, at, r, all);
            r->scales[n * r->capacity + i] = 1;
            at += b.count / 2;
            continue;
        }
#elif defined(TILE_AMX)
        const void *own = element_at(dtype, from, b.first);
        float all_bytes;
        if (fit && group_in_tiles(r->tile) && b.count % (4 * TILE_STEP) == 0 &&
            (f->unit == 8
                 ? ELEMENT_CALL(dtype, rows_bytes, 8, own, b.count, i, at, r, &scale, &all_bytes)
                 : ELEMENT_CALL(dtype, rows_bytes, 4, own, b.count, i, at, r, &scale,
                                &all_bytes))) {
            rows_end(r, n * r->capacity + i, all_bytes, scale, middle);
            at += b.count / 4;
            continue;
        }
        scale = 1;
#endif
        fit &= ELEMENT_CALL(dtype, rows_load, element_at(dtype, from, b.first), b.count, x);
        if (!fit) memset(x, 0, sizeof x);
        if (rounds) scale = rows_round(b.count, x);
        for (int64_t k = 0; k < b.count; k += VL) sum = v_add(sum, v_load(x + k));
        rows_end(r, n * r->capacity + i, v_sum(sum), scale, middle);
        if (f->unit == 8)
            at = rows_place(8, &b, x, i, at, r);
        else
            at = rows_place(4, &b, x, i, at, r);
    }
    r->unfit[i] = !fit;
    r->some_unfit |= !fit;
}

#endif
