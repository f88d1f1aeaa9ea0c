/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rwkv4 and its gradient: a thread has a channel of a sequence, CHUNK tokens at a time, whose loads are all under way
 * before the first is used. Gradients keep the state before each chunk on the way there; backwards, those of a chunk's
 * tokens are made again in registers. As on CPUs, what later tokens read of a state does not change if its shift grows
 * and the sums shrink as much, so that cotangents of the sums alone go back in time, and beside them what the last
 * state adds to that of the shift. Sums over tokens are those of a sequence, and add_sums() adds up sequences in order:
 * bits do not depend on the grid. With packed sequences clear() fills tokens that are in none.
 *
 * Constants: ELEMENT, THREADS, CHUNK.
 */
#include "kernels/cuda/element.cuh"
#include "operations/state_space/rwkv4/problem.cuh"

/* Of a sequence of the gradient the sums of rate and bonus, [N][2][C]; states before chunks, [chunks][3][C]. */
struct arguments {
    wkv_problem p;
    float *sums, *starts;
};

struct state {
    float values, sums, shift;
};

/* Weights of what was before and of the token itself, one of them 1; how much more the former's logarithm is. */
struct weights {
    float before, own, excess;
};

struct token {
    float k, v, out, sum;
    weights read, kept;
};

/* A channel of a sequence. */
struct channel {
    const wkv_problem &p;
    seq_range range;
    seq_size n, c;
    float rate, bonus;
};

/* ---- Memory ----------------------------------------------------------------------------------------- */

DEVICE float load_list(const wkv_states &s, seq_size entry, int number, seq_size c) {
    return load_float(s.dtype, s.data, wkv_state_at(&s, entry, number) + c);
}
DEVICE void store_list(const wkv_states &s, seq_size entry, int number, seq_size c, float value) {
    if (s.data) store_float(s.dtype, s.data, wkv_state_at(&s, entry, number) + c, value);
}

DEVICE element *row_at(const channel &l, const wkv_rows &r, seq_size t) {
    return (element *)r.data + wkv_at(&l.p, &r, l.range, t) + l.c;
}

/* Rows first … of `count`, of CHUNK; 0 behind them. */
DEVICE void load_rows(const channel &l, const wkv_rows &r, seq_size first, int count, float (&x)[CHUNK]) {
    element bits[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; i++) bits[i] = i < count ? *row_at(l, r, first + i) : (element)0;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) x[i] = widen(bits[i]);
}

/* The state that a sequence begins with, or the one it would go on from. */
DEVICE state first_state(const channel &l) {
    const seq_size slot = wkv_slot(&l.p, l.p.has_before, l.n);
    state s = {0, 0, (float)FIRST_SHIFT};
    if (slot >= 0)
        s = {load_list(l.p.before, slot, SUM_VALUES, l.c), load_list(l.p.before, slot, SUM_WEIGHTS, l.c),
             load_list(l.p.before, slot, SHIFT, l.c)};
    s.shift = s.shift < (float)LEAST_SHIFT ? (float)LEAST_SHIFT : s.shift;
    return s;
}

/* ---- A token ---------------------------------------------------------------------------------------- */

DEVICE weights weigh(float before, float own) {
    const float excess = before - own, less = expf(-fabsf(excess));
    return {excess > 0 ? 1 : less, excess > 0 ? less : 1, excess};
}
/* What a weight does not hide. */
DEVICE float seen(float weight, float value) {
    return weight > 0 ? value : 0;
}

DEVICE token token_of(const channel &l, const state &s, float k, float v) {
    token a = {k, v};
    a.read = weigh(s.shift, l.bonus + k);
    const float faded = s.shift - l.rate;
    a.kept = weigh(faded < (float)LEAST_SHIFT ? (float)LEAST_SHIFT : faded, k);
    a.sum = fmaf(a.read.before, s.sums, a.read.own);
    const float above = fmaf(a.read.before, s.values, a.read.own * seen(a.read.own, v));
    a.out = fabsf(a.sum) > 0 ? above / a.sum : a.sum;
    return a;
}

