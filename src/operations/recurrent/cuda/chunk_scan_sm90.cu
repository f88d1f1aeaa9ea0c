/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over chunks (chunk.cuh) for compute capability 9.0: as chunk_scan.cu has it, but for products, which are
 * those of chunk_wide.cuh. What is read of the state is rounded to bf16, so that only of sums there is a state after
 * the last token: what is added to it has three pieces then (LEFTS). With KEEP no outputs are made, but what gradients
 * need is kept: the state before each chunk, and u. Where multiprocessors would be idle, TURNS blocks walk with the
 * same columns of the state, and make outputs of chunks in turn, or keep what is kept of them.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128), GROUPS (1, 2), UPDATE, KEY_DECAY, LEFTS (1, of sums 3), STAGES (2, 3),
 * TURNS (1, 2), REST, KEEP, MAKES (P, of sums with decays of heads).
 */
#define SCORES   (KEEP ? 0 : 1)
#define INVERSES (UPDATE == REC_DELTA ? 1 : 0)
#include "operations/recurrent/cuda/chunk_wide.cuh"
#include "operations/recurrent/cuda/chunk_outputs.cuh"

/* ---- Outputs ---------------------------------------------------------------------------------------- */

/*
 * By way of the values, which are read: a warpgroup's 64 columns, 128 bytes of each token, of which a warp stores 16.
 * Stores of 4 bytes, as sums lie, are four times as many and half of a sector each.
 */
DEVICE void put_outputs(const rec_problem &p, const work &w, int first, u32 stage, const float (&out)[8][4]) {
    const rec_view &v = p.view[REC_OUT];
    const int lane = threadIdx.x % 32, group = w.column / 64, row = w.column % 64 + lane / 8, piece = lane % 8;
    const u32 tile = stage + VALUE + group * PANEL;
    if (v.dtype == F32 || !w.is_whole) {
        store_outputs(p, w, first, out);
        return;
    }
#pragma unroll
    for (int n = 0; n < 8; n += 2)
        stmatrix_x4_trans(piece_at<64>(tile, 8 * (n + lane / 16) + lane % 8, w.column % 64 / 8 + lane / 8 % 2),
                          pack(out[n][0], out[n][1]), pack(out[n][2], out[n][3]), pack(out[n + 1][0], out[n + 1][1]),
                          pack(out[n + 1][2], out[n + 1][3]));
    const rec_size step = p.reverse ? -4 * v.stride[1] : 4 * v.stride[1];
    u16 *to = (u16 *)v.data + rec_at(&v, w.q.batch, rec_token(&p, &w.q, first + row), w.h) + w.j + 64 * group +
              8 * piece;
    named_barrier_sync(STORED + group, 128);
#pragma unroll
    for (int n = 0; n < 4; n++, to += step)
        if (first + row + 4 * n < w.steps) store_whole_piece(to, load_piece(piece_at<64>(tile, row + 4 * n, piece)));
}

/* ---- A chunk ---------------------------------------------------------------------------------------- */

