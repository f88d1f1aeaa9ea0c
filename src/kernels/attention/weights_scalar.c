/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_scalar.h"

#define WEIGHTS_TIER scalar
#define WEIGHTS_NAME "scalar"
#define WEIGHTS_ISA  EJK_ISA_SCALAR
#include "kernels/attention/weights_body.h"
