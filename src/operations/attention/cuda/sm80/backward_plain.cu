/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention without tensor cores: one kernel over rows for d_query, one over keys for d_key and
 * d_value. Each sum belongs to one CTA, so that its order is fixed; each kernel recomputes the scores. Besides the
 * constants of options.cuh:
 *
 *   ROWS   of a warp, or keys
 */
#include "operations/attention/cuda/sm80/plain.cuh"

#include "operations/attention/cuda/common/gradients.cuh"
#include "operations/attention/cuda/common/block_iterator.cuh"

/* Rows of a warp: their places, and what their pairs need. */
struct own_rows {
    int low[ROWS], high[ROWS];
    row_context context[ROWS];
    row_state state[ROWS];
};

DEVICE void find_rows(const ejki_cuda_vjp_problem &v, const tile_place &at, int first, int count,
                      own_rows &rows) {
    const int group = v.forward.group;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = lesser(first + r, count - 1), h = at.head * group + row % group;
        visible_keys(at.s, row / group, &rows.low[r], &rows.high[r]);
        rows.context[r] = row_context_of(v.forward, at.s, h, row / group);
        rows.state[r] = row_state_of(v, at.s, h, row / group);
    }
}

template <int dim>
DEVICE void write_sums(const ejki_cuda_bthd &t, i64 entry, int token, int head,
                       const float (&sums)[2 * chunks(dim)], float factor) {
    element *to = (element *)t.data + entry * t.stride_b + token * t.stride_t + head * t.stride_h;
    put_row<dim>(sums, factor, [&](int d, float x) { to[d] = narrow(x); });
}

/* dquery_i = Σ_j dX_ij key_j. */
extern "C" __global__ void __launch_bounds__(THREADS)
    d_query_plain(const __grid_constant__ ejki_cuda_vjp_problem v) {
    extern __shared__ __align__(16) float memory[];
    const ejki_cuda_problem &p = v.forward;
    float *queries = memory, *cotangents = queries + TILE * padded(HEAD_DIM);
    float *staged = cotangents + TILE * padded(VALUE_DIM), *weights = staged + STEP * PITCH;
    tile_place at;
    if (!place_of_block(p, blockIdx.x, p.tiles, true, TILE, p.group, p.query_sums, p.queries, &at))
        return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = p.group;
    const int count = at.s.queries * group, first_row = at.own * TILE;
    const int own = first_row + warp * ROWS;
    const rows_of query = rows_at(p.query, at.s.entry, at.s.query, at.head * group);
    const rows_of d_out = rows_at(v.out_cotangent, at.s.entry, at.s.query, at.head * group);
    const rows_of key = rows_at(p.key, at.s.entry, at.s.key, at.head);
    const rows_of value = rows_at(p.value, at.s.entry, at.s.key, at.head);
    keep_rows<HEAD_DIM>(queries, query, first_row, count, group);
    keep_rows<VALUE_DIM>(cotangents, d_out, first_row, count, group);
    queries += warp * ROWS * padded(HEAD_DIM);
    cotangents += warp * ROWS * padded(VALUE_DIM);
    weights += warp * ROWS * STEP;
    own_rows rows;
    find_rows(v, at, own, count, rows);
    float sums[ROWS][2 * chunks(HEAD_DIM)];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < 2 * chunks(HEAD_DIM); n++) sums[r][n] = 0;
    const int last_row = lesser(first_row + TILE, count) - 1;
    const int first_query = first_row / group,
              last_query = lesser(last_row / group, at.s.known - 1);
    const key_range range = keys_of_rows(at.s, first_query, last_query);
    for (int j0 = range.begin / STEP * STEP; j0 < range.end; j0 += STEP) {
        if (block_state(p, at.head * group, at.head * group + group - 1, first_query, last_query, j0,
                     lesser(j0 + STEP, at.s.keys) - 1) == EMPTY)
            continue;
        float z[ROWS], back[ROWS];
        products<HEAD_DIM>(z, queries, staged, key, j0, at.s.keys, 1);
        products<VALUE_DIM>(back, cotangents, staged, value, j0, at.s.keys, 1);
        const int j = j0 + lane;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const bool visible =
                j >= rows.low[r] && j < rows.high[r] && passes_block_mask(p, rows.context[r], j);
            const pair x = pair_of(p, rows.context[r], rows.state[r], visible, j, z[r], back[r]);
            weights[r * STEP + lane] = x.dz * x.cap_grad;
        }
        weighted<HEAD_DIM>(sums, weights, staged, key, j0, at.s.keys, 1);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = own + r;
        if (row < count)
            write_sums<HEAD_DIM>(v.d_query, at.s.entry, at.s.query + row / group,
                                 at.head * group + row % group, sums[r], p.scale);
    }
}

