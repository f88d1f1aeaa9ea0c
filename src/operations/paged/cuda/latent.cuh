/* SPDX-License-Identifier: Apache-2.0 */
/* What latent.cu is called with: [latent or rope elements, rows of a page, 1, pages] of the cache besides. */
#ifndef EJKI_PAGED_CUDA_LATENT_CUH
#define EJKI_PAGED_CUDA_LATENT_CUH

#include "kernels/cuda/views.cuh"
#include "operations/paged/cuda/paged.cuh"

typedef struct paged_latent_arguments {
    ejki_cuda_map key_map, tail_map; /* boxes of 64 elements and as many rows as a page and a block have in common */
    paged_arguments all;
} paged_latent_arguments;

#endif
