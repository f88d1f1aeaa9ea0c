/* SPDX-License-Identifier: Apache-2.0 */
/* 4 x 64 sums of values: 16 of 32 registers, four columns, one weight. */
#include "kernels/simd/vec_avx512.h"

#define TILE_ROWS          4
#define TILE_VECTORS       4
#define TILE_STREAMS       1
#define TILE_ROW_COUNTS(X) X(4) X(3) X(2) X(1)
#define ROW_TIER           avx512
#define ROW_ISA            EJK_ISA_AVX512
#include "kernels/flash_attention/row_body.h"
