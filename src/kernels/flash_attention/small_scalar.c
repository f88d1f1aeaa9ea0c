/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_scalar.h"

#define SMALL_SYMBOL ejki_flash_attention_f32_scalar_small
#define SMALL_ID     "f32/scalar/small"
#define SMALL_ISA    EJK_ISA_SCALAR
#include "kernels/flash_attention/small_body.h"