/* `makes`: outputs, or what is kept; the state goes on either way. */
template <bool makes>
DEVICE void pass_chunk(const rec_chunked &a, const work &w, int chunk, char *memory, float (&s)[KEY_SIZE / 2]) {
    constexpr bool asks = makes && !KEEP, keeps = makes && KEEP;
    const u32 stage = shared_address(memory);
    const float *factors = (const float *)(memory + FACTOR);
    float seen[32], out[32], u[8][4];
    u32 state[KEY_SIZE / 4], own[16], left[16], written[16];
    if (keeps) keep_state(a, w, a.states, chunk, (float(&)[ROWS][4])s);
    if (asks || UPDATE != REC_ADD) {
        pack_all(s, state);
        hold(state);
    }
    if (UPDATE != REC_ADD) {
        clear(seen);
        begin_read(state, stage, seen);
    }
    if (asks) {
        clear(out);
        begin_read(state, stage + TILE, out);
    }
    if (UPDATE == REC_DELTA) {
        wgmma_wait<asks ? 1 : 0>();
        hold(seen);
        load_columns(w, stage, u);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 by = factors_of(factors, REC_SEEN, n);
#pragma unroll
            for (int i = 0; i < 4; i++) seen[4 * n + i] = u[n][i] - seen[4 * n + i] * (i % 2 ? by.y : by.x);
        }
        pack_all(seen, own);
        hold(own);
        clear(seen);
        begin_square(own, stage + INVERSE, seen, 0);
        wgmma_wait<1>();
    } else {
        load_columns(w, stage, u);
        wgmma_wait<0>();
    }
    if (UPDATE == REC_RANK_ONE) {
        hold(seen);
        pack_all(seen, written);
        hold(written);
    }
    if (asks || UPDATE != REC_ADD) hold(state);
    decay_state(factors, 0, (float(&)[ROWS][4])s);
    if (asks) {
        hold(out);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 by = factors_of(factors, REC_ASKED, n);
#pragma unroll
            for (int i = 0; i < 4; i++) out[4 * n + i] *= i % 2 ? by.y : by.x;
        }
    }
    if (UPDATE == REC_DELTA) {
        wgmma_wait<0>();
        hold(seen);
        hold(own);
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 by = factors_of(factors, REC_LEFT, n);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (UPDATE == REC_DELTA) u[n][i] = seen[4 * n + i];
        own[2 * n] = pack(u[n][0], u[n][1]), own[2 * n + 1] = pack(u[n][2], u[n][3]);
        left[2 * n] = pack(u[n][0] * by.x, u[n][1] * by.y), left[2 * n + 1] = pack(u[n][2] * by.x, u[n][3] * by.y);
    }
    hold(own);
    if (asks) begin_square(own, stage + SCORE, out, 1);
    if (LEFTS == 1) {
        hold(left);
        if (UPDATE == REC_RANK_ONE)
            begin_updates(written, stage + WRITTEN, left, stage + LEFT, s);
        else
            begin_update(left, stage + LEFT, s);
    }
    if (keeps && UPDATE == REC_DELTA) keep_rows(a, w, a.solved, chunk, u);
    if (asks) {
        wgmma_wait<LEFTS == 1 ? 1 : 0>();
        hold(out);
        hold(own);
        put_outputs(a.p, w, chunk * REC_CHUNK, stage, (const float(&)[8][4])out);
    }
    if (LEFTS > 1) {
        add_pieces(own, factors, stage, s);
        return;
    }
    wgmma_wait<0>();
    hold(s);
    hold(left);
    if (UPDATE == REC_RANK_ONE) hold(written);
}

extern "C" __global__ void __launch_bounds__(ALL, RESIDENT) scan_sm90(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(1024) char memory[];
    const rec_problem &p = a.p;
    const rec_size tiles = p.value_size / COLUMNS, blocks = p.sequences * p.heads * tiles * TURNS;
    if (blockIdx.x >= blocks) {
        clear_rest(p, blockIdx.x - blocks, REST);
        return;
    }
    if (KEEP) launch_dependents(); /* chunk_back_sm90.cu reads nothing of this */
    const int turn = blockIdx.x % TURNS;
    work w = outputs_of(p, tiles, blockIdx.x / TURNS);
    const int chunks = (w.steps + REC_CHUNK - 1) / REC_CHUNK;
    const rec_view &skip = p.view[REC_SKIP];
    const float own = MAKES && skip.present ? load(skip, w.h * skip.stride[2]) : 0;
    const auto copy = [&](int n, u32 stage) {
        copy_stage(a, w, n, stage, !KEEP && n % TURNS == turn, true, KEEP ? 2 : 1, 0);
    };
    const auto make = [&](int n, char *stage) {
        if (n % TURNS == turn)
            make_scores(shared_address(stage), (const float *)(stage + FACTOR), (float)p.scale, own);
    };
    if (has_copied<MAKES>(w, chunks, memory, copy, make)) return;
    float s[KEY_SIZE / 2];
    load_state(w, p.view[REC_INITIAL], (float(&)[ROWS][4])s);
    pass_chunks(chunks, memory, [&](int n, char *stage) {
        if (n % TURNS == turn)
            pass_chunk<true>(a, w, n, stage, s);
        else if (TURNS > 1)
            pass_chunk<false>(a, w, n, stage, s);
    });
    if (!KEEP && turn == 0) store_state(w, p.view[REC_FINAL], (const float(&)[ROWS][4])s);
}
