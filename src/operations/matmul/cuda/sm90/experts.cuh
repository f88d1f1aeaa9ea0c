/* SPDX-License-Identifier: Apache-2.0 */
/* Products of experts with codes, as their launcher and kernel have them: plain types only. */
#ifndef EJKI_MATMUL_CUDA_SM90_EXPERTS_CUH
#define EJKI_MATMUL_CUDA_SM90_EXPERTS_CUH

#include "operations/matmul/cuda/moe.cuh"
#include "operations/matmul/cuda/sm90/codes.cuh"

typedef struct experts_arguments {
    mm_product p;
    ejki_cuda_map codes;
    mm_size steps;
    moe_arguments choice; /* what lists are made of, if there are none */
} experts_arguments;

#endif
