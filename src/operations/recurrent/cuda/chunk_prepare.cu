/* SPDX-License-Identifier: Apache-2.0 */
/*
 * T, P and factors of chunks (chunk.cuh) whose decays are those of heads: a block for each chunk of a head. Its warps
 * have 16 rows each of K K' and Q K' by mma.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE, UPDATE, TERMS (of T), BACK (for gradients), SQUARE (T and P for wgmma).
 */
#include "operations/recurrent/cuda/chunk_gates.cuh"
#include "operations/recurrent/cuda/chunk_inverse.cuh"

/* What a block has in shared memory besides its tiles; T lies where these were, and P of gradients. */
struct parts {
    float a[REC_CHUNK * PITCH];
    chunk_gates g;
    float skip; /* how often values are in outputs besides */
};

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

/* P to memory, of gradients to `turned` in shared memory, A to shared memory. */
DEVICE void put_products(parts &s, float (&kk)[8][4], float (&qk)[8][4], float *turned, char *scores) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = 16 * warp + lane / 4;
    float2 own[2];
    float query[2], key[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int to = row + 8 * half;
        own[half] = s.g.pair[to], query[half] = s.g.q_factor[to], key[half] = s.g.k_factor[to] * s.g.beta[to];
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (n / 2 > warp) break;
        const int column = 8 * n + lane % 4 * 2;
        const float4 others = *(const float4 *)(s.g.pair + column);
        const float2 factors = *(const float2 *)(s.g.k_factor + column);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = row + i / 2 * 8, from = column + i % 2;
            const float2 other = i % 2 ? make_float2(others.z, others.w) : make_float2(others.x, others.y);
            const float by = decay_between(s.g, to, from, own[i / 2], other) * (i % 2 ? factors.y : factors.x);
            qk[n][i] = from <= to ? qk[n][i] * (by * query[i / 2]) : 0;
            if (from == to) qk[n][i] += s.skip;
            if (BACK) turned[to * PITCH + from] = qk[n][i];
            if (UPDATE == REC_DELTA) s.a[to * PITCH + from] = from < to ? kk[n][i] * (by * key[i / 2]) : 0;
        }
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
        if (n <= warp && !BACK)
            put_block(scores, warp, n,
                      make_uint4(pack(qk[2 * n][0], qk[2 * n][1]), pack(qk[2 * n + 1][0], qk[2 * n + 1][1]),
                                 pack(qk[2 * n][2], qk[2 * n][3]), pack(qk[2 * n + 1][2], qk[2 * n + 1][3])));
}

extern "C" __global__ void __launch_bounds__(THREADS) prepare(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    chunk_of_head c;
    if (!find_chunk(p, c)) return;
    const int thread = threadIdx.x;
    const u32 keys = shared_address(memory), queries = keys + TILE;
    parts &s = *(parts *)(memory + larger(2 * TILE, REC_CHUNK * PITCH * 4));
    copy_rows(p, c, REC_KEY, p.key_heads, keys);
    copy_rows(p, c, REC_QUERY, p.query_heads, queries);
    cp_async_commit();
    if (thread < REC_CHUNK) add_gates(p, c.q, c.first, c.rows, c.h, s.g);
    if (thread == 0) s.skip = p.view[REC_SKIP].present ? load(p.view[REC_SKIP], c.h * p.view[REC_SKIP].stride[2]) : 0;
    cp_async_wait<0>();
    __syncthreads();
    end_gates(s.g);
    if (thread < REC_CHUNK) /* what sums multiply values by is that of their keys */
        s.g.k_factor[thread] = factor_of(p, keys, thread) * (p.by_step ? s.g.beta[thread] : 1);
    else
        s.g.q_factor[thread - REC_CHUNK] = factor_of(p, queries, thread - REC_CHUNK) * (float)p.scale;
    float kk[8][4], qk[8][4];
    multiply(keys, queries, kk, qk);
    __syncthreads();
    char *scores = a.scores + c.place * ((BACK ? TERMS : 1) * BLOCKS);
    if (SQUARE) clear_others(scores, BACK);
    put_products(s, kk, qk, (float *)memory, scores);
    put_factors(s.g, a.factors + c.place * (REC_FACTOR_ROWS * REC_CHUNK));
    if (UPDATE != REC_DELTA && !BACK) return;
    __syncthreads();
    if (BACK) {
        put_blocks<TERMS, true>((const float *)memory, NULL, scores);
        __syncthreads();
    }
    if (UPDATE != REC_DELTA) return;
    invert(s.a, s.g.beta, (float *)memory,
           a.inverses + c.place * ((BACK ? 2 : 1) * TERMS * BLOCKS));
}
