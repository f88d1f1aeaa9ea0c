/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weights of attention, [B, Hq, T, S]: keys are gone through twice, once for maxima and sums of rows, once to
 * write. Besides the constants of options.cuh:
 *
 *   ROWS   of a warp
 */
#include "operations/attention/cuda/sm80/plain.cuh"

struct own_rows {
    int low[ROWS], high[ROWS];
    row_context context[ROWS];
};

/* Scores of a step, -inf where a row does not see the key. */
DEVICE void find_scores(const ejki_cuda_problem &p, const own_rows &rows, const float *queries,
                        float *staged, const rows_of &key, int j0, int keys, float (&z)[ROWS]) {
    products<HEAD_DIM>(z, queries, staged, key, j0, keys, 1);
    const int j = j0 + threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float cap_grad;
        const bool visible =
            j >= rows.low[r] && j < rows.high[r] && passes_mask(p, rows.context[r], j);
        z[r] = visible ? score_of(p, rows.context[r], j, z[r] * p.scale, &cap_grad) : NEG_INF;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    weights(const __grid_constant__ ejki_cuda_weights_problem w) {
    extern __shared__ __align__(16) float memory[];
    const ejki_cuda_problem &p = w.forward;
    float *queries = memory, *staged = queries + TILE * padded(HEAD_DIM);
    tile_place at;
    if (!place_of_block(p, blockIdx.x, p.tiles, true, TILE, p.group, p.query_sums, p.queries, &at))
        return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = p.group;
    const int count = at.s.queries * group, first_row = at.own * TILE;
    const int own = first_row + warp * ROWS;
    const rows_of key = rows_at(p.key, at.s.entry, at.s.key, at.head);
    keep_rows<HEAD_DIM>(queries, rows_at(p.query, at.s.entry, at.s.query, at.head * group),
                        first_row, count, group);
    queries += warp * ROWS * padded(HEAD_DIM);
    own_rows rows;
    float max[ROWS], sum[ROWS], factor[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = lesser(own + r, count - 1);
        max[r] = NEG_INF;
        sum[r] = 0;
        visible_keys(at.s, row / group, &rows.low[r], &rows.high[r]);
        rows.context[r] = row_context_of(p, at.s, at.head * group + row % group, row / group);
    }
    const int last_query = (lesser(first_row + TILE, count) - 1) / group;
    const key_range range = keys_of_rows(at.s, first_row / group, last_query);
    const int begin = range.begin / STEP * STEP;
    for (int j0 = begin; j0 < range.end; j0 += STEP) {
        float z[ROWS];
        find_scores(p, rows, queries, staged, key, j0, at.s.keys, z);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float top = fmaxf(max[r], larger_of_lanes(z[r], 32));
            const float base = top == NEG_INF ? 0 : top;
            sum[r] = sum[r] * expf(max[r] - base) + sum_of_lanes(expf(z[r] - base), 32);
            max[r] = top;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = lesser(own + r, count - 1);
        factor[r] = row_epilogue(p, at.s, at.head * group + row % group, row / group, max[r], sum[r],
                               false);
    }
    for (int j0 = 0; j0 < p.keys; j0 += STEP) {
        float z[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) z[r] = NEG_INF;
        if (j0 >= begin && j0 < range.end)
            find_scores(p, rows, queries, staged, key, j0, at.s.keys, z);
        const int j = j0 + lane;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = own + r, i = row / group, h = at.head * group + row % group;
            float weight = expf(z[r] - (max[r] == NEG_INF ? 0 : max[r]));
            if (weight != 0) weight *= factor[r];
#if DROPOUT
            if (!dropout_keeps(p, rows.context[r], j)) weight = 0;
#endif
            if (row < count && j < p.keys)
                ((element *)w.weights.data)[at.s.entry * w.weights.stride_b +
                                            h * w.weights.stride_h + i * w.weights.stride_t + j] =
                    narrow(weight);
        }
    }
}
