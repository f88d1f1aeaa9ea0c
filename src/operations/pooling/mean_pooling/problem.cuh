/* SPDX-License-Identifier: Apache-2.0 */
/* mean_pooling as its kernels see it. Rows of y are means of tokens of x; the gradient reads y and writes x. */
#ifndef EJKI_MEAN_POOLING_PROBLEM_CUH
#define EJKI_MEAN_POOLING_PROBLEM_CUH

#include "kernels/tokens.cuh"

#define POOL_SEGMENT 256 /* tokens that are summed up by themselves on a GPU */
#define POOL_SPREAD  16  /* tokens of a run that threads of a GPU write one after the other */

typedef struct pool_problem {
    ejki_size batch, rows; /* rows of each batch entry */
    ejki_runs runs;
    ejki_chunks chunks;
    ejki_tokens x, y;
    int dtype, gradient;
} pool_problem;

/* Runs of all steps, rows or tokens. */
EJKI_TOKENS ejki_size pool_items(const pool_problem *p, ejki_size steps) {
    return p->batch * steps * ejki_run_count(&p->runs);
}

typedef struct pool_arguments { /* of CUDA kernels */
    pool_problem p;
    float *partial; /* [segments][batch, rows, runs][width] */
    ejki_size splits;
} pool_arguments;

#endif
