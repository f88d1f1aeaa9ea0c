/* SPDX-License-Identifier: Apache-2.0 */
/*
 * causal_conv1d and its gradients: a thread takes a segment of tokens of VECTOR channels and keeps their windows of
 * WIDTH entries in registers, the loads of the next BATCH tokens under way; neighbouring threads take neighbouring
 * channels. Gradients compute cotangents of the sums for WIDTH - 1 tokens beyond their own. Sums over tokens are added
 * up in order of segments: bits are the same each time, and with any VECTOR. GRADIENT chooses between the two.
 */
#include "kernels/cuda/element.cuh"
#include "operations/state_space/causal_conv1d/problem.cuh"

#define THREADS 128
#define BATCH   (WIDTH > 8 ? 1 : GRADIENT ? 4 : 8)

typedef run_of<ELEMENT, VECTOR> run;

struct arguments {
    conv_problem p;
    float *sums; /* [segments][WIDTH + 1][channels] */
    i64 segment; /* tokens */
};

DEVICE run get(const conv_rows &rows, i64 row, i64 token, i64 c) {
    return *(const run *)((const element *)rows.data + conv_at(&rows, row, token) + c);
}
DEVICE void put(const conv_rows &rows, i64 row, i64 token, i64 c, const float (&values)[VECTOR]) {
    run result;
#pragma unroll
    for (int v = 0; v < VECTOR; v++) result.at[v] = narrow(values[v]);
    *(run *)((element *)rows.data + conv_at(&rows, row, token) + c) = result;
}

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
    float tap[WIDTH][VECTOR], bias[VECTOR], x[WIDTH][VECTOR];

    DEVICE_MEMBER void open(const conv_problem &p, const seq_range &range, i64 c, i64 slot, i64 token) {
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            const line l = {p, range, c + v, slot};
            bias[v] = p.has_bias ? load(p.bias, c + v) : 0;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) tap[i][v] = l.tap(i);
#pragma unroll
            for (int i = 1; i < WIDTH; i++) x[i][v] = l.entry(token - range.begin + i - 1);
        }
    }
    /* Takes the next token, and computes its sums. */
    DEVICE_MEMBER void next(const run &token, float (&sum)[VECTOR]) {
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
#pragma unroll
            for (int i = 1; i < WIDTH; i++) x[i - 1][v] = x[i][v];
            x[WIDTH - 1][v] = widen(token.at[v]);
            sum[v] = bias[v];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sum[v] = fmaf(tap[i][v], x[i][v], sum[v]);
        }
    }
};

struct share {
    i64 c, segment, row, begin, end;
};

DEVICE share share_of(const arguments &a) {
    const i64 tokens = a.p.sequences.tokens, runs = a.p.channels / VECTOR;
    const i64 n = (i64)blockIdx.x * THREADS + threadIdx.x, segment = n / runs;
    const i64 each = (tokens + a.segment - 1) / a.segment, at = segment % each * a.segment;
    return {n % runs * VECTOR, segment, segment / each, at, at + a.segment < tokens ? at + a.segment : tokens};
}

#if !GRADIENT

