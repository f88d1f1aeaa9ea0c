/* SPDX-License-Identifier: Apache-2.0 */
/* 12 x 32 sums, as on AVX-512, of pairs of bf16. */
#include "kernels/simd/vec_avx512_bf16.h"

#define TILE_ROWS    12
#define TILE_VECTORS 2
#define TILE_STREAMS 0
#define TILE_PAIRS
#define TILE_ROW_COUNTS(X) X(12) X(8) X(4) X(2) X(1)
#define VJP_TIER           avx512_bf16
#define VJP_ISA            EJK_ISA_AVX512_BF16
#include "kernels/flash_attention/vjp_body.h"
