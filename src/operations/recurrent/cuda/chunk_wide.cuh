/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of the walks over chunks for compute capability 9.0: wgmma. Four warps have 64 columns of a state in
 * registers, transposed, so that sums of one product are the left operand of the next as they lie; right operands are
 * tiles of 64 columns under the swizzle of 128 bytes, read once for all four. T and P lie as squares: wgmma of fewer
 * columns, for what is on and below the diagonal, ptxas serialises. The first four warps of a block copy chunks ahead
 * into stages, which takes as many instructions as all else; GROUPS times four others work.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128), GROUPS (of four warps), UPDATE, KEY_DECAY, STAGES; SCORES and INVERSES
 * as for chunk_walk.cuh; TURNED, whether T and P are (0 unless given).
 */
#ifndef EJKI_RECURRENT_CHUNK_WIDE_CUH
#define EJKI_RECURRENT_CHUNK_WIDE_CUH

#ifndef TURNED
#define TURNED 0
#endif
#define PARTS   1
#define WARPS   4 /* that copy */
#define COLUMNS (64 * GROUPS)
#define TERMS   1
#define SQUARE  1
#include "kernels/cuda/hopper.cuh"
#include "operations/recurrent/cuda/chunk_walk.cuh"

#define PANEL (REC_CHUNK * 128) /* 64 columns of a tile */

DEVICE void copy_panels(u32 tile, const rows_of &from, int first, int rows, int columns) {
    rows_of panel = from;
    for (int n = 0; n < columns / 64; n++, panel.data += 64)
        copy_tile<REC_CHUNK, 64>(tile + n * PANEL, panel, first, rows, 1);
}

/*
 * Begins to copy T or P. A warp has blocks of 16 x 16 whose rows and columns are digits of `places`; where they lie is
 * found anew for each chunk, as registers are few. What is beside blocks is cleared once.
 */
DEVICE void copy_triangle(u32 square, const char *from) {
    constexpr u32 places[] = {0x8540, 0xdca9, 0xfe};
    u32 thread;
    asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
    const u32 own = piece_at<REC_CHUNK>(0, thread % 32 / 2, thread % 2);
#pragma unroll
    for (int n = 0; n < cdiv(REC_TILES, WARPS); n++) {
        const u32 place = places[n] >> thread / 32 * 4;
        const u32 row = place >> (TURNED ? 0 : 2) & 3, column = place >> (TURNED ? 2 : 0) & 3;
        if (n * THREADS + thread < REC_TILES * 32)
            copy_whole_piece(square + (own ^ column << 5) + (row << 11), from + (n * THREADS + thread) * 16);
    }
}
DEVICE void clear_rest_of(u32 square) {
    for (int n = threadIdx.x; n < REC_CHUNK * 8; n += THREADS) {
        const int row = n / 8, piece = n % 8;
        const bool is_beside = TURNED ? piece / 2 < row / 16 : piece / 2 > row / 16;
        if (is_beside) store_piece(piece_at<REC_CHUNK>(square, row, piece), make_uint4(0, 0, 0, 0));
    }
}

/*
 * Begins to copy a chunk; queries and P only if something is asked of the state, values if there are any. T lies at
 * the chunk's place, where so many of them are kept, as number `which`.
 */
DEVICE void copy_stage(const rec_chunked &a, const work &w, int chunk, u32 stage, bool asks, bool has_values, int kept,
                       int which) {
    const int first = chunk * REC_CHUNK;
    const rec_size place = w.place + (rec_size)chunk * a.p.heads;
    if (KEY_DECAY) {
        const u16 *from = (const u16 *)a.operands + place * (TILES * REC_CHUNK * KEY_SIZE);
        for (int n = UPDATE == REC_ADD && IN_TILES == 1 ? 1 : 0; n < TILES; n++) {
            const rows_of rows = {from + n * (REC_CHUNK * KEY_SIZE), KEY_SIZE, 0, true};
            if (asks || n != 1) copy_panels(stage + n * TILE, rows, 0, REC_CHUNK, KEY_SIZE);
        }
    } else {
        copy_panels(stage, w.key, first, w.steps, KEY_SIZE);
        if (asks) copy_panels(stage + TILE, w.query, first, w.steps, KEY_SIZE);
    }
    if (has_values) copy_panels(stage + VALUE, w.value, first, w.steps, COLUMNS);
    if (asks && !MAKES) copy_triangle(stage + SCORE, a.scores + place * REC_TRIANGLE_BYTES);
    if (UPDATE == REC_DELTA)
        copy_triangle(stage + INVERSE, a.inverses + (place * kept + which) * REC_TRIANGLE_BYTES);
    static_assert(FACTORS <= 16 * THREADS, "a piece of 16 bytes a thread");
    if (16 * threadIdx.x < FACTORS)
        copy_whole_piece(stage + FACTOR + 16 * threadIdx.x, a.factors + place * (FACTORS / 4) + 4 * threadIdx.x);
}

template <int n> DEVICE void clear(float (&x)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) x[i] = 0;
}

