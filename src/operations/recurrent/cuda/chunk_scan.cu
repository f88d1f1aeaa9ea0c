/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over chunks (chunk.cuh). A warp has 16 columns of the state of a head of a sequence in registers,
 * transposed, as 16 rows of accumulators, and all that comes of it are 16 rows, too: S'K', S'Q', what T makes of v -
 * S'k, and so on. Results of one product are left operands of the next as they are, so that neither the state nor
 * anything made of it passes through memory. Where there are few heads, PARTS warps share rows of the state and add up
 * S'K' and S'Q' through shared memory; sums over 64 rows come first either way, so that PARTS is a matter of speed
 * only. What warps of a block share comes ahead by cp.async: tiles of keys, queries and values, and T and P, which lie
 * as right operands. The state stays in floats. Products round it and u to TERMS numbers of the element type: one if
 * only outputs are wanted, which are rounded anyway, three, which have all bits, where the state after the last token
 * is wanted. Columns never meet: bits do not depend on the grid.
 *
 * With packed sequences the last REST blocks clear the tokens that are in none.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128, 256), PARTS (a divisor of KEY_SIZE / 64), WARPS (a multiple of PARTS),
 * UPDATE, KEY_DECAY, TERMS, STAGES (1 or 2), REST.
 */
#include "operations/recurrent/cuda/chunk.cuh"
#include "operations/recurrent/cuda/rows.cuh"

#define COLUMNS (16 * (WARPS / PARTS))
#define ROWS    (KEY_SIZE / 8 / PARTS) /* tiles of 8 rows of the state */
#define SPANS   (ROWS / 8)             /* of 64 rows */
#define SUMS    (PARTS > 1 ? WARPS * 2 * 8 * 512 : 0) /* S'K' and S'Q' of all warps, tiles of 16 bytes a lane */

/* A stage: keys, queries, with key decays keys with those to the chunk's end, values, P, T, factors. */
#define TILE    (REC_CHUNK * pitch_of(KEY_SIZE) * 2)
#define BLOCKS  (REC_TILES * REC_TILE_BYTES)
#define FACTORS (4 * (KEY_DECAY ? KEY_SIZE : REC_FACTOR_ROWS * REC_CHUNK))
#define LEFT    (KEY_DECAY ? 2 * TILE : 0)
#define VALUE   (KEY_DECAY ? 3 * TILE : 2 * TILE)
#define SCORE   (VALUE + REC_CHUNK * pitch_of(COLUMNS) * 2)
#define INVERSE (SCORE + BLOCKS)
#define FACTOR  (INVERSE + (UPDATE == REC_DELTA ? TERMS * BLOCKS : 0))
#define STAGE   (FACTOR + FACTORS)

struct work {
    rec_sequence q;
    rec_size h, place; /* of the chunk among all, with the heads */
    int steps, column, part; /* the warp's first column in the block, its 64 rows */
    rec_size j;        /* the block's first */
    rows_of key, query, value;
    bool is_even; /* pairs of outputs begin at multiples of 4 bytes */
};

/* ---- Memory ----------------------------------------------------------------------------------------- */

DEVICE void copy_bytes(u32 to, const void *from, int bytes) {
    for (int n = threadIdx.x * 16; n < bytes; n += THREADS * 16) copy_whole_piece(to + n, (const char *)from + n);
}

DEVICE void copy_stage(const rec_chunked &a, const work &w, int chunk, u32 stage) {
    const int first = chunk * REC_CHUNK;
    const rec_size place = w.place + (rec_size)chunk * a.p.heads;
    if (KEY_DECAY) {
        const u16 *from = (const u16 *)a.operands + place * (3 * REC_CHUNK * KEY_SIZE);
        for (int n = 0; n < 3; n++) {
            const rows_of rows = {from + n * (REC_CHUNK * KEY_SIZE), KEY_SIZE, 0, true};
            copy_tile<REC_CHUNK, KEY_SIZE>(stage + n * TILE, rows, 0, REC_CHUNK, 1);
        }
    } else {
        copy_tile<REC_CHUNK, KEY_SIZE>(stage, w.key, first, w.steps, 1);
        copy_tile<REC_CHUNK, KEY_SIZE>(stage + TILE, w.query, first, w.steps, 1);
    }
    copy_tile<REC_CHUNK, COLUMNS>(stage + VALUE, w.value, first, w.steps, 1);
    copy_bytes(stage + SCORE, a.scores + place * BLOCKS, BLOCKS);
    if (UPDATE == REC_DELTA) copy_bytes(stage + INVERSE, a.inverses + place * (TERMS * BLOCKS), TERMS * BLOCKS);
    copy_bytes(stage + FACTOR, a.factors + place * (FACTORS / 4), FACTORS);
}

