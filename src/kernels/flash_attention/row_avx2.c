/* SPDX-License-Identifier: Apache-2.0 */
/* 4 x 16 sums of values: 8 of 16 registers, two columns, one weight. */
#include "kernels/simd/vec_avx2.h"

#define TILE_ROWS          4
#define TILE_VECTORS       2
#define TILE_STREAMS       1
#define TILE_ROW_COUNTS(X) X(4) X(3) X(2) X(1)
#define ROW_TIER           avx2
#define ROW_ISA            EJK_ISA_AVX2
#include "kernels/flash_attention/row_body.h"