template <int n> DEVICE void pack_all(const float (&x)[n], u32 (&to)[n / 2]) {
#pragma unroll
    for (int i = 0; i < n / 2; i++) to[i] = pack(x[2 * i], x[2 * i + 1]);
}

/* Begins sum = S'K' or S'Q'; rows of the tile are tokens. */
DEVICE void begin_read(const u32 (&state)[KEY_SIZE / 4], u32 tile, float (&sum)[32]) {
    const u64 right = smem_descriptor(tile, 16);
    hold(sum);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < KEY_SIZE / 16; n++)
        wgmma<64>::rs<0>(sum, state + 4 * n, advance_descriptor(right, n / 4 * PANEL + n % 4 * 32), n != 0);
    wgmma_commit();
}

/*
 * P of a chunk to its stage, by those that have copied its rows, of which a warp has 16: Q K' with decays between rows,
 * and `skip` on the diagonal.
 */
DEVICE void make_scores(u32 stage, const float *factors, float scale, float skip) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    const u64 keys = smem_descriptor(stage, 16), queries = smem_descriptor(stage + TILE, 16);
    const float2 *pairs = (const float2 *)(factors + REC_PAIRS * REC_CHUNK);
    float qk[32];
    clear(qk);
    hold(qk);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < KEY_SIZE / 16; n++)
        wgmma<64>::ss<0, 0>(qk, advance_descriptor(queries, n / 4 * PANEL + n % 4 * 32),
                            advance_descriptor(keys, n / 4 * PANEL + n % 4 * 32), n != 0);
    wgmma_commit();
    const float2 own[] = {pairs[row], pairs[row + 8]};
    wgmma_wait<0>();
    hold(qk);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int column = 8 * n + lane % 4 * 2;
        const float4 others = *(const float4 *)(pairs + column);
        const float2 by_key = *(const float2 *)(factors + REC_OF_KEYS * REC_CHUNK + column);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = row + i / 2 * 8, from = column + i % 2;
            const float2 other = i % 2 ? make_float2(others.z, others.w) : make_float2(others.x, others.y);
            const float2 mine = own[i / 2];
            const float by = power_of_2((mine.x - other.x) + (mine.y - other.y)) * (i % 2 ? by_key.y : by_key.x);
            float &x = qk[4 * n + i];
            x = from <= to ? x * (by * scale) : 0;
            if (from == to) x += skip;
        }
    }
    const int half = lane / 8 % 2, at = threadIdx.x / 32 * 16 + 8 * half + lane % 8;
#pragma unroll
    for (int n = 0; n < 8; n += 2)
        stmatrix_x4(piece_at<64>(stage + SCORE, at, n + lane / 16), pack(qk[4 * n], qk[4 * n + 1]),
                    pack(qk[4 * n + 2], qk[4 * n + 3]), pack(qk[4 * n + 4], qk[4 * n + 5]),
                    pack(qk[4 * n + 6], qk[4 * n + 7]));
    fence_proxy_async();
}

/* Begins sum = x times T or P, or adds it. */
DEVICE void begin_square(const u32 (&x)[16], u32 square, float (&sum)[32], int add) {
    const u64 right = smem_descriptor(square, 16);
    hold(sum);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < 4; n++) wgmma<64>::rs<0>(sum, x + 4 * n, advance_descriptor(right, n * 32), add || n != 0);
    wgmma_commit();
}

/* S += k u', rows of the tile being tokens; begun alone, or with that of another tile. */
DEVICE void update(const u32 (&u)[16], u32 tile, float (&s)[KEY_SIZE / 2]) {
    const u64 right = smem_descriptor(tile, PANEL);
#pragma unroll
    for (int n = 0; n < 4; n++) wgmma<KEY_SIZE>::template rs<1>(s, u + 4 * n, advance_descriptor(right, n * 2048), 1);
}
DEVICE void begin_update(const u32 (&u)[16], u32 tile, float (&s)[KEY_SIZE / 2]) {
    hold(s);
    wgmma_fence();
    update(u, tile, s);
    wgmma_commit();
}
DEVICE void begin_updates(const u32 (&u)[16], u32 tile, const u32 (&x)[16], u32 other, float (&s)[KEY_SIZE / 2]) {
    hold(s);
    wgmma_fence();
    update(u, tile, s);
    update(x, other, s);
    wgmma_commit();
}
/*
 * The same of values in pieces, the least ones first, 64 rows of the state at a time: sums of a chunk by themselves,
 * since products cut off bits of what they add to, which of a state without decays adds up from chunk to chunk.
 */
