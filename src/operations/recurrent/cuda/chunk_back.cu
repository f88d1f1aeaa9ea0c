/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over chunks backwards (chunk.cuh), for gradients: as chunk_scan.cu walks forwards, a warp has 16 columns of
 * the cotangent of the state of a head of a sequence in registers, transposed, and all that comes of it are 16 rows.
 * What is behind each chunk, and y, are kept for chunk_rows.cu. Products round the cotangent and y to TERMS numbers of
 * the element type; three of them, with P and the inverse in as many, have the bits of floats, which a gradient in
 * floats needs. Columns never meet: bits do not depend on the grid.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128), PARTS, WARPS, UPDATE, KEY_DECAY, TERMS, STAGES (1 or 2).
 */
#define SCORES   TERMS
#define INVERSES (UPDATE == REC_DELTA ? TERMS : 0)
#define SQUARE   0
#include "operations/recurrent/cuda/chunk_walk.cuh"

DEVICE void copy_stage(const rec_chunked &a, const work &w, int chunk, u32 stage) {
    const int first = chunk * REC_CHUNK;
    const rec_size place = w.place + (rec_size)chunk * a.p.heads;
    if (KEY_DECAY) {
        const u16 *from = (const u16 *)a.operands + place * (3 * REC_CHUNK * KEY_SIZE);
        for (int n = 0; n < 3; n++) {
            const rows_of rows = {from + n * (REC_CHUNK * KEY_SIZE), KEY_SIZE, 0, true};
            if (n > 0 || UPDATE == REC_DELTA) copy_tile<REC_CHUNK, KEY_SIZE>(stage + n * TILE, rows, 0, REC_CHUNK, 1);
        }
    } else {
        copy_tile<REC_CHUNK, KEY_SIZE>(stage, w.key, first, w.steps, 1);
        copy_tile<REC_CHUNK, KEY_SIZE>(stage + TILE, w.query, first, w.steps, 1);
    }
    if (a.p.view[REC_D_OUT].present) copy_tile<REC_CHUNK, COLUMNS>(stage + VALUE, w.value, first, w.steps, 1);
    copy_bytes(stage + SCORE, a.scores + place * (TERMS * BLOCKS), TERMS * BLOCKS);
    if (UPDATE == REC_DELTA)
        copy_bytes(stage + INVERSE, a.inverses + (place * 2 + 1) * (TERMS * BLOCKS), TERMS * BLOCKS);
    copy_bytes(stage + FACTOR, a.factors + place * (FACTORS / 4), FACTORS);
}

/* sum += x times the turned blocks on and below the diagonal, as multiply_blocks has them. */
template <int own, int pieces>
DEVICE void multiply_turned(const float (&x)[8][4], const uint4 *blocks, float (&sum)[8][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < 4; row++) {
        u32 left[own][4];
        pack_pieces<own>(left, x[2 * row], x[2 * row + 1]);
#pragma unroll
        for (int column = 0; column <= row; column++)
#pragma unroll
            for (int piece = pieces - 1; piece >= 0; piece--) {
                const uint4 right = *(blocks + (piece * REC_TILES + row * (row + 1) / 2 + column) * 32 + lane);
#pragma unroll
                for (int mine = lesser(own, pieces - piece) - 1; mine >= 0; mine--) {
                    mma(sum[2 * column], left[mine], right.x, right.y);
                    mma(sum[2 * column + 1], left[mine], right.z, right.w);
                }
            }
    }
}

DEVICE void pass_chunk(const rec_chunked &a, const work &w, int chunk, char *memory, char *sums, float (&d)[ROWS][4]) {
    const u32 stage = shared_address(memory);
    const float *factors = (const float *)(memory + FACTOR);
    float y[8][4], d_out[8][4];
    keep_state(a, w, a.cotangents, chunk, d);
    read_state<true, false>(stage + LEFT, 0, w.part, d, y, d_out);
    if (PARTS > 1) add_parts<true, false>(w, sums, y, d_out);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 by = factors_of(factors, REC_LEFT, n);
#pragma unroll
        for (int i = 0; i < 4; i++) y[n][i] *= i % 2 ? by.y : by.x;
        if (n % 2 == 0) load_values<COLUMNS>(stage + VALUE, w.column, n / 2, d_out[n], d_out[n + 1]);
    }
    if (!a.p.view[REC_D_OUT].present) clear(d_out);
    multiply_turned<1, TERMS>(d_out, (const uint4 *)(memory + SCORE), y);
    if (UPDATE == REC_DELTA) {
        float sum[8][4];
        clear(sum);
        multiply_turned<TERMS, TERMS>(y, (const uint4 *)(memory + INVERSE), sum);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) y[n][i] = sum[n][i];
    }
    keep_rows(a, w, a.backs, chunk, y);
    decay_state(factors, w.part, d);
    add_to_state<TERMS>(stage + TILE, w.part, factors, REC_ASKED, d_out, d);
    if constexpr (UPDATE == REC_DELTA) {
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                y[n][i] *= KEY_DECAY ? -factors[KEY_SIZE + 8 * n + threadIdx.x % 4 * 2 + i % 2] : -1;
        add_to_state<TERMS>(stage, w.part, factors, REC_UNSEEN, y, d);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) back(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    work w = work_of(p, p.value_size / COLUMNS, blockIdx.x);
    w.value = rows_in(p, p.view[REC_D_OUT], w.q, w.h, w.j);
    float d[ROWS][4];
    load_state(w, p.view[REC_D_FINAL], d);
    const int chunks = (w.steps + REC_CHUNK - 1) / REC_CHUNK;
    const u32 stages = shared_address(memory);
    if (STAGES > 1 && chunks > 0) copy_stage(a, w, chunks - 1, stages);
    cp_async_commit();
    for (int n = 0; n < chunks; n++) {
        const int chunk = chunks - 1 - n, own = n % STAGES * STAGE, ahead = n + STAGES - 1;
        if (STAGES > 1) cp_async_wait<0>();
        __syncthreads();
        if (ahead < chunks) copy_stage(a, w, chunks - 1 - ahead, stages + ahead % STAGES * STAGE);
        cp_async_commit();
        if (STAGES == 1) {
            cp_async_wait<0>();
            __syncthreads();
        }
        pass_chunk(a, w, chunk, memory + own, memory + STAGES * STAGE, d);
    }
    store_state(w, p.view[REC_D(REC_INITIAL)], d);
}
