/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over chunks backwards (chunk.cuh) for compute capability 9.0: as chunk_back.cu has it, but for products,
 * which are those of chunk_wide.cuh, of bf16. P and the inverse are squares, turned. TURNS blocks walk with the same
 * columns, and keep what is kept of chunks in turn. It begins while the walk forwards is under way, which leaves
 * multiprocessors idle, reads nothing of it, and ends after it.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128), GROUPS (1, 2), UPDATE, KEY_DECAY, STAGES (2, 3), TURNS (1, 2).
 */
#define SCORES   1
#define TURNED   1
#define INVERSES (UPDATE == REC_DELTA ? 1 : 0)
#include "operations/recurrent/cuda/chunk_wide.cuh"

template <bool keeps>
DEVICE void pass_chunk(const rec_chunked &a, const work &w, int chunk, char *memory, float (&d)[KEY_SIZE / 2]) {
    const u32 stage = shared_address(memory);
    const float *factors = (const float *)(memory + FACTOR);
    float y[32], z[32], x[8][4];
    u32 state[KEY_SIZE / 4], own[16], left[16];
    constexpr bool reads = keeps || UPDATE == REC_DELTA; /* of sums nothing that is read goes into the next */
    if (keeps) keep_state(a, w, a.cotangents, chunk, (float(&)[ROWS][4])d);
    if (reads) {
        pack_all(d, state);
        hold(state);
        clear(y);
        begin_read(state, stage + LEFT, y);
    }
    load_columns(w, stage, x);
    if (!a.p.view[REC_D_OUT].present) clear(x);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 by = factors_of(factors, REC_ASKED, n);
        own[2 * n] = pack(x[n][0], x[n][1]), own[2 * n + 1] = pack(x[n][2], x[n][3]);
        left[2 * n] = pack(x[n][0] * by.x, x[n][1] * by.y), left[2 * n + 1] = pack(x[n][2] * by.x, x[n][3] * by.y);
    }
    if (reads) {
        wgmma_wait<0>();
        hold(y);
        hold(state);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 by = factors_of(factors, REC_LEFT, n);
#pragma unroll
            for (int i = 0; i < 4; i++) y[4 * n + i] *= i % 2 ? by.y : by.x;
        }
    }
    decay_state(factors, 0, (float(&)[ROWS][4])d);
    hold(left);
    if (reads) {
        hold(own);
        begin_square(own, stage + SCORE, y, 1);
    }
    begin_update(left, stage + TILE, d);
    if (reads) {
        wgmma_wait<1>();
        hold(y);
        hold(own);
    }
    if (UPDATE == REC_DELTA) {
        pack_all(y, own);
        hold(own);
        clear(z);
        begin_square(own, stage + INVERSE, z, 0);
        wgmma_wait<0>();
        hold(z);
        hold(own);
        hold(d);
        hold(left);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float *betas = factors + KEY_SIZE + 8 * n + threadIdx.x % 4 * 2;
            const float2 by = KEY_DECAY ? *(const float2 *)betas : factors_of(factors, REC_UNSEEN, n);
            left[2 * n] = pack(-z[4 * n] * by.x, -z[4 * n + 1] * by.y);
            left[2 * n + 1] = pack(-z[4 * n + 2] * by.x, -z[4 * n + 3] * by.y);
        }
        hold(left);
        begin_update(left, stage, d);
        if (keeps) keep_rows(a, w, a.backs, chunk, (const float(&)[8][4])z);
    } else if (keeps) {
        keep_rows(a, w, a.backs, chunk, (const float(&)[8][4])y);
    }
    wgmma_wait<0>();
    hold(d);
    hold(left);
}

extern "C" __global__ void __launch_bounds__(ALL, RESIDENT) back_sm90(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(1024) char memory[];
    const rec_problem &p = a.p;
    const int turn = blockIdx.x % TURNS;
    work w = work_of(p, p.value_size / COLUMNS, blockIdx.x / TURNS);
    w.value = rows_in(p, p.view[REC_D_OUT], w.q, w.h, w.j);
    const int chunks = (w.steps + REC_CHUNK - 1) / REC_CHUNK;
    const bool has_values = p.view[REC_D_OUT].present;
    const auto copy = [&](int n, u32 stage) { copy_stage(a, w, chunks - 1 - n, stage, true, has_values, 2, 1); };
    if (has_copied<false>(w, chunks, memory, copy, [](int, char *) {})) return;
    float d[KEY_SIZE / 2];
    load_state(w, p.view[REC_D_FINAL], (float(&)[ROWS][4])d);
    pass_chunks(chunks, memory, [&](int n, char *stage) {
        if (n % TURNS == turn)
            pass_chunk<true>(a, w, chunks - 1 - n, stage, d);
        else if (TURNS > 1)
            pass_chunk<false>(a, w, chunks - 1 - n, stage, d);
    });
    if (turn == 0) store_state(w, p.view[REC_D(REC_INITIAL)], (const float(&)[ROWS][4])d);
    wait_for_previous();
}
