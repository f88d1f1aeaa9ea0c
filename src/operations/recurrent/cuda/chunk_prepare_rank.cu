/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands and P of chunks (chunk.cuh) of rank-one updates: a block for each chunk of a head, two warps for 16 of its
 * rows, a sub-chunk. With rows b that read the state before a token, q that read it after, a and k that are written,
 * and G as for chunk_prepare_key.cu,
 *
 *     N_ts = e^(G_t-1 - G_s) b_t.a_s,  M_ts = e^(G_t-1 - G_s) b_t.k_s,  s < t
 *     R_ts = e^(G_t - G_s) q_t.a_s,    P_ts = e^(G_t - G_s) q_t.k_s,    s <= t
 *     T = (1 - N)^-1,   W = T e^(G_t-1) b,   L = T M
 *
 * and what was read of the state S before the chunk, x = W S + L v, is put in, so that the walk has no T and no L:
 *
 *     out = (e^G q + R W) S + (P + R L) v
 *     S = e^G_end S + A' (W S) + (K + L' A)' v       A, K: a and k with the decays to the chunk's end
 *
 * One warp of a sub-chunk has the rows of b, the other those of q; blocks below the diagonal and triangles on it are
 * decayed as in chunk_prepare_key.cu. All four operands are made in place of the tiles that they come from.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE, UPDATE, TERMS (1), BACK (0), SQUARE (P for wgmma).
 */
#define WARPS 8
#define INVERSE_PIECES 2
#include "operations/recurrent/cuda/chunk_inverse.cuh"
#include "operations/recurrent/cuda/chunk_logs.cuh"

struct tiles {
    u32 b, q, k, a, m; /* one after the other; m: M, then L, and before both triangles */
};

/* Blocks of a warp's rows with a and with k as the right operand: those below the diagonal, and that on it. */
struct blocks {
    float a[6][4], k[6][4], own_a[2][4], own_k[2][4];
};

DEVICE int sub_of_warp() {
    return threadIdx.x / 32 % 4;
}
DEVICE bool warp_asks() {
    return threadIdx.x / 32 >= 4;
}

DEVICE void store_pair(u32 to, u32 x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
template <int dim> DEVICE u32 pair_at(u32 tile, int row, int channel) {
    return piece_at<dim>(tile, row, channel / 8) + channel % 8 * 2;
}

/* Log decays from a sub-chunk's beginning to what a row reads, of two channels. */
DEVICE float2 log_of_reader(const logs &s, int row, int channel) {
    const bool before = !warp_asks();
    if (before && row % SUB == 0) return make_float2(0, 0);
    return *(const float2 *)(s.log + (row - before) * LOG_PITCH + channel);
}

/* ---- Products --------------------------------------------------------------------------------------- */

DEVICE void multiply_below(const tiles &t, const logs &s, blocks &x) {
    const int sub = sub_of_warp(), lane = threadIdx.x % 32;
    const u32 reader = warp_asks() ? t.q : t.b;
    clear(x.a);
    clear(x.k);
#pragma unroll 2
    for (int k = 0; k < KEY_SIZE / 16; k++) {
        u32 left[4], written[4], key[4];
        load_left<KEY_SIZE>(left, reader, SUB * sub, k);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int row = SUB * sub + lane / 4 + n % 2 * 8;
            const float2 log = log_of_reader(s, row, 16 * k + lane % 4 * 2 + n / 2 * 8);
            left[n] = times(left[n], power_of_2(log.x), power_of_2(log.y));
        }
#pragma unroll
        for (int other = 0; other < 3; other++) {
            if (other >= sub) break;
            load_right<KEY_SIZE>(written, t.a, SUB * other, k);
            load_right<KEY_SIZE>(key, t.k, SUB * other, k);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const float2 by = decay_from(s, other, sub, k, n);
                written[n] = times(written[n], by.x, by.y);
                key[n] = times(key[n], by.x, by.y);
            }
            mma(x.a[2 * other], left, written[0], written[1]);
            mma(x.a[2 * other + 1], left, written[2], written[3]);
            mma(x.k[2 * other], left, key[0], key[1]);
            mma(x.k[2 * other + 1], left, key[2], key[3]);
        }
    }
}

