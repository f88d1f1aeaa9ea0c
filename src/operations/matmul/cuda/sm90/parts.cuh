/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of few rows, LINES of a by COLUMNS of b, whose depth is shared by the SPLIT_DEPTH blocks of a cluster: sums of
 * each part lie in its block's shared memory, and each block writes its share of the columns of out. PART_WARPS warps
 * compute, one copies. A block may leave LOCAL_PARTS sums side by side, if it has no others in a cluster.
 */
#ifndef EJKI_MATMUL_CUDA_SM90_PARTS_CUH
#define EJKI_MATMUL_CUDA_SM90_PARTS_CUH

#include "kernels/cuda/hopper.cuh"
#include "operations/matmul/cuda/sm90/finish.cuh"

#ifndef LOCAL_PARTS
#define LOCAL_PARTS 1
#endif

enum {
    HALF = COLUMNS < 128 ? COLUMNS / 2 : 64, /* columns of gates, then of values, if they are halves of b */
    PITCH = COLUMNS + 4, /* floats of a row of sums: lanes write to different banks */
    CONSUMERS = 32 * PART_WARPS,
    ALL_CONSUMERS = 1, /* named barrier */
};

typedef float part_sums[LINES][PITCH];

/* Neighbours first, then sums of neighbours. */
template <int count> DEVICE float sum_in_pairs(float (&part)[count]) {
#pragma unroll
    for (int apart = 1; apart < count; apart *= 2)
#pragma unroll
        for (int n = 0; n + apart < count; n += 2 * apart) part[n] += part[n + apart];
    return part[0];
}

enum { RUN = 4 /* columns of out that a thread has at a time */ };

/* Sums of all parts of the depth, of RUN columns from one on. */
DEVICE void sums_of_parts(const part_sums (&sums)[LOCAL_PARTS], int line, int column, float (&sum)[RUN]) {
    float part[RUN][SPLIT_DEPTH * LOCAL_PARTS];
#pragma unroll
    for (int n = 0; n < SPLIT_DEPTH * LOCAL_PARTS; n++) {
        const float *own = &sums[n % LOCAL_PARTS][line][column];
        const float4 x = SPLIT_DEPTH == 1 ? *(const float4 *)own : load_four_at(address_at(shared_address(own), n));
        part[0][n] = x.x, part[1][n] = x.y, part[2][n] = x.z, part[3][n] = x.w;
    }
#pragma unroll
    for (int e = 0; e < RUN; e++) sum[e] = sum_in_pairs(part[e]);
}

/* Of columns of out from `own` on of a tile: sums of gates, or plain ones, and of values. */
DEVICE void sums_at(const part_sums (&sums)[LOCAL_PARTS], int line, int own, float (&gate)[RUN], float (&value)[RUN]) {
    if constexpr (GATED == 2) {
        float low[RUN], high[RUN];
        sums_of_parts(sums, line, 2 * own, low);
        sums_of_parts(sums, line, 2 * own + RUN, high);
        gate[0] = low[0], gate[1] = low[2], gate[2] = high[0], gate[3] = high[2];
        value[0] = low[1], value[1] = low[3], value[2] = high[1], value[3] = high[3];
    } else {
        const int first = GATED ? own / HALF * 2 * HALF + own % HALF : own;
        sums_of_parts(sums, line, first, gate);
        if (GATED) sums_of_parts(sums, line, first + HALF, value);
    }
}

/* A run of a row's columns of out from `own` on. */
DEVICE void write_run(const out_row &r, int own, const float (&x)[RUN]) {
#if OUT == F32
    float *to = (float *)r.out + own;
    if (own + RUN <= r.fast) {
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
#pragma unroll
    for (int e = 0; e < RUN; e++)
        if (own + e < r.count) to[e] = x[e];
#else
    u16 *to = (u16 *)r.out + own;
    const u32 low = pair_of_bits(x[0], x[1]), high = pair_of_bits(x[2], x[3]);
    if (own + RUN <= r.fast) {
        *(uint2 *)to = make_uint2(low, high);
        return;
    }
#pragma unroll
    for (int e = 0; e < RUN; e++)
        if (own + e < r.count) to[e] = (u16)((e < 2 ? low : high) >> 16 * (e % 2));
#endif
}

/*
 * This block's share of the tile's columns of out. `seen` may put another sum in place of one, whose row of a and whose
 * column of b it is told. So many threads do it, of which this is number `thread`.
 */
template <int threads, class SEEN>
DEVICE void write_tile_by(int thread, const mm_product &p, const part_sums (&sums)[LOCAL_PARTS], const place &at,
                          int rank, SEEN seen) {
    enum { WIDTH = (GATED ? COLUMNS / 2 : COLUMNS) / SPLIT_DEPTH, ACROSS = WIDTH / RUN, STEP = threads / ACROSS };
    const int own = rank * WIDTH + thread % ACROSS * RUN;
    const mm_size j = at.column + own;
    column_bias b[RUN];
    if (thread >= threads || j >= p.columns) return;
#pragma unroll
    for (int e = 0; e < RUN; e++) b[e] = bias_of_column(p, at.s, j + e);
#pragma unroll 2
    for (int line = thread / ACROSS; line < LINES; line += STEP) {
        const mm_size i = at.row + line;
        if (i >= at.s.rows) break;
        const out_row r = row_of_out(p, at.s, i, at.column);
        float gate[RUN], value[RUN] = {}, x[RUN];
        sums_at(sums, line, own, gate, value);
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            if (j + e >= p.columns) continue;
            if (GATED) value[e] = seen(value[e], at.s.first + i, value_column(p, j + e));
            gate[e] = seen(gate[e], at.s.first + i, gate_column(p, j + e));
            x[e] = finished_sum(p, r, b[e], own + e, gate[e], value[e]);
        }
        write_run(r, own, x);
    }
}

#if LOCAL_PARTS == 1
/* By all that multiply. */
template <class SEEN>
DEVICE void write_tile(const mm_product &p, const part_sums &sums, const place &at, int rank, SEEN seen) {
    write_tile_by<CONSUMERS>(threadIdx.x, p, *(const part_sums(*)[1]) & sums, at, rank, seen);
}
#endif

#endif
