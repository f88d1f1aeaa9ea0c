/* SPDX-License-Identifier: Apache-2.0 */
/*
 * causal_conv1d and its gradients: a thread takes SEGMENT tokens of a channel and keeps the window of WIDTH entries in
 * registers; neighbouring threads take neighbouring channels. Gradients compute cotangents of the sums for WIDTH - 1
 * tokens beyond their own. Sums over tokens are added up in order of segments: bits are the same each time.
 */
#include "kernels/cuda/element.cuh"
#include "operations/state_space/causal_conv1d/problem.cuh"

#define THREADS 128

struct arguments {
    conv_problem p;
    float *sums; /* [segments][WIDTH + 1][channels] */
};

DEVICE float load(const void *data, i64 at) {
    return widen(((const element *)data)[at]);
}
DEVICE void store(void *data, i64 at, float value) {
    ((element *)data)[at] = narrow(value);
}

/* A channel of a sequence. */
struct line {
    const conv_problem &p;
    seq_range range;
    i64 c, slot; /* of the state before, or -1 */

    /* Entry j of the extended sequence. */
    DEVICE_MEMBER float entry(i64 j) const {
        if (j >= WIDTH - 1)
            return load(p.x.data, conv_at(&p.x, range.row, range.begin + j - WIDTH + 1) + c);
        return slot < 0 ? 0 : load(p.before.data, conv_state_at(&p.before, slot, c) + j);
    }
    DEVICE_MEMBER float tap(int i) const {
        return load(p.weight.data, conv_state_at(&p.weight, 0, c) + i);
    }
};

struct window {
    float tap[WIDTH], bias, x[WIDTH];

    DEVICE_MEMBER void open(const line &l, i64 token) {
        bias = l.p.has_bias ? load(l.p.bias, l.c) : 0;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) tap[i] = l.tap(i);
#pragma unroll
        for (int i = 1; i < WIDTH; i++) x[i] = l.entry(token - l.range.begin + i - 1);
    }
    DEVICE_MEMBER float next(const line &l, i64 token) {
#pragma unroll
        for (int i = 1; i < WIDTH; i++) x[i - 1] = x[i];
        x[WIDTH - 1] = l.entry(token - l.range.begin + WIDTH - 1);
        float sum = bias;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) sum = fmaf(tap[i], x[i], sum);
        return sum;
    }
};

struct share {
    i64 c, segment, row, begin, end;
};

DEVICE share share_of(const conv_problem &p) {
    const i64 tiles = (p.channels + THREADS - 1) / THREADS, segment = blockIdx.x / tiles;
    const i64 each = (p.sequences.tokens + SEGMENT - 1) / SEGMENT, at = segment % each * SEGMENT;
    const i64 end = at + SEGMENT < p.sequences.tokens ? at + SEGMENT : p.sequences.tokens;
    return {blockIdx.x % tiles * THREADS + threadIdx.x, segment, segment / each, at, end};
}

extern "C" __global__ void __launch_bounds__(THREADS) forward(const arguments a) {
    const conv_problem &p = a.p;
    const share s = share_of(p);
    if (s.c >= p.channels) return;
    for (i64 token = s.begin; token < s.end;) {
        const i64 n = seq_find(&p.sequences, s.row, token);
        const i64 stop = seq_stop(&p.sequences, n, token, s.end);
        if (n < 0) {
            for (; token < stop; token++) store(p.y.data, conv_at(&p.y, s.row, token) + s.c, 0);
            continue;
        }
        const line l = {p, seq_of(&p.sequences, n), s.c, conv_slot(&p, p.has_before, n)};
        window w;
        w.open(l, token);
        for (; token < stop; token++) {
            const float z = w.next(l, token);
            store(p.y.data, conv_at(&p.y, s.row, token) + s.c,
                  SILU ? z / (1 + power_of_2(-z * LOG2_E)) : z);
        }
    }
}

/* Entries ascend, so that a state that is updated in place is read before it is written. */
extern "C" __global__ void __launch_bounds__(THREADS) final_states(const arguments a) {
    const conv_problem &p = a.p;
    const i64 tiles = (p.channels + THREADS - 1) / THREADS, n = blockIdx.x / tiles;
    const i64 c = blockIdx.x % tiles * THREADS + threadIdx.x, to = conv_slot(&p, 1, n);
    if (c >= p.channels || to < 0) return;
    const line l = {p, seq_of(&p.sequences, n), c, conv_slot(&p, p.has_before, n)};
    for (int i = 0; i < WIDTH - 1; i++)
        store(p.after.data, conv_state_at(&p.after, to, c) + i,
              l.entry(l.range.end - l.range.begin + i));
}