/* Whether the warp has outputs of 16 tokens: parts share the blocks of P evenly. */
DEVICE bool has_outputs(const work &w, int block) {
    return PARTS == 1 || (PARTS == 2 ? (block == 1 || block == 2) == w.part : block == w.part);
}

/* Two tiles of values, tokens 16 n …, as sums have them: rows are columns of the value. */
DEVICE void load_values(u32 tile, int column, int n, float (&low)[4], float (&high)[4]) {
    const int lane = threadIdx.x % 32;
    u32 x[4];
    ldmatrix_x4_trans(x, piece_at<COLUMNS>(tile, 16 * n + lane / 16 * 8 + lane % 8, column / 8 + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        low[2 * i] = widen((u16)x[i]), low[2 * i + 1] = widen((u16)(x[i] >> 16));
        high[2 * i] = widen((u16)x[i + 2]), high[2 * i + 1] = widen((u16)(x[i + 2] >> 16));
    }
}

/* The two factors of a lane's columns of tile n; with key decays operands have them. */
DEVICE float2 factors_of(const float *factors, int which, int n) {
    if (KEY_DECAY) return make_float2(1, 1);
    return *(const float2 *)(factors + which * REC_CHUNK + 8 * n + threadIdx.x % 4 * 2);
}

DEVICE u32 transposed(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

DEVICE void store_outputs(const rec_problem &p, const work &w, int first, const float (&out)[8][4]) {
    const rec_view &v = p.view[REC_OUT];
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (!has_outputs(w, n / 2)) continue;
        const int row = first + 8 * n + lane / 4;
        const u32 low = transposed(pack(out[n][0], out[n][1])), high = transposed(pack(out[n][2], out[n][3]));
        if (row >= w.steps) continue;
        u16 *to = (u16 *)v.data + rec_at(&v, w.q.batch, rec_token(&p, &w.q, row), w.h) + w.j + w.column + lane % 4 * 2;
        if (w.is_even) {
            *(u32 *)to = low;
            *(u32 *)(to + 8) = high;
        } else {
            to[0] = (u16)low, to[1] = (u16)(low >> 16);
            to[8] = (u16)high, to[9] = (u16)(high >> 16);
        }
    }
}

/* Element i of tile n of the warp's part of a state. */
DEVICE rec_size element_at(const work &w, const rec_view &v, int n, int i) {
    const int lane = threadIdx.x % 32, row = 8 * (ROWS * w.part + n) + lane % 4 * 2 + i % 2;
    const int column = w.column + lane / 4 + i / 2 * 8;
    return rec_state_at(&v, w.q.row, w.h) + row * v.stride[2] + (w.j + column) * v.stride[3];
}

/* ---- Products --------------------------------------------------------------------------------------- */

DEVICE void add(float (&to)[4], const float (&x)[4], bool is_first) {
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = is_first ? x[i] : to[i] + x[i];
}

/* Sums over 64 rows for tokens 16 n …: two tiles of S'K', two of S'Q'. All operands are loaded before they are used. */
DEVICE void read_span(u32 stage, int n, int first, const u32 (&left)[4][TERMS][4], float (&sum)[4][4]) {
    u32 key[4][4], query[4][4];
    clear(sum);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (UPDATE == REC_DELTA) load_right<KEY_SIZE>(key[k], stage, 16 * n, first + k);
        load_right<KEY_SIZE>(query[k], stage + TILE, 16 * n, first + k);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int piece = TERMS - 1; piece >= 0 && UPDATE == REC_DELTA; piece--) {
            mma(sum[0], left[k][piece], key[k][0], key[k][1]);
            mma(sum[1], left[k][piece], key[k][2], key[k][3]);
        }
        mma(sum[2], left[k][0], query[k][0], query[k][1]);
        mma(sum[3], left[k][0], query[k][2], query[k][3]);
    }
}

