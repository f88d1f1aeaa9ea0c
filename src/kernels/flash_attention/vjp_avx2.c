/* SPDX-License-Identifier: Apache-2.0 */
/* 6 x 16 sums: 12 of 16 registers, two columns, one row value. */
#include "kernels/simd/vec_avx2.h"

#define TILE_ROWS          6
#define TILE_VECTORS       2
#define TILE_STREAMS       0
#define TILE_ROW_COUNTS(X) X(6) X(4) X(2) X(1)
#define VJP_TIER           avx2
#define VJP_ISA            EJK_ISA_AVX2
#include "kernels/flash_attention/vjp_body.h"
