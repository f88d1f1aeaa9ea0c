/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence token by token on GPUs, for every member: a block has COLUMNS columns of the state of a head of a
 * sequence, which stay in registers of its first THREADS threads. Warps behind these prepare tokens in shared memory,
 * one each of the TOKENS of a stage, and store the outputs of those that were there before. Threads of a column add up
 * what the state says of a token at once where the next state needs it; parts of outputs are added up of all tokens of
 * a stage together. Columns never meet, so that bits do not depend on blocks. With packed sequences the last REST
 * blocks clear the tokens that are in none.
 *
 * Constants: PARTS, ROWS, THREADS, TOKENS (1, 2, 4, 8), UPDATE, BEFORE, KEY_DECAY, VALUE_DECAY, REST.
 */
#define BACK 0
#include "kernels/cuda/barrier.cuh"
#include "operations/recurrent/cuda/token.cuh"

#define STAGES 4
#define ALL    (THREADS + 32 * TOKENS)
#define LOADS  cdiv(COLUMNS, 32)
#define FULL   1 /* named barriers, one for each stage */
#define EMPTY  (FULL + STAGES)

struct arguments {
    rec_problem p;
};

struct stage {
    token tokens[TOKENS];
    float value[TOKENS][COLUMNS], out[TOKENS][COLUMNS];
    float decay[VALUE_DECAY ? TOKENS : 1][VALUE_DECAY ? COLUMNS : 4];
    u32 counts, resets, pad[2]; /* a bit for each token */
};

/* What a block works on. */
struct work {
    rec_sequence q;
    rec_size h, j, steps; /* the first column */
    int rounds;
};

/* ---- Who prepares tokens ---------------------------------------------------------------------------- */

/* Bits of the token's values as load_bits() has rows, for the block's columns. */
DEVICE void load_columns(const rec_problem &p, const work &w, rec_size t, u32 (&x)[LOADS]) {
    const rec_view &v = p.view[REC_VALUE];
    const rec_size at = rec_at(&v, w.q.batch, t, rec_head(&p, w.h, p.value_heads)) + w.j;
    const int lane = threadIdx.x % 32, count = p.value_size - w.j < COLUMNS ? (int)(p.value_size - w.j) : COLUMNS;
#pragma unroll
    for (int n = 0; n < LOADS; n++) x[n] = 0;
    if (v.dtype == F32) {
#pragma unroll
        for (int n = 0; n < LOADS; n++)
            if (lane + 32 * n < count) x[n] = ((const u32 *)v.data)[at + lane + 32 * n];
    } else {
#pragma unroll
        for (int n = 0; n < LOADS; n++)
            if (lane + 32 * n < count) x[n] = ((const u16 *)v.data)[at + lane + 32 * n];
    }
}
DEVICE void put_columns(const rec_problem &p, const work &w, rec_size t, const u32 (&x)[LOADS], int i, stage &to) {
    const int type = p.view[REC_VALUE].dtype;
#pragma unroll
    for (int n = 0; n < LOADS; n++) {
        const int column = threadIdx.x % 32 + 32 * n;
        if (column >= COLUMNS) break;
        to.value[i][column] = type == F32    ? __int_as_float(x[n])
                              : type == BF16 ? value_of<BF16>((u16)x[n])
                                             : value_of<F16>((u16)x[n]);
        if (VALUE_DECAY) to.decay[i][column] = value_decay(p, w.q, t, w.h, w.j + column);
    }
}

/* Stores what the warp's token of a round has come to, if there is one. */
DEVICE void store_columns(const rec_problem &p, const work &w, int round, const stage *stages) {
    const rec_view &v = p.view[REC_OUT];
    const int own = (threadIdx.x - THREADS) / 32;
    const rec_size step = (rec_size)round * TOKENS + own;
    const float *out = stages[round % STAGES].out[own];
    if (step >= w.steps) return;
    const rec_size at = rec_at(&v, w.q.batch, rec_token(&p, &w.q, step), w.h) + w.j;
    for (int column = threadIdx.x % 32; column < COLUMNS; column += 32)
        if (w.j + column < p.value_size) store(v, at + column, out[column]);
}

DEVICE void prepare(const rec_problem &p, const work &w, stage *stages) {
    const int own = (threadIdx.x - THREADS) / 32, lane = threadIdx.x % 32;
    for (int round = 0; round < w.rounds; round++) {
        const rec_size first = (rec_size)round * TOKENS, step = first + own;
        const token_at at = {w.q.batch, rec_token(&p, &w.q, step), w.h};
        stage &to = stages[round % STAGES];
        token_bits bits;
        u32 columns[LOADS];
        float head = 0, beta = 0;
        rec_turn turn = {0, 0};
        if (step < w.steps) {
            load_rows(p, at, bits);
            load_columns(p, w, at.t, columns);
            head = head_gate(p, w.q, at.t, w.h), beta = load_beta(p, w.q, at.t, w.h);
        }
        if (lane < TOKENS && first + lane < w.steps) turn = rec_turn_of(&p, &w.q, first + lane);
        const u32 counts = __ballot_sync(~0u, turn.counts), resets = __ballot_sync(~0u, turn.resets);
        if (round >= STAGES) {
            named_barrier_sync(EMPTY + round % STAGES, ALL);
            store_columns(p, w, round - STAGES, stages);
        }
        if (counts >> own & 1) {
            put_token(p, at, bits, head, beta, to.tokens[own]);
            put_columns(p, w, at.t, columns, own, to);
        }
        if (own == 0 && lane == 0) to.counts = counts, to.resets = resets;
        __syncwarp(); /* one lane has written more than the others */
        named_barrier_arrive(FULL + round % STAGES, ALL);
    }
    __syncthreads(); /* columns have been taken through all tokens */
    for (int round = larger(w.rounds - STAGES, 0); round < w.rounds; round++) store_columns(p, w, round, stages);
}

