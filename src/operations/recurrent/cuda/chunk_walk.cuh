/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the walks over chunks do alike, forwards and backwards: chunk_scan.cu has their structure. A state, or its
 * cotangent, lies in registers as tiles of 8 of its rows; what warps of a block share is in stages of shared memory.
 *
 * Constants: ELEMENT, KEY_SIZE, PARTS, WARPS, UPDATE, KEY_DECAY, TERMS, STAGES; LEFTS, pieces of what is added to the
 * state, if others than TERMS; MAKES, whether P is made by the walk; and SCORES, pieces of P in a stage, INVERSES,
 * those of T, and whether they are squares (SQUARE), before this is included.
 */
#ifndef EJKI_RECURRENT_CHUNK_WALK_CUH
#define EJKI_RECURRENT_CHUNK_WALK_CUH

#include "operations/recurrent/cuda/chunk.cuh"
#include "operations/recurrent/cuda/rows.cuh"

#ifndef LEFTS
#define LEFTS TERMS
#endif
#ifndef MAKES
#define MAKES 0
#endif
#ifndef COLUMNS
#define COLUMNS (16 * (WARPS / PARTS))
#endif
#define ROWS    (KEY_SIZE / 8 / PARTS) /* tiles of 8 rows of the state */
#define SPANS   (ROWS / 8)             /* of 64 rows */
#define SUMS    (PARTS > 1 ? WARPS * 2 * 8 * 512 : 0) /* S'K' and S'Q' of all warps, tiles of 16 bytes a lane */

/*
 * A stage: keys, queries, with key decays keys with those to the chunk's end, of rank-one updates also what is written
 * for what is read, values, P, T, factors. Sums with key decays have no use for the first tile: of keys in three pieces
 * that is the third.
 */
#define TILE    (REC_CHUNK * pitch_of(KEY_SIZE) * 2)
#define IN_TILES (KEY_DECAY && UPDATE == REC_ADD ? LEFTS : 1) /* pieces that are tiles; others are those of u */
#define OF_U     (IN_TILES > 1 ? 1 : LEFTS)
#define TILES   (!KEY_DECAY ? 2 : UPDATE == REC_RANK_ONE || IN_TILES > 1 ? 4 : 3)
#define BLOCKS  (SQUARE ? REC_SQUARE_BYTES : REC_TRIANGLE_BYTES)
#define FACTORS (4 * (KEY_DECAY ? KEY_SIZE + REC_CHUNK : (MAKES ? REC_MORE_ROWS : REC_FACTOR_ROWS) * REC_CHUNK))
#define LEFT    (KEY_DECAY ? 2 * TILE : 0)
#define WRITTEN (3 * TILE)
#define LEFT_PIECE(n) (LEFT + (n == 2 ? -2 : n) * TILE)
#define VALUE   (TILES * TILE)
#define SCORE   (VALUE + REC_CHUNK * pitch_of(COLUMNS) * 2)
#define INVERSE (SCORE + SCORES * BLOCKS)
#define FACTOR  (INVERSE + INVERSES * BLOCKS)
#define STAGE   round_up(FACTOR + FACTORS, SQUARE ? 1024 : 16)

struct work {
    rec_sequence q;
    rec_size h, place; /* of the chunk among all, with the heads */
    int steps, column, part; /* the warp's first column in the block, its 64 rows */
    rec_size j;        /* the block's first */
    rows_of key, query, value;
    bool is_even, is_whole; /* pairs of outputs begin at multiples of 4 bytes, runs of eight at those of 16 */
};

/* ---- Memory ----------------------------------------------------------------------------------------- */

DEVICE void copy_bytes(u32 to, const void *from, int bytes) {
    for (int n = threadIdx.x * 16; n < bytes; n += THREADS * 16) copy_whole_piece(to + n, (const char *)from + n);
}

/* Whether the warp has outputs of 16 tokens: parts share the blocks of P evenly. */
DEVICE bool has_outputs(const work &w, int block) {
    return PARTS == 1 || (PARTS == 2 ? (block == 1 || block == 2) == w.part : block == w.part);
}

