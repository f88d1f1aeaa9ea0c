/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a chunk's rows (chunk.cuh) whose decays are those of heads, for all chunks at once: a block for each
 * chunk of a head, of whose warps each has 16 rows. With f = d_out u' and n = -beta y u' times the decays between their
 * tokens, on and below the diagonal,
 *
 *     dq = scale (e^G S d_out + f k)          d_beta = y v - e^G k (S y) - M (y u')       M = A / beta
 *     dk = f' q - e^G beta S y + (n + n') k + e^(G_end - G) dS u
 *
 * A gate's gradient is the sum of all that passes by it, as on CPUs: nothing is subtracted, so that gates far below 0
 * get what they get in the recurrence. u, y and states are floats and rounded to TERMS numbers of the element type
 * where they are multiplied. What is written are gradient.cuh's rows, of which gradient_sums.cu makes gradients, and
 * (DIRECT) what is a gradient already.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128), UPDATE, TERMS, DIRECT.
 */
#include "operations/recurrent/cuda/chunk_gates.cuh"
#include "operations/recurrent/cuda/chunk_rows.cuh"

struct parts {
    float f[REC_CHUNK * PITCH], n[REC_CHUNK * PITCH];
    chunk_gates g;
    float since[REC_CHUNK], until[REC_CHUNK], gate[REC_CHUNK], beta[REC_CHUNK]; /* of rows */
    float step[REC_CHUNK], met[WARPS]; /* gradients of step sizes; sums of S dS */
};

/* ---- Between tokens --------------------------------------------------------------------------------- */

/* Rows 16 warp … of Q K' and K K', columns up to the diagonal. */
DEVICE void multiply_rows(u32 keys, u32 queries, float (&kk)[8][4], float (&qk)[8][4]) {
    const int warp = threadIdx.x / 32;
    clear(kk);
    clear(qk);
#pragma unroll 1
    for (int k = 0; k < KEY_SIZE / 16; k++) {
        u32 key[4], query[4], right[4];
        if (DELTA) load_left<KEY_SIZE>(key, keys, 16 * warp, k);
        load_left<KEY_SIZE>(query, queries, 16 * warp, k);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n > warp) break;
            load_right<KEY_SIZE>(right, keys, 16 * n, k);
            if (DELTA) mma(kk[2 * n], key, right[0], right[1]);
            if (DELTA) mma(kk[2 * n + 1], key, right[2], right[3]);
            mma(qk[2 * n], query, right[0], right[1]);
            mma(qk[2 * n + 1], query, right[2], right[3]);
        }
    }
}

/* f and n with their decays to shared memory, what passes by gates to `passing`; M (y u') is taken off d_beta. */
DEVICE void put_between(parts &s, u32 keys, u32 queries, float (&f)[8][4], float (&n)[8][4], float *passing,
                        float (&beta)[2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float kk[8][4], qk[8][4];
    multiply_rows(keys, queries, kk, qk);
#pragma unroll
    for (int tile = 0; tile < 8; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = 16 * warp + lane / 4 + i / 2 * 8, from = 8 * tile + lane % 4 * 2 + i % 2;
            const float by = from <= to ? decay(s.g, to, from) : 0, k_factor = s.g.k_factor[from];
            const float d_p = from <= to ? f[tile][i] * by : 0, yu = from < to ? n[tile][i] * by : 0;
            float pass = from < to ? d_p * qk[tile][i] * (k_factor * s.g.q_factor[to]) : 0;
            s.f[to * PITCH + from] = d_p;
            if (DELTA) {
                const float m = from < to ? kk[tile][i] * (k_factor * s.g.k_factor[to]) : 0;
                beta[i / 2] -= m * yu;
                pass -= s.g.beta[to] * (m * yu);
                s.n[to * PITCH + from] = -s.g.beta[to] * yu;
            }
            passing[to * PITCH + from] = pass;
        }
    }
}

/* Of each gate what passes by it from tokens before it to tokens from its own on. */
DEVICE void add_passing(parts &s, float *passing) {
    const int own = threadIdx.x;
    float sum = 0;
    for (int j = 0; own < REC_CHUNK && j < own; j++) {
        sum += passing[own * PITCH + j];
        passing[own * PITCH + j] = sum;
    }
    __syncthreads();
    sum = 0;
    for (int i = own; own > 0 && i < REC_CHUNK; i++) sum += passing[i * PITCH + own - 1];
    if (own < REC_CHUNK) s.gate[own] = sum;
}

/* ---- States ----------------------------------------------------------------------------------------- */

