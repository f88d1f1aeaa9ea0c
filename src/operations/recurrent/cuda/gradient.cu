/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence backwards on GPUs, for every member: a block has a head of a sequence, a tile of COLUMNS columns after
 * the other, which lie in registers as in scan.cu. On the way there the states before every REC_SEGMENT-th token are
 * kept; backwards, those inside of a segment are made again into memory of the block, which an L2 cache holds for the
 * most part, and read once. Sums over columns are shuffles within a warp and sums over warps in shared memory; those
 * over tiles are added up in memory, by the same block. gradient.cuh has what is written, gradient_sums.cu what becomes
 * of it. Bits do not depend on the grid.
 *
 * Constants: PARTS, THREADS, TOKENS, UPDATE, BEFORE, KEY_DECAY.
 */
#define BACK 1
#include "operations/recurrent/cuda/token.cuh"
#include "operations/recurrent/cuda/gradient.cuh"

#define VECTORS     (UPDATE == REC_RANK_ONE ? 5 : KEY_DECAY ? 3 : 2)
#define WARP_FLOATS (VECTORS * PITCH + REC_NUMBERS)
#define STATE       (ROWS * THREADS)
#define STEP_FLOATS (STATE + 2 * THREADS)

/* What a block works on. */
struct work {
    rec_sequence q;
    rec_size h, tile, j, steps;
    token *tokens;
    float *sums; /* in shared memory, [WARPS][WARP_FLOATS] */
    float *kept, *states;
};

/* ---- States in memory: each thread its own, side by side --------------------------------------------- */

DEVICE void keep(float *to, const float (&s)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) to[r * THREADS + threadIdx.x] = s[r];
}
DEVICE void fetch(const float *from, float (&s)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) s[r] = from[r * THREADS + threadIdx.x];
}
DEVICE void clear(float (&s)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) s[r] = 0;
}

/* A function of its own: there are three calls of it, and it is long. */
static __device__ __noinline__ void load_tokens(const rec_problem &p, const work &w, rec_size first, int count) {
    const token_sources from = sources_of(p, w.q, w.h);
    __syncthreads();
    for (int i = threadIdx.x / 32; i < count; i += WARPS) load_token(p, from, w.q, first + i, w.tokens[i]);
    __syncthreads();
}

/* ---- The way there ---------------------------------------------------------------------------------- */

DEVICE float value_of_column(const rec_problem &p, const work &w, const token &t) {
    const rec_view &value = p.view[REC_VALUE];
    const rec_size at = rec_at(&value, w.q.batch, t.t, rec_head(&p, w.h, p.value_heads));
    return w.j < p.value_size ? load(value, at + w.j) : 0;
}

/* From the state before the first of `count` tokens to the one after them; to memory before each, unless it is NULL. */
DEVICE void pass_over(const rec_problem &p, const work &w, rec_size first, int count, float (&s)[1][ROWS],
                      float *states) {
    for (int n = 0; n < count; n += TOKENS) {
        const int few = lesser(count - n, TOKENS);
        load_tokens(p, w, first + n, few);
        for (int i = 0; i < few; i++) {
            const token &t = w.tokens[i];
            float u[1] = {}, x[1] = {};
            if (t.counts && t.resets) clear(s[0]);
            float *to = states + (n + i) * STEP_FLOATS;
            if (states) keep(to, s[0]);
            if (t.counts) {
                const float v[] = {value_of_column(p, w, t)}, dv[] = {value_decay(p, w.q, t.t, w.h, w.j)};
                pass(t, v, dv, s, u, x);
            }
            if (states) to[STATE + threadIdx.x] = u[0], to[STATE + THREADS + threadIdx.x] = x[0];
        }
    }
}

/* ---- Sums over columns ------------------------------------------------------------------------------ */

/* Halves the rows of a lane, and adds those of the lane `apart` from it. */
template <int count, int apart> struct halves {
    static DEVICE_MEMBER void add(float (&v)[ROWS]) {
        const bool is_high = threadIdx.x & apart;
#pragma unroll
        for (int r = 0; r < count / 2; r++) {
            const float own = is_high ? v[r + count / 2] : v[r], other = is_high ? v[r] : v[r + count / 2];
            v[r] = own + __shfl_xor_sync(~0u, other, apart);
        }
        halves<count / 2, apart / 2>::add(v);
    }
};
template <int count> struct halves<count, PARTS / 2> {
    static DEVICE_MEMBER void add(float (&)[ROWS]) {}
};