/* Two tiles of values, tokens 16 n …, as sums have them: rows are columns of the value. */
template <int columns> DEVICE void load_values(u32 tile, int column, int n, float (&low)[4], float (&high)[4]) {
    const int lane = threadIdx.x % 32;
    u32 x[4];
    ldmatrix_x4_trans(x, piece_at<columns>(tile, 16 * n + lane / 16 * 8 + lane % 8, column / 8 + lane / 8 % 2));
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

/* Element i of tile n of the warp's part of a state. */
DEVICE rec_size element_at(const work &w, const rec_view &v, int n, int i) {
    const int lane = threadIdx.x % 32, row = 8 * (ROWS * w.part + n) + lane % 4 * 2 + i % 2;
    const int column = w.column + lane / 4 + i / 2 * 8;
    return rec_state_at(&v, w.q.row, w.h) + row * v.stride[2] + (w.j + column) * v.stride[3];
}

DEVICE u32 transposed(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Keeps the state before or behind a chunk, as chunk.cuh says. */
DEVICE void keep_state(const rec_chunked &a, const work &w, float *states, int chunk, const float (&s)[ROWS][4]) {
    const rec_size place = w.place + (rec_size)chunk * a.p.heads, first = place * a.p.value_size + w.j + w.column;
    const int lane = threadIdx.x % 32;
    if (TERMS == 1) {
        u32 *to = (u32 *)states + (first / 8 * (KEY_SIZE / 8) + ROWS * w.part) * 32 + lane;
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            to[n * 32] = pack(s[n][0], s[n][1]);
            to[(KEY_SIZE / 8 + n) * 32] = pack(s[n][2], s[n][3]);
        }
        return;
    }
    float *to = states + (first + lane / 4) * KEY_SIZE + 8 * ROWS * w.part + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        *(float2 *)(to + 8 * n) = make_float2(s[n][0], s[n][1]);
        *(float2 *)(to + 8 * n + 8 * KEY_SIZE) = make_float2(s[n][2], s[n][3]);
    }
}

/* Rows of 64 tokens, as chunk.cuh says; of parts each has its own. */
DEVICE void keep_rows(const rec_chunked &a, const work &w, float *rows, int chunk, const float (&x)[8][4]) {
    const rec_size place = w.place + (rec_size)chunk * a.p.heads, first = w.j + w.column;
    const int lane = threadIdx.x % 32;
    if (TERMS == 1) {
        uint4 *to = (uint4 *)rows + (place * a.p.value_size + first) / 16 * (4 * 32) + lane;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (!has_outputs(w, n)) continue;
            const float(&low)[4] = x[2 * n], (&high)[4] = x[2 * n + 1];
            to[n * 32] = make_uint4(transposed(pack(low[0], low[1])), transposed(pack(high[0], high[1])),
                                    transposed(pack(low[2], low[3])), transposed(pack(high[2], high[3])));
        }
        return;
    }
    float *to = rows + place * REC_CHUNK * a.p.value_size + first + lane / 4;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (!has_outputs(w, n / 2)) continue;
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(8 * n + lane % 4 * 2 + i % 2) * a.p.value_size + i / 2 * 8] = x[n][i];
    }
}

/* What a warp of block number `block` works on, but for the value. */
DEVICE work work_of(const rec_problem &p, rec_size tiles, rec_size block) {
    work w;
    w.h = block / tiles % p.heads;
    w.j = block % tiles * COLUMNS;
    w.column = threadIdx.x / 32 / PARTS * 16;
    w.part = threadIdx.x / 32 % PARTS;
    w.q = rec_sequence_of(&p, block / tiles / p.heads);
    w.steps = (int)(w.q.end - w.q.begin);
    w.place = rec_first_chunk(&p, w.q.index, w.q.begin) * p.heads + w.h;
    w.key = rows_in(p, p.view[REC_KEY], w.q, rec_head(&p, w.h, p.key_heads), 0);
    w.query = rows_in(p, p.view[REC_QUERY], w.q, rec_head(&p, w.h, p.query_heads), 0);
    return w;
}

DEVICE void load_state(const work &w, const rec_view &v, float (&s)[ROWS][4]) {
#pragma unroll
    for (int n = 0; n < ROWS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = v.present && w.q.row >= 0 ? load(v, element_at(w, v, n, i)) : 0;
}
DEVICE void store_state(const work &w, const rec_view &v, const float (&s)[ROWS][4]) {
#pragma unroll
    for (int n = 0; n < ROWS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (v.present && w.q.row >= 0) store(v, element_at(w, v, n, i), s[n][i]);
}

/* ---- Products --------------------------------------------------------------------------------------- */

DEVICE void add(float (&to)[4], const float (&x)[4], bool is_first) {
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = is_first ? x[i] : to[i] + x[i];
}

/* Sums over 64 rows for tokens 16 n …: two tiles of S'K', two of S'Q'. All operands are loaded before they are used. */
template <bool sees, bool asks>
DEVICE void read_span(u32 keys, u32 queries, int n, int first, const u32 (&left)[4][TERMS][4], float (&sum)[4][4]) {
    u32 key[4][4], query[4][4];
    clear(sum);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (sees) load_right<KEY_SIZE>(key[k], keys, 16 * n, first + k);
        if (asks) load_right<KEY_SIZE>(query[k], queries, 16 * n, first + k);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int piece = TERMS - 1; piece >= 0 && sees; piece--) {
            mma(sum[0], left[k][piece], key[k][0], key[k][1]);
            mma(sum[1], left[k][piece], key[k][2], key[k][3]);
        }
        if (!asks) continue;
        mma(sum[2], left[k][0], query[k][0], query[k][1]);
        mma(sum[3], left[k][0], query[k][2], query[k][3]);
    }
}