/* The sum of all elements of a state times those of its cotangent, of the block's threads. */
DEVICE float meet_states(const rec_chunked &a, const work &w) {
    const rec_size first = w.place * w.columns * KEY_SIZE;
    float sum = 0;
    if (TERMS == 1) {
        const uint4 *state = (const uint4 *)((const u16 *)a.states + first);
        const uint4 *cotangent = (const uint4 *)((const u16 *)a.cotangents + first);
#pragma unroll 4
        for (int n = threadIdx.x; n < w.columns * (KEY_SIZE / 8); n += THREADS) {
            const uint4 x = state[n], y = cotangent[n];
            const u32 own[] = {x.x, x.y, x.z, x.w}, other[] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 one = widen_pair(own[i]), two = widen_pair(other[i]);
                sum += one.x * two.x + one.y * two.y;
            }
        }
    } else {
        const float4 *state = (const float4 *)(a.states + first), *cotangent = (const float4 *)(a.cotangents + first);
        for (rec_size n = threadIdx.x; n < w.columns * (KEY_SIZE / 4); n += THREADS) {
            const float4 x = state[n], y = cotangent[n];
            sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
        }
    }
    return sum_of_lanes(sum, 32);
}

/* Rows get factors; each one's sum times its row of the tile. */
DEVICE void scale_rows(u32 tile, int row, const float (&factor)[2], float (&x)[TILES][4], float (&along)[2]) {
    along[0] = along[1] = 0;
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float2 own = widen_pair(load_pair(tile, row + 8 * half, 8 * n + threadIdx.x % 4 * 2));
            along[half] += own.x * x[n][2 * half] + own.y * x[n][2 * half + 1];
            x[n][2 * half] *= factor[half], x[n][2 * half + 1] *= factor[half];
        }
    along[0] = sum_of_lanes(along[0], 4), along[1] = sum_of_lanes(along[1], 4);
}

/* The gradient of a tile's rows, through their normalisation, to its tensor. */
DEVICE void store_direct(const rec_chunked &a, const rec_sequence &q, const work &w, rec_size h, int role, u32 tile,
                         float (&x)[TILES][4]) {
    if (a.p.normalise) {
        float factor[2], along[2], by[2];
#pragma unroll
        for (int half = 0; half < 2; half++) by[half] = factor[half] = factor_of(a.p, tile, w.row + 8 * half);
        scale_rows(tile, w.row, factor, x, along);
#pragma unroll
        for (int half = 0; half < 2; half++) by[half] *= by[half] * by[half] * along[half];
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float2 own = widen_pair(load_pair(tile, w.row + 8 * half, 8 * n + threadIdx.x % 4 * 2));
                x[n][2 * half] -= own.x * by[half], x[n][2 * half + 1] -= own.y * by[half];
            }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u16 *to = direct_row(a, q, w, h, role, w.row + 8 * half);
        if (!to) continue;
#pragma unroll
        for (int n = 0; n < TILES; n++)
            store_pair(to + 8 * n + threadIdx.x % 4 * 2, x[n][2 * half], x[n][2 * half + 1]);
    }
}

/* sum += x times rows 16 k … of a tile. */
DEVICE void multiply_tile(u32 tile, int k, const float (&low)[4], const float (&high)[4], float (&sum)[TILES][4]) {
    u32 left[TERMS][4];
    pack_pieces<TERMS>(left, low, high);
#pragma unroll
    for (int n = 0; n < TILES / 2; n++) {
        u32 right[1][4];
        load_right_trans<KEY_SIZE>(right[0], tile, 16 * k, n);
        add_product(sum[2 * n], sum[2 * n + 1], left, right);
    }
}

/* What tokens say to each other: f k to dq, f' q and (n + n') k to dk. */
DEVICE void add_tokens(const parts &s, u32 keys, u32 queries, float scale, float (&dq)[TILES][4],
                       float (&dk)[TILES][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
        float f[2][4], turned[2][4], n[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = 16 * warp + lane / 4 + i / 2 * 8, other = 16 * k + 8 * half + lane % 4 * 2 + i % 2;
                const int here = row * PITCH + other, there = other * PITCH + row;
                f[half][i] = k <= warp ? s.f[here] * (scale * s.g.k_factor[other]) : 0;
                turned[half][i] = k >= warp ? s.f[there] * s.g.q_factor[other] : 0;
                n[half][i] = DELTA ? ((k <= warp ? s.n[here] : 0) + (k >= warp ? s.n[there] : 0)) * s.g.k_factor[other]
                                   : 0;
            }
        if (k <= warp) multiply_tile(keys, k, f[0], f[1], dq);
        if (k >= warp) multiply_tile(queries, k, turned[0], turned[1], dk);
        if (DELTA) multiply_tile(keys, k, n[0], n[1], dk);
    }
}