DEVICE void advance(const channel &l, const token &a, state &s) {
    const float faded = s.shift - l.rate;
    s.values = fmaf(a.kept.before, s.values, a.kept.own * seen(a.kept.own, a.v));
    s.sums = fmaf(a.kept.before, s.sums, a.kept.own);
    s.shift = faded < (float)LEAST_SHIFT ? (float)LEAST_SHIFT : faded;
    s.shift = a.k > s.shift || a.k != a.k ? a.k : s.shift;
}

/* ---- Forwards --------------------------------------------------------------------------------------- */

DEVICE bool channel_of(const wkv_problem &p, channel &l) {
    const seq_size blocks = (p.channels + THREADS - 1) / THREADS;
    l.n = blockIdx.x / blocks;
    l.c = blockIdx.x % blocks * THREADS + threadIdx.x;
    l.range = seq_of(&p.sequences, l.n);
    if (l.c >= p.channels) return false;
    l.rate = expf(load_list(p.w, 0, 0, l.c));
    l.bonus = load_list(p.u, 0, 0, l.c);
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS) forward(const __grid_constant__ arguments a) {
    const wkv_problem &p = a.p;
    channel l = {p};
    if (!channel_of(p, l)) return;
    const seq_size length = l.range.end - l.range.begin, to = wkv_slot(&p, p.has_after, l.n);
    state s = first_state(l);
    for (seq_size t = 0; t < length; t += CHUNK) {
        const int count = lesser((int)(length - t < CHUNK ? length - t : CHUNK), CHUNK);
        float k[CHUNK], v[CHUNK];
        load_rows(l, p.k, t, count, k);
        load_rows(l, p.v, t, count, v);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            if (i >= count) break;
            const token own = token_of(l, s, k[i], v[i]);
            advance(l, own, s);
            *row_at(l, p.y, t + i) = narrow(own.out);
        }
    }
    if (to < 0) return;
    store_list(p.after, to, SUM_VALUES, l.c, s.values);
    store_list(p.after, to, SUM_WEIGHTS, l.c, s.sums);
    store_list(p.after, to, SHIFT, l.c, s.shift);
}

/* ---- Backwards -------------------------------------------------------------------------------------- */

DEVICE float *start_of(const arguments &a, const channel &l, seq_size t) {
    const seq_size each = (a.p.sequences.tokens + CHUNK - 1) / CHUNK;
    const seq_size first = a.p.sequences.packed ? l.range.begin / CHUNK + l.n : l.n * each;
    return a.starts + (first + t / CHUNK) * STATE_NUMBERS * a.p.channels + l.c;
}

/* Between the cotangent of a state's shift and what it is beyond that of the sums. */
DEVICE float of_sums(const state &s, const state &d) {
    return fmaf(s.values, d.values, s.sums * d.sums);
}

struct totals {
    float rate, bonus;
};

/* `s` is the state before the token, d the cotangent of the one behind it, then of the one before. */
DEVICE void return_token(const channel &l, seq_size t, float k, float v, float d_out, const state &s, state &d,
                         totals &sum) {
    const token a = token_of(l, s, k, v);
    const float d_above = fabsf(a.sum) > 0 ? d_out / a.sum : a.sum, d_sum = -d_above * a.out;
    const float own = a.read.own * fmaf(seen(a.read.own, v), d_above, d_sum);
    const float kept = a.kept.own * fmaf(seen(a.kept.own, v), d.values, d.sums);
    const float faded = a.kept.before * fmaf(s.values, d.values, s.sums * d.sums);
    const float on_shift = a.kept.excess > 0 ? d.shift : 0;
    if (l.p.d_k.data) *row_at(l, l.p.d_k, t) = narrow(own + kept + (d.shift - on_shift));
    if (l.p.d_v.data) *row_at(l, l.p.d_v, t) = narrow(fmaf(a.read.own, d_above, a.kept.own * d.values));
    sum.bonus += own;
    sum.rate += faded + on_shift;
    d.values = fmaf(a.read.before, d_above, a.kept.before * d.values);
    d.sums = fmaf(a.read.before, d_sum, a.kept.before * d.sums);
    d.shift = on_shift;
}

