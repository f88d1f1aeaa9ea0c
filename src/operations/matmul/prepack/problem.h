/* SPDX-License-Identifier: Apache-2.0 */
/* prepack as its kernel sees it: plain matrices, and where each goes. */
#ifndef EJKI_PREPACK_PROBLEM_H
#define EJKI_PREPACK_PROBLEM_H

#include "operations/matmul/shared/product.cuh"

typedef struct prepack_problem {
    mm_quant quant;
    mm_size matrices, rows, columns;
    char *packed;
    mm_size bytes; /* of a matrix of `packed` */
} prepack_problem;

#endif
