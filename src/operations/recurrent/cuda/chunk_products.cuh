/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P and A of a chunk (chunk.cuh) whose decays are those of heads, out of Q K' and K K': a warp has 16 rows of these as
 * sums, tiles of 8 columns. Decays between two rows are 2 to a difference of pairs of floats (chunk_gates.cuh).
 */
#ifndef EJKI_RECURRENT_CHUNK_PRODUCTS_CUH
#define EJKI_RECURRENT_CHUNK_PRODUCTS_CUH

#include "operations/recurrent/cuda/chunk_solve.cuh"

#define SUB 16

/*
 * Which 16 rows a warp has: those of the last have four times as many columns as those of the first, and warps of the
 * same number of blocks side by side share a scheduler.
 */
DEVICE int sub_of_rows() {
    return (threadIdx.x / 32 + blockIdx.x / 128) % 4;
}

/* Which lanes have elements of the diagonal, and those, of a lane's two rows. */
DEVICE bool on_diagonal() {
    return threadIdx.x % 4 == threadIdx.x % 32 / 8;
}
DEVICE float2 diagonal_of(const float (&x)[8][4]) {
    const int warp = sub_of_rows(), odd = threadIdx.x / 4 % 2;
    float2 two = make_float2(0, 0);
#pragma unroll
    for (int n = 0; n < 4; n++)
        if (n == warp)
            two = make_float2(odd ? x[2 * n][1] : x[2 * n][0], odd ? x[2 * n + 1][3] : x[2 * n + 1][2]);
    return two;
}

DEVICE float power_between(float2 own, float2 other) {
    return power_of_2((own.x - other.x) + (own.y - other.y));
}

/*
 * A warp's rows of P, which are Q K', and of A, K K', with their decays and factors of columns and rows: up to the
 * diagonal, on which `skip` is added, or below it. In `steps` decays of columns before the warp's rows are those to the
 * first of these, and from there; others, and all without, are between() a row and a column, given their numbers and
 * pairs.
 */
template <bool steps, bool has_a, typename function>
DEVICE void decay_rows(const float2 *pair, const float *of_column, const float (&of_query)[2], const float (&of_key)[2],
                       float skip, function between, float (&qk)[8][4], float (&kk)[8][4]) {
    const int warp = sub_of_rows(), lane = threadIdx.x % 32, row = SUB * warp + lane / 4;
    const float2 own[] = {pair[row], pair[row + 8]}, first = pair[SUB * warp];
    float query_down[2], key_down[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float down = steps ? power_between(own[half], first) : 0;
        query_down[half] = of_query[half] * down, key_down[half] = of_key[half] * down;
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (n / 2 > warp) break;
        const int column = 8 * n + lane % 4 * 2;
        const float4 others = *(const float4 *)(pair + column);
        const float2 factors = *(const float2 *)(of_column + column);
        const float2 other[] = {make_float2(others.x, others.y), make_float2(others.z, others.w)};
        if (steps && n / 2 < warp) {
            const float by[] = {power_between(first, other[0]) * factors.x, power_between(first, other[1]) * factors.y};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                qk[n][i] *= by[i % 2] * query_down[i / 2];
                if (has_a) kk[n][i] *= by[i % 2] * key_down[i / 2];
            }
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = row + i / 2 * 8, from = column + i % 2;
            const float by = between(to, from, own[i / 2], other[i % 2]) * (i % 2 ? factors.y : factors.x);
            qk[n][i] = from <= to ? qk[n][i] * (by * of_query[i / 2]) : 0;
            if (from == to) qk[n][i] += skip;
            if (has_a) kk[n][i] = from < to ? kk[n][i] * (by * of_key[i / 2]) : 0;
        }
    }
}

/* A warp's rows of a square of floats, up to its own block. */
DEVICE void put_square(const float (&x)[8][4], float *to) {
    const int warp = sub_of_rows(), lane = threadIdx.x % 32;
    float *at = to + (SUB * warp + lane / 4) * PITCH + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (n / 2 > warp) break;
        *(float2 *)(at + 8 * n) = make_float2(x[n][0], x[n][1]);
        *(float2 *)(at + 8 * n + 8 * PITCH) = make_float2(x[n][2], x[n][3]);
    }
}

#endif
