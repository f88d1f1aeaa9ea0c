/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence token by token on GPUs, for every member: a block has COLUMNS columns of the state of a head of a
 * sequence, which stay in registers. Its warps prepare TOKENS tokens at a time in shared memory; then each thread takes
 * its column through them. Columns never meet, so that bits do not depend on blocks. With packed sequences the last
 * REST blocks clear the tokens that are in none.
 *
 * Constants: PARTS, THREADS, TOKENS, UPDATE, BEFORE, REST.
 */
#include "operations/recurrent/cuda/token.cuh"

struct arguments {
    rec_problem p;
};

DEVICE void step(const rec_problem &p, const rec_sequence &q, rec_size h, rec_size j, const token &t,
                 float (&s)[ROWS]) {
    const rec_view &out = p.view[REC_OUT], &value = p.view[REC_VALUE];
    const bool is_there = j < p.value_size;
    const rec_size place = rec_at(&out, q.batch, t.t, h) + j;
    float y = 0;
    if (t.resets)
#pragma unroll
        for (int r = 0; r < ROWS; r++) s[r] = 0;
    if (t.counts) {
        const rec_size own = rec_at(&value, q.batch, t.t, rec_head(&p, h, p.value_heads)) + j;
        const float v = is_there ? load(value, own) : 0, dv = value_decay(p, q, t.t, h, j);
        float x = UPDATE == REC_ADD ? 0 : along(t.x, s), u = UPDATE == REC_ADD ? t.beta * v : v;
        y = along(t.y, s);
        if (UPDATE == REC_DELTA) x *= dv, u = t.beta * (v - x);
        if (!BEFORE) y *= dv;
        y += t.own * v + t.qk * u;
        if (UPDATE == REC_RANK_ONE) y += t.qa * x;
        update(t, dv, u, x, s);
    }
    if (is_there && threadIdx.x % PARTS == 0) store(out, place, y);
}

extern "C" __global__ void __launch_bounds__(THREADS) scan(const __grid_constant__ arguments a) {
    extern __shared__ __align__(16) char memory[];
    token *tokens = (token *)memory;
    const rec_problem &p = a.p;
    const rec_size tiles = (p.value_size + COLUMNS - 1) / COLUMNS;
    const rec_size blocks = p.sequences * p.heads * tiles;
    if (blockIdx.x >= blocks) {
        clear_rest(p, blockIdx.x - blocks, REST);
        return;
    }
    const rec_size h = blockIdx.x / tiles % p.heads;
    const rec_size j = blockIdx.x % tiles * COLUMNS + threadIdx.x / PARTS;
    const rec_sequence q = rec_sequence_of(&p, blockIdx.x / tiles / p.heads);
    const rec_size steps = q.end - q.begin;
    float s[ROWS];
    load_state(p, p.view[REC_INITIAL], q.row, h, j, s);
    for (rec_size n = 0; n < steps; n += TOKENS) {
        const int count = steps - n < TOKENS ? (int)(steps - n) : TOKENS;
        __syncthreads();
        for (int i = threadIdx.x / 32; i < count; i += WARPS)
            load_token<false>(p, q, n + i, h, tokens[i]);
        __syncthreads();
        for (int i = 0; i < count; i++) step(p, q, h, j, tokens[i], s);
    }
    store_state(p, p.view[REC_FINAL], q.row, h, j, s);
}
