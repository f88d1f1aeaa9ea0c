/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simd/vec_neon.h"

#define MERGE_TIER neon
#define MERGE_NAME "neon"
#define MERGE_ISA  EJK_ISA_NEON
#include "kernels/attention_merge/merge_body.h"
