/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to another type and other strides, summed over neighbouring heads in order. A thread has an element. */
#include "kernels/cuda/element.cuh"
#include "operations/paged/cuda/mla_vjp.cuh"

enum { THREADS = 256 };

DEVICE i64 place_of(const paged_rows &rows, i64 token, i64 batch_rows, i64 head) {
    return token / batch_rows * rows.batch + token % batch_rows * rows.token + head * rows.head;
}

extern "C" __global__ void __launch_bounds__(THREADS) mla_rows(const __grid_constant__ mla_rows_arguments a) {
    const i64 count = a.tokens * a.heads * a.dim, step = (i64)gridDim.x * THREADS;
    for (i64 n = (i64)blockIdx.x * THREADS + threadIdx.x; n < count; n += step) {
        const i64 d = n % a.dim, head = n / a.dim % a.heads, token = n / a.dim / a.heads;
        float x = 0;
        for (i64 k = 0; k < a.sum; k++)
            x += load_float(a.from.dtype, a.from.data, place_of(a.from, token, a.batch_rows, head * a.sum + k) + d);
        store_float(a.to.dtype, a.to.data, place_of(a.to, token, a.batch_rows, head) + d, x);
    }
}
