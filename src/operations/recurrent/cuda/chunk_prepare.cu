/* SPDX-License-Identifier: Apache-2.0 */
/*
 * T, P and factors of chunks (chunk.cuh) whose decays are those of heads: a block for each chunk of a head. Its warps
 * have 16 rows each of K K' and Q K' by mma. Sums of gates are in double precision, since differences of them are what
 * counts; a gate below LEAST stands for a factor of 0, which floats cannot tell from it.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE, UPDATE, TERMS (of T).
 */
#include "operations/recurrent/cuda/chunk_inverse.cuh"

#define LEAST -110.0f

/* What a block has in shared memory besides its tiles; T lies where these were. */
struct parts {
    float a[REC_CHUNK * PITCH];
    double sum[REC_CHUNK]; /* of log decays up to a row, but for those that stand for 0 */
    int zeros[REC_CHUNK];  /* of which there were so many */
    float beta[REC_CHUNK], k_factor[REC_CHUNK], q_factor[REC_CHUNK];
};

/* ---- Rows ------------------------------------------------------------------------------------------- */

/* Sums up to each of 64 rows, by two warps. */
DEVICE void add_gates(const rec_problem &p, const rec_sequence &q, rec_size first, int rows, rec_size h, parts &s) {
    const int row = threadIdx.x, lane = row % 32;
    float g = 0;
    if (row < rows) g = head_gate(p, q, rec_token(&p, &q, first + row), h);
    int zeros = g < LEAST;
    double sum = zeros ? 0 : g;
#pragma unroll
    for (int n = 1; n < 32; n *= 2) {
        const double before = __shfl_up_sync(~0u, sum, n);
        const int zeros_before = __shfl_up_sync(~0u, zeros, n);
        if (lane >= n) sum += before, zeros += zeros_before;
    }
    s.sum[row] = sum;
    s.zeros[row] = zeros;
    s.beta[row] = row < rows ? load_beta(p, q, rec_token(&p, &q, first + row), h) : 0;
}

/* e^(G_t - G_s); the chunk's beginning is row -1, and rows of the second warp have sums from its first on. */
DEVICE float decay(const parts &s, int to, int from) {
    const double half = to >= 32 && from < 32 ? s.sum[31] : 0;
    const int half_zeros = to >= 32 && from < 32 ? s.zeros[31] : 0;
    const double before = from >= 0 ? s.sum[from] : 0;
    const int zeros = s.zeros[to] + half_zeros - (from >= 0 ? s.zeros[from] : 0);
    return zeros ? 0 : exp_of((float)(s.sum[to] + half - before));
}

/* ---- Products --------------------------------------------------------------------------------------- */

/* Rows 16 warp … of K K' and Q K', columns up to the diagonal. */
DEVICE void multiply(u32 keys, u32 queries, float (&kk)[8][4], float (&qk)[8][4]) {
    const int warp = threadIdx.x / 32;
    clear(kk);
    clear(qk);
#pragma unroll
    for (int k = 0; k < KEY_SIZE / 16; k++) {
        u32 key[4], query[4], right[4];
        if (UPDATE == REC_DELTA) load_left<KEY_SIZE>(key, keys, 16 * warp, k);
        load_left<KEY_SIZE>(query, queries, 16 * warp, k);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n > warp) break;
            load_right<KEY_SIZE>(right, keys, 16 * n, k);
            if (UPDATE == REC_DELTA) {
                mma(kk[2 * n], key, right[0], right[1]);
                mma(kk[2 * n + 1], key, right[2], right[3]);
            }
            mma(qk[2 * n], query, right[0], right[1]);
            mma(qk[2 * n + 1], query, right[2], right[3]);
        }
    }
}

/* P to memory, A to shared memory. */
DEVICE void put_products(parts &s, float (&kk)[8][4], float (&qk)[8][4], uint4 *scores) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (n / 2 > warp) break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = 16 * warp + lane / 4 + i / 2 * 8, from = 8 * n + lane % 4 * 2 + i % 2;
            const float by = from <= to ? decay(s, to, from) * s.k_factor[from] : 0;
            qk[n][i] = from <= to ? qk[n][i] * (by * s.q_factor[to]) : 0;
            if (UPDATE == REC_DELTA)
                s.a[to * PITCH + from] = from < to ? kk[n][i] * (by * s.k_factor[to] * s.beta[to]) : 0;
        }
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
        if (n <= warp)
            scores[(warp * (warp + 1) / 2 + n) * 32 + lane] =
                make_uint4(pack(qk[2 * n][0], qk[2 * n][1]), pack(qk[2 * n + 1][0], qk[2 * n + 1][1]),
                           pack(qk[2 * n][2], qk[2 * n][3]), pack(qk[2 * n + 1][2], qk[2 * n + 1][3]));
}

/* ---- Factors ---------------------------------------------------------------------------------------- */

DEVICE void put_factors(const parts &s, float *to) {
    const int row = threadIdx.x % REC_CHUNK;
    if (threadIdx.x < REC_CHUNK) {
        const float there = decay(s, row, -1);
        to[REC_SEEN * REC_CHUNK + row] = there * s.k_factor[row];
        to[REC_ASKED * REC_CHUNK + row] = there * s.q_factor[row];
    } else {
        to[REC_LEFT * REC_CHUNK + row] = decay(s, REC_CHUNK - 1, row) * s.k_factor[row];
        to[REC_PASSED * REC_CHUNK + row] = decay(s, REC_CHUNK - 1, -1);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) prepare(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    const rec_size chunk = blockIdx.x / p.heads, h = blockIdx.x % p.heads;
    const rec_sequence q = rec_sequence_of(&p, rec_sequence_at(&p, chunk));
    const rec_size first = (chunk - rec_first_chunk(&p, q.index, q.begin)) * REC_CHUNK, steps = q.end - q.begin;
    if (first >= steps) return;
    const int rows = lesser((int)(steps - first), REC_CHUNK), thread = threadIdx.x;
    const u32 keys = shared_address(memory), queries = keys + TILE;
    parts &s = *(parts *)(memory + larger(2 * TILE, REC_CHUNK * PITCH * 4));
    const rows_of key = rows_in(p, p.view[REC_KEY], q, rec_head(&p, h, p.key_heads), 0);
    const rows_of query = rows_in(p, p.view[REC_QUERY], q, rec_head(&p, h, p.query_heads), 0);
    copy_tile<REC_CHUNK, KEY_SIZE>(keys, key, (int)first, (int)steps, 1);
    copy_tile<REC_CHUNK, KEY_SIZE>(queries, query, (int)first, (int)steps, 1);
    cp_async_commit();
    if (thread < REC_CHUNK) add_gates(p, q, first, rows, h, s);
    cp_async_wait<0>();
    __syncthreads();
    if (thread < REC_CHUNK)
        s.k_factor[thread] = factor_of(p, keys, thread);
    else
        s.q_factor[thread - REC_CHUNK] = factor_of(p, queries, thread - REC_CHUNK) * (float)p.scale;
    float kk[8][4], qk[8][4];
    multiply(keys, queries, kk, qk);
    __syncthreads();
    const rec_size place = chunk * p.heads + h;
    put_products(s, kk, qk, (uint4 *)(a.scores + place * (REC_TILES * REC_TILE_BYTES)));
    put_factors(s, a.factors + place * (REC_FACTOR_ROWS * REC_CHUNK));
    if (UPDATE != REC_DELTA) return;
    __syncthreads();
    invert(s.a, s.beta, (float *)memory, (uint4 *)(a.inverses + place * (TERMS * REC_TILES * REC_TILE_BYTES)));
}
