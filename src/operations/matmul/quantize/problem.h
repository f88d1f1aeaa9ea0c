/* SPDX-License-Identifier: Apache-2.0 */
/* quantize and dequantize as their kernels see them: matrices, rows and columns of values, and the format. */
#ifndef EJKI_QUANTIZE_PROBLEM_H
#define EJKI_QUANTIZE_PROBLEM_H

#include "operations/matmul/shared/product.cuh"

typedef struct quantize_problem {
    mm_quant quant;
    mm_view values;
    mm_size matrices, rows, columns;
    mm_size unit; /* bytes of a word of codes: what is behind the last code is 0 */
    int floors;   /* the scales of mx codes by the rule of the OCP */
} quantize_problem;

#endif
