/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and values of latents in float32: a block has 64 tokens and 64 columns of all heads, a thread 4 by 4 of them,
 * and 16 components of the latent at a time in shared memory. An element is one sum in order.
 */
#include "kernels/cuda/element.cuh"
#include "operations/paged/cuda/project.cuh"

enum { ROWS = 64, COLUMNS = 64, DEPTH = 16, THREADS = 256, PITCH = 68 };

extern "C" __global__ void __launch_bounds__(THREADS) project(const __grid_constant__ project_arguments a) {
    __shared__ __align__(16) float rows[DEPTH][PITCH], columns[DEPTH][PITCH];
    const i64 width = a.heads * a.dim, tiles = (width + COLUMNS - 1) / COLUMNS;
    const i64 first = blockIdx.x / tiles * ROWS, column = blockIdx.x % tiles * COLUMNS;
    const int x = threadIdx.x % 16 * 4, y = threadIdx.x / 16 * 4;
    float sums[4][4] = {};
    for (i64 r0 = 0; r0 < a.latent; r0 += DEPTH) {
        __syncthreads();
#pragma unroll
        for (int n = threadIdx.x; n < DEPTH * ROWS; n += THREADS) {
            const i64 token = first + n / DEPTH, r = r0 + n % DEPTH;
            const bool there = token < a.tokens && r < a.latent;
            const i64 at = token / a.batch_rows * a.batch + token % a.batch_rows * a.token + r;
            rows[n % DEPTH][n / DEPTH] = there ? load_float(a.dtype, a.latents, at) : 0;
        }
#pragma unroll
        for (int n = threadIdx.x; n < DEPTH * COLUMNS; n += THREADS) {
            const i64 c = column + n % COLUMNS, r = r0 + n / COLUMNS;
            const bool there = c < width && r < a.latent;
            const i64 at = r * a.weight_latent + c / a.dim * a.weight_head + c % a.dim;
            columns[n / COLUMNS][n % COLUMNS] = there ? load_float(a.dtype, a.weight, at) : 0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            const float4 u = *(const float4 *)&rows[k][y], v = *(const float4 *)&columns[k][x];
            const float left[4] = {u.x, u.y, u.z, u.w}, right[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (first + y + i < a.tokens && column + x + j < width)
                a.to[(first + y + i) * a.to_token + (column + x + j) / a.dim * a.to_head + (column + x + j) % a.dim] =
                    sums[i][j];
}