/* The warp's part of S'K' and S'Q', as far as they are wanted. */
template <bool sees, bool asks>
DEVICE void read_state(u32 keys, u32 queries, int part, const float (&s)[ROWS][4], float (&seen)[8][4],
                       float (&out)[8][4]) {
#pragma unroll
    for (int span = 0; span < SPANS; span++) {
        u32 left[4][TERMS][4];
#pragma unroll
        for (int k = 0; k < 4; k++) pack_pieces<TERMS>(left[k], s[8 * span + 2 * k], s[8 * span + 2 * k + 1]);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float sum[4][4];
            read_span<sees, asks>(keys, queries, n, 4 * (SPANS * part + span), left, sum);
            add(seen[2 * n], sum[0], span == 0);
            add(seen[2 * n + 1], sum[1], span == 0);
            if (!asks) continue;
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
template <bool sees, bool asks>
DEVICE void add_parts(const work &w, char *sums, float (&seen)[8][4], float (&out)[8][4]) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 - w.part;
    float4 *own = (float4 *)sums + (threadIdx.x / 32 * 16) * 32 + lane;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (sees) own[n * 32] = make_float4(seen[n][0], seen[n][1], seen[n][2], seen[n][3]);
        if (asks) own[(8 + n) * 32] = make_float4(out[n][0], out[n][1], out[n][2], out[n][3]);
    }
    asm volatile("bar.sync %0, %1;" ::"r"(1 + first / PARTS), "n"(32 * PARTS) : "memory");
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const float4 *from = (const float4 *)sums + ((first + part) * 16 + n) * 32 + lane;
            if (sees) add_four(seen[n], from[0], part == 0);
            if (asks && has_outputs(w, n / 2)) add_four(out[n], from[8 * 32], part == 0);
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

/* S = e^G_end S. */
DEVICE void decay_state(const float *factors, int part, float (&s)[ROWS][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < ROWS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] *= factors[KEY_DECAY ? 8 * (ROWS * part + n) + lane % 4 * 2 + i % 2 : REC_PASSED * REC_CHUNK];
}

/* Those of u with factors, tokens 16 k ..., as left operands. */
template <int pieces>
DEVICE void pack_left(const float *factors, int which, int k, const float (&u)[8][4], u32 (&left)[pieces][4]) {
    float x[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float2 by = factors_of(factors, which, 2 * k + n);
#pragma unroll
        for (int i = 0; i < 4; i++) x[n][i] = u[2 * k + n][i] * (i % 2 ? by.y : by.x);
    }
    pack_pieces<pieces>(left, x[0], x[1]);
}

/* sum += rows of a tile, from tiles of 16 columns `first` on, times those of u, which have factors, in pieces. */
template <int pieces, int count>
DEVICE void add_products(u32 tile, int first, const float *factors, int which, const float (&u)[8][4],
                         float (*sum)[4]) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u32 left[pieces][4], right[count][4];
#pragma unroll
        for (int n = 0; n < count; n++) load_right_trans<KEY_SIZE>(right[n], tile, 16 * k, first + n);
        pack_left<pieces>(factors, which, k, u, left);
#pragma unroll
        for (int piece = pieces - 1; piece >= 0; piece--)
#pragma unroll
            for (int n = 0; n < count; n++) {
                mma(sum[2 * n], left[piece], right[n][0], right[n][1]);
                mma(sum[2 * n + 1], left[piece], right[n][2], right[n][3]);
            }
    }
}

/*
 * S += the sum over tokens of rows of a tile times those of u, which have factors, in so many pieces. Products cut off
 * bits of what they add to, which of a state without decays adds up from chunk to chunk: where it has the precision of
 * floats, sums of a chunk are added to it, rounded, 64 rows at a time.
 */
template <int pieces>
DEVICE void add_to_state(u32 tile, int part, const float *factors, int which, const float (&u)[8][4],
                         float (&s)[ROWS][4]) {
    if constexpr (LEFTS == 1) {
        add_products<pieces, ROWS / 2>(tile, ROWS / 2 * part, factors, which, u, s);
    } else {
#pragma unroll
        for (int span = 0; span < SPANS; span++) {
            float sum[8][4];
            clear(sum);
            add_products<pieces, 4>(tile, 4 * (SPANS * part + span), factors, which, u, sum);
#pragma unroll
            for (int n = 0; n < 8; n++) add(s[8 * span + n], sum[n], false);
        }
    }
}

#endif
