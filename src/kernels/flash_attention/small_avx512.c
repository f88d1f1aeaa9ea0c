/* SPDX-License-Identifier: Apache-2.0 */
/* Eight lanes, as many as small calls have rows, with the registers and instructions of AVX-512. */
#include "kernels/simd/vec_avx2.h"

#define SMALL_SYMBOL ejki_flash_attention_f32_avx512_small
#define SMALL_ID     "f32/avx512/small"
#define SMALL_ISA    EJK_ISA_AVX512
#include "kernels/flash_attention/small_body.h"
