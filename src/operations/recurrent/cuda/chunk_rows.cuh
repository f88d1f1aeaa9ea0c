/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What makes gradients of a chunk's rows, whatever their decays; formulas are in chunk_rows.cu. A warp has 16 rows, and
 * all of their keys or, of 8 warps, half of them. KEY_SIZE, UPDATE.
 */
#ifndef EJKI_RECURRENT_CHUNK_ROWS_CUH
#define EJKI_RECURRENT_CHUNK_ROWS_CUH

#define BACK   0
#define SQUARE 0
#include "operations/recurrent/cuda/chunk_inverse.cuh"
#include "operations/recurrent/cuda/chunk_key.cuh"
#include "operations/recurrent/cuda/gradient.cuh"

#define DELTA (UPDATE == REC_DELTA)
#define HALVES (WARPS / 4)
#define TILES (KEY_SIZE / 8 / HALVES) /* of keys of a warp */
#define SLAB  64 /* columns of a state in shared memory at once */

struct work {
    rec_size place, columns;
    int first, steps, row; /* of the chunk, of the sequence, the lane's first in the chunk */
    const float *solved, *backs;
    rows_of value, d_out;
    bool has_d_out, is_full; /* all of the chunk's rows are there */
};

/* Which 16 rows a warp has, and which of its tiles of keys is its first. */
DEVICE int sub_of_warp() {
    return threadIdx.x / 32 % 4;
}
DEVICE int half_of_warp() {
    return HALVES > 1 ? threadIdx.x / 128 : 0;
}
DEVICE int first_tile() {
    return half_of_warp() * TILES;
}

/* Of 8 warps 4 have the products of d_out, the others those of y. */
DEVICE bool warp_asks() {
    return HALVES == 1 || half_of_warp() == 0;
}
DEVICE bool warp_tells() {
    return HALVES == 1 || half_of_warp() == 1;
}

/* ---- Operands --------------------------------------------------------------------------------------- */

/*
 * Left operands of 16 rows and columns 16 n …, in pieces that add up to them; as right operands rows are columns. A
 * word has two columns of the lane's row, or of 8 rows behind it (1, 3), or 8 columns behind (2, 3).
 */
struct operand {
    u32 x[TERMS][4];

    DEVICE_MEMBER float2 value(int word) const {
        float2 sum = widen_pair(x[0][word]);
#pragma unroll
        for (int piece = 1; piece < TERMS; piece++) {
            const float2 more = widen_pair(x[piece][word]);
            sum.x += more.x, sum.y += more.y;
        }
        return sum;
    }
};

/* Of what the walks have kept; 0 behind the last column. */
DEVICE operand kept_operand(const float *rows, const work &w, int row, int n) {
    const int lane = threadIdx.x % 32;
    operand o;
    if (16 * n >= w.columns) {
#pragma unroll
        for (int i = 0; i < 4 * TERMS; i++) o.x[i / 4][i % 4] = 0;
    } else if constexpr (TERMS == 1) {
        const uint4 x = ((const uint4 *)rows)[(n * 4 + row / 16) * 32 + lane];
        o.x[0][0] = x.x, o.x[0][1] = x.y, o.x[0][2] = x.z, o.x[0][3] = x.w;
    } else {
        float x[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int own = row / 16 * 16 + lane / 4 + i % 2 * 8, column = 16 * n + i / 2 * 8 + lane % 4 * 2;
            const float2 two = *(const float2 *)(rows + own * w.columns + column);
            x[i / 2][i % 2 * 2] = two.x, x[i / 2][i % 2 * 2 + 1] = two.y;
        }
        pack_pieces<TERMS>(o.x, x[0], x[1]);
    }
    return o;
}

/* Of a tensor, in one piece; 0 behind the last token, too. */
DEVICE void load_operand(const rows_of &r, const work &w, int row, int n, u32 (&x)[4]) {
    const int lane = threadIdx.x % 32, t = w.first + row / 16 * 16 + lane / 4;
    const u16 *at = r.data + t * r.stride_t + 16 * n + lane % 4 * 2, *behind = at + 8 * r.stride_t;
    x[0] = x[1] = x[2] = x[3] = 0;
    if (16 * n >= w.columns) return;
    if (r.whole && w.is_full) {
        x[0] = *(const u32 *)at, x[1] = *(const u32 *)behind;
        x[2] = *(const u32 *)(at + 8), x[3] = *(const u32 *)(behind + 8);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u16 *own = (i % 2 ? behind : at) + i / 2 * 8;
        if (t + i % 2 * 8 < w.steps) x[i] = own[0] | (u32)own[1] << 16;
    }
}

DEVICE void load_d_out(const work &w, int row, int n, u32 (&x)[4]) {
    x[0] = x[1] = x[2] = x[3] = 0;
    if (w.has_d_out) load_operand(w.d_out, w, row, n, x);
}

