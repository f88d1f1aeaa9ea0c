/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of few rows, LINES of a by COLUMNS of b, whose depth is shared by the SPLIT_DEPTH blocks of a cluster: sums of
 * each part lie in its block's shared memory, and each block writes its share of the columns of out. Two warpgroups
 * compute, one warp copies.
 */
#ifndef EJKI_MATMUL_CUDA_SM90_PARTS_CUH
#define EJKI_MATMUL_CUDA_SM90_PARTS_CUH

#include "kernels/cuda/hopper.cuh"
#include "operations/matmul/cuda/sm90/finish.cuh"

enum {
    PITCH = COLUMNS + 4, /* floats of a row of sums: lanes write to different banks */
    CONSUMER_WARPS = 8,
    CONSUMERS = 256,
    ALL_CONSUMERS = 1, /* named barrier */
};

typedef float part_sums[LINES][PITCH];

/* Sums of all parts of the depth, in their order. */
DEVICE float sum_of_parts(const part_sums &sums, int line, int column) {
    if (SPLIT_DEPTH == 1) return sums[line][column];
    const u32 own = shared_address(&sums[line][column]);
    float part[SPLIT_DEPTH], sum = 0;
#pragma unroll
    for (int n = 0; n < SPLIT_DEPTH; n++) part[n] = load_at(address_at(own, n));
#pragma unroll
    for (int n = 0; n < SPLIT_DEPTH; n++) sum += part[n];
    return sum;
}

/* This block's share of the tile's columns of out. */
DEVICE void write_tile(const mm_product &p, const part_sums &sums, const place &at, int rank) {
    enum { WIDTH = (GATED ? COLUMNS / 2 : COLUMNS) / SPLIT_DEPTH, STEP = CONSUMERS / WIDTH };
    const int own = rank * WIDTH + threadIdx.x % WIDTH;
    const mm_size j = at.column + own;
    const int gate = GATED == 0 ? own : GATED == 1 ? own / 64 * 128 + own % 64 : 2 * own;
    if (threadIdx.x >= CONSUMERS || j >= p.columns) return;
#pragma unroll 1
    for (int line = threadIdx.x / WIDTH; line < LINES; line += STEP) {
        const mm_size i = at.row + line;
        if (i >= at.s.rows) break;
        const out_row r = row_of_out(p, at.s, i, at.column);
        pair_bias b = {};
#if BIAS
        if (!at.s.idle) {
            const mm_size base = at.s.held * p.bias.group;
            b.gate[0] = load_as<BIAS>(p.bias.data, base + gate_column(p, j) * p.bias.column);
            if (GATED) b.value[0] = load_as<BIAS>(p.bias.data, base + value_column(p, j) * p.bias.column);
        }
#endif
        const float value = GATED ? sum_of_parts(sums, line, gate + (GATED == 1 ? 64 : 1)) : 0;
        const float x = finished_sum(p, r, b, own, 0, sum_of_parts(sums, line, gate), value);
        store_float(OUT, r.out, own, x);
    }
}

#endif
