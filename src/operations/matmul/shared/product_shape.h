/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of products by tier: TILE_ROWS x TILE_VECTORS vectors of sums in registers, PRODUCT_DEPTH words of the depth in
 * one block of both operands, as many columns as the second-level cache holds of that depth. A word is a float, or
 * where the tier multiplies pairs of bf16 (TILE_BF16_DOT) a pair.
 */
#ifndef EJKI_PRODUCT_SHAPE_H
#define EJKI_PRODUCT_SHAPE_H

#include <ejkernel/device.h>

#include "kernels/simd/vec.h"

#include <string.h>

#if defined(EJKI_TIER_AMX) && defined(TILE_BYTE_DOT)
#include "kernels/simd/vec_avx512_vnni.h"
#endif

#define TILE_STREAMS 0
#ifdef EJKI_TIER_AMX
/* Four tiles of sums (product_tiles.h). */
#define TILE_AMX
#ifndef TILE_BYTE_DOT
#define TILE_BF16_DOT
/* Sums of few rows of codes are those of tiles; both elements of a pair lie as floats. */
#define FEW_IN_STEPS
#endif
#define TILE_ROWS          32
#define TILE_VECTORS       2
#define TILE_ROW_COUNTS(X) X(1)
#endif
#if defined(TILE_AMX)
#elif defined(EJKI_TIER_AVX512)
/* 14 x 32 sums: 28 of 32 registers, two columns, one row value. */
#define TILE_LOADS_ONCE
#define TILE_ROWS          14
#define TILE_VECTORS       2
#define TILE_ROW_COUNTS(X) X(14) X(12) X(10) X(8) X(6) X(4) X(3) X(2) X(1)
#elif defined(EJKI_TIER_AVX512_VNNI) || defined(EJKI_TIER_AVX512_BF16)
/* 12 x 32 sums: 24 of 32 registers, two columns, one row value. */
#define TILE_ROWS          12
#define TILE_VECTORS       2
#define TILE_ROW_COUNTS(X) X(12) X(10) X(8) X(6) X(4) X(3) X(2) X(1)
#elif defined(EJKI_TIER_AVX2)
/* 6 x 16 sums: 12 of 16 registers, two columns, one row value. */
#define TILE_ROWS          6
#define TILE_VECTORS       2
#define TILE_ROW_COUNTS(X) X(6) X(4) X(3) X(2) X(1)
#elif defined(EJKI_TIER_NEON)
/* 6 x 16 sums: 24 of 32 registers, four columns, one row value. */
#define TILE_ROWS          6
#define TILE_VECTORS       4
#define TILE_ROW_COUNTS(X) X(6) X(4) X(3) X(2) X(1)
#else
/* 4 x 8 sums: 8 vectors of four floats, what sixteen 128-bit registers hold beside the operands. */
#define TILE_ROWS          4
#define TILE_VECTORS       2
#define TILE_ROW_COUNTS(X) X(4) X(3) X(2) X(1)
#endif

/* Only rows rounded to 8 bits. */
#ifdef EJKI_TIER_AVX512_VNNI
#define TILE_BYTE_DOT
#endif

#ifdef EJKI_TIER_AVX512_BF16
#define TILE_BF16_DOT
#endif
#ifdef TILE_BF16_DOT
#define TILE_UNIT 2
#else
#define TILE_UNIT 1
#endif

/*
 * One core, 1024 x 1024 x 1024, shares of peak in float32 and bf16. Zen 4: depth 64, 128, 256 words 88, 90, 90 % and
 * 87, 87, 87 %; columns 256, 512, 1024 with cold matrices of eight groups 72, 72, 80 %: whole rows of b are read in
 * order. Rows 240, 480, 960: 89, 90, 74 %, as a and its sums leave the second-level cache. Zen 5: rows 96, 192, 480,
 * 516: 69, 78, 85, 86 % and 65, 77, 81, 83 %, as b is packed 11, 6, 3 and 2 times; depth 128 words in bf16 81 %.
 */
