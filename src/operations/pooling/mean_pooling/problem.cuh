/* SPDX-License-Identifier: Apache-2.0 */
/* mean_pooling as its kernels see it. Rows of y are means of tokens of x; the gradient reads y and writes x. */
#ifndef EJKI_MEAN_POOLING_PROBLEM_CUH
#define EJKI_MEAN_POOLING_PROBLEM_CUH

#include "kernels/tokens.cuh"

#define POOL_SEGMENT 256 /* tokens that are summed up by themselves on a GPU */

typedef struct pool_problem {
    ejki_size batch, rows; /* rows of each batch entry */
    ejki_runs runs;
    ejki_chunks chunks;
    ejki_tokens x, y;
    int dtype, gradient;
} pool_problem;

#endif
