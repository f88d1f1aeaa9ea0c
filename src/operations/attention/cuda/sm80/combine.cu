/* SPDX-License-Identifier: Apache-2.0 */
/* Split-KV combine: a warp for each row. Partial results lie as problem.cuh says. */
#include "operations/attention/cuda/common/epilogue.cuh"

/* All lanes of a warp call it. */
DEVICE bool is_of_sequence(const ejki_cuda_problem &p, int token) {
    bool found = false;
    for (int n = threadIdx.x % 32; n < p.batch; n += 32) {
        int start;
        const int length = sequence_length(p, p.query_sums, n, p.queries, &start);
        found |= token >= start && token < start + length;
    }
    return __any_sync(~0u, found);
}

extern "C" __global__ void __launch_bounds__(128)
    combine(const __grid_constant__ ejki_cuda_problem p) {
    const i64 rows = p.entries * p.kv_heads * (i64)p.group * p.queries;
    const i64 row = (i64)blockIdx.x * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32, heads = p.kv_heads * p.group;
    if (row >= rows) return;
    const int token = (int)(row % p.queries), h = (int)(row / p.queries % heads);
    const bool tokens = LAYOUT == EJKI_CUDA_TOKENS;
    sequence s = sequence_at(p, tokens ? 0 : (int)(row / p.queries / heads));
    if (tokens) s.query = 0, s.known = is_of_sequence(p, token) ? p.queries : 0;
    float max = NEG_INF, sum = 0;
    for (int n = lane; n < p.splits; n += 32) max = fmaxf(max, p.part_max[n * rows + row]);
    max = larger_of_lanes(max, 32);
    const float base = max == NEG_INF ? 0 : max;
    for (int n = lane; n < p.splits; n += 32)
        sum += p.part_sum[n * rows + row] * expf(p.part_max[n * rows + row] - base);
    sum = sum_of_lanes(sum, 32);
    const float factor = row_epilogue(p, s, h, token, max, sum, lane == 0);
    const i64 to = s.entry * p.out.stride_b + token * p.out.stride_t + h * p.out.stride_h;
    for (int d = lane; d < VALUE_DIM; d += 32) {
        float out = 0;
        for (int n = 0; n < p.splits; n++) {
            const float weight = expf(p.part_max[n * rows + row] - base);
            if (weight != 0) out += weight * p.part_out[(n * rows + row) * VALUE_DIM + d];
        }
        out *= factor;
        if (p.normalize)
            ((element *)p.out.data)[to + d] = narrow(out);
        else
            ((float *)p.out.data)[to + d] = out;
    }
}
