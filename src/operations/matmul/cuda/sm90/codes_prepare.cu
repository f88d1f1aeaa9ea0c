/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of a for codes.cu, in the order of its operands. What is beyond the rows or the depth is 0. A warp has a block
 * of a row, four elements a lane. Constants: ELEMENT.
 */
#include "kernels/cuda/element.cuh"
#include "operations/matmul/cuda/sm90/codes.cuh"

extern "C" __global__ void __launch_bounds__(CODE_PREPARE_THREADS) prepare(const __grid_constant__ codes_arguments a) {
    launch_dependents();
    const int lane = threadIdx.x % 32;
    const mm_size blocks = a.steps * (CODE_STEP / CODE_BLOCK);
    const mm_size own = (mm_size)blockIdx.x * (CODE_PREPARE_THREADS / 32) + threadIdx.x / 32;
    const mm_size row = own / blocks, block = own % blocks;
    if (row >= a.lines) return;
    /* Elements 16 t + 4 j to 16 t + 4 j + 3 of the order. */
    const int t = lane / 4, w = t / 2, u = t % 2, j = lane % 4;
    element own_part[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int at = 4 * j + n, q = at % 8 / 2, code = 2 * u + (at % 2) * 4 + at / 8;
        const mm_size k = block * CODE_BLOCK + 32 * q + 8 * w + code;
        const bool is_there = row < a.p.rows && k < a.p.depth;
        own_part[n] = is_there ? ((const element *)a.p.a.data)[row * a.p.a.row + k * a.p.a.column] : (element)0;
    }
    element *to = (element *)a.ordered + (row * blocks + block) * CODE_BLOCK + 4 * lane;
    *(uint2 *)to = make_uint2((u32)own_part[0] | (u32)own_part[1] << 16, (u32)own_part[2] | (u32)own_part[3] << 16);
}
