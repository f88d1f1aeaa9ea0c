/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_avx2.h"

#define WEIGHTS_TIER avx2
#define WEIGHTS_NAME "avx2"
#define WEIGHTS_ISA  EJK_ISA_AVX2
#include "kernels/attention/weights_body.h"