/* dkey_j = Σ_i dX_ij query_i, dvalue_j = Σ_i P_ij M_ij dO_i, over all rows of the head's group. */
extern "C" __global__ void __launch_bounds__(THREADS)
    d_keys_plain(const __grid_constant__ ejki_cuda_vjp_problem v) {
    extern __shared__ __align__(16) float memory[];
    const ejki_cuda_problem &p = v.forward;
    float *keys = memory, *values = keys + TILE * padded(HEAD_DIM);
    float *staged = values + TILE * padded(VALUE_DIM), *weights = staged + STEP * PITCH;
    tile_place at;
    if (!place_of_block(p, blockIdx.x, v.key_tiles, false, TILE, 1, p.key_sums, p.keys, &at))
        return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = p.group;
    /* The tokens of no sequence are the tail of the tensor. */
    const bool unowned = LAYOUT == EJKI_CUDA_TOKENS && at.s.number == p.batch;
    const int start = unowned ? (int)sum_before(p, p.key_sums, p.batch, p.keys) : at.s.key;
    const int count = unowned ? p.keys - start : LAYOUT == EJKI_CUDA_PADDED ? p.keys : at.s.keys;
    const int first_key = at.own * TILE, own = first_key + warp * ROWS;
    const int rows = at.s.known * group;
    const rows_of key = rows_at(p.key, at.s.entry, start, at.head);
    const rows_of value = rows_at(p.value, at.s.entry, start, at.head);
    const rows_of query = rows_at(p.query, at.s.entry, at.s.query, at.head * group);
    const rows_of d_out = rows_at(v.out_cotangent, at.s.entry, at.s.query, at.head * group);
    keep_rows<HEAD_DIM>(keys, key, first_key, at.s.keys, 1);
    keep_rows<VALUE_DIM>(values, value, first_key, at.s.keys, 1);
    keys += warp * ROWS * padded(HEAD_DIM);
    values += warp * ROWS * padded(VALUE_DIM);
    weights += warp * ROWS * STEP;
    float d_key[ROWS][2 * chunks(HEAD_DIM)], d_value[ROWS][2 * chunks(VALUE_DIM)];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        for (int n = 0; n < 2 * chunks(HEAD_DIM); n++) d_key[r][n] = 0;
        for (int n = 0; n < 2 * chunks(VALUE_DIM); n++) d_value[r][n] = 0;
    }
    int begin, end, unused;
    visible_queries(at.s, first_key, &begin, &unused);
    visible_queries(at.s, lesser(first_key + TILE, at.s.keys) - 1, &unused, &end);
    if (first_key >= at.s.keys) end = 0;
    const int last_key = lesser(first_key + TILE, at.s.keys) - 1;
    for (int row0 = begin * group / STEP * STEP; row0 < end * group; row0 += STEP) {
        if (block_state(p, at.head * group, at.head * group + group - 1, row0 / group,
                     (lesser(row0 + STEP, rows) - 1) / group, first_key, last_key) == EMPTY)
            continue;
        float z[ROWS], back[ROWS], dx[ROWS];
        products<HEAD_DIM>(z, keys, staged, query, row0, rows, group);
        products<VALUE_DIM>(back, values, staged, d_out, row0, rows, group);
        const int row = lesser(row0 + lane, rows - 1), i = row / group;
        const int h = at.head * group + row % group;
        int low, high;
        visible_keys(at.s, i, &low, &high);
        const row_context context = row_context_of(p, at.s, h, i);
        const row_state state = row_state_of(v, at.s, h, i);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int j = own + r;
            const bool visible =
                row0 + lane < rows && j >= low && j < high && passes_block_mask(p, context, j);
            const pair x = pair_of(p, context, state, visible, j, z[r], back[r]);
            weights[r * STEP + lane] = x.kept;
            dx[r] = x.dz * x.cap_grad;
        }
        weighted<VALUE_DIM>(d_value, weights, staged, d_out, row0, rows, group);
        __syncwarp();
#pragma unroll
        for (int r = 0; r < ROWS; r++) weights[r * STEP + lane] = dx[r];
        weighted<HEAD_DIM>(d_key, weights, staged, query, row0, rows, group);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (own + r >= count) continue;
        const int token = start + own + r;
        if (v.d_key.data)
            write_sums<HEAD_DIM>(v.d_key, at.s.entry, token, at.head, d_key[r], p.scale);
        if (v.d_value.data)
            write_sums<VALUE_DIM>(v.d_value, at.s.entry, token, at.head, d_value[r], 1);
    }
}
