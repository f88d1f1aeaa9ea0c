/* SPDX-License-Identifier: Apache-2.0 */
/* 12 x 32 sums: 24 of 32 registers, two columns, one row value. */
#include "kernels/simd/vec_avx512.h"

#define TILE_ROWS          12
#define TILE_VECTORS       2
#define TILE_STREAMS       0
#define TILE_ROW_COUNTS(X) X(12) X(8) X(4) X(2) X(1)
#define VJP_TIER           avx512
#define VJP_ISA            EJK_ISA_AVX512
#include "kernels/flash_attention/vjp_body.h"
