/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_space_v1 and its gradients: a thread takes a channel, token by token, with its state in registers; a warp has
 * channels of one group. Gradients keep states at the start of each CHUNK tokens and walk through chunks backwards.
 * Those of b and c are summed over a warp, then over warps in order: bits are the same each time.
 */
#include "kernels/cuda/element.cuh"
#include "operations/state_space/state_space_v1/problem.cuh"

#define THREADS 32

struct arguments {
    scan_problem p;
    float *starts; /* [chunks][STATES][channels] */
    float *states; /* [CHUNK + 1][STATES][channels] */
    float *sums;   /* [blocks][b, c][batch, tokens][STATES] */
};

DEVICE float list_at(const scan_states &s, i64 at) {
    if (s.dtype == F32) return ((const float *)s.data)[at];
    const u16 bits = ((const u16 *)s.data)[at];
    return s.dtype == BF16 ? value_of<BF16>(bits) : value_of<F16>(bits);
}
DEVICE void put_list(const scan_states &s, i64 at, float value) {
    if (s.dtype == F32)
        ((float *)s.data)[at] = value;
    else
        ((u16 *)s.data)[at] = s.dtype == BF16 ? bits_of<BF16>(value) : bits_of<F16>(value);
}

/* A channel: what does not depend on time. Lanes behind the last channel repeat it and write nothing. */
struct channel {
    const scan_problem &p;
    i64 e, group;
    bool own;
    float a[STATES], d, bias;