/* dq and, but for what the cotangent says, dk. */
DEVICE void make_rows(const rec_chunked &a, parts &s, const work &w, const rec_sequence &q, rec_size h, u32 keys,
                      u32 queries, u32 tiles, float *const (&rows)[2], float (&dk)[TILES][4], float (&beta)[2]) {
    const int lane = threadIdx.x % 32;
    float dq[TILES][4], factor[2], along[2], since[2];
    const float scale = (float)a.p.scale;
    clear(dq);
    clear(dk);
    for (int slab = 0; slab < slabs_of(w); slab++) {
        u32 tile = tiles;
#pragma unroll 1
        for (int first = 0; first < SLAB / 16; first += AHEAD) {
            u32 left[AHEAD][1][4], back[AHEAD][TERMS][4];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const rec_size j = slab * SLAB + 16 * (first + k) + lane % 4 * 2;
                float x[2][4] = {}, y[2][4];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (w.has_d_out) load_elements(w.d_out, w, w.row, j + 8 * half, x[half]);
                    if (DELTA) load_floats(w.backs, w, w.row, j + 8 * half, y[half]);
                }
                pack_left(left[k][0], x[0], x[1]);
                if constexpr (DELTA) pack_pieces<TERMS>(back[k], y[0], y[1]);
            }
            if (first == 0) tile = take_slab(a, w, tiles, slab);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                multiply_state(tile, first + k, left[k], dq);
                if constexpr (DELTA) multiply_state(tile, first + k, back[k], dk);
            }
        }
    }
    /* Rows are normalised by factors, of which that of the query has the scale. */
#pragma unroll
    for (int half = 0; half < 2; half++) factor[half] = scale * decay(s.g, w.row + 8 * half, -1);
    scale_rows(queries, w.row, factor, dq, along);
#pragma unroll
    for (int half = 0; half < 2; half++)
        since[half] = along[half] * s.g.q_factor[w.row + 8 * half] * decay(s.g, w.row + 8 * half, -1);
    if (DELTA) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            factor[half] = -s.g.beta[w.row + 8 * half] * decay(s.g, w.row + 8 * half, -1);
        scale_rows(keys, w.row, factor, dk, along);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float seen = along[half] * s.g.k_factor[w.row + 8 * half] * decay(s.g, w.row + 8 * half, -1);
            if (lane % 4 == 0) beta[half] -= seen; /* lanes of a row are added up later */
            since[half] -= s.g.beta[w.row + 8 * half] * seen;
        }
    }
    if (lane % 4 == 0) s.since[w.row] = since[0], s.since[w.row + 8] = since[1];
    add_tokens(s, keys, queries, scale, dq, dk);
    if (DIRECT & REC_DIRECT_QUERY)
        store_direct(a, q, w, h, REC_QUERY, queries, dq);
    else
        store_rows(rows, REC_SUM_QUERY, dq);
}

/* What the cotangent says to dk. */
DEVICE void add_cotangent(const rec_chunked &a, parts &s, work &w, u32 keys, u32 tiles, float (&dk)[TILES][4]) {
    const int lane = threadIdx.x % 32;
    float left_of[TILES][4], factor[2], along[2];
    clear(left_of);
    for (int slab = 0; slab < slabs_of(w); slab++) {
        u32 tile = tiles;
#pragma unroll 1
        for (int first = 0; first < SLAB / 16; first += AHEAD) {
            u32 left[AHEAD][TERMS][4];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const rec_size j = slab * SLAB + 16 * (first + k) + lane % 4 * 2;
                float x[2][4];
#pragma unroll
                for (int half = 0; half < 2; half++) load_u(w, w.row, j + 8 * half, x[half]);
                pack_pieces<TERMS>(left[k], x[0], x[1]);
            }
            if (first == 0) tile = take_slab(a, w, tiles, slabs_of(w) + slab);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) multiply_state(tile, first + k, left[k], left_of);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) factor[half] = decay(s.g, REC_CHUNK - 1, w.row + 8 * half);
    scale_rows(keys, w.row, factor, left_of, along);
    if (lane % 4 == 0)
        for (int half = 0; half < 2; half++)
            s.until[w.row + 8 * half] = along[half] * factor[half] * s.g.k_factor[w.row + 8 * half];
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dk[n][i] += left_of[n][i];
}

/* From dk of keys times step sizes to that of keys, and to gradients of the sizes. */
DEVICE void return_step(parts &s, const work &w, u32 keys, float (&dk)[TILES][4]) {
    float factor[2], along[2];
#pragma unroll
    for (int half = 0; half < 2; half++) factor[half] = s.g.beta[w.row + 8 * half];
    scale_rows(keys, w.row, factor, dk, along);
    if (threadIdx.x % 4 == 0) s.step[w.row] = along[0], s.step[w.row + 8] = along[1];
}

