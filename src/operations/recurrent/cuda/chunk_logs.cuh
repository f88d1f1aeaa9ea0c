/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log decays of a chunk's key channels, and operands that are decayed by them, for the kernels that prepare chunks:
 * sums count from the beginning of a sub-chunk of 16 rows. A gate below LEAST stands for a factor of 0, which floats
 * cannot tell from it, and sums stay finite. Constants: KEY_SIZE; THREADS.
 */
#ifndef EJKI_RECURRENT_CHUNK_LOGS_CUH
#define EJKI_RECURRENT_CHUNK_LOGS_CUH

#include "operations/recurrent/cuda/chunk.cuh"
#include "operations/recurrent/cuda/chunk_key.cuh"

#define LEAST     -120.0f
#define SUB       16
#define HALF      (SUB / 2)
#define LOG_PITCH (KEY_SIZE + 4)
#define PAIRS     (KEY_SIZE / 64) /* pairs of channels of a lane, 64 apart */

struct logs {
    float log[REC_CHUNK * LOG_PITCH];           /* base-2, of a sub-chunk up to a row */
    float total[4][KEY_SIZE], gap[6][KEY_SIZE]; /* of a sub-chunk; of those from one to before another */
    float head[REC_CHUNK];                      /* gates of the head */
};

/* Gates of a channel of the rows of a sub-chunk; those of the head have been loaded. */
DEVICE void load_gates(const rec_problem &p, const rec_sequence &q, rec_size first, int rows, rec_size h, int sub,
                       int channel, const logs &s, float (&g)[SUB]) {
#pragma unroll
    for (int n = 0; n < SUB; n++) g[n] = p.head_decay ? s.head[SUB * sub + n] : 0;
    add_channel(p, q, rec_token(&p, &q, first + SUB * sub), h, channel, rows - SUB * sub, g);
}

/* Log decays of a chunk's rows, of which there are `rows`. */
DEVICE void add_gates(const rec_problem &p, const rec_sequence &q, rec_size first, int rows, rec_size h, logs &s) {
    const int channel = threadIdx.x % KEY_SIZE;
    for (int sub = threadIdx.x / KEY_SIZE; sub < 4; sub += THREADS / KEY_SIZE) {
        float g[SUB], sum = 0;
        load_gates(p, q, first, rows, h, sub, channel, s, g);
#pragma unroll
        for (int n = 0; n < SUB; n++) {
            if (SUB * sub + n < rows) sum += LOG2_E * (g[n] < LEAST ? LEAST : g[n]);
            s.log[(SUB * sub + n) * LOG_PITCH + channel] = sum;
        }
        s.total[sub][channel] = sum;
    }
}

/* Sums of sub-chunks first … end - 1. */
DEVICE float totals(const logs &s, int first, int end, int channel) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 4; n++)
        if (n >= first && n < end) sum += s.total[n][channel];
    return sum;
}

/* Which of `gap` is from sub-chunk `first` to before `end`. */
DEVICE int gap_of(int first, int end) {
    return end * (end - 1) / 2 + first;
}
DEVICE void add_totals(logs &s) {
    for (int end = 1; end < 4 && threadIdx.x < KEY_SIZE; end++)
        for (int first = 0; first < end; first++)
            s.gap[gap_of(first, end)][threadIdx.x] = totals(s, first, end, threadIdx.x);
}

DEVICE u32 times(u32 pair, float low, float high) {
    return pack(widen((u16)pair) * low, widen((u16)(pair >> 16)) * high);
}

/* Decays of a right operand from rows of sub-chunk `sub` to the beginning of `end`; register n has two elements. */
DEVICE float2 decay_from(const logs &s, int sub, int end, int k, int n) {
    const int lane = threadIdx.x % 32, row = sub * SUB + lane / 4 + n / 2 * 8;
    const int channel = 16 * k + lane % 4 * 2 + n % 2 * 8;
    const float2 x = *(const float2 *)(s.log + row * LOG_PITCH + channel);
    const float2 gap = *(const float2 *)(s.gap[gap_of(sub, end)] + channel);
    return make_float2(power_of_2(gap.x - x.x), power_of_2(gap.y - x.y));
}

/* A lane's channels of half of a sub-chunk, which begins at a row; their log decays; of a row. */
DEVICE void load_half(u32 tile, int first, u32 (&x)[HALF][PAIRS]) {
#pragma unroll
    for (int n = 0; n < HALF; n++)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) x[n][i] = load_pair(tile, first + n, 64 * i + threadIdx.x % 32 * 2);
}
DEVICE void load_logs(const logs &s, int first, float2 (&log)[HALF][PAIRS]) {
#pragma unroll
    for (int n = 0; n < HALF; n++)
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
            log[n][i] = *(const float2 *)(s.log + (first + n) * LOG_PITCH + 64 * i + threadIdx.x % 32 * 2);
}
/* Two decays to a row from one of its half. */
DEVICE float2 decay_of_pair(float2 to, float2 from) {
    return make_float2(power_of_2(to.x - from.x), power_of_2(to.y - from.y));
}
/* From a row of the first half of a sub-chunk to the last of that, from there to what a row of the second reads. */
struct decays_of_halves {
    float2 first, second;
};
DEVICE decays_of_halves decay_halves(const logs &s, int sub, int row, int channel, float2 to) {
    const float2 middle = *(const float2 *)(s.log + (sub + HALF - 1) * LOG_PITCH + channel);
    const float2 from = *(const float2 *)(s.log + row * LOG_PITCH + channel);
    return {decay_of_pair(middle, from), decay_of_pair(to, middle)};
}

/* Halves the numbers of a lane, and adds those of the lane `apart` from it, until one is left: sum of number `lane`. */
template <int count> DEVICE void add_lanes(float (&x)[SUB]) {
    if constexpr (count > 1) {
        const bool is_high = threadIdx.x & (count / 2);
#pragma unroll
        for (int n = 0; n < count / 2; n++) {
            const float own = is_high ? x[n + count / 2] : x[n], other = is_high ? x[n] : x[n + count / 2];
            x[n] = own + __shfl_xor_sync(~0u, other, count / 2);
        }
        add_lanes<count / 2>(x);
    }
}
/* Of all lanes; two of them have the sum of each number. */
DEVICE float sum_of_row(float (&x)[SUB]) {
    add_lanes<SUB>(x);
    return x[0] + __shfl_xor_sync(~0u, x[0], 16);
}

#endif
