/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over chunks (chunk.cuh). A warp has 16 columns of the state of a head of a sequence in registers,
 * transposed, as 16 rows of accumulators, and all that comes of it are 16 rows, too: S'K', S'Q', what T makes of v -
 * S'k, and so on. Results of one product are left operands of the next as they are, so that neither the state nor
 * anything made of it passes through memory. Where there are few heads, PARTS warps share rows of the state and add up
 * S'K' and S'Q' through shared memory; sums over 64 rows come first either way, so that PARTS is a matter of speed
 * only. What warps of a block share comes ahead by cp.async: tiles of keys, queries and values, and T and P, which lie
 * as right operands. The state stays in floats. Products round it to TERMS numbers of the element type, and what is
 * added to it to LEFTS: one if only outputs are wanted, which are rounded anyway, three, which have all bits, where the
 * state after the last token is wanted. Of sums nothing that is read of a state is added to the next. Columns never
 * meet: bits do not depend on the grid.
 *
 * With packed sequences the last REST blocks clear the tokens that are in none. With KEEP no outputs are made, but what
 * gradients need is kept: the state before each chunk, and u.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128, 256), PARTS (a divisor of KEY_SIZE / 64), WARPS (a multiple of PARTS),
 * UPDATE, KEY_DECAY, TERMS, LEFTS, STAGES (1 or 2), REST, KEEP.
 */
#define SCORES   (KEEP ? 0 : 1)
#define INVERSES (UPDATE == REC_DELTA ? TERMS : 0)
#define SQUARE   0
#include "operations/recurrent/cuda/chunk_outputs.cuh"

DEVICE void copy_stage(const rec_chunked &a, const work &w, int chunk, u32 stage) {
    const int first = chunk * REC_CHUNK;
    const rec_size place = w.place + (rec_size)chunk * a.p.heads;
    if (KEY_DECAY) {
        const u16 *from = (const u16 *)a.operands + place * (TILES * REC_CHUNK * KEY_SIZE);
        for (int n = 0; n < TILES; n++) {
            const rows_of rows = {from + n * (REC_CHUNK * KEY_SIZE), KEY_SIZE, 0, true};
            if (!KEEP || n != 1) copy_tile<REC_CHUNK, KEY_SIZE>(stage + n * TILE, rows, 0, REC_CHUNK, 1);
        }
    } else {
        copy_tile<REC_CHUNK, KEY_SIZE>(stage, w.key, first, w.steps, 1);
        if (!KEEP) copy_tile<REC_CHUNK, KEY_SIZE>(stage + TILE, w.query, first, w.steps, 1);
    }
    copy_tile<REC_CHUNK, COLUMNS>(stage + VALUE, w.value, first, w.steps, 1);
    if (!KEEP) copy_bytes(stage + SCORE, a.scores + place * BLOCKS, BLOCKS);
    if (UPDATE == REC_DELTA)
        copy_bytes(stage + INVERSE, a.inverses + place * ((KEEP ? 2 : 1) * TERMS * BLOCKS), TERMS * BLOCKS);
    copy_bytes(stage + FACTOR, a.factors + place * (FACTORS / 4), FACTORS);
}

DEVICE void pass_chunk(const rec_chunked &a, const work &w, int chunk, char *memory, char *sums, float (&s)[ROWS][4]) {
    const u32 stage = shared_address(memory);
    const float *factors = (const float *)(memory + FACTOR);
    float seen[8][4], out[8][4], u[8][4];
    if (KEEP) keep_state(a, w, a.states, chunk, s);
    read_state<UPDATE != REC_ADD, !KEEP>(stage, stage + TILE, w.part, s, seen, out);
    if (PARTS > 1) add_parts<UPDATE != REC_ADD, !KEEP>(w, sums, seen, out);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 of_seen = factors_of(factors, REC_SEEN, n), of_out = factors_of(factors, REC_ASKED, n);
        if (n % 2 == 0) load_values<COLUMNS>(stage + VALUE, w.column, n / 2, u[n], u[n + 1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!KEEP) out[n][i] *= i % 2 ? of_out.y : of_out.x;
            if (UPDATE == REC_DELTA) seen[n][i] = u[n][i] - seen[n][i] * (i % 2 ? of_seen.y : of_seen.x);
        }
    }
    if (UPDATE == REC_DELTA) {
        clear(u);
        multiply_blocks<TERMS, TERMS, false>(w, seen, (const uint4 *)(memory + INVERSE), u);
        if (KEEP) keep_rows(a, w, a.solved, chunk, u);
    }
    if (!KEEP) multiply_blocks<1, 1, true>(w, u, (const uint4 *)(memory + SCORE), out);
    decay_state(factors, w.part, s);
    if (UPDATE == REC_RANK_ONE) add_to_state<OF_U>(stage + WRITTEN, w.part, factors, REC_LEFT, seen, s);
#pragma unroll
    for (int n = IN_TILES - 1; n >= 0; n--)
        add_to_state<OF_U>(stage + LEFT_PIECE(n), w.part, factors, REC_LEFT, u, s);
    if (!KEEP) store_outputs(a.p, w, chunk * REC_CHUNK, out);
}

extern "C" __global__ void __launch_bounds__(THREADS) scan(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    const rec_size tiles = p.value_size / COLUMNS, blocks = p.sequences * p.heads * tiles;
    if (blockIdx.x >= blocks) {
        clear_rest(p, blockIdx.x - blocks, REST);
        return;
    }
    const work w = outputs_of(p, tiles, blockIdx.x);
    float s[ROWS][4];
    load_state(w, p.view[REC_INITIAL], s);
    const int chunks = (w.steps + REC_CHUNK - 1) / REC_CHUNK;
    const u32 stages = shared_address(memory);
    if (STAGES > 1 && chunks > 0) copy_stage(a, w, 0, stages);
    cp_async_commit();
    for (int chunk = 0; chunk < chunks; chunk++) {
        const int own = chunk % STAGES * STAGE, ahead = chunk + STAGES - 1;
        if (STAGES > 1) cp_async_wait<0>();
        __syncthreads();
        if (ahead < chunks) copy_stage(a, w, ahead, stages + ahead % STAGES * STAGE);
        cp_async_commit();
        if (STAGES == 1) {
            cp_async_wait<0>();
            __syncthreads();
        }
        pass_chunk(a, w, chunk, memory + own, memory + STAGES * STAGE, s);
    }
    if (!KEEP) store_state(w, p.view[REC_FINAL], s);
}
