/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a chunk's rows (chunk.cuh) whose decays are those of heads, for all chunks at once: a block for each
 * chunk of a head, of delta rules two warps for 16 of its rows, which have half of the keys each, of sums one. With
 * f = d_out u', of one of them, and n = -beta y u', of the other, times the decays between their tokens, on and below
 * the diagonal,
 *
 *     dq = scale (e^G S d_out + f k)          d_beta = y v - e^G k (S y) - M (y u')       M = A / beta
 *     dk = f' q - e^G beta S y + (n + n') k + e^(G_end - G) dS u
 *
 * A gate's gradient is the sum of all that passes by it, as on CPUs: nothing is subtracted, so that gates far below 0
 * get what they get in the recurrence. u, y and states are floats and rounded to TERMS numbers of the element type
 * where they are multiplied. What is written are gradient.cuh's rows, of which gradient_sums.cu makes gradients, and
 * (DIRECT) what is a gradient already.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128), UPDATE, TERMS, DIRECT, WARPS (8, of sums 4).
 */
#include "operations/recurrent/cuda/chunk_gates.cuh"
#include "operations/recurrent/cuda/chunk_products.cuh"
#include "operations/recurrent/cuda/chunk_rows.cuh"

struct parts {
    float f[REC_CHUNK * PITCH], n[REC_CHUNK * PITCH];
    chunk_gates g;
    /* Of rows, from their warps: sums with keys or queries, gradients of beta and of step sizes, and sums just now. */
    float since[HALVES][REC_CHUNK], until[HALVES][REC_CHUNK], beta[HALVES][REC_CHUNK], step[HALVES][REC_CHUNK];
    float along[HALVES][REC_CHUNK];
    float gate[WARPS][REC_CHUNK]; /* what passes by the gate behind a row, of a warp's rows */
    float met[WARPS];             /* sums of S dS */
    float q_norm[REC_CHUNK], k_norm[REC_CHUNK]; /* what rows are multiplied by to be normalised */
};

/* ---- Between tokens --------------------------------------------------------------------------------- */

/* Rows 16 warp … of a product of two tiles' rows, columns up to the diagonal. */
DEVICE void multiply_rows(u32 rows, u32 columns, float (&sum)[8][4]) {
    const int warp = sub_of_warp();
    clear(sum);
#pragma unroll 2
    for (int k = 0; k < KEY_SIZE / 16; k++) {
        u32 left[4], right[4];
        load_left<KEY_SIZE>(left, rows, 16 * warp, k);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n > warp) break;
            load_right<KEY_SIZE>(right, columns, 16 * n, k);
            mma(sum[2 * n], left, right[0], right[1]);
            mma(sum[2 * n + 1], left, right[2], right[3]);
        }
    }
}

/*
 * Of each gate what passes by it from tokens before it to tokens from its own on: sums of a square's rows up to a
 * column, over the rows behind it, of which a warp has 16. Sums of rows are products with ones, in as many pieces as
 * their bits count.
 */
DEVICE void add_passing(parts &s, const float (&passing)[8][4]) {
    enum { PIECES = TERMS > 1 ? 3 : 2 };
    const int sub = sub_of_warp(), lane = threadIdx.x % 32, row = 16 * sub + lane / 4, column = lane % 4 * 2;
    const u32 one = (u32)narrow(1), ones = one | one << 16;
    const u32 diagonal = (column <= lane / 4 ? one : 0) | (column < lane / 4 ? one << 16 : 0);
    u32 left[4][PIECES][4];
    float sums[16];
#pragma unroll
    for (int k = 0; k < 4; k++) pack_pieces<PIECES>(left[k], passing[2 * k], passing[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float up[4] = {0, 0, 0, 0};
        if (n / 2 <= sub)
#pragma unroll
            for (int k = 0; k <= n / 2; k++)
#pragma unroll
                for (int piece = PIECES - 1; piece >= 0; piece--)
                    mma(up, left[k][piece], k < n / 2 || n % 2 ? ones : diagonal,
                        k < n / 2 ? ones : n % 2 ? diagonal : 0);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int own = 8 * n + column + i;
            sums[2 * n + i] = (own < row ? up[i] : 0) + (own < row + 8 ? up[2 + i] : 0);
        }
    }
#pragma unroll
    for (int step = 0; step < 3; step++) { /* lanes of a column are left with the tile of their row */
        const int apart = 16 >> step;
        const bool is_high = lane & apart;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (n >= apart / 2) break;
            const float own = is_high ? sums[n + apart / 2] : sums[n], other = is_high ? sums[n] : sums[n + apart / 2];
            sums[n] = own + __shfl_xor_sync(~0u, other, apart);
        }
    }
    *(float2 *)(s.gate[threadIdx.x / 32] + 8 * (lane / 4) + column) = make_float2(sums[0], sums[1]);
}

