/* SPDX-License-Identifier: Apache-2.0 */
/* 4 x 8 sums: 8 vectors of four floats, what sixteen 128-bit registers hold beside the operands. */
#include "kernels/simd/vec_scalar.h"

#define TILE_ROWS          4
#define TILE_VECTORS       2
#define TILE_STREAMS       0
#define TILE_ROW_COUNTS(X) X(4) X(2) X(1)
#define VJP_TIER           scalar
#define VJP_ISA            EJK_ISA_SCALAR
#include "kernels/flash_attention/vjp_body.h"
