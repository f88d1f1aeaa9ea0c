/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of row_avx512.c, by pairs of bf16: 4 x 64 sums of values, four columns, one pair of weights. */
#include "kernels/simd/vec_avx512_bf16.h"

#define TILE_PAIRS
#define TILE_ROWS          4
#define TILE_VECTORS       4
#define TILE_STREAMS       1
#define TILE_ROW_COUNTS(X) X(4) X(3) X(2) X(1)
#define ROW_TIER           avx512_bf16
#define ROW_ISA            EJK_ISA_AVX512_BF16
#include "kernels/flash_attention/row_body.h"
