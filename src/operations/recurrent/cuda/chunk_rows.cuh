/* SPDX-License-Identifier: Apache-2.0 */
/* What makes gradients of a chunk's rows, whatever their decays; formulas are in chunk_rows.cu. KEY_SIZE, UPDATE. */
#ifndef EJKI_RECURRENT_CHUNK_ROWS_CUH
#define EJKI_RECURRENT_CHUNK_ROWS_CUH

#define BACK   0
#define SQUARE 0
#include "operations/recurrent/cuda/chunk_inverse.cuh"
#include "operations/recurrent/cuda/chunk_key.cuh"
#include "operations/recurrent/cuda/gradient.cuh"

#define DELTA (UPDATE == REC_DELTA)
#define TILES (KEY_SIZE / 8)
#define SLAB  64 /* columns of a state in shared memory at once */

struct work {
    rec_size place, columns;
    int first, steps, row; /* of the chunk, of the sequence, the lane's first in the chunk */
    const float *solved, *backs;
    rows_of value, d_out;
    bool has_d_out;
};

/* ---- Operands --------------------------------------------------------------------------------------- */

/* Elements of two columns of rows of floats: rows row and row + 8, columns j and j + 1, 0 behind the last. */
DEVICE void load_floats(const float *rows, const work &w, int row, rec_size j, float (&x)[4]) {
    const float *at = rows + row * w.columns + j;
    const bool is_there = j < w.columns;
    const float2 low = is_there ? *(const float2 *)at : make_float2(0, 0);
    const float2 high = is_there ? *(const float2 *)(at + 8 * w.columns) : make_float2(0, 0);
    x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
}

/* The same of a tensor. */
DEVICE void load_elements(const rows_of &r, const work &w, int row, rec_size j, float (&x)[4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = w.first + row + 8 * half;
        const bool is_there = t < w.steps && j < w.columns;
        const u16 *at = r.data + t * r.stride_t + j;
        u32 pair = 0;
        if (is_there) pair = r.whole ? *(const u32 *)at : at[0] | (u32)at[1] << 16;
        x[2 * half] = widen((u16)pair), x[2 * half + 1] = widen((u16)(pair >> 16));
    }
}

DEVICE void load_u(const work &w, int row, rec_size j, float (&x)[4]) {
    if (DELTA)
        load_floats(w.solved, w, row, j, x);
    else
        load_elements(w.value, w, row, j, x);
}

/* Adds a product of operands in pieces, of which right ones are two tiles of 8 columns. */
template <int own, int others>
DEVICE void add_product(float (&low)[4], float (&high)[4], const u32 (&left)[own][4], const u32 (&right)[others][4]) {
#pragma unroll
    for (int piece = others - 1; piece >= 0; piece--)
#pragma unroll
        for (int mine = lesser(own, larger(own, others) - piece) - 1; mine >= 0; mine--) {
            mma(low, left[mine], right[piece][0], right[piece][1]);
            mma(high, left[mine], right[piece][2], right[piece][3]);
        }
}

/* Where a vector of the lane's row goes that nothing is added to, NULL if it is not wanted or behind the last. */
DEVICE u16 *direct_row(const rec_chunked &a, const rec_sequence &q, const work &w, rec_size h, int role, int row) {
    const rec_view &v = a.p.view[REC_D(role)];
    if (!v.present || w.first + row >= w.steps) return NULL;
    return (u16 *)v.data + rec_at(&v, q.batch, rec_token(&a.p, &q, w.first + row), h);
}
DEVICE void store_pair(u16 *to, float low, float high) {
    const u32 pair = pack(low, high);
    if (((u64)to & 2) == 0)
        *(u32 *)to = pair;
    else
        to[0] = (u16)pair, to[1] = (u16)(pair >> 16);
}

