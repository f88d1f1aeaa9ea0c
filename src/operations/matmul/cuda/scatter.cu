/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of results added to the rows of out that a list names, in the order of the list: a block has a row of out and
 * 256 of its columns, looks through the list 256 entries at a time, and adds the rows that it finds.
 */
#define ROWS    1
#define COLUMNS 256
#include "operations/matmul/cuda/tile.cuh"

#define THREADS 256

struct arguments {
    mm_product p;
    const float *rows; /* [p.rows][p.columns], finished */
};

extern "C" __global__ void __launch_bounds__(THREADS) scatter(const __grid_constant__ arguments a) {
    __shared__ u32 found[THREADS / 32];
    const mm_product &p = a.p;
    const mm_size columns = tiles_of(p.columns, COLUMNS), own = blockIdx.x / columns;
    const mm_size j = blockIdx.x % columns * COLUMNS + threadIdx.x;
    float sum = 0;
    for (mm_size first = 0; first < p.rows; first += THREADS) {
        const mm_size i = first + threadIdx.x;
        const u32 here = __ballot_sync(~0u, i < p.rows && mm_number(&p.scatter, i) == own);
        __syncthreads();
        if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = here;
        __syncthreads();
        for (int word = 0; word < THREADS / 32; word++)
            for (u32 rest = found[word]; rest; rest &= rest - 1)
                if (j < p.columns) sum += a.rows[(first + word * 32 + __ffs(rest) - 1) * p.columns + j];
    }
    if (j >= p.columns) return;
    if (p.add.present) sum += load(p.add, own * p.add.row + j * p.add.column);
    store_float(p.out.dtype, p.out.data, own * p.out.row + j * p.out.column, sum);
}
