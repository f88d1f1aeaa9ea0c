/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decays of a chunk's rows where they are those of heads. Sums of gates are in double precision, since differences of
 * them are what counts; a gate below LEAST stands for a factor of 0, which floats cannot tell from it.
 *
 * Decays between two rows are taken of sums of two floats, with log 2 as their unit, which have the bits of a double
 * where they are subtracted; each 0 takes off so much that no gates above 0 make up for it. Constants: TERMS.
 */
#ifndef EJKI_RECURRENT_CHUNK_GATES_CUH
#define EJKI_RECURRENT_CHUNK_GATES_CUH

#include "operations/recurrent/cuda/call.cuh"
#include "operations/recurrent/cuda/chunk.cuh"

#define LEAST -110.0f
#define ZERO  4096.0

struct chunk_gates {
    double sum[REC_CHUNK]; /* of log decays up to a row, but for those that stand for 0 */
    int zeros[REC_CHUNK];  /* of which there were so many */
    float2 pair[REC_CHUNK]; /* the sum in two floats, of base 2 and from the chunk's beginning on */
    float before[REC_CHUNK], behind[REC_CHUNK]; /* decays from the chunk's beginning, to its end */
    float beta[REC_CHUNK], k_factor[REC_CHUNK], q_factor[REC_CHUNK];
};

/* Sums up to each of 64 rows, by two warps, and what keys are written with, by two others while those load. */
DEVICE void add_gates(const rec_problem &p, const rec_sequence &q, rec_size first, int rows, rec_size h,
                      chunk_gates &s) {
    const int row = threadIdx.x % REC_CHUNK, lane = row % 32;
    float g = 0;
    if (threadIdx.x >= REC_CHUNK) {
        if (threadIdx.x < 2 * REC_CHUNK)
            s.beta[row] = row < rows ? load_beta(p, q, rec_token(&p, &q, first + row), h) : 0;
        return;
    }
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
}

/* e^(G_t - G_s); the chunk's beginning is row -1, and rows of the second warp have sums from its first on. */
DEVICE float decay(const chunk_gates &s, int to, int from) {
    const double half = to >= 32 && from < 32 ? s.sum[31] : 0;
    const int half_zeros = to >= 32 && from < 32 ? s.zeros[31] : 0;
    const double before = from >= 0 ? s.sum[from] : 0;
    const int zeros = s.zeros[to] + half_zeros - (from >= 0 ? s.zeros[from] : 0);
    return zeros ? 0 : exp_of((float)(s.sum[to] + half - before));
}

/* What follows from sums, by 128 threads behind a barrier. */
DEVICE void end_gates(chunk_gates &s) {
    const int row = threadIdx.x % REC_CHUNK;
    if (threadIdx.x >= REC_CHUNK) {
        s.behind[row] = decay(s, REC_CHUNK - 1, row);
        return;
    }
    const double sum = s.sum[row] + (row >= 32 ? s.sum[31] : 0);
    const double x = sum * 1.4426950408889634 - ZERO * (s.zeros[row] + (row >= 32 ? s.zeros[31] : 0));
    const float high = (float)x;
    s.pair[row] = make_float2(high, (float)(x - high));
    s.before[row] = decay(s, row, -1);
}

/* Factors of rows to memory, by 128 threads. */
DEVICE void put_factors(const chunk_gates &s, float *to) {
    const int row = threadIdx.x % REC_CHUNK;
    if (threadIdx.x < REC_CHUNK) {
        const float there = s.before[row];
        to[REC_SEEN * REC_CHUNK + row] = there * s.k_factor[row];
        to[REC_ASKED * REC_CHUNK + row] = there * s.q_factor[row];
        to[REC_UNSEEN * REC_CHUNK + row] = there * s.k_factor[row] * s.beta[row];
    } else {
        to[REC_LEFT * REC_CHUNK + row] = s.behind[row] * s.k_factor[row];
        to[REC_PASSED * REC_CHUNK + row] = s.before[REC_CHUNK - 1];
    }
}

/* The decay between two rows, given their pairs: as products of TERMS pieces need it. */
DEVICE float decay_between(const chunk_gates &s, int to, int from, float2 own, float2 other) {
    return TERMS > 1 ? decay(s, to, from) : power_of_2((own.x - other.x) + (own.y - other.y));
}

#endif
