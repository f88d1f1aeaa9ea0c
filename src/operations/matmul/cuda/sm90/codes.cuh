/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of few rows with codes of 4 or 8 bits, as their launcher and kernel have them: plain types only. A step of
 * the depth is 128 bytes of a row of codes, eight chunks of 16: 32 codes of 4 bits or 16 of 8.
 */
#ifndef EJKI_MATMUL_CUDA_SM90_CODES_CUH
#define EJKI_MATMUL_CUDA_SM90_CODES_CUH

#include "kernels/cuda/views.cuh"
#include "operations/matmul/shared/product.cuh"

enum {
    CODE_CHUNKS = 8,
    CODE_BYTES = 16 * CODE_CHUNKS, /* of a row in a step */
    CODE_COLUMNS = 64,             /* of a tile: rows of codes */
    CODE_PHASES = 4,               /* parts of the depth that a block has */
    CODE_TABLE_BYTES = 256 * 128,  /* of numbers for pairs of codes, if there are any */
    CODE_EXPERTS = 512,            /* at most */
    CODE_OWN_ROWS = 512,           /* at most, of experts that are found without a list */
};

typedef struct codes_arguments {
    mm_product p;
    ejki_cuda_map a, codes;
    mm_size tiles; /* of rows */
    mm_size steps;
} codes_arguments;

#endif