/* The warp's sums of a vector over its columns; a lane is left with PARTS rows. */
DEVICE void add_columns(float (&v)[ROWS], float *to) {
    halves<ROWS, 16>::add(v);
    int first = 0;
#pragma unroll
    for (int apart = 16, count = ROWS / 2; apart >= PARTS; apart /= 2, count /= 2)
        if (threadIdx.x & apart) first += count;
#pragma unroll
    for (int r = 0; r < PARTS; r++) to[row_of(first + r)] = v[r];
}

/* Those of a number; `is_each`: the lanes of a column have parts of it, else all have the same. */
DEVICE void add_number(float x, bool is_each, float *to) {
    const float sum = sum_of_lanes(is_each || threadIdx.x % PARTS == 0 ? x : 0, 32);
    if (threadIdx.x % 32 == 0) *to = sum;
}

/* All warps' sums to memory, or to what other tiles have left there. */
DEVICE void add_warps(const rec_problem &p, const work &w, float *row) {
    for (int n = threadIdx.x; n < WARP_FLOATS; n += THREADS) {
        const int vector = n / PITCH, i = n % PITCH;
        const bool is_number = n >= VECTORS * PITCH;
        if (!is_number && i >= p.key_size) continue;
        float *to = is_number ? row + VECTORS * p.key_size + p.value_size + (n - VECTORS * PITCH)
                              : row + vector * p.key_size + i;
        float sum = w.tile > 0 ? *to : 0;
        for (int warp = 0; warp < WARPS; warp++) sum += w.sums[warp * WARP_FLOATS + n];
        *to = sum;
    }
}

/* ---- The way back ----------------------------------------------------------------------------------- */

/* A token's numbers of a column. */
struct column {
    float dv, u, x, dh, d_out, back;
};

/* Sums over columns of a token's rows, one vector after the other: registers hold but one besides the two columns. */
DEVICE void sum_rows(const token &t, const column &c, const float (&s)[ROWS], const float (&d)[ROWS], float *sums) {
    float v[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) v[r] = (BEFORE ? s[r] : s[r] * (t.d[row_of(r)] * c.dv)) * c.d_out;
    add_columns(v, sums + REC_SUM_QUERY * PITCH);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int i = row_of(r);
        const float ds = d[r] + (BEFORE ? 0 : t.y[i] * c.d_out);
        v[r] = ds * c.u;
        if (UPDATE == REC_DELTA) v[r] += s[r] * (t.d[i] * c.dv) * c.back;
    }
    add_columns(v, sums + REC_SUM_KEY * PITCH);
    if (UPDATE == REC_RANK_ONE) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) v[r] = (d[r] + (BEFORE ? 0 : t.y[row_of(r)] * c.d_out)) * c.x;
        add_columns(v, sums + REC_SUM_A * PITCH);
#pragma unroll
        for (int r = 0; r < ROWS; r++) v[r] = s[r] * c.dh;
        add_columns(v, sums + REC_SUM_B * PITCH);
    }
}

/* d becomes the cotangent of the column before the token; s its gradients of log decays, of which the sum is given. */
DEVICE float back_rows(const token &t, const column &c, float (&s)[ROWS], float (&d)[ROWS]) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int i = row_of(r);
        const float factor = t.d[i] * c.dv, own = t.y[i] * c.d_out;
        float ds = d[r] + (BEFORE ? 0 : own) + t.k[i] * c.back;
        s[r] *= ds * factor;
        sum += s[r];
        ds *= factor;
        if (UPDATE == REC_RANK_ONE) ds += t.x[i] * c.dh;
        d[r] = ds + (BEFORE ? own : 0);
    }
    return sum;
}

