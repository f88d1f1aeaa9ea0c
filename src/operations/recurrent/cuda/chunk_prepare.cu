/* SPDX-License-Identifier: Apache-2.0 */
/*
 * T, P and factors of chunks (chunk.cuh) whose decays are those of heads: a block for each chunk of a head. Its warps
 * have 16 rows each of K K' and Q K' by mma.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE, UPDATE, TERMS (of T), BACK (for gradients), SQUARE (T and P for wgmma).
 */
#include "operations/recurrent/cuda/chunk_gates.cuh"
#include "operations/recurrent/cuda/chunk_inverse.cuh"
#include "operations/recurrent/cuda/chunk_products.cuh"

/* What a block has in shared memory besides its tiles; A and T lie where these were, of gradients behind P. */
struct parts {
    chunk_gates g;
    float skip; /* how often values are in outputs besides */
};
#define SQUARES ((BACK ? 2 : 1) * REC_CHUNK * PITCH * 4)
#define RESIDENT (TERMS == 1 ? 5 : 1) /* blocks of a multiprocessor that registers are shared out for */

/* ---- Products --------------------------------------------------------------------------------------- */

/* A warp's rows of K K' and Q K', columns up to the diagonal. */
DEVICE void multiply(u32 keys, u32 queries, float (&kk)[8][4], float (&qk)[8][4]) {
    const int warp = sub_of_rows();
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

/* What rows of keys are multiplied by to be normalised: the diagonal of K K' has their squares. */
DEVICE void put_key_factors(const rec_problem &p, const float (&kk)[8][4], parts &s) {
    const int lane = threadIdx.x % 32, row = SUB * sub_of_rows() + lane / 4;
    const float2 squares = diagonal_of(kk);
    if (!on_diagonal()) return;
    s.g.k_factor[row] = p.normalise ? factor_of(squares.x) : 1;
    s.g.k_factor[row + 8] = p.normalise ? factor_of(squares.y) : 1;
}

/* P to memory, of gradients to `turned` in shared memory, A to shared memory. */
DEVICE void put_products(const parts &s, float (&kk)[8][4], float (&qk)[8][4], float *turned, float *a, char *scores) {
    const int warp = sub_of_rows(), lane = threadIdx.x % 32, row = SUB * warp + lane / 4;
    const auto between = [&](int to, int from, float2 own, float2 other) {
        return decay_between(s.g, to, from, own, other);
    };
    const float of_query[] = {s.g.q_factor[row], s.g.q_factor[row + 8]};
    const float of_key[] = {s.g.k_factor[row] * s.g.beta[row], s.g.k_factor[row + 8] * s.g.beta[row + 8]};
    decay_rows<TERMS == 1, UPDATE == REC_DELTA>(s.g.pair, s.g.k_factor, of_query, of_key, s.skip, between, qk, kk);
    if (BACK) put_square(qk, turned);
    if (UPDATE == REC_DELTA) put_square(kk, a);
#pragma unroll
    for (int n = 0; n < 4; n++)
        if (n <= warp && !BACK)
            put_block(scores, warp, n,
                      make_uint4(pack(qk[2 * n][0], qk[2 * n][1]), pack(qk[2 * n + 1][0], qk[2 * n + 1][1]),
                                 pack(qk[2 * n][2], qk[2 * n][3]), pack(qk[2 * n + 1][2], qk[2 * n + 1][3])));
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) prepare(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    chunk_of_head c;
    if (!find_chunk(p, c)) return;
    const int thread = threadIdx.x;
    const u32 keys = shared_address(memory), queries = keys + TILE;
    float *square = (float *)memory, *a_square = BACK ? square + REC_CHUNK * PITCH : square;
    parts &s = *(parts *)(memory + larger(2 * TILE, SQUARES));
    copy_rows(p, c, REC_KEY, p.key_heads, keys);
    copy_rows(p, c, REC_QUERY, p.query_heads, queries);
    cp_async_commit();
    add_gates(p, c.q, c.first, c.rows, c.h, s.g);
    if (thread == 0) s.skip = p.view[REC_SKIP].present ? load(p.view[REC_SKIP], c.h * p.view[REC_SKIP].stride[2]) : 0;
    cp_async_wait<0>();
    __syncthreads();
    end_gates(s.g);
    const bool has_squares = UPDATE == REC_DELTA && TERMS == 1; /* of keys, to their bits */
    const float of_query = factor_of_pair(p, queries, thread / 2) * (float)p.scale;
    if (thread % 2 == 0) s.g.q_factor[thread / 2] = of_query;
    if (!has_squares) { /* what sums multiply values by is that of their keys */
        const float of_key = factor_of_pair(p, keys, thread / 2) * (p.by_step ? s.g.beta[thread / 2] : 1);
        if (thread % 2 == 0) s.g.k_factor[thread / 2] = of_key;
    }
    float kk[8][4], qk[8][4];
    multiply(keys, queries, kk, qk);
    if (has_squares) put_key_factors(p, kk, s);
    __syncthreads();
    char *scores = a.scores + c.place * ((BACK ? TERMS : 1) * REC_TRIANGLE_BYTES);
    put_products(s, kk, qk, square, a_square, scores);
    put_factors(s.g, a.factors + c.place * (REC_FACTOR_ROWS * REC_CHUNK));
    if (UPDATE != REC_DELTA && !BACK) return;
    __syncthreads();
    if (BACK) {
        put_blocks<TERMS, true>(square, NULL, scores);
        __syncthreads();
    }
    if (UPDATE != REC_DELTA) return;
    invert(a_square, s.g.beta, a.inverses + c.place * ((BACK ? 2 : 1) * TERMS * REC_TRIANGLE_BYTES));
}