/* The warp's part of S'K' and S'Q'. */
DEVICE void read_state(u32 stage, int part, const float (&s)[ROWS][4], float (&seen)[8][4], float (&out)[8][4]) {
#pragma unroll
    for (int span = 0; span < SPANS; span++) {
        u32 left[4][TERMS][4];
#pragma unroll
        for (int k = 0; k < 4; k++) pack_pieces<TERMS>(left[k], s[8 * span + 2 * k], s[8 * span + 2 * k + 1]);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float sum[4][4];
            read_span(stage, n, 4 * (SPANS * part + span), left, sum);
            add(seen[2 * n], sum[0], span == 0);
            add(seen[2 * n + 1], sum[1], span == 0);
            add(out[2 * n], sum[2], span == 0);
            add(out[2 * n + 1], sum[3], span == 0);
        }
    }
}

DEVICE void add_four(float (&to)[4], const float4 &x, bool is_first) {
    const float from[] = {x.x, x.y, x.z, x.w};
    add(to, from, is_first);
}

/* The sums of all parts, S'Q' only of the warp's outputs. */
DEVICE void add_parts(const work &w, char *sums, float (&seen)[8][4], float (&out)[8][4]) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 - w.part;
    float4 *own = (float4 *)sums + (threadIdx.x / 32 * 16) * 32 + lane;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (UPDATE == REC_DELTA) own[n * 32] = make_float4(seen[n][0], seen[n][1], seen[n][2], seen[n][3]);
        own[(8 + n) * 32] = make_float4(out[n][0], out[n][1], out[n][2], out[n][3]);
    }
    asm volatile("bar.sync %0, %1;" ::"r"(1 + first / PARTS), "n"(32 * PARTS) : "memory");
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const float4 *from = (const float4 *)sums + ((first + part) * 16 + n) * 32 + lane;
            if (UPDATE == REC_DELTA) add_four(seen[n], from[0], part == 0);
            if (has_outputs(w, n / 2)) add_four(out[n], from[8 * 32], part == 0);
        }
    }
}

/* sum += x times the blocks on and below the diagonal, which have `pieces` pieces; of products of pieces those that
 * count for a float. With `is_output` only rows that the warp has outputs of. */
template <int own, int pieces, bool is_output>
DEVICE void multiply_blocks(const work &w, const float (&x)[8][4], const uint4 *blocks, float (&sum)[8][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int column = 0; column < 4; column++) {
        u32 left[own][4];
        pack_pieces<own>(left, x[2 * column], x[2 * column + 1]);
#pragma unroll
        for (int row = column; row < 4; row++) {
            if (is_output && !has_outputs(w, row)) continue;
#pragma unroll
            for (int piece = pieces - 1; piece >= 0; piece--) {
                const uint4 right = *(blocks + (piece * REC_TILES + row * (row + 1) / 2 + column) * 32 + lane);
#pragma unroll
                for (int mine = lesser(own, pieces - piece) - 1; mine >= 0; mine--) {
                    mma(sum[2 * row], left[mine], right.x, right.y);
                    mma(sum[2 * row + 1], left[mine], right.z, right.w);
                }
            }
        }
    }
}

/* S = e^G_end S + the sum of k u' with their decays. */
DEVICE void update_state(u32 stage, int part, const float *factors, const float (&u)[8][4], float (&s)[ROWS][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < ROWS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] *= factors[KEY_DECAY ? 8 * (ROWS * part + n) + lane % 4 * 2 + i % 2 : REC_PASSED * REC_CHUNK];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float x[2][4];
        u32 left[TERMS][4], right[ROWS / 2][4];
#pragma unroll
        for (int n = 0; n < ROWS / 2; n++)
            load_right_trans<KEY_SIZE>(right[n], stage + LEFT, 16 * k, ROWS / 2 * part + n);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float2 by = factors_of(factors, REC_LEFT, 2 * k + n);
#pragma unroll
            for (int i = 0; i < 4; i++) x[n][i] = u[2 * k + n][i] * (i % 2 ? by.y : by.x);
        }
        pack_pieces<TERMS>(left, x[0], x[1]);
