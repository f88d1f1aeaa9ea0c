/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of E4M3 with scales of blocks, from sm_80 on: float32 sums of a block of the depth, in its order, then
 * times both scales. A tile is 64 x 64, a thread has 4 x 4 of it, 16 of the depth at a time lie in shared memory.
 * Blocks of a matrix follow each other along its rows.
 */
#define ROWS    64
#define COLUMNS 64
#include "kernels/cuda/stored.cuh"
#include "operations/matmul/cuda/tile.cuh"
#include "operations/matmul/scaled_matmul/cuda/scaled.cuh"

enum { STEP = 16, PITCH = 68 };

/* STEP elements of 64 lines, as floats. */
DEVICE void take_lines(float (&tile)[STEP][PITCH], const mm_view &v, mm_size stride, mm_size first, mm_size lines,
                       mm_size k, mm_size depth) {
    for (int n = threadIdx.x; n < STEP * 64; n += 256) {
        const mm_size line = first + n / STEP, at = k + n % STEP;
        tile[n % STEP][n / STEP] =
            line < lines && at < depth ? value_of_e4m3(((const u8 *)v.data)[line * stride + at]) : 0;
    }
}

extern "C" __global__ void __launch_bounds__(256) product(const __grid_constant__ scaled_arguments a) {
    __shared__ float left[STEP][PITCH], right[STEP][PITCH];
    const mm_product &p = a.p.product;
    const mm_size tiles = tiles_of(p.rows, ROWS);
    const mm_size row = blockIdx.x % tiles * ROWS, column = blockIdx.x / tiles * COLUMNS;
    const int y = threadIdx.x / 16 * 4, x = threadIdx.x % 16 * 4;
    float sums[4][4] = {}, products[4][4] = {};
    for (mm_size k = 0; k < p.depth; k += STEP) {
        take_lines(left, p.a, p.a.row, row, p.rows, k, p.depth);
        take_lines(right, p.b, p.b.column, column, p.columns, k, p.depth);
        __syncthreads();
#pragma unroll
        for (int step = 0; step < STEP; step++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    products[i][j] = fmaf(left[step][y + i], right[step][x + j], products[i][j]);
        __syncthreads();
        if ((k + STEP) % SCALED_BLOCK != 0 && k + STEP < p.depth) continue;
        const mm_size block = k / SCALED_BLOCK;
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                const mm_size own = row + y + i, other = column + x + j;
                if (own < p.rows && other < p.columns)
                    sums[i][j] = fmaf(products[i][j],
                                      a.p.a_scale[own * a.p.a_scale_row + block] *
                                          a.p.b_scale[other / SCALED_BLOCK * a.p.b_scale_row + block],
                                      sums[i][j]);
                products[i][j] = 0;
            }
    }
    mm_segment s = {};
    s.rows = p.rows;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (row + y + i < p.rows && column + x + j < p.columns)
                finish(p, s, row + y + i, column + x + j, sums[i][j], 0);
}
