/* SPDX-License-Identifier: Apache-2.0 */
/* scaled_matmul as its kernels see it: a product whose b is flipped, and scales of blocks of both sides. */
#ifndef EJKI_SCALED_MATMUL_PROBLEM_CUH
#define EJKI_SCALED_MATMUL_PROBLEM_CUH

#include "operations/matmul/shared/product.cuh"

enum { SCALED_BLOCK = 128 };

typedef struct scaled_problem {
    mm_product product;
    const float *a_scale, *b_scale; /* [rows][blocks of the depth], [blocks of columns][blocks of the depth] */
    mm_size a_scale_row, b_scale_row;
} scaled_problem;

#endif
