/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels over rows: LANES neighbouring threads work on a row, each on runs of VECTOR elements. The launcher,
 * ejki_cuda_ready_rows() of launch.h, chooses both.
 */
#ifndef EJKI_CUDA_ROWS_CUH
#define EJKI_CUDA_ROWS_CUH

#include "kernels/cuda/element.cuh"

#define THREADS 256
#define ROWS    (THREADS / LANES)

/* The mask of the threads that work on the same row. */
DEVICE u32 row_mask() {
    return LANES == 32 ? ~0u : ((1u << (LANES & 31)) - 1) << (threadIdx.x % 32 / LANES * LANES);
}

/* Reduces over the threads of a row; every one gets the result. */
template <typename function> DEVICE float over_row(float value, function join) {
    for (int step = LANES / 2; step; step /= 2)
        value = join(value, __shfl_xor_sync(row_mask(), value, step));
    return value;
}
DEVICE float sum_over_row(float value) {
    return over_row(value, [](float x, float y) { return x + y; });
}

/* Sums over the threads of the same lane, in an order of its own; those of the first row get the result. */
template <int COUNT> DEVICE void sum_over_column(float (&sum)[COUNT]) {
    __shared__ float shared[COUNT][THREADS];
    for (int i = 0; i < COUNT; i++) shared[i][threadIdx.x] = sum[i];
    for (int half = THREADS / 2; half >= LANES; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            for (int i = 0; i < COUNT; i++)
                shared[i][threadIdx.x] += shared[i][threadIdx.x + half];
    }
    for (int i = 0; i < COUNT; i++) sum[i] = shared[i][threadIdx.x];
}

#endif
