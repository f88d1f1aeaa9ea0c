/* SPDX-License-Identifier: Apache-2.0 */
/* 6 x 16 sums: 24 of 32 registers, four columns, one row value. */
#include "kernels/simd/vec_neon.h"

#define TILE_ROWS          6
#define TILE_VECTORS       4
#define TILE_STREAMS       0
#define TILE_ROW_COUNTS(X) X(6) X(4) X(2) X(1)
#define VJP_TIER           neon
#define VJP_ISA            EJK_ISA_NEON
#include "kernels/flash_attention/vjp_body.h"
