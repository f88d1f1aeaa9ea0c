/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of matrices in float32, whatever their types: a block has 64 rows and 64 columns, a thread 4 by 4 of them,
 * and 16 of the depth at a time in shared memory. An element is one sum in order.
 */
#include "kernels/cuda/element.cuh"
#include "operations/paged/cuda/mla_vjp.cuh"

enum { ROWS = 64, COLUMNS = 64, DEPTH = 16, THREADS = 256, PITCH = 68 };

DEVICE i64 place_of(const mla_matrix &m, u32 i, u32 k) {
    return i / m.i_inner * m.i_outer_step + i % m.i_inner * m.i_step + k / m.k_inner * m.k_outer_step +
           k % m.k_inner * m.k_step;
}

/* Rows from `first` on, `own` of which is the thread's, depths from k0 on; 0 outside. */
DEVICE void load(const mla_matrix &m, i64 first, i64 rows, i64 k0, i64 depth, float (&to)[DEPTH][PITCH]) {
    const bool by_depth = m.k_step == 1;
#pragma unroll
    for (int n = threadIdx.x; n < DEPTH * ROWS; n += THREADS) {
        const int row = by_depth ? n / DEPTH : n % ROWS, k = by_depth ? n % DEPTH : n / ROWS;
        const bool there = first + row < rows && k0 + k < depth;
        to[k][row] = there ? load_float(m.dtype, m.data, place_of(m, (u32)(first + row), (u32)(k0 + k))) : 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) mla_products(
    const __grid_constant__ mla_products_arguments a) {
    __shared__ __align__(16) float rows[DEPTH][PITCH], columns[DEPTH][PITCH];
    const i64 tiles = (a.columns + COLUMNS - 1) / COLUMNS;
    const i64 first = blockIdx.x / tiles * ROWS, column = blockIdx.x % tiles * COLUMNS;
    const int x = threadIdx.x % 16 * 4, y = threadIdx.x / 16 * 4;
    float sums[4][4] = {};
#pragma unroll
    for (int part = 0; part < 2; part++) {
        const i64 depth = a.end.data ? paged_least(a.depth[part], paged_most(paged_int(&a.end, a.end_at), 0))
                                     : a.depth[part];
        for (i64 k0 = 0; k0 < depth; k0 += DEPTH) {
            __syncthreads();
            load(a.a[part], first, a.rows, k0, depth, rows);
            load(a.b[part], column, a.columns, k0, depth, columns);
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
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (first + y + i < a.rows && column + x + j < a.columns)
                store_float(a.c.dtype, a.c.data, place_of(a.c, (u32)(first + y + i), (u32)(column + x + j)),
                            sums[i][j]);
}