    DEVICE_MEMBER channel(const scan_problem &q, i64 block) : p(q) {
        const i64 width = p.channels / p.groups, blocks = (width + THREADS - 1) / THREADS;
        const i64 inside = block % blocks * THREADS + threadIdx.x;
        group = block / blocks;
        own = inside < width;
        e = group * width + (own ? inside : width - 1);
        for (int k = 0; k < STATES; k++)
            a[k] = k < p.states ? list_at(p.a, scan_state_at(&p.a, 0, e) + k) : 0;
        d = p.has_d ? list_at(p.d, e * p.d.channel) : 0;
        bias = p.has_bias ? list_at(p.dt_bias, e * p.dt_bias.channel) : 0;
    }
    DEVICE_MEMBER float at(const scan_rows &rows, i64 row, i64 token) const {
        return widen(((const element *)rows.data)[scan_at(&rows, row, token, 0) + e]);
    }
    DEVICE_MEMBER float shared(const scan_rows &rows, i64 row, i64 token, int k) const {
        return widen(((const element *)rows.data)[scan_at(&rows, row, token, group) + k]);
    }
    DEVICE_MEMBER void put(const scan_rows &rows, i64 row, i64 token, float value) const {
        if (own && rows.data)
            ((element *)rows.data)[scan_at(&rows, row, token, 0) + e] = narrow(value);
    }
    /* The step size of a token and its slope over dt. */
    DEVICE_MEMBER float step(i64 row, i64 token, float &slope) const {
        const float raw = at(p.dt, row, token) + bias;
        float u = raw;
        slope = 1;
        if (SOFTPLUS) {
            u = fmaxf(raw, 0) + log1pf(expf(-fabsf(raw)));
            if (raw != raw) u = raw;
            slope = logistic(raw);
        }
        const float least = (float)p.least, most = (float)p.most;
        if (u < least || u > most) slope = 0;
        return u < least ? least : u > most ? most : u;
    }
    /* States after a token; returns what is read. */
    DEVICE_MEMBER float walk(float (&h)[STATES], i64 row, i64 token) const {
        float slope;
        const float delta = step(row, token, slope), x = at(p.x, row, token);
        float y = d * x;
        for (int k = 0; k < STATES; k++) {
            if (k >= p.states) break;
            h[k] = fmaf(shared(p.b, row, token, k), delta * x, exp_of(a[k] * delta) * h[k]);
            y = fmaf(h[k], shared(p.c, row, token, k), y);
        }
        return y;
    }
    DEVICE_MEMBER void take(const scan_states &from, i64 slot, float (&h)[STATES]) const {
        for (int k = 0; k < STATES; k++)
            h[k] = slot < 0 || k >= p.states ? 0 : list_at(from, scan_state_at(&from, slot, e) + k);
    }
    DEVICE_MEMBER void keep(const scan_states &to, i64 slot, const float (&h)[STATES]) const {
        for (int k = 0; k < STATES; k++)
            if (own && k < p.states) put_list(to, scan_state_at(&to, slot, e) + k, h[k]);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) forward(const arguments args) {
    const scan_problem &p = args.p;
    const i64 n = blockIdx.x % p.sequences.count;
    const channel c(p, blockIdx.x / p.sequences.count);
    const seq_range range = seq_of(&p.sequences, n);
    float h[STATES];
    c.take(p.before, scan_slot(&p, p.has_before, n), h);
    for (i64 token = range.begin; token < range.end; token++) {
        float y = c.walk(h, range.row, token);
        if (GATE) {
            const float z = c.at(p.gate, range.row, token);
            y *= z * logistic(z);
        }
        c.put(p.y, range.row, token, y);
    }
    const i64 slot = scan_slot(&p, p.has_after, n);
    if (slot >= 0) c.keep(p.after, slot, h);
}

/* One token backwards; `before` has the states before and after it, one row after the other. */
DEVICE void back(const arguments &args, const channel &c, i64 row, i64 token, const float *before,
                 float (&d_h)[STATES], float (&d_a)[STATES], float &d_d, float &d_bias) {
    const scan_problem &p = args.p;
    float slope, dy = c.at(p.y, row, token), y, d_x, d_step = 0, d_input = 0;
    const float delta = c.step(row, token, slope), x = c.at(p.x, row, token), out = dy;
    if (GATE) {
        const float z = c.at(p.gate, row, token);
        dy *= z * logistic(z);
    }
    y = c.d * x;
    float *sums = args.sums + ((i64)blockIdx.x * 2 * p.batch * p.sequences.tokens +
                               row * p.sequences.tokens + token) * p.states;
    const i64 other = p.batch * p.sequences.tokens * p.states;
    for (int k = 0; k < STATES; k++) {
        if (k >= p.states) break;
        const float b = c.shared(p.b, row, token, k), read = c.shared(p.c, row, token, k);
        const float old = before[k * p.channels], now = before[(STATES + k) * p.channels];
        const float decay = exp_of(c.a[k] * delta);
        y = fmaf(now, read, y);
        d_h[k] = fmaf(dy, read, d_h[k]);
        const float sum_c = sum_of_lanes(c.own ? dy * now : 0, 32);
        const float sum_b = sum_of_lanes(c.own ? d_h[k] * delta * x : 0, 32);
        if (threadIdx.x == 0) sums[k] = sum_b, sums[other + k] = sum_c;
        d_input = fmaf(d_h[k], b, d_input);
        d_h[k] *= decay;
        d_step = fmaf(c.a[k], d_h[k] * old, d_step);
        d_a[k] = fmaf(delta, d_h[k] * old, d_a[k]);
    }
    d_x = fmaf(d_input, delta, dy * c.d);
    const float d_raw = fmaf(d_input, x, d_step) * slope;
    d_d = fmaf(dy, x, d_d);
    d_bias += d_raw;
    c.put(p.d_x, row, token, d_x);
    c.put(p.d_dt, row, token, d_raw);
    if (GATE && p.d_gate.data) {
        const float z = c.at(p.gate, row, token), s = logistic(z);
        c.put(p.d_gate, row, token, out * y * s * (1 + z * (1 - s)));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gradients(const arguments args) {
    const scan_problem &p = args.p;
    const channel c(p, blockIdx.x);
    float h[STATES], d_h[STATES], d_a[STATES] = {}, d_d = 0, d_bias = 0;
    const i64 each = STATES * p.channels;
    for (i64 n = 0; n < p.sequences.count; n++) {
        const seq_range range = seq_of(&p.sequences, n);
        c.take(p.before, scan_slot(&p, p.has_before, n), h);
        c.take(p.after, scan_slot(&p, p.has_after, n), d_h);
        for (i64 token = range.begin; token < range.end; token++) {
            const i64 at = token - range.begin;
            for (int k = 0; k < STATES && at % CHUNK == 0 && c.own && k < p.states; k++)
                args.starts[(at / CHUNK * p.states + k) * p.channels + c.e] = h[k];
            c.walk(h, range.row, token);
        }
        for (i64 i = (range.end - range.begin + CHUNK - 1) / CHUNK - 1; i >= 0; i--) {
            const i64 first = range.begin + i * CHUNK;
            const i64 end = first + CHUNK < range.end ? first + CHUNK : range.end;
            __syncwarp();
            for (int k = 0; k < STATES; k++)
                h[k] = k < p.states ? args.starts[(i * p.states + k) * p.channels + c.e] : 0;
            for (i64 token = first; token <= end; token++) {
                for (int k = 0; k < STATES; k++)
                    if (c.own) args.states[(token - first) * each + k * p.channels + c.e] = h[k];
                if (token < end) c.walk(h, range.row, token);
            }
            __syncwarp();
            for (i64 token = end - 1; token >= first; token--)
                back(args, c, range.row, token, args.states + (token - first) * each + c.e, d_h, d_a,
                     d_d, d_bias);
            __syncwarp();
        }
        if (p.d_before.data) c.keep(p.d_before, n, d_h);
    }
    if (p.d_a.data) c.keep(p.d_a, 0, d_a);
    if (c.own && p.d_d.data) put_list(p.d_d, c.e * p.d_d.channel, d_d);
    if (c.own && p.d_dt_bias.data) put_list(p.d_dt_bias, c.e * p.d_dt_bias.channel, d_bias);
}

/* A block for each token: sums of the warps of a group, or 0 of no sequence. */
extern "C" __global__ void __launch_bounds__(THREADS) add_sums(const arguments args) {
    const scan_problem &p = args.p;
    const i64 width = p.channels / p.groups, blocks = (width + THREADS - 1) / THREADS;
    const i64 row = blockIdx.x / p.sequences.tokens, token = blockIdx.x % p.sequences.tokens;
    const i64 all = p.batch * p.sequences.tokens;
    const bool any = seq_find(&p.sequences, row, token) >= 0;
    for (i64 i = threadIdx.x; i < 2 * p.groups * p.states; i += THREADS) {
        const i64 k = i % p.states, group = i / p.states % p.groups, which = i / p.states / p.groups;
        const scan_rows &rows = which ? p.d_c : p.d_b;
        float sum = 0;
        for (i64 b = 0; any && b < blocks; b++)
            sum += args.sums[(((group * blocks + b) * 2 + which) * all + blockIdx.x) * p.states + k];
        if (rows.data)
            ((element *)rows.data)[scan_at(&rows, row, token, group) + k] = narrow(sum);
    }
}

/* Tokens of no sequence, a block each. */
extern "C" __global__ void __launch_bounds__(THREADS) clear(const arguments args) {
    const scan_problem &p = args.p;
    if (seq_find(&p.sequences, 0, blockIdx.x) >= 0) return;
    const scan_rows rows[3] = {p.gradient ? p.d_x : p.y, p.d_dt, p.d_gate};
    for (int i = 0; i < 3; i++)
        for (i64 e = threadIdx.x; e < p.channels && rows[i].data; e += THREADS)
            ((element *)rows[i].data)[scan_at(&rows[i], 0, blockIdx.x, 0) + e] = narrow(0);
}
