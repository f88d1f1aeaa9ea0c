/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence token by token on GPUs, for every member: a block has COLUMNS columns of the state of a head of a
 * sequence, which stay in registers of its first THREADS threads. Warps behind these prepare tokens in shared memory,
 * one each of the TOKENS of a stage; what a token is made of is loaded while the one before is made. Threads of a
 * column add up what the state says of a token at once where the next state needs it; parts of outputs are added up of
 * all tokens of a stage together. Columns never meet, so that bits do not depend on blocks. With packed sequences the
 * last REST blocks clear the tokens that are in none.
 *
 * Constants: PARTS, ROWS, ACROSS, THREADS, TOKENS (1, 2, 4, 8), UPDATE, BEFORE, KEY_DECAY, VALUE_DECAY, ROW_TYPE, REST.
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

struct __align__(16) stage {
    token tokens[TOKENS];
    float value[TOKENS][COLUMNS];
    float decay[VALUE_DECAY ? TOKENS : 1][VALUE_DECAY ? COLUMNS : 4];
    u32 counts, resets; /* a bit for each token */
};

/* What a block works on. */
struct work {
    rec_sequence q;
    rec_size h, j, steps; /* the first column */
    int rounds;
};

/* ---- Who prepares tokens ---------------------------------------------------------------------------- */

/* Bits of a token: of its rows, and of its values for the block's columns. */
struct ahead {
    token_bits rows;
    u32 values[LOADS];
};

/* Of a token, of whose values the block has so many from `values` on. */
DEVICE void load_ahead(const rec_problem &p, const token_sources &from, const char *values, int count, ahead &to) {
    const int lane = threadIdx.x % 32;
    load_token_bits(p, from, to.rows);
#pragma unroll
    for (int n = 0; n < LOADS; n++) to.values[n] = 0;
    if (type_of(p, REC_VALUE) == F32) {
#pragma unroll
        for (int n = 0; n < LOADS; n++)
            if (lane + 32 * n < count) to.values[n] = ((const u32 *)values)[lane + 32 * n];
    } else {
#pragma unroll
        for (int n = 0; n < LOADS; n++)
            if (lane + 32 * n < count) to.values[n] = ((const u16 *)values)[lane + 32 * n];
    }
}

DEVICE void put_columns(const rec_problem &p, const work &w, rec_size t, const u32 (&values)[LOADS], int i, stage &to) {
#pragma unroll
    for (int n = 0; n < LOADS; n++) {
        const int column = threadIdx.x % 32 + 32 * n;
        if (column >= COLUMNS) break;
        to.value[i][column] = widen_number(type_of(p, REC_VALUE), values[n]);
        if (VALUE_DECAY) to.decay[i][column] = value_decay(p, w.q, t, w.h, w.j + column);
    }
}