DEVICE operand load_u(const work &w, int row, int n) {
    if (DELTA) return kept_operand(w.solved, w, row, n);
    operand o = {};
    load_operand(w.value, w, row, n, o.x[0]);
    return o;
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

/* What a warp's products over columns 16 n … are of. */
struct columns_of_rows {
    operand u[4], y;
    u32 d[4], v[4];

    DEVICE_MEMBER void load(const work &w, int n) {
#pragma unroll
        for (int column = 0; column < 4; column++)
            if (column <= sub_of_warp() && (DELTA || warp_asks())) u[column] = load_u(w, 16 * column, n);
        if (!DELTA || warp_asks()) load_d_out(w, w.row, n, d);
        if (!warp_tells()) return;
        y = kept_operand(w.backs, w, w.row, n);
        load_operand(w.value, w, w.row, n, v);
    }
};

/*
 * Rows of the warp: f and n without decays, or one of both; y v, of sums d_out v, is added up; dv goes to its row, or
 * to `direct`.
 */
DEVICE void multiply_columns(const rec_chunked &a, const work &w, float *const (&rows)[2], u16 *const (&direct)[2],
                             const float (&beta)[2], float (&f)[8][4], float (&n)[8][4], float (&along)[2]) {
    const int sub = sub_of_warp(), vectors = rec_vectors(&a.p), steps = (int)(w.columns / 16);
    columns_of_rows next;
    clear(f);
    clear(n);
    along[0] = along[1] = 0;
    next.load(w, 0);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const columns_of_rows own = next; /* loads are under way while others are used */
        if (TERMS == 1 && step + 1 < steps) next.load(w, step + 1);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!warp_tells()) break;
            const int column = 16 * step + i / 2 * 8 + threadIdx.x % 4 * 2;
            const float2 y = own.y.value(i), v = widen_pair(own.v[i]), d = widen_pair(own.d[i]);
            const float by = DELTA ? beta[i % 2] : 1;
            along[i % 2] += DELTA ? y.x * v.x + y.y * v.y : d.x * v.x + d.y * v.y;
            if (DIRECT & REC_DIRECT_VALUE) {
                if (direct[i % 2]) store_pair(direct[i % 2] + column, by * y.x, by * y.y);
            } else if (rows[i % 2]) {
                *(float2 *)(rows[i % 2] + vectors * KEY_SIZE + column) = make_float2(by * y.x, by * y.y);
            }
        }
#pragma unroll
        for (int column = 0; column < 4; column++) {
            if (column > sub || (!DELTA && !warp_asks())) break;
            u32 left[1][4], right[TERMS][4];
#pragma unroll
            for (int i = 0; i < 4; i++) left[0][i] = own.d[i];
#pragma unroll
            for (int piece = 0; piece < TERMS; piece++)
#pragma unroll
                for (int i = 0; i < 4; i++) right[piece][i] = own.u[column].x[piece][i / 2 + i % 2 * 2];
            if (warp_asks()) add_product(f[2 * column], f[2 * column + 1], left, right);
            if (DELTA && warp_tells()) add_product(n[2 * column], n[2 * column + 1], own.y.x, right);
        }
        if (TERMS > 1 && step + 1 < steps) next.load(w, step + 1);
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
    const int slabs = slabs_of(w), count = (int)(w.columns - n % slabs * SLAB) * (KEY_SIZE / 8); /* pieces */
    if (TERMS == 1 && n < 2 * slabs) {
        const u16 *from = (const u16 *)(n < slabs ? a.states : a.cotangents) + slab_at(w, n);
#pragma unroll
        for (int k = 0; k < SLAB * (KEY_SIZE / 8) / THREADS; k++) {
            const int piece = k * THREADS + threadIdx.x;
            copy_piece(tiles + n % 2 * TILE + 16 * piece, piece < count ? from + 8 * piece : from, piece < count);
        }
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
#define AHEAD (TERMS == 1 ? 4 / HALVES : 1)

/* Right operands of rows row … of a slab and keys 16 n …: in blocks, as states are kept in bf16, or a tile. */
template <bool in_blocks> DEVICE void load_state(u32 (&x)[4], u32 tile, int row, int n) {
    const int lane = threadIdx.x % 32;
    if (in_blocks)
        ldmatrix_x4_trans(x, tile + ((row / 8 + lane / 8 % 2) * (KEY_SIZE / 8) + 2 * n + lane / 16) * 128 +
                                 lane % 8 * 16);
    else
        load_right_trans<KEY_SIZE>(x, tile, row, n);
}

/* sum += rows times a slab of a state, over its columns 16 k …; rows are in `own` pieces. */
template <int own> DEVICE void multiply_state(u32 tile, int k, const u32 (&left)[own][4], float (&sum)[TILES][4]) {
#pragma unroll
    for (int n = 0; n < TILES / 2; n++) {
        u32 right[TERMS][4];
#pragma unroll
        for (int term = 0; term < TERMS; term++)
            load_state<TERMS == 1>(right[term], tile + term * TILE, 16 * k, first_tile() / 2 + n);
        add_product(sum[2 * n], sum[2 * n + 1], left, right);
    }
}

DEVICE void store_rows(float *const (&rows)[2], int vector, const float (&x)[TILES][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (!rows[half]) continue;
        float2 *to = (float2 *)(rows[half] + vector * KEY_SIZE + 8 * first_tile() + threadIdx.x % 4 * 2);
#pragma unroll
        for (int n = 0; n < TILES; n++) to[4 * n] = make_float2(x[n][2 * half], x[n][2 * half + 1]);
    }
}

/* A row's gradients of query, key and so on, NULL behind the last. */
DEVICE float *row_of(const rec_chunked &a, const rec_sequence &q, const work &w, rec_size h, int row) {
    const rec_size t = rec_token(&a.p, &q, w.first + row);
    return w.first + row < w.steps ? a.sums + ((q.batch * a.p.tokens + t) * a.p.heads + h) * a.width : NULL;
}

/* What all warps of a row have. */
DEVICE float of_halves(const float (&x)[HALVES][REC_CHUNK], int row) {
    return HALVES > 1 ? x[0][row] + x[HALVES - 1][row] : x[0][row];
}

/* Rows get factors; each one's sum times its row of the tile, over the warp's keys. */
DEVICE void scale_rows(u32 tile, int row, const float (&factor)[2], float (&x)[TILES][4], float (&along)[2]) {
    along[0] = along[1] = 0;
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int key = 8 * (first_tile() + n) + threadIdx.x % 4 * 2;
            const float2 own = widen_pair(load_pair(tile, row + 8 * half, key));
            along[half] += own.x * x[n][2 * half] + own.y * x[n][2 * half + 1];
            x[n][2 * half] *= factor[half], x[n][2 * half + 1] *= factor[half];
        }
    along[0] = sum_of_lanes(along[0], 4), along[1] = sum_of_lanes(along[1], 4);
}

