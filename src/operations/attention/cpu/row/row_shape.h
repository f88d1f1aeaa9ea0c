/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register tile of the row-wise kernel, by tier: up to four rows, each with TILE_VECTORS vectors of sums of values.
 * TILE_BF16_DOT where products are of pairs of bf16.
 */
#ifndef EJKI_ROW_SHAPE_H
#define EJKI_ROW_SHAPE_H

#include "kernels/simd/vec.h"

#define TILE_STREAMS       1
#define TILE_ROWS          4
#define TILE_ROW_COUNTS(X) X(4) X(3) X(2) X(1)
#if defined(EJKI_TIER_AVX512) || defined(EJKI_TIER_AVX512_BF16) || defined(EJKI_TIER_NEON)
/* 4 x 64 sums on AVX-512, 4 x 16 on NEON: 16 of 32 registers, four columns, one weight or pair of weights. */
#define TILE_VECTORS 4
#else
/* 4 x 16 sums on AVX2: 8 of 16 registers, two columns, one weight. */
#define TILE_VECTORS 2
#endif

#ifdef EJKI_TIER_AVX512_BF16
#define TILE_BF16_DOT
#endif

#endif
