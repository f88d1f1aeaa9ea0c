/* SPDX-License-Identifier: Apache-2.0 */
/* Products by tiles.cu, as its launchers and itself have them: plain types only. */
#ifndef EJKI_MATMUL_CUDA_SM90_TILES_CUH
#define EJKI_MATMUL_CUDA_SM90_TILES_CUH

#include "kernels/cuda/views.cuh"
#include "operations/matmul/shared/product.cuh"

enum {
    TILE_CODE_ROW = 64,    /* bytes of a row of codes that are copied at once */
    TILE_CODE_BUFFERS = 3, /* of them */
};

/* b: of codes in place of b, if there are such; add: with ADD_BOXES. */
typedef struct tiles_arguments {
    mm_product p;
    ejki_cuda_map a, b, add;
} tiles_arguments;

#endif