/* Rows of the warp: f and n without decays; y v, of sums d_out v, is added up; dv goes to its row, or to `direct`. */
DEVICE void multiply_columns(const rec_chunked &a, const work &w, float *const (&rows)[2], u16 *const (&direct)[2],
                             const float (&beta)[2],
                             float (&f)[8][4], float (&n)[8][4], float (&along)[2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int vectors = rec_vectors(&a.p);
    clear(f);
    clear(n);
    along[0] = along[1] = 0;
    for (rec_size j = 0; j < w.columns; j += 16) {
        float d[2][4], y[2][4], u[4][2][4];
        u32 left[1][4], back[TERMS][4];
#pragma unroll
        for (int column = 0; column < 4; column++) /* all loads are under way before the first is used */
#pragma unroll
            for (int half = 0; half < 2 && column <= warp; half++)
                load_u(w, 16 * column + lane / 4, j + 8 * half + lane % 4 * 2, u[column][half]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const rec_size own = j + 8 * half + lane % 4 * 2;
            float v[4];
            load_floats(w.backs, w, w.row, own, y[half]);
            if (w.has_d_out)
                load_elements(w.d_out, w, w.row, own, d[half]);
            else
                d[half][0] = d[half][1] = d[half][2] = d[half][3] = 0;
            load_elements(w.value, w, w.row, own, v);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                along[i / 2] += (DELTA ? y[half][i] : d[half][i]) * v[i];
                if (!(DIRECT & REC_DIRECT_VALUE) && rows[i / 2])
                    rows[i / 2][vectors * KEY_SIZE + own + i % 2] = DELTA ? beta[i / 2] * y[half][i] : y[half][i];
            }
        }
#pragma unroll
        for (int i = 0; i < 4 && (DIRECT & REC_DIRECT_VALUE); i++) {
            const float *own = &y[i / 2][i % 2 * 2], by = DELTA ? beta[i % 2] : 1;
            if (direct[i % 2]) store_pair(direct[i % 2] + j + i / 2 * 8 + lane % 4 * 2, by * own[0], by * own[1]);
        }
        pack_left(left[0], d[0], d[1]);
        pack_pieces<TERMS>(back, y[0], y[1]);
#pragma unroll
        for (int column = 0; column < 4; column++) {
            if (column > warp) break;
            u32 x[TERMS][4], right[TERMS][4];
            pack_pieces<TERMS>(x, u[column][0], u[column][1]);
#pragma unroll
            for (int piece = 0; piece < TERMS; piece++) {
                right[piece][0] = x[piece][0], right[piece][1] = x[piece][2];
                right[piece][2] = x[piece][1], right[piece][3] = x[piece][3];
            }
            add_product(f[2 * column], f[2 * column + 1], left, right);
            if (DELTA) add_product(n[2 * column], n[2 * column + 1], back, right);
        }
    }
}

/* A slab of a kept state of floats as tiles of its pieces: rows are its columns. */
DEVICE void copy_pieces(u32 tile, const float *from, rec_size columns) {
    enum { PIECES = KEY_SIZE / 8 };
    for (int n = threadIdx.x; n < SLAB * PIECES; n += THREADS) {
        const int row = n / PIECES, piece = n % PIECES;
        float rest[8];
        const bool is_there = row < columns;
        const float4 *at = (const float4 *)(from + row * KEY_SIZE + 8 * piece);
        const float4 low = is_there ? at[0] : make_float4(0, 0, 0, 0), high = is_there ? at[1] : low;
        rest[0] = low.x, rest[1] = low.y, rest[2] = low.z, rest[3] = low.w;
        rest[4] = high.x, rest[5] = high.y, rest[6] = high.z, rest[7] = high.w;
#pragma unroll
        for (int term = 0; term < TERMS; term++) {
            store_piece(piece_at<KEY_SIZE>(tile + term * TILE, row, piece),
                        make_uint4(pack(rest[0], rest[1]), pack(rest[2], rest[3]), pack(rest[4], rest[5]),
                                   pack(rest[6], rest[7])));
#pragma unroll
            for (int i = 0; i < 8; i++) rest[i] -= widen(narrow(rest[i]));
        }
    }
}

