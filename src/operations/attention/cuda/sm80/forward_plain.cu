/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention without tensor cores, any head size, element type and option: the fallback. A lane has one key of
 * a step, so row max and sum are reductions over the warp. Besides the constants of options.cuh:
 *
 *   ROWS   of a warp
 */
#include "operations/attention/cuda/sm80/plain.cuh"

#include "operations/attention/cuda/common/block_iterator.cuh"

DEVICE void write_row(const ejki_cuda_problem &p, const tile_place &at, int row, float max,
                      float sum, const float (&sums)[2 * chunks(VALUE_DIM)]) {
    const int i = row / p.group, h = at.head * p.group + row % p.group;
    const bool writer = threadIdx.x % 32 == 0;
    if (p.splits > 1) {
        const i64 rows = p.entries * p.kv_heads * (i64)p.group * p.queries;
        const i64 to = blockIdx.y * rows + (at.s.entry * p.kv_heads * p.group + h) * p.queries +
                       at.s.query + i;
        float *out = p.part_out + to * VALUE_DIM;
        put_row<VALUE_DIM>(sums, 1, [&](int d, float x) { out[d] = x; });
        if (writer) p.part_max[to] = max, p.part_sum[to] = sum;
        return;
    }
    const float factor = row_epilogue(p, at.s, h, i, max, sum, writer);
    const i64 to =
        at.s.entry * p.out.stride_b + (at.s.query + i) * p.out.stride_t + h * p.out.stride_h;
    if (p.normalize) {
        element *out = (element *)p.out.data + to;
        put_row<VALUE_DIM>(sums, factor, [&](int d, float x) { out[d] = narrow(x); });
    } else {
        float *out = (float *)p.out.data + to;
        put_row<VALUE_DIM>(sums, factor, [&](int d, float x) { out[d] = x; });
    }
}

/* Online softmax of a warp's rows for one step of keys. */
DEVICE void online_softmax(float (&z)[ROWS], float (&max)[ROWS], float (&sum)[ROWS],
                   float (&sums)[ROWS][2 * chunks(VALUE_DIM)]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float top = fmaxf(max[r], larger_of_lanes(z[r], 32));
        const float base = top == NEG_INF ? 0 : top;
        const float scale = expf(max[r] - base);
        z[r] = expf(z[r] - base);
        sum[r] = sum[r] * scale + sum_of_lanes(z[r], 32);
        max[r] = top;
        if (scale != 1)
#pragma unroll
            for (int n = 0; n < 2 * chunks(VALUE_DIM); n++) sums[r][n] *= scale;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    forward_plain(const __grid_constant__ ejki_cuda_problem p) {
    extern __shared__ __align__(16) float memory[];
    float *queries = memory, *staged = queries + TILE * padded(HEAD_DIM);
    float *weights = staged + STEP * PITCH;
    tile_place at;
    if (!place_of_block(p, blockIdx.x, p.tiles, true, TILE, p.group, p.query_sums, p.queries, &at))
        return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = p.group;
    const int rows = at.s.queries * group, first_row = at.own * TILE, own = first_row + warp * ROWS;
    const rows_of query = rows_at(p.query, at.s.entry, at.s.query, at.head * group);
    const rows_of key = rows_at(p.key, at.s.entry, at.s.key, at.head);
    const rows_of value = rows_at(p.value, at.s.entry, at.s.key, at.head);
    keep_rows<HEAD_DIM>(queries, query, first_row, rows, group);
    queries += warp * ROWS * padded(HEAD_DIM);
    weights += warp * ROWS * STEP;

    float max[ROWS], sum[ROWS], sums[ROWS][2 * chunks(VALUE_DIM)];
    int low[ROWS], high[ROWS];
    row_context context[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = lesser(own + r, rows - 1);
        max[r] = NEG_INF;
        sum[r] = 0;
        for (int n = 0; n < 2 * chunks(VALUE_DIM); n++) sums[r][n] = 0;
        visible_keys(at.s, row / group, &low[r], &high[r]);
        context[r] = row_context_of(p, at.s, at.head * group + row % group, row / group);
    }
    const int first_query = first_row / group;
    const int last_query = lesser((lesser(first_row + TILE, rows) - 1) / group, at.s.known - 1);
    const key_range range = keys_of_rows(at.s, first_query, last_query);
    const int begin = larger(range.begin / STEP * STEP, (int)blockIdx.y * p.split_keys);
    const int end = lesser(range.end, ((int)blockIdx.y + 1) * p.split_keys);
    for (int j0 = begin; j0 < end; j0 += STEP) {
        if (block_state(p, at.head * group, at.head * group + group - 1, first_query, last_query, j0,
                     lesser(j0 + STEP, at.s.keys) - 1) == EMPTY)
            continue;
        float z[ROWS];
        products<HEAD_DIM>(z, queries, staged, key, j0, at.s.keys, 1);
        const int j = j0 + lane;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float cap_grad;
            const bool visible = j >= low[r] && j < high[r] && passes_block_mask(p, context[r], j) &&
                              passes_mask(p, context[r], j);
            z[r] = visible ? score_of(p, context[r], j, z[r] * p.scale, &cap_grad) : NEG_INF;
        }
        online_softmax(z, max, sum, sums);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#if DROPOUT
            if (!dropout_keeps(p, context[r], j)) z[r] = 0;
#endif
            weights[r * STEP + lane] = z[r];
        }
        weighted<VALUE_DIM>(sums, weights, staged, value, j0, at.s.keys, 1);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (own + r < rows) write_row(p, at, own + r, max[r], sum[r], sums[r]);
}