/* The gradient of a tile's rows, through their normalisation by `norm`, to its tensor. */
DEVICE void store_direct(const rec_chunked &a, const rec_sequence &q, const work &w, rec_size h, int role, u32 tile,
                         const float *norm, float (&alongs)[HALVES][REC_CHUNK], float (&x)[TILES][4]) {
    if (a.p.normalise) {
        float factor[2], along[2], by[2];
#pragma unroll
        for (int half = 0; half < 2; half++) by[half] = factor[half] = norm[w.row + 8 * half];
        scale_rows(tile, w.row, factor, x, along);
        if (threadIdx.x % 4 == 0)
            for (int half = 0; half < 2; half++) alongs[half_of_warp()][w.row + 8 * half] = along[half];
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++)
            by[half] *= by[half] * by[half] * of_halves(alongs, w.row + 8 * half);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int key = 8 * (first_tile() + n) + threadIdx.x % 4 * 2;
                const float2 own = widen_pair(load_pair(tile, w.row + 8 * half, key));
                x[n][2 * half] -= own.x * by[half], x[n][2 * half + 1] -= own.y * by[half];
            }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u16 *to = direct_row(a, q, w, h, role, w.row + 8 * half);
        if (!to) continue;
        to += 8 * first_tile() + threadIdx.x % 4 * 2;
        if (((u64)to & 2) == 0) {
#pragma unroll
            for (int n = 0; n < TILES; n++) *(u32 *)(to + 8 * n) = pack(x[n][2 * half], x[n][2 * half + 1]);
        } else {
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                const u32 pair = pack(x[n][2 * half], x[n][2 * half + 1]);
                to[8 * n] = (u16)pair, to[8 * n + 1] = (u16)(pair >> 16);
            }
        }
    }
}

/*
 * What passes by a row's gate from the state to rows from its own on, and from rows before it to the state behind, by
 * the thread of the row, of two whole warps.
 */
DEVICE float gate_of_states(const float (&since_of)[HALVES][REC_CHUNK], const float (&until_of)[HALVES][REC_CHUNK],
                            int row) {
    const int lane = row % 32;
    float since = of_halves(since_of, row), until = of_halves(until_of, row);
    for (int n = 1; n < 32; n *= 2) {
        const float behind = __shfl_down_sync(~0u, since, n), before = __shfl_up_sync(~0u, until, n);
        if (lane + n < 32) since += behind;
        if (lane >= n) until += before;
    }
    const float own = __shfl_up_sync(~0u, until, 1);
    const float other = sum_of_lanes(row < 32 ? of_halves(since_of, row + 32) : of_halves(until_of, row - 32), 32);
    return since + (lane ? own : 0) + other;
}

DEVICE work work_of(const rec_chunked &a, const chunk_of_head &c) {
    const rec_problem &p = a.p;
    work w;
    w.place = c.place, w.columns = p.value_size;
    w.first = (int)c.first, w.steps = (int)c.steps, w.row = sub_of_warp() * 16 + threadIdx.x % 32 / 4;
    w.is_full = c.rows == REC_CHUNK;
    const rec_size kept = w.place * REC_CHUNK * w.columns / (TERMS > 1 ? 1 : 2);
    w.solved = a.solved + kept, w.backs = a.backs + kept;
    w.value = rows_in(p, p.view[REC_VALUE], c.q, rec_head(&p, c.h, p.value_heads), 0);
    w.has_d_out = p.view[REC_D_OUT].present;
    w.d_out = w.has_d_out ? rows_in(p, p.view[REC_D_OUT], c.q, c.h, 0) : w.value;
    return w;
}

#endif
