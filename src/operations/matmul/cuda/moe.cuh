/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of experts on a GPU, as its launcher and moe.cu have it: plain types only. */
#ifndef EJKI_MATMUL_CUDA_MOE_CUH
#define EJKI_MATMUL_CUDA_MOE_CUH

#include "operations/matmul/shared/product.cuh"

enum { MOE_THREADS = 256 };

/* Rows are the tokens of experts, `each` of a token; sorted, those of an expert follow each other. */
typedef struct moe_arguments {
    mm_size tokens, each, experts, width;
    mm_list index;     /* [tokens, each]; numbers that are no expert's have no row */
    mm_size index_row; /* its stride */
    mm_view weight, hidden, out;
    mm_size *sizes;    /* [experts] */
    mm_size *token;    /* of a sorted row; -1: none */
    mm_size *place;    /* the sorted row of a token and its choice; -1: none */
    void *weights;     /* of sorted rows, in their type */
    void *gathered;    /* sorted rows of hidden */
    const float *rows; /* sorted rows of results */
} moe_arguments;

#endif
