/* SPDX-License-Identifier: Apache-2.0 */
/* What puts the depth of rows into the order of codes, as its launcher and codes_many.cu have it: plain types only. */
#ifndef EJKI_MATMUL_CUDA_SM90_CODES_MANY_CUH
#define EJKI_MATMUL_CUDA_SM90_CODES_MANY_CUH

#include "operations/matmul/shared/product.cuh"

enum { ORDER_THREADS = 128 };

typedef struct order_arguments {
    mm_view from;
    unsigned short *to;
    mm_size rows, depth, pitch; /* pitch, elements: a multiple of 32 */
} order_arguments;

#endif