#pragma unroll
        for (int piece = TERMS - 1; piece >= 0; piece--)
#pragma unroll
            for (int n = 0; n < ROWS / 2; n++) {
                mma(s[2 * n], left[piece], right[n][0], right[n][1]);
                mma(s[2 * n + 1], left[piece], right[n][2], right[n][3]);
            }
    }
}

DEVICE void pass_chunk(const rec_problem &p, const work &w, int chunk, char *memory, char *sums, float (&s)[ROWS][4]) {
    const u32 stage = shared_address(memory);
    const float *factors = (const float *)(memory + FACTOR);
    float seen[8][4], out[8][4], u[8][4];
    read_state(stage, w.part, s, seen, out);
    if (PARTS > 1) add_parts(w, sums, seen, out);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 of_seen = factors_of(factors, REC_SEEN, n), of_out = factors_of(factors, REC_ASKED, n);
        if (n % 2 == 0) load_values(stage + VALUE, w.column, n / 2, u[n], u[n + 1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[n][i] *= i % 2 ? of_out.y : of_out.x;
            if (UPDATE == REC_DELTA) seen[n][i] = u[n][i] - seen[n][i] * (i % 2 ? of_seen.y : of_seen.x);
        }
    }
    if (UPDATE == REC_DELTA) {
        clear(u);
        multiply_blocks<TERMS, TERMS, false>(w, seen, (const uint4 *)(memory + INVERSE), u);
    }
    multiply_blocks<1, 1, true>(w, u, (const uint4 *)(memory + SCORE), out);
    update_state(stage, w.part, factors, u, s);
    store_outputs(p, w, chunk * REC_CHUNK, out);
}

extern "C" __global__ void __launch_bounds__(THREADS) scan(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    const rec_view &initial = p.view[REC_INITIAL], &final = p.view[REC_FINAL], &v = p.view[REC_OUT];
    const rec_size tiles = p.value_size / COLUMNS, blocks = p.sequences * p.heads * tiles;
    if (blockIdx.x >= blocks) {
        clear_rest(p, blockIdx.x - blocks, REST);
        return;
    }
    work w;
    w.h = blockIdx.x / tiles % p.heads;
    w.j = blockIdx.x % tiles * COLUMNS;
    w.column = threadIdx.x / 32 / PARTS * 16;
    w.part = threadIdx.x / 32 % PARTS;
    w.q = rec_sequence_of(&p, blockIdx.x / tiles / p.heads);
    w.steps = (int)(w.q.end - w.q.begin);
    w.place = rec_first_chunk(&p, w.q.index, w.q.begin) * p.heads + w.h;
    w.key = rows_in(p, p.view[REC_KEY], w.q, rec_head(&p, w.h, p.key_heads), 0);
    w.query = rows_in(p, p.view[REC_QUERY], w.q, rec_head(&p, w.h, p.query_heads), 0);
    w.value = rows_in(p, p.view[REC_VALUE], w.q, rec_head(&p, w.h, p.value_heads), w.j);
    w.is_even = (((u64)v.data >> 1 | v.stride[0] | v.stride[1] | v.stride[2]) & 1) == 0;
    float s[ROWS][4];
    const bool has_state = w.q.row >= 0;
#pragma unroll
    for (int n = 0; n < ROWS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = initial.present && has_state ? load(initial, element_at(w, initial, n, i)) : 0;
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
        pass_chunk(p, w, chunk, memory + own, memory + STAGES * STAGE, s);
    }
#pragma unroll
    for (int n = 0; n < ROWS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (final.present && has_state) store(final, element_at(w, final, n, i), s[n][i]);
}