/* Tokens t … of a chunk, from the last one on. */
DEVICE void return_chunk(const arguments &a, const channel &l, seq_size t, int count, state &d, totals &sum) {
    const wkv_problem &p = a.p;
    const float *from = start_of(a, l, t);
    float k[CHUNK], v[CHUNK], d_out[CHUNK];
    state s[CHUNK + 1];
    load_rows(l, p.k, t, count, k);
    load_rows(l, p.v, t, count, v);
    load_rows(l, p.y, t, count, d_out);
    s[0] = {from[0], from[p.channels], from[2 * p.channels]};
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        s[i + 1] = s[i];
        if (i < count) advance(l, token_of(l, s[i], k[i], v[i]), s[i + 1]);
    }
#pragma unroll
    for (int i = CHUNK - 1; i >= 0; i--)
        if (i < count) return_token(l, t + i, k[i], v[i], d_out[i], s[i], d, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) gradients(const __grid_constant__ arguments a) {
    const wkv_problem &p = a.p;
    channel l = {p};
    if (!channel_of(p, l)) return;
    const seq_size length = l.range.end - l.range.begin, to = wkv_slot(&p, p.has_after, l.n);
    state s = first_state(l), d = {0, 0, 0};
    totals sum = {0, 0};
    for (seq_size t = 0; t < length; t += CHUNK) {
        const int count = lesser((int)(length - t < CHUNK ? length - t : CHUNK), CHUNK);
        float k[CHUNK], v[CHUNK], *start = start_of(a, l, t);
        load_rows(l, p.k, t, count, k);
        load_rows(l, p.v, t, count, v);
        start[0] = s.values, start[p.channels] = s.sums, start[2 * p.channels] = s.shift;
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            if (i < count) advance(l, token_of(l, s, k[i], v[i]), s);
    }
    if (to >= 0)
        d = {load_list(p.after, to, SUM_VALUES, l.c), load_list(p.after, to, SUM_WEIGHTS, l.c),
             load_list(p.after, to, SHIFT, l.c)};
    d.shift -= of_sums(s, d);
    for (seq_size t = (length - 1) / CHUNK * CHUNK; t >= 0 && length > 0; t -= CHUNK)
        return_chunk(a, l, t, (int)(length - t < CHUNK ? length - t : CHUNK), d, sum);
    d.shift += of_sums(first_state(l), d);
    store_list(p.d_before, l.n, SUM_VALUES, l.c, d.values);
    store_list(p.d_before, l.n, SUM_WEIGHTS, l.c, d.sums);
    store_list(p.d_before, l.n, SHIFT, l.c, d.shift);
    a.sums[2 * l.n * p.channels + l.c] = sum.rate;
    a.sums[(2 * l.n + 1) * p.channels + l.c] = sum.bonus;
}

extern "C" __global__ void __launch_bounds__(THREADS) add_sums(const __grid_constant__ arguments a) {
    const wkv_problem &p = a.p;
    const seq_size c = blockIdx.x * (seq_size)THREADS + threadIdx.x;
    float rate = 0, bonus = 0;
    if (c >= p.channels) return;
    for (seq_size n = 0; n < p.sequences.count; n++) {
        rate += a.sums[2 * n * p.channels + c];
        bonus += a.sums[(2 * n + 1) * p.channels + c];
    }
    /* A rate of infinity keeps nothing: its sum is 0, and so is the gradient. */
    store_list(p.d_w, 0, 0, c, fabsf(rate) > 0 ? -rate * expf(load_list(p.w, 0, 0, c)) : rate);
    store_list(p.d_u, 0, 0, c, bonus);
}

DEVICE void clear_rows(const wkv_problem &p, const wkv_rows &r) {
    const seq_size first = seq_end(&p.sequences, p.sequences.count), count = (p.sequences.tokens - first) * p.channels;
    for (seq_size n = blockIdx.x * (seq_size)THREADS + threadIdx.x; r.data && n < count; n += gridDim.x * THREADS)
        ((element *)r.data)[(first + n / p.channels) * r.step + n % p.channels] = narrow(0);
}

extern "C" __global__ void __launch_bounds__(THREADS) clear(const __grid_constant__ arguments a) {
    if (!a.p.gradient) clear_rows(a.p, a.p.y);
    clear_rows(a.p, a.p.d_k);
    clear_rows(a.p, a.p.d_v);
}
