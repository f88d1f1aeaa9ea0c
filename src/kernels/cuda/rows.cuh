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

/*
 * PHASES neighbouring rows are a group, which sums up things of its own: thread p of a lane and group those whose index
 * is p modulo PHASES. There is at least one group: the order of a sum does not depend on LANES.
 */
#define PHASES 8
#define GROUPS (ROWS / PHASES)

/* Sums over the phases of a lane and a group; all threads get the result, and `shared` is free again. */
template <int COUNT> DEVICE void sum_over_phases(float (&sum)[COUNT]) {
    __shared__ float shared[COUNT][THREADS];
    const int first = threadIdx.x / (LANES * PHASES) * LANES * PHASES + threadIdx.x % LANES;
    for (int i = 0; i < COUNT; i++) shared[i][threadIdx.x] = sum[i];
    __syncthreads();
    for (int i = 0; i < COUNT; i++) {
        const float *at = shared[i] + first;
        sum[i] = ((at[0] + at[4 * LANES]) + (at[2 * LANES] + at[6 * LANES])) +
                 ((at[LANES] + at[5 * LANES]) + (at[3 * LANES] + at[7 * LANES]));
    }
    __syncthreads();
}

/* Adds sums of a lane's first `count` groups to a total, in order; all threads get the result. */
template <int COUNT>
DEVICE void add_over_groups(const float (&sum)[COUNT], i64 count, float (&total)[COUNT]) {
    __shared__ float shared[COUNT][GROUPS][LANES];
    const int lane = threadIdx.x % LANES;
    for (int i = 0; i < COUNT; i++) shared[i][threadIdx.x / (LANES * PHASES)][lane] = sum[i];
    __syncthreads();
    for (int g = 0; g < GROUPS && g < count; g++)
        for (int i = 0; i < COUNT; i++) total[i] += shared[i][g][lane];
    __syncthreads();
}

#endif