/* ---- Who has columns -------------------------------------------------------------------------------- */

/* Adds up parts of `count` numbers over `lanes` threads of a column, which are left with some each. */
template <int count, int lanes> DEVICE void add_parts(float *x) {
    if constexpr (lanes > 1 && count > 1) {
        const bool is_high = threadIdx.x & (lanes / 2);
#pragma unroll
        for (int n = 0; n < count / 2; n++) {
            const float mine = is_high ? x[n + count / 2] : x[n], other = is_high ? x[n] : x[n + count / 2];
            x[n] = mine + __shfl_xor_sync(~0u, other, lanes / 2);
        }
        add_parts<count / 2, lanes / 2>(x);
    } else if constexpr (lanes > 1) {
        x[0] = sum_of_lanes(x[0], lanes);
    }
}

/* A token of a stage; the thread's part of what is read of the state. */
DEVICE float pass_token(const stage &g, int i, float (&s)[ROWS]) {
    const int column = threadIdx.x / PARTS;
    const token &t = g.tokens[i];
    const float v = g.value[i][column], dv = VALUE_DECAY ? g.decay[i][column] : 1;
    float u, x, y = 0;
    if (BEFORE) y = along_rows(t.y, s);
    pass(t, v, dv, s, u, x);
    if (!BEFORE) y = along_rows(t.y, s);
    return threadIdx.x % PARTS == 0 ? y + t.own * v : y;
}

/* All tokens of a stage, where all count and none begins anew. */
DEVICE void pass_stage(stage &g, float (&s)[ROWS]) {
    const int part = threadIdx.x % PARTS;
    float y[TOKENS];
#pragma unroll
    for (int i = 0; i < TOKENS; i++) y[i] = pass_token(g, i, s);
    add_parts<TOKENS, PARTS>(y);
    constexpr int LEFT = TOKENS > PARTS ? TOKENS / PARTS : 1, SAME = PARTS > TOKENS ? PARTS / TOKENS : 1;
    if (part % SAME != 0) return;
#pragma unroll
    for (int n = 0; n < LEFT; n++) g.out[part / SAME * LEFT + n][threadIdx.x / PARTS] = y[n];
}

/* Any; sums have the same order. */
DEVICE void pass_any(stage &g, float (&s)[ROWS]) {
#pragma unroll 1
    for (int i = 0; i < TOKENS; i++) {
        float y = 0;
        if (g.counts >> i & 1) {
            if (g.resets >> i & 1)
#pragma unroll
                for (int r = 0; r < ROWS; r++) s[r] = 0;
            y = sum_of_lanes(pass_token(g, i, s), PARTS);
        }
        if (threadIdx.x % PARTS == 0) g.out[i][threadIdx.x / PARTS] = y;
    }
}

DEVICE void walk(const rec_problem &p, const work &w, stage *stages) {
    const rec_size j = w.j + threadIdx.x / PARTS;
    float s[ROWS];
    load_state(p, p.view[REC_INITIAL], w.q.row, w.h, j, s);
    for (int round = 0; round < w.rounds; round++) {
        stage &own = stages[round % STAGES];
        named_barrier_sync(FULL + round % STAGES, ALL);
        if (own.counts == (1u << TOKENS) - 1 && own.resets == 0)
            pass_stage(own, s);
        else
            pass_any(own, s);
        __syncwarp();
        if (round + STAGES < w.rounds) named_barrier_arrive(EMPTY + round % STAGES, ALL);
    }
    __syncthreads();
    store_state(p, p.view[REC_FINAL], w.q.row, w.h, j, s);
}

extern "C" __global__ void __launch_bounds__(ALL) scan(const __grid_constant__ arguments a) {
    extern __shared__ __align__(16) char memory[];
    const rec_problem &p = a.p;
    const rec_size tiles = (p.value_size + COLUMNS - 1) / COLUMNS;
    const rec_size blocks = p.sequences * p.heads * tiles;
    if (blockIdx.x >= blocks) {
        clear_rest(p, blockIdx.x - blocks, REST);
        return;
    }
    work w;
    w.h = blockIdx.x / tiles % p.heads;
    w.j = blockIdx.x % tiles * COLUMNS;
    w.q = rec_sequence_of(&p, blockIdx.x / tiles / p.heads);
    w.steps = w.q.end - w.q.begin;
    w.rounds = (int)((w.steps + TOKENS - 1) / TOKENS);
    if (threadIdx.x < THREADS)
        walk(p, w, (stage *)memory);
    else
        prepare(p, w, (stage *)memory);
}
