/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of attention_merge: a kernel over rows, as merge.cu, and one over sinks. With delta = <d_out, out> − d_lse,
 *
 *     d_part_n = w_n d_out      d_lse_n = w_n (<d_out, part_n> − delta)      d_sink_m = −Σ exp(sink_m − lse) delta
 *
 * Every sum has a fixed order. What weighs nothing may hold anything. Constants: those of merge.cuh.
 */
#include "operations/attention/merge/cuda/merge.cuh"

DEVICE part_run run_at(const element *at) {
    return *(const part_run *)at;
}

/* <a, b> of a row, on all its lanes. */
DEVICE float dot(const element *a, const element *b, merge_size size,
                            int lane) {
    float sum = 0;
    for (merge_size d = lane * VECTOR; d < size; d += LANES * VECTOR) {
        const part_run x = run_at(a + d), y = run_at(b + d);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum += widen(x.at[i]) * widen(y.at[i]);
    }
    return sum_over_row(sum);
}

/* Writes w times d_out, 0 where the part weighs nothing. */
DEVICE void write_part(element *to, const element *d_out, merge_size size,
                                  float w, int lane) {
    for (merge_size d = lane * VECTOR; d < size; d += LANES * VECTOR) {
        const part_run x = run_at(d_out + d);
        part_run result;
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            result.at[i] = narrow(w != 0 ? w * widen(x.at[i]) : 0);
        *(part_run *)(to + d) = result;
    }
}

DEVICE void row_gradients(const merge_vjp_arguments &v, const row &r, int lane) {
    const merge_arguments &a = v.forward;
    const merge_size size = a.value_dim;
    const element *d_out =
        (const element *)v.d_out + r.b * v.d_out_b + r.t * v.d_out_t + r.h * v.d_out_h;
    const element *out =
        (const element *)a.out + r.b * a.out_b + r.t * a.out_t + r.h * a.out_h;
    const element *part =
        (const element *)a.part + r.b * a.part_b + r.t * a.part_t + r.h * a.part_h;
    const float lse = a.merged[r.b * a.merged_b + r.h * a.merged_h + r.t * a.merged_t];
    float delta = 0;
    if (v.d_part_lse || v.delta) delta = dot(d_out, out, size, lane);
    if (v.d_lse) delta -= v.d_lse[r.b * v.d_lse_b + r.h * v.d_lse_h + r.t * v.d_lse_t];
    if (v.delta && lane == 0) v.delta[(r.b * a.heads + r.h) * a.queries + r.t] = delta;
    if (!v.d_part && !v.d_part_lse) return;
    for (merge_size n = 0; n < a.parts; n++) {
        const float w = weight(a.lse[n * a.lse_n + r.b * a.lse_b + r.h * a.lse_h + r.t], lse);
        float cap_grad = w;
        if (v.d_part_lse && w != 0) cap_grad = w * (dot(d_out, part + n * a.part_n, size, lane) - delta);
        if (v.d_part)
            write_part((element *)v.d_part + n * v.d_part_n + r.b * v.d_part_b +
                           r.t * v.d_part_t + r.h * v.d_part_h,
                       d_out, size, w, lane);
        if (v.d_part_lse && lane == 0)
            v.d_part_lse[n * v.d_part_lse_n + r.b * v.d_part_lse_b + r.h * v.d_part_lse_h + r.t] =
                cap_grad;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    merge_vjp(const __grid_constant__ merge_vjp_arguments v) {
    const merge_size rows = v.forward.batch * v.forward.queries * v.forward.heads;
    for (merge_size n = (merge_size)blockIdx.x * ROWS + threadIdx.x / LANES; n < rows;
         n += (merge_size)gridDim.x * ROWS)
        row_gradients(v, row_of(v.forward, n), threadIdx.x % LANES);
}

/* A block for each sink, over all rows that read it. */
extern "C" __global__ void __launch_bounds__(THREADS)
    merge_sinks(const __grid_constant__ merge_vjp_arguments v) {
    __shared__ double sums[THREADS];
    const merge_arguments &a = v.forward;
    const merge_size m = blockIdx.x % a.sink_count, own = blockIdx.x / a.sink_count;
    const merge_size readers = v.d_sink_stride_h ? a.sink_group : a.heads;
    const merge_size rows = a.batch * readers * a.queries;
    const float sink =
        widen(((const element *)a.sinks)[own * a.sink_stride_h + m]);
    double sum = 0;
    for (merge_size k = threadIdx.x; k < rows; k += THREADS) {
        const merge_size t = k % a.queries, h = own * readers + k / a.queries % readers;
        const merge_size b = k / a.queries / readers;
        const float w =
            weight(sink, a.merged[b * a.merged_b + h * a.merged_h + t * a.merged_t]);
        if (w != 0) sum -= (double)(w * v.delta[(b * a.heads + h) * a.queries + t]);
    }
    sums[threadIdx.x] = sum;
    for (int step = THREADS / 2; step; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    }
    if (threadIdx.x == 0)
        ((element *)v.d_sinks)[own * v.d_sink_stride_h + m] = narrow((float)sums[0]);
}