/* Rows of the second half of the block on the diagonal times those of the first, decayed against the row between. */
DEVICE void multiply_halves_of_block(const tiles &t, const logs &s, float (&a)[4], float (&k)[4]) {
    const int lane = threadIdx.x % 32, first = SUB * sub_of_warp(), own = first + lane / 4;
    const u32 reader = warp_asks() ? t.q : t.b;
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = k[i] = 0;
#pragma unroll 2
    for (int step = 0; step < KEY_SIZE / 16; step++) {
        u32 left[4], written[4], key[4];
        load_left<KEY_SIZE>(left, reader, first, step);
        load_right<KEY_SIZE>(written, t.a, first, step);
        load_right<KEY_SIZE>(key, t.k, first, step);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int channel = 16 * step + 8 * n + lane % 4 * 2;
            const decays_of_halves by = decay_halves(s, first, own, channel, log_of_reader(s, own + HALF, channel));
            left[2 * n] = 0;
            left[2 * n + 1] = times(left[2 * n + 1], by.second.x, by.second.y);
            written[n] = times(written[n], by.first.x, by.first.y);
            key[n] = times(key[n], by.first.x, by.first.y);
        }
        mma(a, left, written[0], written[1]);
        mma(k, left, key[0], key[1]);
    }
}

/* A row times the first `count` of its half; what is behind the row is of no use. */
template <int count>
DEVICE void multiply_row(u32 reader, const logs &s, int row, const u32 (&written)[HALF][PAIRS],
                         const u32 (&key)[HALF][PAIRS], const float2 (&log)[HALF][PAIRS], float (&sum)[SUB]) {
#pragma unroll
    for (int n = 0; n < SUB; n++) sum[n] = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int channel = 64 * i + threadIdx.x % 32 * 2;
        const float2 own = widen_pair(load_pair(reader, row, channel)), end = log_of_reader(s, row, channel);
#pragma unroll
        for (int n = 0; n < count; n++) {
            const float2 by = decay_of_pair(end, log[n][i]);
            const float x = own.x * by.x, y = own.y * by.y;
            const float2 a = widen_pair(written[n][i]), k = widen_pair(key[n][i]);
            sum[n] += x * a.x + y * a.y;
            sum[HALF + n] += x * k.x + y * k.y;
        }
    }
}

/* The triangle of a half of the block on the diagonal: 8 rows of 8 columns with a, and of 8 with k. */
DEVICE void put_triangle(const tiles &t, const logs &s, int half, float *to) {
    const int lane = threadIdx.x % 32, first = SUB * sub_of_warp() + HALF * half;
    const u32 reader = warp_asks() ? t.q : t.b;
    u32 written[HALF][PAIRS], key[HALF][PAIRS];
    float2 log[HALF][PAIRS];
    load_half(t.a, first, written);
    load_half(t.k, first, key);
    load_logs(s, first, log);
#pragma unroll 1
    for (int row = 0; row < HALF; row++) {
        float sum[SUB];
        if (row < HALF / 2)
            multiply_row<HALF / 2>(reader, s, first + row, written, key, log, sum);
        else
            multiply_row<HALF>(reader, s, first + row, written, key, log, sum);
        const float all = sum_of_row(sum);
        if (lane < SUB) to[row * SUB + lane] = lane % HALF < row + warp_asks() ? all : 0;
    }
}

/* The blocks on the diagonal; `memory` holds the warp's triangles meanwhile. */
DEVICE void multiply_diagonal(const tiles &t, const logs &s, float *memory, blocks &x) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int half = 0; half < 2; half++) put_triangle(t, s, half, memory + half * (HALF * SUB));
    multiply_halves_of_block(t, s, x.own_a[0], x.own_k[0]);
    __syncwarp();
    const float *low = memory + lane / 4 * SUB + lane % 4 * 2, *high = low + HALF * SUB;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        x.own_a[0][i] = low[i], x.own_k[0][i] = low[HALF + i];
        x.own_a[1][i] = x.own_k[1][i] = 0;
        x.own_a[1][2 + i] = high[i], x.own_k[1][2 + i] = high[HALF + i];
    }
}

/* ---- Operands --------------------------------------------------------------------------------------- */