/*
 * Rows of x, which is d_out u' or y u', with their decays and times `factor` to shared memory, on and below the
 * diagonal, or only below it; x becomes what it is with decays, times `product`, K K' or Q K', and factors of columns.
 */
DEVICE void put_square(const parts &s, float *square, bool has_diagonal, const float (&factor)[2],
                       const float (&product)[8][4], float (&x)[8][4]) {
    const int warp = sub_of_warp(), lane = threadIdx.x % 32, row = 16 * warp + lane / 4;
    const float2 own[] = {s.g.pair[row], s.g.pair[row + 8]}, first = s.g.pair[16 * warp];
    const float down[] = {power_between(own[0], first), power_between(own[1], first)};
#pragma unroll
    for (int tile = 0; tile < 8; tile++) {
        if (tile / 2 > warp) break;
        const int column = 8 * tile + lane % 4 * 2;
        const float4 others = *(const float4 *)(s.g.pair + column);
        const float2 factors = *(const float2 *)(s.g.k_factor + column);
        const float2 other[] = {make_float2(others.x, others.y), make_float2(others.z, others.w)};
        if (TERMS == 1 && tile / 2 < warp) { /* in two steps, by the warp's first row */
            const float to_first[] = {power_between(first, other[0]), power_between(first, other[1])};
#pragma unroll
            for (int i = 0; i < 4; i++) x[tile][i] *= to_first[i % 2] * down[i / 2];
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int to = row + i / 2 * 8, from = column + i % 2;
                const bool is_there = from < to || (has_diagonal && from == to);
                x[tile][i] = is_there ? x[tile][i] * decay_between(s.g, to, from, own[i / 2], other[i % 2]) : 0;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(square + (row + 8 * half) * PITCH + column) =
                make_float2(x[tile][2 * half] * factor[half], x[tile][2 * half + 1] * factor[half]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float here = x[tile][i] * (product[tile][i] * (i % 2 ? factors.y : factors.x));
            x[tile][i] = column + i % 2 < row + i / 2 * 8 ? here : 0;
        }
    }
}

/*
 * f or n, which x is, with its decays to shared memory, what passes by gates to theirs; M (y u') is taken off d_beta.
 */
DEVICE void put_between(parts &s, u32 keys, u32 queries, float (&x)[8][4], float (&beta)[2]) {
    const int row = sub_of_warp() * 16 + threadIdx.x % 32 / 4;
    float product[8][4];
    if (warp_asks()) {
        const float one[] = {1, 1}, query[] = {s.g.q_factor[row], s.g.q_factor[row + 8]};
        multiply_rows(queries, keys, product);
        put_square(s, s.f, true, one, product, x);
#pragma unroll
        for (int tile = 0; tile < 8; tile++)
#pragma unroll
            for (int i = 0; i < 4; i++) x[tile][i] *= query[i / 2];
    } else if (DELTA) {
        const float key[] = {s.g.k_factor[row], s.g.k_factor[row + 8]};
        const float own[] = {-s.g.beta[row], -s.g.beta[row + 8]};
        multiply_rows(keys, keys, product);
        put_square(s, s.n, false, own, product, x);
#pragma unroll
        for (int tile = 0; tile < 8; tile++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[tile][i] *= key[i / 2];
                beta[i / 2] -= x[tile][i];
                x[tile][i] *= own[i / 2];
            }
    } else {
        return;
    }
    add_passing(s, x);
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

/* sum += x times rows 16 k … of a tile. */
DEVICE void multiply_tile(u32 tile, int k, const float (&low)[4], const float (&high)[4], float (&sum)[TILES][4]) {
    u32 left[TERMS][4];
    pack_pieces<TERMS>(left, low, high);
#pragma unroll
    for (int n = 0; n < TILES / 2; n++) {
        u32 right[1][4];
        load_right_trans<KEY_SIZE>(right[0], tile, 16 * k, first_tile() / 2 + n);
        add_product(sum[2 * n], sum[2 * n + 1], left, right);
    }
}

/* What tokens say to each other: f k to dq, f' q and (n + n') k to dk. */
DEVICE void add_tokens(const parts &s, u32 keys, u32 queries, float scale, float (&dq)[TILES][4],
                       float (&dk)[TILES][4]) {
    const int warp = sub_of_warp(), lane = threadIdx.x % 32;
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
                      u32 queries, u32 tiles, float *const (&sums)[2], float (&dk)[TILES][4], float (&beta)[2]) {
    const int lane = threadIdx.x % 32;
    float dq[TILES][4], factor[2], along[2], since[2];
    const float scale = (float)a.p.scale;
    clear(dq);
    clear(dk);
    for (int slab = 0; slab < slabs_of(w); slab++) {
        u32 tile = tiles;
#pragma unroll 1
        for (int first = 0; first < SLAB / 16; first += AHEAD) {
            u32 left[AHEAD][1][4];
            operand back[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const int n = slab * (SLAB / 16) + first + k;
                load_d_out(w, w.row, n, left[k][0]);
                if (DELTA) back[k] = kept_operand(w.backs, w, w.row, n);
            }
            if (first == 0) tile = take_slab(a, w, tiles, slab);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                multiply_state(tile, first + k, left[k], dq);
                if (DELTA) multiply_state(tile, first + k, back[k].x, dk);
            }
        }
    }
    /* Rows are normalised by factors, of which that of the query has the scale. */
#pragma unroll
    for (int half = 0; half < 2; half++) factor[half] = scale * s.g.before[w.row + 8 * half];
    scale_rows(queries, w.row, factor, dq, along);
#pragma unroll
    for (int half = 0; half < 2; half++)
        since[half] = along[half] * s.g.q_factor[w.row + 8 * half] * s.g.before[w.row + 8 * half];
    if (DELTA) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            factor[half] = -s.g.beta[w.row + 8 * half] * s.g.before[w.row + 8 * half];
        scale_rows(keys, w.row, factor, dk, along);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float seen = along[half] * s.g.k_factor[w.row + 8 * half] * s.g.before[w.row + 8 * half];
            if (lane % 4 == 0) beta[half] -= seen; /* lanes of a row are added up later */
            since[half] -= s.g.beta[w.row + 8 * half] * seen;
        }
    }
    if (lane % 4 == 0)
        for (int half = 0; half < 2; half++) s.since[half_of_warp()][w.row + 8 * half] = since[half];
    add_tokens(s, keys, queries, scale, dq, dk);
    if (DIRECT & REC_DIRECT_QUERY)
        store_direct(a, q, w, h, REC_QUERY, queries, s.q_norm, s.along, dq);
    else
        store_rows(sums, REC_SUM_QUERY, dq);
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
            operand left[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) left[k] = load_u(w, w.row, slab * (SLAB / 16) + first + k);
            if (first == 0) tile = take_slab(a, w, tiles, slabs_of(w) + slab);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) multiply_state(tile, first + k, left[k].x, left_of);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) factor[half] = s.g.behind[w.row + 8 * half];
    scale_rows(keys, w.row, factor, left_of, along);
    if (lane % 4 == 0)
        for (int half = 0; half < 2; half++)
            s.until[half_of_warp()][w.row + 8 * half] = along[half] * factor[half] * s.g.k_factor[w.row + 8 * half];
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
    if (threadIdx.x % 4 == 0)
        for (int half = 0; half < 2; half++) s.step[half_of_warp()][w.row + 8 * half] = along[half];
}

