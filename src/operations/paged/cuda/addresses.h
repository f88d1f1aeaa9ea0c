/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels over pages on GPUs can take: types, and addresses at multiples of elements. */
#ifndef EJKI_PAGED_CUDA_ADDRESSES_H
#define EJKI_PAGED_CUDA_ADDRESSES_H

#include "base/base.h"
#include "operations/paged/shared/problem.cuh"

/* True if all tensors have types of 8, 16 or 32 bits. */
bool ejki_paged_cuda_types(const paged_problem *p);
/* INVALID_LAYOUT. */
ejk_status ejki_paged_cuda_check(const paged_problem *p);

#endif