/* Tiles times their decays from the chunk's beginning or to its end: a thread has two channels of some rows. */
DEVICE void decay_tiles(const tiles &t, const logs &s, float scale) {
    enum { WORDS = KEY_SIZE / 2 };
    const int channel = threadIdx.x % WORDS * 2, first = threadIdx.x / WORDS, step = THREADS / WORDS;
#pragma unroll
    for (int sub = 0; sub < 4; sub++) {
        const float2 before = make_float2(totals(s, 0, sub, channel), totals(s, 0, sub, channel + 1));
        const float2 after = make_float2(totals(s, sub, 4, channel), totals(s, sub, 4, channel + 1));
#pragma unroll 2
        for (int n = first; n < SUB; n += step) {
            const int row = SUB * sub + n;
            const float2 log = *(const float2 *)(s.log + row * LOG_PITCH + channel);
            float2 last = make_float2(0, 0);
            if (n > 0) last = *(const float2 *)(s.log + (row - 1) * LOG_PITCH + channel);
            const float x = power_of_2(after.x - log.x), y = power_of_2(after.y - log.y);
            const u32 b = pair_at<KEY_SIZE>(t.b, row, channel), at = b - t.b;
            const u32 q = load_pair(t.q, row, channel), a = load_pair(t.a, row, channel);
            const u32 key = load_pair(t.k, row, channel), own = load_pair(t.b, row, channel);
            store_pair(b, times(own, power_of_2(before.x + last.x), power_of_2(before.y + last.y)));
            store_pair(t.q + at, times(q, scale * power_of_2(before.x + log.x), scale * power_of_2(before.y + log.y)));
            store_pair(t.a + at, times(a, x, y));
            store_pair(t.k + at, times(key, x, y));
        }
    }
}

/* a is kk times a, and b is -kk. */
DEVICE void multiply_rates(const tiles &t) {
    enum { WORDS = KEY_SIZE / 2 };
    for (int n = threadIdx.x; n < REC_CHUNK * WORDS; n += THREADS) {
        const u32 at = pair_at<KEY_SIZE>(0, n / WORDS, n % WORDS * 2);
        const u32 b = load_pair(t.b, n / WORDS, n % WORDS * 2);
        const float2 by = widen_pair(b);
        store_pair(t.a + at, times(load_pair(t.a, n / WORDS, n % WORDS * 2), by.x, by.y));
        store_pair(t.b + at, b ^ 0x80008000u);
    }
}

/* ---- The inverse ------------------------------------------------------------------------------------ */

/* Two tiles of sums, 16 columns from `column` on, of the warp's rows to or from a tile. */
template <int dim> DEVICE void put_sums(u32 tile, int column, const float (&low)[4], const float (&high)[4]) {
    const int lane = threadIdx.x % 32, row = SUB * sub_of_warp() + lane / 4;
    store_pair(pair_at<dim>(tile, row, column + lane % 4 * 2), pack(low[0], low[1]));
    store_pair(pair_at<dim>(tile, row + 8, column + lane % 4 * 2), pack(low[2], low[3]));
    store_pair(pair_at<dim>(tile, row, column + 8 + lane % 4 * 2), pack(high[0], high[1]));
    store_pair(pair_at<dim>(tile, row + 8, column + 8 + lane % 4 * 2), pack(high[2], high[3]));
}
DEVICE void get_sums(u32 tile, int column, float (&low)[4], float (&high)[4]) {
    const int lane = threadIdx.x % 32, row = SUB * sub_of_warp() + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float2 x = widen_pair(load_pair(tile, row + 8 * i, column + lane % 4 * 2));
        const float2 y = widen_pair(load_pair(tile, row + 8 * i, column + 8 + lane % 4 * 2));
        low[2 * i] = x.x, low[2 * i + 1] = x.y;
        high[2 * i] = y.x, high[2 * i + 1] = y.y;
    }
}

/* -N, which is inverted as A is, and M, by the warps of b. */
DEVICE void put_readers(const blocks &x, float *n, u32 m) {
    const int sub = sub_of_warp(), lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < 8; tile++) {
        if (tile / 2 > sub) break;
        const bool is_own = tile / 2 == sub;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float below = tile < 6 ? x.a[lesser(tile, 5)][i] : 0;
            n[(SUB * sub + lane / 4 + i / 2 * 8) * PITCH + 8 * tile + lane % 4 * 2 + i % 2] =
                -(is_own ? x.own_a[tile % 2][i] : below);
        }
    }
