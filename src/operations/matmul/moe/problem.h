/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer of experts as its kernels see it: two grouped products, the first of which gathers tokens and the second of
 * which scatters to them, and the choice from which the lists of both are made when it runs.
 */
#ifndef EJKI_MOE_PROBLEM_H
#define EJKI_MOE_PROBLEM_H

#include "operations/matmul/shared/product.cuh"

enum { MOE_FIRST, MOE_SECOND };

typedef struct moe_problem {
    mm_problem products;
    mm_size tokens, each, experts;
    mm_list index;     /* [tokens, each] */
    mm_size index_row; /* its stride */
    mm_view weight;
} moe_problem;

#endif
