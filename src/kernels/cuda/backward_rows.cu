/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gradients need of each row and of each sink; sums in a fixed order. Rows of no sequence get their d_query of 0
 * from the kernels that write it.
 */
#include "gradients.cuh"

/* δ_i = Σ_d dO_id out_id − dL_i, 0 of rows that see nothing, and the shift of scores: a warp for each row. */
extern "C" __global__ void __launch_bounds__(128)
    delta(const __grid_constant__ ejki_cuda_vjp_problem v) {
    const ejki_cuda_problem &p = v.forward;
    const i64 heads = (i64)p.kv_heads * p.group, rows = p.entries * heads * p.queries;
    const i64 row = (i64)blockIdx.x * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    const i64 token = row % p.queries, h = row / p.queries % heads, b = row / p.queries / heads;
    const float lse = ((const float *)p.lse.data)[b * p.lse.stride_b + h * p.lse.stride_h +
                                                  token * p.lse.stride_t];
    float sum = 0;
    if (lse != NOTHING) {
        const element *out = (const element *)p.out.data + b * p.out.stride_b +
                             token * p.out.stride_t + h * p.out.stride_h;
        const element *d_out = (const element *)v.out_cotangent.data +
                               b * v.out_cotangent.stride_b + token * v.out_cotangent.stride_t +
                               h * v.out_cotangent.stride_h;
        for (int d = lane; d < VALUE_DIM; d += 32) sum = fmaf(widen(d_out[d]), widen(out[d]), sum);
    }
    sum = sum_of_lanes(sum, 32);
    if (lane != 0) return;
    if (v.lse_cotangent.data && lse != NOTHING)
        sum -= ((const float *)v.lse_cotangent.data)[b * v.lse_cotangent.stride_b +
                                                     h * v.lse_cotangent.stride_h +
                                                     token * v.lse_cotangent.stride_t];
    v.delta[row] = sum;
    v.shift[row] = lse == NOTHING ? NOTHING : -lse * LOG2_E;
}

/* dsink_n = −Σ_i exp(sink_n − lse_i) δ_i over all rows that read it: a block for each. */
extern "C" __global__ void __launch_bounds__(256)
    sinks(const __grid_constant__ ejki_cuda_vjp_problem v) {
    __shared__ float sums[8];
    const ejki_cuda_problem &p = v.forward;
    const int n = blockIdx.x % p.sink_count, own = blockIdx.x / p.sink_count;
    const i64 heads = (i64)p.kv_heads * p.group;
    const i64 readers = p.sink_stride_h == 0 ? heads : p.sink_group;
    const i64 first = p.sink_stride_h == 0 ? 0 : own * readers;
    const float sink = widen(((const element *)p.sinks)[own * p.sink_stride_h + n]);
    float sum = 0;
    for (i64 k = threadIdx.x; k < p.entries * readers * p.queries; k += 256) {
        const i64 token = k % p.queries, h = first + k / p.queries % readers;
        const i64 b = k / p.queries / readers;
        const float lse = ((const float *)p.lse.data)[b * p.lse.stride_b + h * p.lse.stride_h +
                                                      token * p.lse.stride_t];
        if (lse != NOTHING)
            sum -= expf(sink - lse) * v.delta[(b * heads + h) * p.queries + token];
    }
    sum = sum_of_lanes(sum, 32);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < 8; w++) sum += sums[w];
    ((element *)v.d_sinks)[own * v.d_sink_stride_h + n] = narrow(sum);
}
