/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_neon.h"

#define WEIGHTS_TIER neon
#define WEIGHTS_NAME "neon"
#define WEIGHTS_ISA  EJK_ISA_NEON
#include "kernels/attention/weights_body.h"