/* Sums of all that passes by a row's gate, by the thread of the row, of two whole warps. */
DEVICE float gate_of_row(const parts &s, int row) {
    float sum = 0, all = 0;
    for (int n = 0; n < WARPS; n++) all += s.met[n];
    for (int n = 0; n < (DELTA ? WARPS : 4); n++) sum += row ? s.gate[n][row - 1] : 0;
    return sum + gate_of_states(s.since, s.until, row) + s.g.before[REC_CHUNK - 1] * all;
}

extern "C" __global__ void __launch_bounds__(THREADS, TERMS == 1 ? 2 : 1) rows(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    const int thread = threadIdx.x, lane = thread % 32;
    chunk_of_head c;
    if (!find_chunk(p, c)) return;
    const u32 keys = shared_address(memory), queries = keys + TILE, tiles = queries + TILE;
    parts &s = *(parts *)(memory + 2 * TILE + (TERMS > 1 ? TERMS : 2) * TILE);
    const rec_sequence &q = c.q;
    const rec_size h = c.h;
    copy_rows(p, c, REC_KEY, p.key_heads, keys);
    copy_rows(p, c, REC_QUERY, p.query_heads, queries);
    cp_async_commit();
    work w = work_of(a, c);
    add_gates(p, q, c.first, c.rows, h, s.g);
    cp_async_wait<0>();
    __syncthreads();
    if (thread < 2 * REC_CHUNK) end_gates(s.g);
    for (int n = thread; n < 4 * REC_CHUNK; n += THREADS) { /* two threads for a row of keys, or of queries */
        const int row = n / 2 % REC_CHUNK;
        const bool is_key = n < 2 * REC_CHUNK;
        const float norm = factor_of_pair(p, is_key ? keys : queries, row);
        if (n % 2) continue;
        (is_key ? s.k_norm : s.q_norm)[row] = norm;
        if (is_key) /* what sums multiply values by is that of their keys */
            s.g.k_factor[row] = norm * (p.by_step ? s.g.beta[row] : 1);
        else
            s.g.q_factor[row] = norm * (float)p.scale;
    }
    __syncthreads();
    begin_slab(a, w, tiles, 0);
    float *rows[2], beta[2], own_beta[2], x[8][4], dk[TILES][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = w.row + 8 * half;
        own_beta[half] = s.g.beta[row];
        rows[half] = row_of(a, q, w, h, row);
    }
    u16 *const values[] = {direct_row(a, q, w, h, REC_VALUE, w.row), direct_row(a, q, w, h, REC_VALUE, w.row + 8)};
    multiply_columns(a, w, rows, values, own_beta, x, x, beta);
    put_between(s, keys, queries, x, beta);
    __syncthreads();
    make_rows(a, s, w, q, h, keys, queries, tiles, rows, dk, beta);
    add_cotangent(a, s, w, keys, tiles, dk);
    if (p.by_step) return_step(s, w, keys, dk);
    if (DIRECT & REC_DIRECT_KEY)
        store_direct(a, q, w, h, REC_KEY, keys, s.k_norm, s.along, dk);
    else
        store_rows(rows, REC_SUM_KEY, dk);
    beta[0] = sum_of_lanes(beta[0], 4), beta[1] = sum_of_lanes(beta[1], 4);
    const float met = meet_states(a, w);
    if (lane == 0) s.met[thread / 32] = met;
    if (lane % 4 == 0)
        for (int half = 0; half < 2; half++) s.beta[half_of_warp()][w.row + 8 * half] = beta[half];
    __syncthreads();
    if (thread >= REC_CHUNK) return;
    const float gate = gate_of_row(s, thread);
    if (thread >= c.rows) return;
    float *numbers = row_of(a, q, w, h, thread) + a.width - REC_NUMBERS;
    numbers[REC_D_BETA] = DELTA ? of_halves(s.beta, thread) : p.by_step ? of_halves(s.step, thread) : 0;
    numbers[REC_D_HEAD] = gate;
    numbers[REC_ALONG_U] = 0;
    numbers[REC_ALONG_X] = DELTA ? 0 : of_halves(s.beta, thread);
}
