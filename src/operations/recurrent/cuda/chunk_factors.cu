/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Factors of chunks of sums whose decays are those of heads, where the walk makes P (chunk.cuh): a block for each chunk
 * of a head. Neither queries nor keys are normalised.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE.
 */
#define TERMS  1
#define BACK   0
#define SQUARE 1
#include "operations/recurrent/cuda/chunk_gates.cuh"
#include "operations/recurrent/cuda/chunk_inverse.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) factors(const __grid_constant__ rec_chunked a) {
    __shared__ chunk_gates g;
    const rec_problem &p = a.p;
    const int thread = threadIdx.x, row = thread % REC_CHUNK;
    chunk_of_head c;
    if (!find_chunk(p, c)) return;
    add_gates(p, c.q, c.first, c.rows, c.h, g);
    __syncthreads();
    end_gates(g);
    if (thread < REC_CHUNK) /* what sums multiply values by is that of their keys */
        g.k_factor[row] = p.by_step ? g.beta[row] : 1;
    else
        g.q_factor[row] = (float)p.scale;
    __syncthreads();
    float *to = a.factors + c.place * (REC_MORE_ROWS * REC_CHUNK);
    put_factors(g, to);
    if (thread < REC_CHUNK)
        ((float2 *)(to + REC_PAIRS * REC_CHUNK))[row] = g.pair[row];
    else
        to[REC_OF_KEYS * REC_CHUNK + row] = g.k_factor[row];
}
