/* SPDX-License-Identifier: Apache-2.0 */
/* What mla_rows.cu and mla_products.cu are told; see flash_mla_vjp.c. */
#ifndef EJKI_PAGED_CUDA_MLA_VJP_CUH
#define EJKI_PAGED_CUDA_MLA_VJP_CUH

#include "operations/paged/shared/problem.cuh"

/*
 * Rows of one array to another: element [token, h, d] of `to` is the sum of those of `from` at heads h * sum to
 * h * sum + sum - 1.
 */
typedef struct mla_rows_arguments {
    paged_rows from, to;
    paged_size tokens, batch_rows, heads, dim, sum;
} mla_rows_arguments;

/* A matrix whose axes are two of an array each: index i is i / i_inner on the outer, i mod i_inner on the inner. */
typedef struct mla_matrix {
    void *data;
    int dtype;
    unsigned i_inner, k_inner;
    paged_size i_outer_step, i_step, k_outer_step, k_step;
} mla_matrix;

/* c[i,k] = sum over both pairs of products: of a[i,n] and b[k,n], n below `depth` and what `end` says. */
typedef struct mla_products_arguments {
    mla_matrix a[2], b[2], c;
    paged_size rows, columns, depth[2];
    paged_ints end; /* of depths, at end_at; NULL: none */
    paged_size end_at;
} mla_products_arguments;

#endif
