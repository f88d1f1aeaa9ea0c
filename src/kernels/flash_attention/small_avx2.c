/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_avx2.h"

#define SMALL_SYMBOL ejki_flash_attention_f32_avx2_small
#define SMALL_ID     "f32/avx2/small"
#define SMALL_ISA    EJK_ISA_AVX2
#include "kernels/flash_attention/small_body.h"
