/* SPDX-License-Identifier: Apache-2.0 */
/* scaled_matmul on GPUs, as launchers and kernels have it: plain types only. */
#ifndef EJKI_SCALED_MATMUL_CUDA_SCALED_CUH
#define EJKI_SCALED_MATMUL_CUDA_SCALED_CUH

#include "kernels/cuda/views.cuh"
#include "operations/matmul/scaled_matmul/problem.cuh"

typedef struct scaled_arguments {
    scaled_problem p;
    ejki_cuda_map a, b; /* of sm_90: boxes of 128 elements and 128 lines */
} scaled_arguments;

#endif
