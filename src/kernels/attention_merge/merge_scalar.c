/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_scalar.h"

#define MERGE_TIER scalar
#define MERGE_NAME "scalar"
#define MERGE_ISA  EJK_ISA_SCALAR
#include "kernels/attention_merge/merge_body.h"
