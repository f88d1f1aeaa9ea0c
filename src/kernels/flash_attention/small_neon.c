/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_neon.h"

#define SMALL_SYMBOL ejki_flash_attention_f32_neon_small
#define SMALL_ID     "f32/neon/small"
#define SMALL_ISA    EJK_ISA_NEON
#include "kernels/flash_attention/small_body.h"
