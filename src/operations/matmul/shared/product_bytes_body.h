/* SPDX-License-Identifier: Apache-2.0 */
/* product_body.h with products of bytes, of rows rounded to 8 bits. */
#define TILE_BYTE_DOT
#include "operations/matmul/shared/product_body.h"
