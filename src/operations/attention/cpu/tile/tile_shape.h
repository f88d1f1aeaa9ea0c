/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register tile of the tiled kernel and of the gradients, by tier: TILE_ROWS x TILE_VECTORS vectors of sums, which
 * leave registers for a row's value and the columns. TILE_BF16_DOT where products are of pairs of bf16.
 */
#ifndef EJKI_TILE_SHAPE_H
#define EJKI_TILE_SHAPE_H

#include "kernels/simd/vec.h"

#define TILE_STREAMS 0
#if defined(EJKI_TIER_AVX512) || defined(EJKI_TIER_AVX512_BF16)
/* 12 x 32 sums: 24 of 32 registers, two columns, one row value. */
#define TILE_ROWS          12
#define TILE_VECTORS       2
#define TILE_ROW_COUNTS(X) X(12) X(8) X(4) X(2) X(1)
#elif defined(EJKI_TIER_AVX2)
/* 6 x 16 sums: 12 of 16 registers, two columns, one row value. */
#define TILE_ROWS          6
#define TILE_VECTORS       2
#define TILE_ROW_COUNTS(X) X(6) X(4) X(2) X(1)
#elif defined(EJKI_TIER_NEON)
/* 6 x 16 sums: 24 of 32 registers, four columns, one row value. */
#define TILE_ROWS          6
#define TILE_VECTORS       4
#define TILE_ROW_COUNTS(X) X(6) X(4) X(2) X(1)
#else
/* 4 x 8 sums: 8 vectors of four floats, what sixteen 128-bit registers hold beside the operands. */
#define TILE_ROWS          4
#define TILE_VECTORS       2
#define TILE_ROW_COUNTS(X) X(4) X(2) X(1)
#endif

#ifdef EJKI_TIER_AVX512_BF16
#define TILE_BF16_DOT
#endif

#endif
