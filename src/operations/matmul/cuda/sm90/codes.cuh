/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of few rows with codes of 4 bits, as their launcher and kernels have them: plain types only. The depth is
 * taken in blocks of 128, which a scale is for, two of them a step.
 *
 * Lane 4 r + q of a warp has, of a row of codes, 16 bytes of a block: codes 32 q to 32 q + 31, in four words. Word w
 * gives operands of two wgmma, t = 2 w + u: codes 2 u, 2 u + 4, 2 u + 1 and 2 u + 5 of the word are elements 2 q,
 * 2 q + 1, 2 q + 8 and 2 q + 9 of its depth of 16. Rows of a are put into that order before.
 */
#ifndef EJKI_MATMUL_CUDA_SM90_CODES_CUH
#define EJKI_MATMUL_CUDA_SM90_CODES_CUH

#include "kernels/cuda/views.cuh"
#include "operations/matmul/shared/product.cuh"

enum {
    CODE_BLOCK = 128, CODE_STEP = 256,
    CODE_COLUMNS = 256, /* of a tile */
    CODE_PREPARE_THREADS = 256,
};

typedef struct codes_arguments {
    mm_product p;
    ejki_cuda_map a, codes;
    void *ordered; /* rows of a in order: [tiles * LINES][depth, in steps] */
    mm_size lines; /* tiles * LINES */
    mm_size steps;
} codes_arguments;

#endif