/* Sums of all that passes by a row's gate, by the thread of the row. */
DEVICE float gate_of_row(const parts &s, int row) {
    float sum = s.gate[row], all = 0;
    for (int n = 0; n < WARPS; n++) all += s.met[n];
    for (int n = REC_CHUNK - 1; n >= row; n--) sum += s.since[n];
    for (int n = 0; n < row; n++) sum += s.until[n];
    return sum + decay(s.g, REC_CHUNK - 1, -1) * all;
}

extern "C" __global__ void __launch_bounds__(THREADS) rows(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    const rec_size chunk = blockIdx.x / p.heads, h = blockIdx.x % p.heads;
    const rec_sequence q = rec_sequence_of(&p, rec_sequence_at(&p, chunk));
    const rec_size first = (chunk - rec_first_chunk(&p, q.index, q.begin)) * REC_CHUNK, steps = q.end - q.begin;
    if (first >= steps) return;
    const int count = lesser((int)(steps - first), REC_CHUNK), thread = threadIdx.x, lane = thread % 32;
    const u32 keys = shared_address(memory), queries = keys + TILE, tiles = queries + TILE;
    float *passing = (float *)(memory + 2 * TILE);
    parts &s = *(parts *)(memory + 2 * TILE + larger((TERMS > 1 ? TERMS : 2) * TILE, REC_CHUNK * PITCH * 4));
    const rows_of key = rows_in(p, p.view[REC_KEY], q, rec_head(&p, h, p.key_heads), 0);
    const rows_of query = rows_in(p, p.view[REC_QUERY], q, rec_head(&p, h, p.query_heads), 0);
    copy_tile<REC_CHUNK, KEY_SIZE>(keys, key, (int)first, (int)steps, 1);
    copy_tile<REC_CHUNK, KEY_SIZE>(queries, query, (int)first, (int)steps, 1);
    cp_async_commit();
    if (thread < REC_CHUNK) add_gates(p, q, first, count, h, s.g);
    work w = work_of(a, q, h, first);
    cp_async_wait<0>();
    __syncthreads();
    if (thread < REC_CHUNK) /* what sums multiply values by is that of their keys */
        s.g.k_factor[thread] = factor_of(p, keys, thread) * (p.by_step ? s.g.beta[thread] : 1);
    else
        s.g.q_factor[thread - REC_CHUNK] = factor_of(p, queries, thread - REC_CHUNK) * (float)p.scale;
    __syncthreads();
    float *rows[2], beta[2], own_beta[2], f[8][4], n[8][4], dk[TILES][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = w.row + 8 * half;
        own_beta[half] = s.g.beta[row];
        rows[half] = row_of(a, q, w, h, row);
    }
    u16 *const values[] = {direct_row(a, q, w, h, REC_VALUE, w.row), direct_row(a, q, w, h, REC_VALUE, w.row + 8)};
    multiply_columns(a, w, rows, values, own_beta, f, n, beta);
    put_between(s, keys, queries, f, n, passing, beta);
    __syncthreads();
    add_passing(s, passing);
    __syncthreads(); /* tiles lie where it was */
    begin_slab(a, w, tiles, 0);
    make_rows(a, s, w, q, h, keys, queries, tiles, rows, dk, beta);
    add_cotangent(a, s, w, keys, tiles, dk);
    if (p.by_step) return_step(s, w, keys, dk);
    if (DIRECT & REC_DIRECT_KEY)
        store_direct(a, q, w, h, REC_KEY, keys, dk);
    else
        store_rows(rows, REC_SUM_KEY, dk);
    beta[0] = sum_of_lanes(beta[0], 4), beta[1] = sum_of_lanes(beta[1], 4);
    const float met = meet_states(a, w);
    if (lane == 0) s.met[thread / 32] = met;
    if (lane % 4 == 0) s.beta[w.row] = beta[0], s.beta[w.row + 8] = beta[1];
    __syncthreads();
    if (thread >= count) return;
    float *numbers = row_of(a, q, w, h, thread) + a.width - REC_NUMBERS;
    numbers[REC_D_BETA] = DELTA ? s.beta[thread] : p.by_step ? s.step[thread] : 0;
    numbers[REC_D_HEAD] = gate_of_row(s, thread);
    numbers[REC_ALONG_U] = 0;
    numbers[REC_ALONG_X] = DELTA ? 0 : s.beta[thread];
}
