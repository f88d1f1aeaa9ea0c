/* SPDX-License-Identifier: Apache-2.0 */
/* 4 x 8 sums of values. */
#include "kernels/simd/vec_scalar.h"

#define TILE_ROWS          4
#define TILE_VECTORS       2
#define TILE_STREAMS       1
#define TILE_ROW_COUNTS(X) X(4) X(3) X(2) X(1)
#define ROW_TIER           scalar
#define ROW_ISA            EJK_ISA_SCALAR
#include "kernels/flash_attention/row_body.h"
