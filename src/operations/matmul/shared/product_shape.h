/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of products by tier: TILE_ROWS x TILE_VECTORS vectors of sums in registers, PRODUCT_DEPTH words of the depth in
 * one block of both operands, as many columns as the second-level cache holds of that depth. A word is a float, or
 * where the tier multiplies pairs of bf16 (TILE_BF16_DOT) a pair.
 */
#ifndef EJKI_PRODUCT_SHAPE_H
#define EJKI_PRODUCT_SHAPE_H

#include "kernels/simd/vec.h"

#define TILE_STREAMS 0
#if defined(EJKI_TIER_AVX512) || defined(EJKI_TIER_AVX512_VNNI) || defined(EJKI_TIER_AVX512_BF16)
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
#define TILE_UNIT 2
#else
#define TILE_UNIT 1
#endif

/*
 * On Zen 4, one core, 1024 x 1024 x 1024, shares of peak in float32 and bf16: depth 64, 128, 256 words 88, 90, 90 % and
 * 87, 87, 87 %; columns 256, 512, 1024 with cold matrices of eight groups 72, 72, 80 %: whole rows of b are read in
 * order. Rows 240, 480, 960: 89, 90, 74 %, as a and its sums leave the second-level cache.
 */
#ifdef TILE_BF16_DOT
#define PRODUCT_DEPTH 128
#else
#define PRODUCT_DEPTH 256
#endif
#define PRODUCT_COLUMNS 1024
/* Rows whose sums are kept while b is packed once; a multiple of every TILE_ROWS. */
#define PRODUCT_ROWS 480

#endif
