/* SPDX-License-Identifier: Apache-2.0 */
/* quantize and dequantize on a GPU, as their launcher and quantize.cu have them: plain types only. */
#ifndef EJKI_MATMUL_CUDA_QUANTIZE_CUH
#define EJKI_MATMUL_CUDA_QUANTIZE_CUH

#include "operations/matmul/shared/product.cuh"

enum {
    QUANTIZE_THREADS = 256,
    UNIT = 8,              /* codes of a thread at a time: whole bytes, whatever their bits */
    VALUES_COLUMNS = 8192, /* of a block of values.cu */
};

typedef struct quantize_arguments {
    mm_quant quant;
    mm_view values;
    mm_size rows, columns; /* of a matrix */
    mm_size bytes;         /* of a row of codes; those behind the last code are 0 */
    int floors;
} quantize_arguments;

#endif