DEVICE void begin_pieces(const u32 (&u)[OF_U][16], u32 stage, int span, float (&sum)[32]) {
    hold(sum);
    wgmma_fence();
#pragma unroll
    for (int piece = LEFTS - 1; piece >= 0; piece--) {
        const u32 tile = stage + (IN_TILES > 1 ? LEFT_PIECE(piece) : LEFT) + span * PANEL;
        const u64 right = smem_descriptor(tile, PANEL);
#pragma unroll
        for (int n = 0; n < 4; n++)
            wgmma<64>::rs<1>(sum, u[IN_TILES > 1 ? 0 : piece] + 4 * n, advance_descriptor(right, n * 2048),
                             piece < LEFTS - 1 || n > 0);
    }
    wgmma_commit();
}
DEVICE void add_pieces(const u32 (&values)[16], const float *factors, u32 stage, float (&s)[KEY_SIZE / 2]) {
    u32 left[OF_U][16];
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float2 by = factors_of(factors, REC_LEFT, n / 2);
        float low = widen((u16)values[n]) * by.x, high = widen((u16)(values[n] >> 16)) * by.y;
#pragma unroll
        for (int piece = 0; piece < OF_U; piece++) {
            left[piece][n] = pack(low, high);
            low -= widen((u16)left[piece][n]), high -= widen((u16)(left[piece][n] >> 16));
        }
    }
#pragma unroll
    for (int piece = 0; piece < OF_U; piece++) hold(left[piece]);
#pragma unroll
    for (int span = 0; span < KEY_SIZE / 64; span++) {
        float sum[32];
        clear(sum);
        begin_pieces(left, stage, span, sum);
        wgmma_wait<0>();
        hold(sum);
#pragma unroll
        for (int i = 0; i < 32; i++) s[32 * span + i] += sum[i];
    }
#pragma unroll
    for (int piece = 0; piece < OF_U; piece++) hold(left[piece]);
}

/* ---- Who copies and who works ----------------------------------------------------------------------- */

/* Blocks of a multiprocessor that registers are shared out for, and how: one, if two have too few of them for wgmma. */
#define IS_LARGE (KEY_SIZE == 128 && (UPDATE != REC_ADD || (MAKES && OF_U > 1)))
#define RESIDENT (GROUPS == 1 && TURNS == 1 && !IS_LARGE ? 2 : 1)
#define ALL      (32 * WARPS + 128 * GROUPS) /* threads of a block */
#define SHARES   (GROUPS > 1 || RESIDENT > 1)
#define COPYING  (MAKES ? 88 : 56) /* registers of a thread */
#define WORKING  (RESIDENT == 2 ? 256 - COPYING : MAKES ? 208 : 224)
#define FULL     1
#define EMPTY    (FULL + STAGES)
#define COPIED   (EMPTY + STAGES)
#define STORED   (COPIED + 1) /* and the next, of a second group */

/* Chunk n has come: what is made of its rows is made. */
template <bool makes, typename function> DEVICE void end_copy(int n, char *stages, function make) {
    fence_proxy_async();
    if (makes) {
        named_barrier_sync(COPIED, 32 * WARPS);
        make(n, stages + n % STAGES * STAGE);
    }
    named_barrier_arrive(FULL + n % STAGES, ALL);
}

/* copy(n, stage) begins to copy chunk n of the walk; with `makes`, make(n, stage) is called when it is there. */
template <bool makes, typename copying, typename making>
DEVICE void copy_chunks(int chunks, char *stages, copying copy, making make) {
    const u32 first = shared_address(stages);
    for (int n = 0; n < STAGES * (MAKES ? 0 : SCORES + INVERSES); n++)
        clear_rest_of(first + n % STAGES * STAGE + SCORE + n / STAGES * BLOCKS);
    for (int n = 0; n < chunks; n++) {
        if (n >= STAGES) named_barrier_sync(EMPTY + n % STAGES, ALL);
        copy(n, first + n % STAGES * STAGE);
        cp_async_commit();
        if (n == 0) continue;
        cp_async_wait<1>();
        end_copy<makes>(n - 1, stages, make);
    }
    cp_async_wait<0>();
    if (chunks > 0) end_copy<makes>(chunks - 1, stages, make);
}

/* Whether the thread is one of those that copy, which is done when this returns; the others have their registers. */
template <bool makes, typename copying, typename making>
DEVICE bool has_copied(work &w, int chunks, char *memory, copying copy, making make) {
    if (threadIdx.x < 32 * WARPS) {
        if (SHARES) setmaxnreg_dec<COPYING>();
        copy_chunks<makes>(chunks, memory, copy, make);
        return true;
    }
    if (SHARES) setmaxnreg_inc<WORKING>();
    w.column -= 16 * WARPS;
    return false;
}

/* pass(n, stage) is done with the stage when it returns. */
template <typename function> DEVICE void pass_chunks(int chunks, char *stages, function pass) {
    for (int n = 0; n < chunks; n++) {
        named_barrier_sync(FULL + n % STAGES, ALL);
        pass(n, stages + n % STAGES * STAGE);
        if (n + STAGES < chunks) named_barrier_arrive(EMPTY + n % STAGES, ALL);
    }
}

/* The values of the warp's columns. */
DEVICE void load_columns(const work &w, u32 stage, float (&x)[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; n += 2)
        load_values<64>(stage + VALUE + w.column / 64 * PANEL, w.column % 64, n / 2, x[n], x[n + 1]);
}

#endif