DEVICE float slope_of(float z, float d) {
    if (!SILU) return d;
    const float s = 1 / (1 + power_of_2(-z * LOG2_E));
    return d * s * (1 + z * (1 - s));
}

extern "C" __global__ void __launch_bounds__(THREADS) gradients(const arguments a) {
    const conv_problem &p = a.p;
    const share s = share_of(p);
    if (s.c >= p.channels) return;
    float sums[WIDTH + 1] = {};
    for (i64 token = s.begin; token < s.end;) {
        const i64 n = seq_find(&p.sequences, s.row, token);
        const i64 stop = seq_stop(&p.sequences, n, token, s.end), first = token;
        if (n < 0) {
            for (; token < stop && p.d_x.data; token++)
                store(p.d_x.data, conv_at(&p.d_x, s.row, token) + s.c, 0);
            token = stop;
            continue;
        }
        const line l = {p, seq_of(&p.sequences, n), s.c, conv_slot(&p, p.has_before, n)};
        const i64 length = l.range.end - l.range.begin;
        float slope[WIDTH] = {}; /* of the last WIDTH tokens */
        window w;
        w.open(l, token);
        for (; token < stop + WIDTH - 1; token++) {
#pragma unroll
            for (int i = 1; i < WIDTH; i++) slope[i - 1] = slope[i];
            slope[WIDTH - 1] = 0;
            if (token < l.range.end) {
                const float z = w.next(l, token);
                slope[WIDTH - 1] =
                    slope_of(z, load(p.y.data, conv_at(&p.y, s.row, token) + s.c));
            }
            if (token < stop) {
#pragma unroll
                for (int i = 0; i < WIDTH; i++) sums[i] = fmaf(slope[WIDTH - 1], w.x[i], sums[i]);
                sums[WIDTH] += slope[WIDTH - 1];
            }
            const i64 own = token - WIDTH + 1, late = own - l.range.begin + WIDTH - 1 - length;
            if (own < first || !p.d_x.data) continue;
            float sum = 0;
            if (p.has_after && late >= 0)
                sum = load(p.after.data, conv_state_at(&p.after, n, s.c) + late);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sum = fmaf(w.tap[WIDTH - 1 - i], slope[i], sum);
            store(p.d_x.data, conv_at(&p.d_x, s.row, own) + s.c, sum);
        }
        token = stop;
    }
    for (int i = 0; i <= WIDTH; i++)
        a.sums[(s.segment * (WIDTH + 1) + i) * p.channels + s.c] = sums[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) add_sums(const arguments a) {
    const conv_problem &p = a.p;
    const i64 c = (i64)blockIdx.x * THREADS + threadIdx.x;
    const i64 segments = p.batch * ((p.sequences.tokens + SEGMENT - 1) / SEGMENT);
    if (c >= p.channels) return;
    for (int i = 0; i <= WIDTH; i++) {
        const float sum =
            sum_in_order(a.sums + i * p.channels + c, segments, (WIDTH + 1) * p.channels);
        if (i < WIDTH && p.d_weight.data)
            store(p.d_weight.data, conv_state_at(&p.d_weight, 0, c) + i, sum);
        if (i == WIDTH && p.d_bias) store(p.d_bias, c, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) initial_states(const arguments a) {
    const conv_problem &p = a.p;
    const i64 tiles = (p.channels + THREADS - 1) / THREADS, n = blockIdx.x / tiles;
    const i64 c = blockIdx.x % tiles * THREADS + threadIdx.x;
    if (c >= p.channels) return;
    const line l = {p, seq_of(&p.sequences, n), c, conv_slot(&p, p.has_before, n)};
    const i64 length = l.range.end - l.range.begin;
    for (i64 j = 0; j < WIDTH - 1; j++) {
        float sum = 0;
        if (p.has_after && j >= length)
            sum = load(p.after.data, conv_state_at(&p.after, n, c) + j - length);
        for (i64 t = 0; t <= j && t < length; t++) {
            float z = p.has_bias ? load(p.bias, c) : 0;
            for (int i = 0; i < WIDTH; i++) z = fmaf(l.tap(i), l.entry(t + i), z);
            const float d = load(p.y.data, conv_at(&p.y, l.range.row, l.range.begin + t) + c);
            sum = fmaf(l.tap((int)(j - t)), slope_of(z, d), sum);
        }
        store(p.d_before.data, conv_state_at(&p.d_before, n, c) + j, sum);
    }
}