DEVICE void back(const rec_gradient &a, const work &w, const token &t, const float *states, float (&d)[ROWS]) {
    const rec_problem &p = a.p;
    const rec_view &cotangent = p.view[REC_D_OUT], &d_gv = p.view[REC_D(REC_GV)];
    const bool is_there = w.j < p.value_size;
    float *row = a.sums + ((w.q.batch * p.tokens + t.t) * p.heads + w.h) * a.width;
    float *sums = w.sums + threadIdx.x / 32 * WARP_FLOATS, *numbers = sums + VECTORS * PITCH;
    float s[ROWS];
    column c = {value_decay(p, w.q, t.t, w.h, w.j), states[STATE + threadIdx.x],
                states[STATE + THREADS + threadIdx.x], 0, 0, 0};
    fetch(states, s);
    if (is_there && cotangent.present)
        c.d_out = (float)p.scale * load(cotangent, rec_at(&cotangent, w.q.batch, t.t, w.h) + w.j);
    const float du = along(t.k, d) + t.qk * c.d_out;
    if (UPDATE == REC_RANK_ONE) c.dh = along(t.a, d) + t.qa * c.d_out;
    if (UPDATE == REC_DELTA) c.back = -t.beta * du;
    sum_rows(t, c, s, d, sums);
    float gate = back_rows(t, c, s, d);
    if (VECTORS > 2) add_columns(s, sums + REC_SUM_GATE * PITCH);
    add_number(UPDATE == REC_RANK_ONE ? 0 : du * c.x, false, numbers + REC_D_BETA);
    add_number(gate, true, numbers + REC_D_HEAD);
    add_number(c.u * c.d_out, false, numbers + REC_ALONG_U);
    add_number(c.x * c.d_out, false, numbers + REC_ALONG_X);
    gate = sum_of_lanes(gate, PARTS);
    if (is_there && threadIdx.x % PARTS == 0) {
        row[VECTORS * p.key_size + w.j] = (UPDATE == REC_RANK_ONE ? 1 : t.beta) * du + t.own * c.d_out;
        if (d_gv.present) store(d_gv, rec_at(&d_gv, w.q.batch, t.t, w.h) + w.j, gate);
    }
    if (t.resets) clear(d);
    __syncthreads();
    add_warps(p, w, row);
    __syncthreads();
}

DEVICE void back_segment(const rec_gradient &a, const work &w, rec_size first, int count, float (&d)[ROWS]) {
    for (int n = (count - 1) / TOKENS * TOKENS; n >= 0; n -= TOKENS) {
        const int few = lesser(count - n, TOKENS);
        load_tokens(a.p, w, first + n, few);
        for (int i = few - 1; i >= 0; i--)
            if (w.tokens[i].counts) back(a, w, w.tokens[i], w.states + (n + i) * STEP_FLOATS, d);
    }
}

DEVICE void back_tile(const rec_gradient &a, const work &w) {
    const rec_problem &p = a.p;
    float s[1][ROWS], d[ROWS];
    load_state(p, p.view[REC_INITIAL], w.q.row, w.h, w.j, s[0]);
    for (rec_size n = 0; n < w.steps; n += REC_SEGMENT) {
        keep(w.kept + n / REC_SEGMENT * p.heads * STATE, s[0]);
        if (n + REC_SEGMENT < w.steps) pass_over(p, w, n, REC_SEGMENT, s, NULL);
    }
    load_state(p, p.view[REC_D_FINAL], w.q.row, w.h, w.j, d);
    for (rec_size n = (w.steps - 1) / REC_SEGMENT * REC_SEGMENT; n >= 0 && w.steps > 0; n -= REC_SEGMENT) {
        const int count = w.steps - n < REC_SEGMENT ? (int)(w.steps - n) : REC_SEGMENT;
        fetch(w.kept + n / REC_SEGMENT * p.heads * STATE, s[0]);
        pass_over(p, w, n, count, s, w.states);
        back_segment(a, w, n, count, d);
    }
    store_state(p, p.view[REC_D(REC_INITIAL)], w.q.row, w.h, w.j, d);
}

extern "C" __global__ void __launch_bounds__(THREADS) back_over(const __grid_constant__ rec_gradient a) {
    extern __shared__ __align__(16) char memory[];
    const rec_problem &p = a.p;
    work w;
    w.tokens = (token *)memory;
    w.sums = (float *)(w.tokens + TOKENS);
    w.states = a.states + (rec_size)blockIdx.x * (REC_SEGMENT * STEP_FLOATS);
    for (rec_size task = blockIdx.x; task < a.tasks; task += gridDim.x) {
        w.h = task % p.heads;
        w.q = rec_sequence_of(&p, task / p.heads);
        w.steps = w.q.end - w.q.begin;
        w.kept = a.kept + (rec_first_segment(&p, &w.q) * p.heads + w.h) * STATE;
        for (w.tile = 0; w.tile * COLUMNS < p.value_size; w.tile++) {
            w.j = w.tile * COLUMNS + threadIdx.x / PARTS;
            back_tile(a, w);
        }
    }
}
