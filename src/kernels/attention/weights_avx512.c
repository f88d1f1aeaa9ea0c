/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_avx512.h"

#define WEIGHTS_TIER avx512
#define WEIGHTS_NAME "avx512"
#define WEIGHTS_ISA  EJK_ISA_AVX512
#include "kernels/attention/weights_body.h"
