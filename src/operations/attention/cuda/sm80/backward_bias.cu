/* SPDX-License-Identifier: Apache-2.0 */
/*
 * d_bias: dZ_ij summed over the axes that the bias is broadcast along. A warp has ROWS rows of it and a step of
 * keys, and adds the pairs of all batch entries, heads and, if the bias has no axis of queries, queries in order.
 * Constants as in backward_plain.cu, and
 *
 *   ALL_QUERIES   1 = the bias has no axis of queries
 */
#include "operations/attention/cuda/sm80/plain.cuh"

#include "operations/attention/cuda/common/gradients.cuh"
#include "operations/attention/cuda/common/block_iterator.cuh"

/* Adds the pairs of rows first … first + TILE of a head with one step of keys. */
DEVICE void add_tile(const ejki_cuda_vjp_problem &v, const sequence &s, int h, int first, int j0,
                     float *memory, float (&sums)[ROWS]) {
    const ejki_cuda_problem &p = v.forward;
    float *queries = memory, *cotangents = queries + TILE * padded(HEAD_DIM);
    float *staged = cotangents + TILE * padded(VALUE_DIM);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = h / p.group;
    if (block_state(p, h, h, first, lesser(first + TILE, p.queries) - 1, j0,
                 lesser(j0 + STEP, p.keys) - 1) == EMPTY)
        return;
    __syncthreads();
    keep_rows<HEAD_DIM>(queries, rows_at(p.query, s.entry, s.query, h), first, s.known, 1);
    keep_rows<VALUE_DIM>(cotangents, rows_at(v.out_cotangent, s.entry, s.query, h), first, s.known,
                         1);
    float z[ROWS], back[ROWS];
    products<HEAD_DIM>(z, queries + warp * ROWS * padded(HEAD_DIM), staged,
                       rows_at(p.key, s.entry, s.key, kv_head), j0, s.keys, 1);
    products<VALUE_DIM>(back, cotangents + warp * ROWS * padded(VALUE_DIM), staged,
                        rows_at(p.value, s.entry, s.key, kv_head), j0, s.keys, 1);
    const int j = j0 + lane;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int i = first + warp * ROWS + r;
        if (i >= s.known) continue;
        int low, high;
        visible_keys(s, i, &low, &high);
        const row_context context = row_context_of(p, s, h, i);
        const bool visible = j >= low && j < high && passes_block_mask(p, context, j);
        sums[r] += pair_of(p, context, row_state_of(v, s, h, i), visible, j, z[r], back[r]).dz;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    d_bias(const __grid_constant__ ejki_cuda_vjp_problem v) {
    extern __shared__ __align__(16) float memory[];
    const ejki_cuda_problem &p = v.forward;
    const int heads = p.kv_heads * p.group, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int own_heads = v.d_bias.stride_h ? heads : 1, tiles = cdiv(p.queries, TILE);
    const int own_tiles = ALL_QUERIES ? 1 : tiles;
    const int tile = blockIdx.x % own_tiles, head = blockIdx.x / own_tiles % own_heads;
    const int entry = blockIdx.x / own_tiles / own_heads, j0 = blockIdx.y * STEP, j = j0 + lane;
    float sums[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) sums[r] = 0;
    for (int b = v.d_bias.stride_b ? entry : 0; b <= (v.d_bias.stride_b ? entry : p.batch - 1);
         b++) {
        const sequence s = sequence_at(p, b);
        for (int h = v.d_bias.stride_h ? head : 0; h <= (v.d_bias.stride_h ? head : heads - 1); h++)
            for (int t = ALL_QUERIES ? 0 : tile; t <= (ALL_QUERIES ? tiles - 1 : tile); t++)
                add_tile(v, s, h, t * TILE, j0, memory, sums);
    }
    element *to = (element *)v.d_bias.data + entry * v.d_bias.stride_b + head * v.d_bias.stride_h;
#if ALL_QUERIES
    float sum = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum += sums[r];
    __syncthreads();
    memory[warp * 32 + lane] = sum;
    __syncthreads();
    if (warp != 0) return;
    for (int w = 1; w < WARPS; w++) sum += memory[w * 32 + lane];
    if (j < p.keys) to[j] = narrow(sum);
#else
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int i = tile * TILE + warp * ROWS + r;
        if (i < p.queries && j < p.keys) to[i * v.d_bias.stride_t + j] = narrow(sums[r]);
    }
#endif
}