#ifdef TILE_AMX
#define PRODUCT_DEPTH 512
#else
#define PRODUCT_DEPTH 256
#endif
#define PRODUCT_COLUMNS 1024
/* Columns of b that are packed before tiles multiply them. */
#define PACK_COLUMNS (2 * TILE_COLUMNS)
/* Rows whose sums are kept while b is packed once; a multiple of every TILE_ROWS. */
#ifdef TILE_AMX
#define PRODUCT_ROWS 512
#else
#define PRODUCT_ROWS (518 / TILE_ROWS * TILE_ROWS)
#endif
/*
 * Up to this many rows b is not packed (product_stream.h), if its rows are contiguous; if its columns are, up to
 * TILE_ROWS. Zen 5, groups of 32 and 64 rows of 8 cold matrices: float32 72 and 80 % of the peak instead of 47 and 60,
 * bf16 64 and 67 instead of 41 and 54; 128 rows are as fast packed. Columns and 64 rows: bf16 46 % instead of 58.
 * Since panels are asked for before they are packed, and pairs are in fewer instructions, Zen 4 takes 0.94 of the time
 * for groups of 64 packed rows in bf16, 1.03 in float32; but dense experts of 32 rows (moe) 1.4 to 1.5.
 */
#if VL == 16
#define STREAM_ROWS 96
#else
#define STREAM_ROWS TILE_ROWS
#endif

/*
 * Whether little of b is packed at a time, and asked for into the first-level cache. Intel's processors want that: a
 * panel of PRODUCT_DEPTH words would fill that of those before Ice Lake, and later ones gain as well. Model 207,
 * float32, 512 rows of 8 cold matrices, before and since in turn: ragged groups 8.73 and 7.45 ms, even ones 9.86 and
 * 7.95 ms, one matrix in caches 6.72 and 6.62 ms.
 */
static inline bool shape_is_small(void) {
    return strcmp(ejk_cpu()->vendor, "intel") == 0;
}

/* Whether they take a part of PRODUCT_DEPTH, so that the second-level cache has the next block of b, too: for few rows.
 * Columns of b that are contiguous lie far apart, and few sets of that cache have all. */
static inline bool shape_is_short(int64_t rows, bool flipped) {
    return shape_is_small() && rows <= 128 && !flipped;
}
/* Words of the depth in a block for that many rows, and rows up to which b is not packed; bits depend on neither. */
static inline int64_t shape_depth(int64_t rows, bool flipped) {
    return shape_is_short(rows, flipped) ? 64 : PRODUCT_DEPTH;
}
static inline int64_t shape_stream_rows(void) {
    return shape_is_small() ? TILE_ROWS : STREAM_ROWS;
}

/* Floats that n words of few rows of codes take. */
#ifdef FEW_IN_STEPS
#define FEW_WORDS(n) (2 * (n))
#else
#define FEW_WORDS(n) (n)
#endif

/* Words that `words` of the depth take in memory: tiles have them in steps of 16, those behind the last one being 0. */
enum { TILE_STEP = 16 };
/* Whether so few rows meet b that it takes more time to come than to be multiplied. */
static inline bool shape_is_flat(int64_t rows) {
    return rows <= 128;
}
/*
 * Columns of b that the second-level cache holds on AMX for PRODUCT_DEPTH words of the depth, while more than HELD_ROWS
 * rows pass by, HELD_WORDS words of 32 of them at a time (product_held.h). Before and since in turn: 1024 rows, K = N =
 * 1024, 0.76 of the time, 512 rows 0.84, cold 0.91, 384 rows 0.98; 256 rows 1.01 to 1.05, cold 1.08.
 */
enum { HELD_COLUMNS = 512, HELD_WORDS = 256, HELD_ROWS = 256 };
/*
 * Columns of b and words of the depth that are packed while up to BESIDE_ROWS rows meet others (product_beside.h), and
 * rows of words that a panel is followed by: panels that lie 4 KiB apart, or a multiple of it, share two sets of the
 * first-level cache, where each row of b writes to all of them. Xeon of 2.6 GHz, K = N = 1024, groups of 64 rows:
 * 512 columns of 128 and of 256 words 2.35 and 2.93 ms, 1024 of 128 2.57, with room behind panels 2.27, 2.83 and 2.24;
 * with it 1024 of 64 2.00, of 32 2.03, 512 of 64 1.97, of 32 2.29, 256 of 64 2.18; not packed beside them 2.30. Of 32
 * rows: 512 of 256 2.02 and with room 1.93, of 64 1.58, of 32 1.61, 1024 of 64 1.46.
 */
enum { BESIDE_COLUMNS = 1024, BESIDE_WORDS = 64, BESIDE_ROOM = 1, BESIDE_ROWS = 128 };
/* Words of the depth that are packed before that many rows meet them. */
static inline int64_t shape_piece(int64_t rows) {
    return shape_is_flat(rows) ? 128 : 256;
}
static inline int64_t pack_room(int64_t words) {
#ifdef TILE_AMX
    return (words + TILE_STEP - 1) / TILE_STEP * TILE_STEP;
#else
    return words;
#endif
}

#endif