extern "C" __global__ void __launch_bounds__(THREADS, 4) forward(const arguments a) {
    const conv_problem &p = a.p;
    const share s = share_of(a);
    if (s.row >= p.batch) return;
    for (i64 token = s.begin; token < s.end;) {
        const i64 n = seq_find(&p.sequences, s.row, token);
        const i64 stop = seq_stop(&p.sequences, n, token, s.end);
        if (n < 0) {
            for (; token < stop; token++) put(p.y, s.row, token, s.c, {});
            continue;
        }
        window w;
        w.open(p, seq_of(&p.sequences, n), s.c, conv_slot(&p, p.has_before, n), token);
        const auto take = [&](i64 now, const run &x) {
            float z[VECTOR];
            w.next(x, z);
#pragma unroll
            for (int v = 0; v < VECTOR; v++)
                if (SILU) z[v] *= logistic(z[v]);
            put(p.y, s.row, now, s.c, z);
        };
        run x[BATCH], ahead[BATCH];
        const auto read_ahead = [&](i64 from) {
            if (from + BATCH > stop) return;
#pragma unroll
            for (int k = 0; k < BATCH; k++) ahead[k] = get(p.x, s.row, from + k, s.c);
        };
        read_ahead(token);
        for (; token + BATCH <= stop; token += BATCH) {
#pragma unroll
            for (int k = 0; k < BATCH; k++) x[k] = ahead[k];
            read_ahead(token + BATCH);
#pragma unroll
            for (int k = 0; k < BATCH; k++) take(token + k, x[k]);
        }
        for (; token < stop; token++) take(token, get(p.x, s.row, token, s.c));
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

#else

DEVICE float slope_of(float z, float d) {
    if (!SILU) return d;
    const float s = logistic(z);
    return d * s * (1 + z * (1 - s));
}

/* Four blocks on an SM: what is spilled for them is not of the loop over batches. */
extern "C" __global__ void __launch_bounds__(THREADS, 4) gradients(const arguments a) {
    const conv_problem &p = a.p;
    const share s = share_of(a);
    if (s.row >= p.batch) return;
    float sums[WIDTH + 1][VECTOR] = {};
    for (i64 token = s.begin; token < s.end;) {
        const i64 n = seq_find(&p.sequences, s.row, token);
        const i64 stop = seq_stop(&p.sequences, n, token, s.end), first = token;
        if (n < 0) {
            for (; token < stop && p.d_x.data; token++) put(p.d_x, s.row, token, s.c, {});
            token = stop;
            continue;
        }
        const seq_range range = seq_of(&p.sequences, n);
        const i64 last = stop + WIDTH - 1;
        float slope[WIDTH][VECTOR] = {}; /* of the last WIDTH tokens */
        window w;
        w.open(p, range, s.c, conv_slot(&p, p.has_before, n), token);
        /* The slope of a token's sums; those of the thread's own tokens count. */
        const auto take = [&](const run &x, const run &y, bool is_there, bool counts) {
            float z[VECTOR] = {};
            if (is_there) w.next(x, z);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
#pragma unroll
                for (int i = 1; i < WIDTH; i++) slope[i - 1][v] = slope[i][v];
                slope[WIDTH - 1][v] = is_there ? slope_of(z[v], widen(y.at[v])) : 0;
                if (!counts) continue;
#pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    sums[i][v] = fmaf(slope[WIDTH - 1][v], w.x[i][v], sums[i][v]);
                sums[WIDTH][v] += slope[WIDTH - 1][v];
            }
        };
        /* Adds to what a token has of the final state the slopes of those that it is in the windows of. */
        const auto put_d_x = [&](i64 own, float(&sum)[VECTOR]) {
            if (!p.d_x.data) return;
#pragma unroll
            for (int v = 0; v < VECTOR; v++)
#pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    sum[v] = fmaf(w.tap[WIDTH - 1 - i][v], slope[i][v], sum[v]);
            put(p.d_x, s.row, own, s.c, sum);
        };
        run x[BATCH], y[BATCH], ahead_x[BATCH], ahead_y[BATCH];
        const auto read_ahead = [&](i64 from) {
            if (from + BATCH > stop) return;
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                ahead_x[k] = get(p.x, s.row, from + k, s.c);
                ahead_y[k] = get(p.y, s.row, from + k, s.c);
            }
        };
        while (token < last) {
            if (token >= first + WIDTH - 1 && token + BATCH <= stop) {
                read_ahead(token);
                for (; token + BATCH <= stop; token += BATCH) {
#pragma unroll
                    for (int k = 0; k < BATCH; k++) {
                        x[k] = ahead_x[k];
                        y[k] = ahead_y[k];
                    }
                    read_ahead(token + BATCH);
#pragma unroll
                    for (int k = 0; k < BATCH; k++) {
                        float sum[VECTOR] = {};
                        take(x[k], y[k], true, true);
                        put_d_x(token + k - WIDTH + 1, sum);
                    }
                }
            } else {
                const bool is_there = token < range.end;
                const i64 own = token - WIDTH + 1, late = token - range.end;
                run one_x = {}, one_y = {};
                if (is_there) one_x = get(p.x, s.row, token, s.c), one_y = get(p.y, s.row, token, s.c);
                take(one_x, one_y, is_there, token < stop);
                token++;
                if (own < first) continue;
                float sum[VECTOR] = {};
#pragma unroll
                for (int v = 0; v < VECTOR; v++)
                    if (p.has_after && late >= 0)
                        sum[v] = load(p.after.data, conv_state_at(&p.after, n, s.c + v) + late);
                put_d_x(own, sum);
            }
        }
        token = stop;
    }
#pragma unroll
    for (int i = 0; i <= WIDTH; i++)
#pragma unroll
        for (int v = 0; v < VECTOR; v++)
            a.sums[(s.segment * (WIDTH + 1) + i) * p.channels + s.c + v] = sums[i][v];
}

/* A thread for each channel and tap, and the bias. */
extern "C" __global__ void __launch_bounds__(THREADS) add_sums(const arguments a) {
    const conv_problem &p = a.p;
    const i64 n = (i64)blockIdx.x * THREADS + threadIdx.x, c = n % p.channels, i = n / p.channels;
    const i64 segments = p.batch * ((p.sequences.tokens + a.segment - 1) / a.segment);
    if (i > WIDTH || !(i < WIDTH ? p.d_weight.data : p.d_bias)) return;
    const float sum = sum_in_order(a.sums + n, segments, (WIDTH + 1) * p.channels);
    if (i < WIDTH)
        store(p.d_weight.data, conv_state_at(&p.d_weight, 0, c) + i, sum);
    else
        store(p.d_bias, c, sum);
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

#endif
