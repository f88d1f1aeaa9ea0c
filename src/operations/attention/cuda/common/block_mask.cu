/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grids of a MaskInfo as cells, one for each block of scores, whichever way the grids are shrunk or lie. A block of
 * threads has a line: a row, or by column a column. Grids may say anything: a cell that names a block that is not
 * there is left out, and of two that name the same block the partial one counts, the later of two.
 */
#include "operations/attention/cuda/common/problem.cuh"

typedef long long i64;

static __device__ i64 entry_of(const ejki_cuda_grid &grid, int plane, int row, int column) {
    const i64 at = plane * grid.stride_p + row * grid.stride_r + column;
    switch (grid.size) {
    case 1: return ((const signed char *)grid.data)[at];
    case 2: return ((const short *)grid.data)[at];
    case 4: return ((const int *)grid.data)[at];
    default: return ((const i64 *)grid.data)[at];
    }
}

extern "C" __global__ void __launch_bounds__(128)
    pattern(const __grid_constant__ ejki_cuda_grids g) {
    const int lines = g.by_column ? g.columns : g.rows, length = g.by_column ? g.rows : g.columns;
    const int plane = blockIdx.x / lines, line = blockIdx.x % lines;
    const int blocks = g.by_column ? g.block_rows : g.block_columns;
    const i64 step = g.by_column ? g.block_columns : 1;
    int *cells = g.cells + (i64)plane * g.block_rows * g.block_columns +
                 (g.by_column ? line : (i64)line * g.block_columns);
    for (int n = threadIdx.x; n < blocks; n += 128) cells[n * step] = EJKI_CUDA_EMPTY;
    __syncthreads();
    for (int n = threadIdx.x; n < length; n += 128) {
        const int row = g.by_column ? n : line, column = g.by_column ? line : n;
        const i64 state = entry_of(g.state, plane, row, column);
        if (state != 1 && state != 2) continue;
        const i64 next = entry_of(g.next, plane, row, column);
        i64 cell = EJKI_CUDA_FULL;
        if (state == 1 && g.block_count >= 0) {
            cell = g.id.data ? entry_of(g.id, plane, row, column) : -1;
            if (cell < 0 || cell >= g.block_count) continue;
        }
        if (next >= 0 && next < blocks) atomicMax(&cells[next * step], (int)cell);
    }
}