#pragma unroll
    for (int other = 0; other < 3; other++)
        if (other < sub) put_sums<REC_CHUNK>(m, SUB * other, x.k[2 * other], x.k[2 * other + 1]);
    put_sums<REC_CHUNK>(m, SUB * sub, x.own_k[0], x.own_k[1]);
}

/* W and L, in place of b and M: each warp has half of the columns of its rows. */
DEVICE void put_solved(const float *inverse, u32 b, u32 m) {
    const int sub = sub_of_warp(), lane = threadIdx.x % 32, half = warp_asks();
    float w[KEY_SIZE / 16][4], l[4][4];
    clear(w);
    clear(l);
#pragma unroll 1
    for (int other = 0; other <= sub; other++) {
        const float *at = inverse + (SUB * sub + lane / 4) * PITCH + SUB * other + lane % 4 * 2;
        float low[4], high[4];
        u32 left[2][4], right[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            low[i] = at[i / 2 * 8 * PITCH + i % 2];
            high[i] = at[i / 2 * 8 * PITCH + 8 + i % 2];
        }
        pack_pieces<2>(left, low, high);
#pragma unroll
        for (int n = 0; n < KEY_SIZE / 32; n++) {
            load_right_trans<KEY_SIZE>(right, b, SUB * other, half * (KEY_SIZE / 32) + n);
#pragma unroll
            for (int piece = 1; piece >= 0; piece--) {
                mma(w[2 * n], left[piece], right[0], right[1]);
                mma(w[2 * n + 1], left[piece], right[2], right[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            if (2 * half + n > other) continue;
            load_right_trans<REC_CHUNK>(right, m, SUB * other, 2 * half + n);
#pragma unroll
            for (int piece = 1; piece >= 0; piece--) {
                mma(l[2 * n], left[piece], right[0], right[1]);
                mma(l[2 * n + 1], left[piece], right[2], right[3]);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < KEY_SIZE / 32; n++)
        put_sums<KEY_SIZE>(b, half * (KEY_SIZE / 2) + 16 * n, w[2 * n], w[2 * n + 1]);
#pragma unroll
    for (int n = 0; n < 2; n++) put_sums<REC_CHUNK>(m, SUB * (2 * half + n), l[2 * n], l[2 * n + 1]);
}

/* ---- What the state and values are multiplied with -------------------------------------------------- */

/* R as left operands. */
DEVICE void pack_asked(const blocks &x, float scale, u32 (&r)[4][4]) {
    const int sub = sub_of_warp();
#pragma unroll
    for (int other = 0; other < 4; other++) {
        const bool is_below = other < 3 && other < sub;
        float low[4], high[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            low[i] = scale * (is_below ? x.a[lesser(2 * other, 4)][i] : x.own_a[0][i]);
            high[i] = scale * (is_below ? x.a[lesser(2 * other + 1, 5)][i] : x.own_a[1][i]);
        }
        pack_left(r[other], low, high);
    }
}

/* Adds R W to the warp's rows of q, and makes its rows of P + R L. */
DEVICE void put_asked(const tiles &t, const u32 (&r)[4][4], const blocks &x, float scale, char *scores) {
    const int sub = sub_of_warp();
    u32 right[4];
#pragma unroll 2
    for (int n = 0; n < KEY_SIZE / 16; n++) {
        float sum[2][4];
        get_sums(t.q, 16 * n, sum[0], sum[1]);
#pragma unroll
        for (int other = 0; other < 4; other++) {
            if (other > sub) break;
            load_right_trans<KEY_SIZE>(right, t.b, SUB * other, n);
            mma(sum[0], r[other], right[0], right[1]);
            mma(sum[1], r[other], right[2], right[3]);
        }
        put_sums<KEY_SIZE>(t.q, 16 * n, sum[0], sum[1]);
    }
#pragma unroll
    for (int column = 0; column < 4; column++) {
        if (column > sub) break;
        const bool is_below = column < 3 && column < sub;
        float sum[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum[0][i] = scale * (is_below ? x.k[lesser(2 * column, 4)][i] : x.own_k[0][i]);
            sum[1][i] = scale * (is_below ? x.k[lesser(2 * column + 1, 5)][i] : x.own_k[1][i]);
        }
#pragma unroll
        for (int other = column; other < 4; other++) {
            if (other > sub) break;
            load_right_trans<REC_CHUNK>(right, t.m, SUB * other, column);
            mma(sum[0], r[other], right[0], right[1]);
            mma(sum[1], r[other], right[2], right[3]);
        }
        put_block(scores, sub, column,
                  make_uint4(pack(sum[0][0], sum[0][1]), pack(sum[1][0], sum[1][1]), pack(sum[0][2], sum[0][3]),
                             pack(sum[1][2], sum[1][3])));
    }
}

/* Adds L' A to the warp's rows of k. */
DEVICE void put_left(const tiles &t) {
    const int sub = sub_of_warp(), lane = threadIdx.x % 32;
    u32 l[4][4], right[4];
#pragma unroll
    for (int other = 0; other < 4; other++)
        if (other >= sub)
            ldmatrix_x4_trans(l[other], piece_at<REC_CHUNK>(t.m, SUB * other + lane % 8 + lane / 16 * 8,
                                                            2 * sub + lane / 8 % 2));
#pragma unroll 2
    for (int n = 0; n < KEY_SIZE / 16; n++) {
        float sum[2][4];
        get_sums(t.k, 16 * n, sum[0], sum[1]);
#pragma unroll
        for (int other = 0; other < 4; other++) {
            if (other < sub) continue;
            load_right_trans<KEY_SIZE>(right, t.a, SUB * other, n);
            mma(sum[0], l[other], right[0], right[1]);
            mma(sum[1], l[other], right[2], right[3]);
        }
        put_sums<KEY_SIZE>(t.k, 16 * n, sum[0], sum[1]);
    }
}

/* All four tiles, which follow each other, as rows. */
DEVICE void put_operands(u32 tiles, uint4 *to) {
    enum { PIECES = KEY_SIZE / 8, ALL = 4 * REC_CHUNK * PIECES };
#pragma unroll 4
    for (int n = threadIdx.x; n < ALL; n += THREADS)
        to[n] = load_piece(piece_at<KEY_SIZE>(tiles, n / PIECES, n % PIECES));
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) prepare_rank(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    chunk_of_head c;
    if (!find_chunk(p, c)) return;
    const int thread = threadIdx.x;
    const u32 base = shared_address(memory);
    const tiles t = {base, base + TILE, base + 2 * TILE, base + 3 * TILE, base + 4 * TILE};
    float *triangles = (float *)(memory + 4 * TILE) + thread / 32 * (2 * HALF * SUB);
    logs &s = *(logs *)(memory + 4 * TILE + REC_SQUARE_BYTES);
    float *n = s.log; /* in place of decays */
    const u32 to[] = {t.b, t.q, t.k, t.a};
    const int role[] = {REC_B, REC_QUERY, REC_KEY, REC_A};
    const rec_size heads[] = {p.heads, p.query_heads, p.key_heads, p.heads};
#pragma unroll 1
    for (int i = 0; i < 4; i++) copy_rows(p, c, role[i], heads[i], to[i]);
    cp_async_commit();
    if (thread < REC_CHUNK)
        s.head[thread] =
            thread < c.rows && p.head_decay ? head_gate(p, c.q, rec_token(&p, &c.q, c.first + thread), c.h) : 0;
    __syncthreads();
    add_gates(p, c.q, c.first, c.rows, c.h, s);
    cp_async_wait<0>();
    __syncthreads();
    if (p.multiply) multiply_rates(t);
    add_totals(s);
    __syncthreads();
    blocks x;
    multiply_diagonal(t, s, triangles, x);
    multiply_below(t, s, x);
    __syncthreads();
    decay_tiles(t, s, (float)p.scale);
    if (thread < KEY_SIZE)
        a.factors[c.place * (KEY_SIZE + REC_CHUNK) + thread] = power_of_2(totals(s, 0, 4, thread));
    __syncthreads();
    if (!warp_asks()) put_readers(x, n, t.m);
    u32 r[4][4];
    pack_asked(x, (float)p.scale, r);
    __syncthreads();
    invert_all(n);
    put_solved(n, t.b, t.m);
    __syncthreads();
    char *scores = a.scores + c.place * REC_TRIANGLE_BYTES;
    if (warp_asks())
        put_asked(t, r, x, (float)p.scale, scores);
    else
        put_left(t);
    __syncthreads();
    put_operands(base, (uint4 *)(a.operands + c.place * (4 * TILE)));
}