/* `bytes`: from a token of each tensor to that of the next round. */
DEVICE void prepare(const rec_problem &p, const work &w, stage *stages, const rec_size *bytes) {
    const int own = (threadIdx.x - THREADS) / 32, lane = threadIdx.x % 32, steps = (int)w.steps;
    const int count = p.value_size - w.j < COLUMNS ? (int)(p.value_size - w.j) : COLUMNS;
    const rec_size first = rec_token(&p, &w.q, own);
    const char *values = source_of(p, REC_VALUE, w.q.batch, w.h, p.value_heads).at +
                         w.j * (p.view[REC_VALUE].dtype == F32 ? 4 : 2) + bytes_to(p, REC_VALUE, first);
    token_sources from = sources_of(p, w.q, w.h);
    ahead next;
    advance(p, from, [&](int role) { return bytes_to(p, role, first); });
    if (own < steps) load_ahead(p, from, values, count, next);
    for (int round = 0; round < w.rounds; round++) {
        const int step = round * TOKENS, left = steps - step;
        const token_sources here = from;
        const ahead bits = next;
        stage &to = stages[round % STAGES];
        u32 counts = (1u << lesser(left, TOKENS)) - 1, resets = 0;
        advance(p, from, [&](int role) { return bytes[role]; });
        values += bytes[REC_VALUE];
        if (own + TOKENS < left) load_ahead(p, from, values, count, next);
        if (p.view[REC_SEGMENTS].present) {
            rec_turn turn = {0, 0};
            if (lane < lesser(left, TOKENS)) turn = rec_turn_of(&p, &w.q, step + lane);
            counts = __ballot_sync(~0u, turn.counts), resets = __ballot_sync(~0u, turn.resets);
        }
        if (round >= STAGES) named_barrier_sync(EMPTY + round % STAGES, ALL);
        if (counts >> own & 1) {
            put_token(p, here, bits.rows, to.tokens[own]);
            put_columns(p, w, rec_token(&p, &w.q, step + own), bits.values, own, to);
        }
        if (own == 0 && lane == 0) to.counts = counts, to.resets = resets;
        __syncwarp(); /* one lane has written more than the others */
        named_barrier_arrive(FULL + round % STAGES, ALL);
    }
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

/* A token of a stage; the thread's parts of what is read of the state. */
DEVICE void pass_token(const stage &g, int i, float (&s)[ACROSS][ROWS], float *y) {
    const int column = threadIdx.x / PARTS * ACROSS;
    const token &t = g.tokens[i];
    float v[ACROSS], dv[ACROSS], u[ACROSS], x[ACROSS], sums[ACROSS];
#pragma unroll
    for (int c = 0; c < ACROSS; c++) v[c] = g.value[i][column + c], dv[c] = VALUE_DECAY ? g.decay[i][column + c] : 1;
    if (BEFORE) along_rows(t.y, s, sums);
    pass(t, v, dv, s, u, x);
    if (!BEFORE) along_rows(t.y, s, sums);
#pragma unroll
    for (int c = 0; c < ACROSS; c++) /* only sums have values that pass by the state */
        y[c] = (UPDATE == REC_ADD || BEFORE) && threadIdx.x % PARTS == 0 ? sums[c] + t.own * v[c] : sums[c];
}

/* Where the head's outputs are stored. */
struct output {
    const rec_view &view;
    rec_size at;
};
DEVICE void put_out(const rec_problem &p, const work &w, const output &out, rec_size step, int column, float y) {
    if (step < w.steps && w.j + column < p.value_size)
        store(out.view, out.at + rec_token(&p, &w.q, step) * out.view.stride[1] + column, y);
}

/* All tokens of a stage, where all count and none begins anew. */
DEVICE void pass_stage(const rec_problem &p, const work &w, const stage &g, const output &out, int round,
                       float (&s)[ACROSS][ROWS]) {
    constexpr int COUNT = TOKENS * ACROSS, LEFT = COUNT > PARTS ? COUNT / PARTS : 1;
    constexpr int SAME = PARTS > COUNT ? PARTS / COUNT : 1;
    const int part = threadIdx.x % PARTS, column = threadIdx.x / PARTS * ACROSS;
    float y[COUNT];
#pragma unroll
    for (int i = 0; i < TOKENS; i++) pass_token(g, i, s, y + i * ACROSS);
    add_parts<COUNT, PARTS>(y);
    if (part % SAME != 0) return;
#pragma unroll
    for (int n = 0; n < LEFT; n++) {
        const int own = part / SAME * LEFT + n;
        put_out(p, w, out, (rec_size)round * TOKENS + own / ACROSS, column + own % ACROSS, y[n]);
    }
}

/* Any; sums have the same order. */
DEVICE void pass_any(const rec_problem &p, const work &w, const stage &g, const output &out, int round,
                     float (&s)[ACROSS][ROWS]) {
    const int column = threadIdx.x / PARTS * ACROSS;
#pragma unroll 1
    for (int i = 0; i < TOKENS; i++) {
        float y[ACROSS] = {};
        if (g.counts >> i & 1) {
            if (g.resets >> i & 1)
#pragma unroll
                for (int r = 0; r < ROWS * ACROSS; r++) s[r / ROWS][r % ROWS] = 0;
            pass_token(g, i, s, y);
        }
#pragma unroll
        for (int c = 0; c < ACROSS; c++) {
            y[c] = sum_of_lanes(y[c], PARTS);
            if (threadIdx.x % PARTS == 0) put_out(p, w, out, (rec_size)round * TOKENS + i, column + c, y[c]);
        }
    }
}

DEVICE void walk(const rec_problem &p, const work &w, const stage *stages) {
    const rec_size j = w.j + threadIdx.x / PARTS * ACROSS;
    const output out = {p.view[REC_OUT], rec_at(&p.view[REC_OUT], w.q.batch, 0, w.h) + w.j};
    float s[ACROSS][ROWS];
#pragma unroll
    for (int c = 0; c < ACROSS; c++) load_state(p, p.view[REC_INITIAL], w.q.row, w.h, j + c, s[c]);
    for (int round = 0; round < w.rounds; round++) {
        const stage &own = stages[round % STAGES];
        named_barrier_sync(FULL + round % STAGES, ALL);
        if (own.counts == (1u << TOKENS) - 1 && own.resets == 0)
            pass_stage(p, w, own, out, round, s);
        else
            pass_any(p, w, own, out, round, s);
        __syncwarp();
        if (round + STAGES < w.rounds) named_barrier_arrive(EMPTY + round % STAGES, ALL);
    }
#pragma unroll
    for (int c = 0; c < ACROSS; c++) store_state(p, p.view[REC_FINAL], w.q.row, w.h, j + c, s[c]);
}

extern "C" __global__ void __launch_bounds__(ALL) scan(const __grid_constant__ arguments a) {
    extern __shared__ __align__(16) char memory[];
    __shared__ rec_size bytes[REC_GV];
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
    if (threadIdx.x < REC_GV) bytes[threadIdx.x] = bytes_to(p, threadIdx.x, p.reverse ? -TOKENS : TOKENS);
    __syncthreads();
    if (threadIdx.x < THREADS)
        walk(p, w, (stage *)memory);
    else
        prepare(p, w, (stage *)memory, bytes);
}