/*
 * Slabs of the states before chunks, then of the cotangents behind them, one after the other: as bf16 they come ahead
 * into two tiles in turn, floats are made pieces of when they are taken.
 */
DEVICE int slabs_of(const work &w) {
    return (int)((w.columns + SLAB - 1) / SLAB);
}
DEVICE rec_size slab_at(const work &w, int n) {
    return (w.place * w.columns + n % slabs_of(w) * SLAB) * KEY_SIZE;
}
DEVICE void begin_slab(const rec_chunked &a, const work &w, u32 tiles, int n) {
    const int slabs = slabs_of(w), rows = lesser((int)w.columns - n % slabs * SLAB, SLAB);
    if (TERMS == 1 && n < 2 * slabs) {
        const u16 *from = (const u16 *)(n < slabs ? a.states : a.cotangents) + slab_at(w, n);
        copy_tile<SLAB, KEY_SIZE>(tiles + n % 2 * TILE, rows_of{from, KEY_SIZE, 0, true}, 0, rows, 1);
    }
    cp_async_commit();
}
/* The tile of slab n, and begins the next. */
DEVICE u32 take_slab(const rec_chunked &a, const work &w, u32 tiles, int n) {
    if (TERMS == 1) {
        cp_async_wait<0>();
        __syncthreads();
        begin_slab(a, w, tiles, n + 1);
        return tiles + n % 2 * TILE;
    }
    __syncthreads();
    copy_pieces(tiles, (n < slabs_of(w) ? a.states : a.cotangents) + slab_at(w, n), w.columns - n % slabs_of(w) * SLAB);
    __syncthreads();
    return tiles;
}

/* Steps of 16 columns of a slab whose rows are loaded at once. */
#define AHEAD (TERMS == 1 ? 4 : 1)

/* sum += rows times a slab of a state, over its columns 16 k …; rows are in `own` pieces. */
template <int own> DEVICE void multiply_state(u32 tile, int k, const u32 (&left)[own][4], float (&sum)[TILES][4]) {
#pragma unroll
    for (int n = 0; n < TILES / 2; n++) {
        u32 right[TERMS][4];
#pragma unroll
        for (int term = 0; term < TERMS; term++)
            load_right_trans<KEY_SIZE>(right[term], tile + term * TILE, 16 * k, n);
        add_product(sum[2 * n], sum[2 * n + 1], left, right);
    }
}

DEVICE void store_rows(float *const (&rows)[2], int vector, const float (&x)[TILES][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (!rows[half]) continue;
#pragma unroll
        for (int n = 0; n < TILES; n++)
            *(float2 *)(rows[half] + vector * KEY_SIZE + 8 * n + threadIdx.x % 4 * 2) =
                make_float2(x[n][2 * half], x[n][2 * half + 1]);
    }
}

/* A row's gradients of query, key and so on, NULL behind the last. */
DEVICE float *row_of(const rec_chunked &a, const rec_sequence &q, const work &w, rec_size h, int row) {
    const rec_size t = rec_token(&a.p, &q, w.first + row);
    return w.first + row < w.steps ? a.sums + ((q.batch * a.p.tokens + t) * a.p.heads + h) * a.width : NULL;
}

DEVICE work work_of(const rec_chunked &a, const rec_sequence &q, rec_size h, rec_size first) {
    const rec_problem &p = a.p;
    work w;
    w.place = blockIdx.x, w.columns = p.value_size;
    w.first = (int)first, w.steps = (int)(q.end - q.begin), w.row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    w.solved = a.solved + w.place * REC_CHUNK * w.columns;
    w.backs = a.backs + w.place * REC_CHUNK * w.columns;
    w.value = rows_in(p, p.view[REC_VALUE], q, rec_head(&p, h, p.value_heads), 0);
    w.has_d_out = p.view[REC_D_OUT].present;
    w.d_out = w.has_d_out ? rows_in(p, p.view[REC_D_OUT], q, h, 0) : w.value;
    return w;
}

#endif
