/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block index lists of a MaskInfo as a block mask, one entry for each block of scores, however the lists are
 * shrunk or laid out. A CTA has a line: a row, or by column a column. Lists are untrusted: an entry for a block that
 * does not exist is dropped, and of two for the same block the partial one counts, the later of two.
 */
#include "operations/attention/cuda/common/problem.cuh"

typedef long long i64;

static __device__ i64 entry_of(const ejki_cuda_block_list &list, int mask_head, int row, int column) {
    const i64 at = mask_head * list.stride_p + row * list.stride_r + column;
    switch (list.size) {
    case 1: return ((const signed char *)list.data)[at];
    case 2: return ((const short *)list.data)[at];
    case 4: return ((const int *)list.data)[at];
    default: return ((const i64 *)list.data)[at];
    }
}

extern "C" __global__ void __launch_bounds__(128)
    block_mask(const __grid_constant__ ejki_cuda_block_lists g) {
    const int lines = g.by_column ? g.columns : g.rows, length = g.by_column ? g.rows : g.columns;
    const int mask_head = blockIdx.x / lines, line = blockIdx.x % lines;
    const int blocks = g.by_column ? g.block_rows : g.block_columns;
    const i64 step = g.by_column ? g.block_columns : 1;
    int *own = g.block_mask + (i64)mask_head * g.block_rows * g.block_columns +
                 (g.by_column ? line : (i64)line * g.block_columns);
    for (int n = threadIdx.x; n < blocks; n += 128) own[n * step] = EJKI_CUDA_EMPTY;
    __syncthreads();
    for (int n = threadIdx.x; n < length; n += 128) {
        const int row = g.by_column ? n : line, column = g.by_column ? line : n;
        const i64 state = entry_of(g.state, mask_head, row, column);
        if (state != 1 && state != 2) continue;
        const i64 next = entry_of(g.next, mask_head, row, column);
        i64 block = EJKI_CUDA_FULL;
        if (state == 1 && g.block_count >= 0) {
            block = g.id.data ? entry_of(g.id, mask_head, row, column) : -1;
            if (block < 0 || block >= g.block_count) continue;
        }
        if (next >= 0 && next < blocks) atomicMax(&own[next * step], (int)block);
    }
}
