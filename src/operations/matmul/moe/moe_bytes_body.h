/* SPDX-License-Identifier: Apache-2.0 */
/* moe_body.h with products of bytes, of rows rounded to 8 bits. */
#define MOE_BYTES
#include "operations/matmul/moe/moe_body.h"
