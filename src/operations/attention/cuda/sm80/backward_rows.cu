/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Per row delta and shift, and the gradients of sinks; sums in a fixed order. Rows of no sequence get a d_query of 0
 * from the kernels that write it.
 */
#include "operations/attention/cuda/common/gradients.cuh"

/*
 * δ_i = Σ_d dO_id out_id − dL_i, 0 of rows without visible keys, and the shift −lse. LANES lanes have a row and 8
 * elements at a time; a CTA has four rows for each group of lanes, and zeroes its part of the workspace.
 */
enum {
    LANES = VALUE_DIM > 128  ? 32
            : VALUE_DIM > 64 ? 16
                             : 8,
    STEP = 256 / LANES,
    PIECES = VALUE_DIM ? cdiv(VALUE_DIM, 8 * LANES) : 1, /* no array is empty */
};

/* Eight elements; those from `limit` on are 0. */
struct __align__(16) piece {
    element x[8];
};
DEVICE piece load_piece(const element *from, int limit, bool whole) {
    piece p;
    if (whole && limit >= 8) {
#pragma unroll
        for (int n = 0; n < (int)sizeof p / 16; n++)
            ((uint4 *)p.x)[n] = __ldg((const uint4 *)from + n);
        return p;
    }
#pragma unroll
    for (int n = 0; n < 8; n++) p.x[n] = n < limit ? from[n] : (element)0;
    return p;
}

DEVICE bool is_whole(const ejki_cuda_bthd &t) {
    const i64 strides = t.stride_b | t.stride_t | t.stride_h;
    return (((u64)t.data | (u64)strides * sizeof(element)) & 15) == 0;
}

DEVICE void set_zeros(const ejki_cuda_vjp_problem &v) {
    const i64 first = (i64)blockIdx.x * 256 + threadIdx.x, step = (i64)gridDim.x * 256;
    if (v.ticket)
        for (i64 n = first; n < v.zeros; n += step) v.ticket[n] = 0;
    if (v.sums)
        for (i64 n = first; n < v.sum_zeros; n += step)
            ((float4 *)v.sums)[n] = make_float4(0, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(256)
    delta(const __grid_constant__ ejki_cuda_vjp_problem v) {
    const ejki_cuda_problem &p = v.forward;
    const i64 heads = (i64)p.kv_heads * p.group, rows = p.entries * heads * p.queries;
    const int lane = threadIdx.x % LANES;
    const bool whole = is_whole(p.out) && is_whole(v.out_cotangent);
    i64 row = (i64)blockIdx.x * 4 * STEP + threadIdx.x / LANES;
    i64 token = row % p.queries, b = row / p.queries, h = b % heads;
    b /= heads;
    piece out[4][PIECES], d_out[4][PIECES];
    float lse[4], d_lse[4];
    i64 places[4];
#pragma unroll
    for (int k = 0; k < 4; k++, row += STEP, token += STEP) {
        while (token >= p.queries) {
            token -= p.queries;
            if (++h == heads) h = 0, b++;
        }
        places[k] = row;
        lse[k] = NEG_INF;
        d_lse[k] = 0;
        if (row >= rows) continue;
        lse[k] = ((const float *)
                      p.lse.data)[b * p.lse.stride_b + h * p.lse.stride_h + token * p.lse.stride_t];
        if (v.lse_cotangent.data)
            d_lse[k] = ((const float *)v.lse_cotangent
                            .data)[b * v.lse_cotangent.stride_b + h * v.lse_cotangent.stride_h +
                                   token * v.lse_cotangent.stride_t];
        const ejki_cuda_bthd &o = p.out, &c = v.out_cotangent;
        const element *from =
            (const element *)o.data + b * o.stride_b + token * o.stride_t + h * o.stride_h;
        const element *by =
            (const element *)c.data + b * c.stride_b + token * c.stride_t + h * c.stride_h;
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            const int d = (n * LANES + lane) * 8;
            out[k][n] = load_piece(from + d, VALUE_DIM - d, whole);
            d_out[k][n] = load_piece(by + d, VALUE_DIM - d, whole);
        }
    }
    set_zeros(v);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float sum = 0;
        if (lse[k] != NEG_INF)
#pragma unroll
            for (int n = 0; n < PIECES; n++)
#pragma unroll
                for (int e = 0; e < 8; e++)
                    sum = fmaf(widen(d_out[k][n].x[e]), widen(out[k][n].x[e]), sum);
        sum = sum_of_lanes(sum, LANES);
        if (lane != 0 || places[k] >= rows) continue;
        v.delta[places[k]] = lse[k] == NEG_INF ? 0 : sum - d_lse[k];
        v.shift[places[k]] = lse[k] == NEG_INF ? NEG_INF : -lse[k] * LOG2_E;
    }
}

/* dsink_n = −Σ_i exp(sink_n − lse_i) δ_i over all rows that read it: a block for each. */
extern "C" __global__ void __launch_bounds__(256)
    sinks(const __grid_constant__ ejki_cuda_vjp_problem v) {
    __shared__ float sums[8];
    const ejki_cuda_problem &p = v.forward;
    const int n = blockIdx.x % p.sink_count, own = blockIdx.x / p.sink_count;
    const i64 heads = (i64)p.kv_heads * p.group;
    const i64 readers = v.d_sink_stride_h == 0 ? heads : p.sink_group;
    const i64 first = v.d_sink_stride_h == 0 ? 0 : own * readers;
    const float sink = widen(((const element *)p.sinks)[own * p.sink_stride_h + n]);
    float sum = 0;
    for (i64 k = threadIdx.x; k < p.entries * readers * p.queries; k += 256) {
        const i64 token = k % p.queries, h = first + k / p.queries % readers;
        const i64 b = k / p.queries / readers;
        const float lse =
            ((const float *)
                 p.lse.data)[b * p.lse.stride_b + h * p.lse.stride_h + token * p.lse.stride_t];
        if (lse != NEG_INF) sum -= expf(sink - lse) * v.delta[(b * heads + h) * p.queries + token];
    }
    sum = sum_of_lanes(sum, 32);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < 8; w++) sum += sums[w];
    ((element *)v.d_sinks)[own * v.d_sink_stride_h + n] = narrow(sum);
}
