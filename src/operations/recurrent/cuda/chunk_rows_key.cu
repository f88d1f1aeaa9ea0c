/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a chunk's rows (chunk.cuh) whose decays are those of key channels, for all chunks at once: a block for
 * each chunk of a head. What states say to rows are products of its warps; what tokens say to each other is summed in
 * floats, a thread for a channel, as on CPUs: a block of BLOCK rows, then each token before it, whose decay up to it is
 * moved along, so that an exponential is taken once for each gate. With f = d_out u' and y u' up to the diagonal, e the
 * decays between two tokens,
 *
 *     dq_t = scale (e^G S d_out + sum_s f_ts e k_s)     r_t = sum_s (y u')_ts e k_s     d_beta = y v - k (e^G S y + r)
 *     dk = sum_t f_ts e q_t - beta_t (y u')_ts e k_t - beta (e^G S y + r) + e^(G_end - G) dS u
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128), UPDATE, TERMS (1), DIRECT.
 */
#include "operations/recurrent/cuda/chunk_rows.cuh"

#define BLOCK 8

/* f and y u' lie by columns: [from][to]. */
struct parts {
    float f[REC_CHUNK * REC_CHUNK], n[REC_CHUNK * REC_CHUNK];
    float k_factor[REC_CHUNK], q_factor[REC_CHUNK], beta[REC_CHUNK], head[REC_CHUNK], along[REC_CHUNK];
    float seen[WARPS][REC_CHUNK], gates[WARPS][REC_CHUNK]; /* sums over a warp's channels */
    float dk[REC_CHUNK * KEY_SIZE], left[REC_CHUNK * KEY_SIZE], gate[REC_CHUNK * KEY_SIZE];
};

/* ---- States ----------------------------------------------------------------------------------------- */

DEVICE void put_between(parts &s, const float (&f)[8][4], const float (&n)[8][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < 8; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = 16 * warp + lane / 4 + i / 2 * 8, from = 8 * tile + lane % 4 * 2 + i % 2;
            s.f[from * REC_CHUNK + to] = from <= to ? f[tile][i] : 0;
            if (DELTA) s.n[from * REC_CHUNK + to] = from < to ? n[tile][i] : 0;
        }
}

DEVICE void put_keys(parts &s, const work &w, const float (&x)[TILES][4]) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.dk[(w.row + i / 2 * 8) * KEY_SIZE + 8 * n + threadIdx.x % 4 * 2 + i % 2] = x[n][i];
}

/* S d_out and dS u to the rows of gradients of query and gates, S y to shared memory; as they are, without decays. */
DEVICE void read_states(const rec_chunked &a, parts &s, const work &w, u32 tiles, float *const (&rows)[2]) {
    float to_query[TILES][4], to_key[TILES][4];
    clear(to_query);
    clear(to_key);
    begin_slab(a, w, tiles, 0);
    for (int slab = 0; slab < slabs_of(w); slab++) {
        u32 left[AHEAD][1][4];
        operand back[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            load_d_out(w, w.row, slab * (SLAB / 16) + k, left[k][0]);
            if (DELTA) back[k] = kept_operand(w.backs, w, w.row, slab * (SLAB / 16) + k);
        }
        const u32 tile = take_slab(a, w, tiles, slab);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            multiply_state(tile, k, left[k], to_query);
            if (DELTA) multiply_state(tile, k, back[k].x, to_key);
        }
    }
    store_rows(rows, REC_SUM_QUERY, to_query);
    put_keys(s, w, to_key);
    clear(to_query);
    for (int slab = 0; slab < slabs_of(w); slab++) {
        operand left[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) left[k] = load_u(w, w.row, slab * (SLAB / 16) + k);
        const u32 tile = take_slab(a, w, tiles, slabs_of(w) + slab);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) multiply_state(tile, k, left[k].x, to_query);
    }
    store_rows(rows, REC_SUM_GATE, to_query);
}

/* ---- Channels --------------------------------------------------------------------------------------- */

/* What a thread has of a block of rows: rows, their decays and those since the block began, gradients, and r. */
struct rows_of_channel {
    float q[BLOCK], k[BLOCK], d[BLOCK], dq[BLOCK], r[BLOCK], pass[BLOCK];
};

DEVICE float element_of_row(u32 tile, int row, int channel) {
    const u32 x = load_pair(tile, row, channel & ~1);
    return widen((u16)(channel & 1 ? x >> 16 : x));
}

/* Tokens before the block: pairs of token j pass by all gates from j + 1 up to the block's first. */
DEVICE void meet_before(parts &s, u32 keys, int at, int channel, rows_of_channel &b) {
    float hat_q[BLOCK], hat_k[BLOCK], decay[BLOCK], total = 1, sum = 0;
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        decay[i] = total *= b.d[i];
        hat_q[i] = total * b.q[i];
        hat_k[i] = -s.beta[at + i] * (total * b.k[i]);
        b.dq[i] = b.r[i] = b.pass[i] = 0;
    }
#pragma unroll 2
    for (int j = 0; j < at; j++) {
        const int own = j * KEY_SIZE + channel;
        const float left = s.left[own], k = left * element_of_row(keys, j, channel) * s.k_factor[j];
        const float *f = s.f + j * REC_CHUNK + at, *n = s.n + j * REC_CHUNK + at;
        float to_key = 0;
#pragma unroll
        for (int i = 0; i < BLOCK; i += 4) {
            const float4 four = *(const float4 *)(f + i);
            const float x[] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int c = 0; c < 4; c++) {
                b.dq[i + c] += x[c] * k;
                to_key += x[c] * hat_q[i + c];
            }
            if (!DELTA) continue;
            const float4 other = *(const float4 *)(n + i);
            const float y[] = {other.x, other.y, other.z, other.w};
#pragma unroll
            for (int c = 0; c < 4; c++) {
                b.r[i + c] += y[c] * k;
                to_key += y[c] * hat_k[i + c];
            }
        }
        s.dk[own] += left * to_key;
        s.left[own] = left * total;
        sum += k * to_key;
        s.gate[own + KEY_SIZE] += sum;
    }
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        const float pass = hat_q[i] * b.dq[i] + (DELTA ? hat_k[i] * b.r[i] : 0);
#pragma unroll
        for (int t = 1; t <= i; t++) b.pass[t] += pass;
        b.dq[i] *= decay[i];
        b.r[i] *= decay[i];
    }
}

/* Pairs inside of the block, each with its own decay; `to_key` is theirs, and left that to the block's end. */
DEVICE void meet_inside(parts &s, int at, int channel, rows_of_channel &b, float (&to_key)[BLOCK]) {
#pragma unroll
    for (int j = 0; j < BLOCK; j++) {
        const float *f = s.f + (at + j) * REC_CHUNK + at, *n = s.n + (at + j) * REC_CHUNK + at;
        float decay = 1, passes[BLOCK];
        to_key[j] = 0;
#pragma unroll
        for (int i = j; i < BLOCK; i++) {
            if (i > j) decay *= b.d[i];
            const float k = decay * b.k[j];
            float here = f[i] * b.q[i];
            b.dq[i] += f[i] * k;
            if (DELTA && i > j) {
                here -= s.beta[at + i] * (n[i] * b.k[i]);
                b.r[i] += n[i] * k;
            }
            to_key[j] += decay * here;
            passes[i] = k * here;
        }
        float sum = 0;
#pragma unroll
        for (int i = BLOCK - 1; i > j; i--) {
            sum += passes[i];
            b.pass[i] += sum;
        }
        s.left[(at + j) * KEY_SIZE + channel] = decay;
    }
}

/* Sums over a warp's channels of a number of each row. */
DEVICE void put_sum(float (&to)[WARPS][REC_CHUNK], int row, float x) {
    x = sum_of_lanes(x, 32);
    if (threadIdx.x % 32 == 0) to[threadIdx.x / 32][row] = x;
}

/* A block of rows of a channel, whose decay since the chunk began is carried along. */
DEVICE void pass_block(const rec_chunked &a, parts &s, const work &w, const rec_sequence &q, rec_size h, u32 keys,
                       u32 queries, int at, int channel, float &since) {
    const rec_problem &p = a.p;
    const int count = lesser(w.steps - w.first - at, BLOCK);
    rows_of_channel b;
    float to_key[BLOCK], g[BLOCK];
#pragma unroll
    for (int i = 0; i < BLOCK; i++) g[i] = p.head_decay ? s.head[at + i] : 0;
    add_channel(p, q, rec_token(&p, &q, w.first + at), h, channel, count, g);
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        b.d[i] = i < count ? exp_of(g[i]) : 1;
        b.q[i] = element_of_row(queries, at + i, channel) * s.q_factor[at + i];
        b.k[i] = element_of_row(keys, at + i, channel) * s.k_factor[at + i];
    }
    meet_before(s, keys, at, channel, b);
    meet_inside(s, at, channel, b, to_key);
    const float scale = (float)p.scale;
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        const int own = (at + i) * KEY_SIZE + channel;
        float *row = row_of(a, q, w, h, at + i);
        since *= b.d[i];
        const float asked = row ? since * row[REC_SUM_QUERY * KEY_SIZE + channel] : 0;
        const float seen = DELTA ? since * s.dk[own] : 0, all = seen + b.r[i], by = -s.beta[at + i];
        if (row) {
            row[REC_SUM_QUERY * KEY_SIZE + channel] = scale * (asked + b.dq[i]);
            /* Of gates, what the state says to the row: added up from the last row on. */
            row[REC_SUM_KEY * KEY_SIZE + channel] = b.q[i] * asked + (DELTA ? by * (b.k[i] * seen) : 0);
        }
        s.dk[own] = to_key[i] + (DELTA ? by * all : 0);
        s.gate[own] += b.pass[i];
        if (DELTA) put_sum(s.seen, at + i, b.k[i] * all);
    }
}

/* The cotangent's part, and gates from the last row on. */
DEVICE void end_channel(const rec_chunked &a, parts &s, const work &w, const rec_sequence &q, rec_size h, u32 keys,
                        int rows, int channel, float whole) {
    float sum = 0;
    for (int t = 0; t < rows; t++) {
        const int at = t * KEY_SIZE + channel;
        const float own = s.left[at] * row_of(a, q, w, h, t)[REC_SUM_GATE * KEY_SIZE + channel];
        s.gate[at] += sum;
        s.dk[at] += own;
        sum += element_of_row(keys, t, channel) * s.k_factor[t] * own;
    }
    sum = whole;
    for (int t = rows - 1; t >= 0; t--) {
        const int at = t * KEY_SIZE + channel;
        float *row = row_of(a, q, w, h, t);
        sum += row[REC_SUM_KEY * KEY_SIZE + channel];
        row[REC_SUM_KEY * KEY_SIZE + channel] = s.dk[at];
        row[REC_SUM_GATE * KEY_SIZE + channel] = s.gate[at] + sum;
        put_sum(s.gates, t, s.gate[at] + sum);
    }
}

/* The sum over columns of a channel's states times their cotangents. */
DEVICE float meet_states(const rec_chunked &a, const work &w, int channel) {
    const rec_size from = w.place * w.columns * KEY_SIZE + channel / 8 * 64 + channel % 8;
    const u16 *state = (const u16 *)a.states + from, *cotangent = (const u16 *)a.cotangents + from;
    float sum = 0;
#pragma unroll 8
    for (rec_size j = 0; j < w.columns; j++) {
        const rec_size at = j / 8 * (8 * KEY_SIZE) + j % 8 * 8;
        sum += widen(state[at]) * widen(cotangent[at]);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) rows_key(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    const rec_size chunk = blockIdx.x / p.heads, h = blockIdx.x % p.heads;
    const rec_sequence q = rec_sequence_of(&p, rec_sequence_at(&p, chunk));
    const rec_size first = (chunk - rec_first_chunk(&p, q.index, q.begin)) * REC_CHUNK, steps = q.end - q.begin;
    if (first >= steps) return;
    const int count = lesser((int)(steps - first), REC_CHUNK), thread = threadIdx.x, lane = thread % 32;
    const u32 keys = shared_address(memory), queries = keys + TILE;
    parts &s = *(parts *)(memory + 2 * TILE);
    const rows_of key = rows_in(p, p.view[REC_KEY], q, rec_head(&p, h, p.key_heads), 0);
    const rows_of query = rows_in(p, p.view[REC_QUERY], q, rec_head(&p, h, p.query_heads), 0);
    copy_tile<REC_CHUNK, KEY_SIZE>(keys, key, (int)first, (int)steps, 1);
    copy_tile<REC_CHUNK, KEY_SIZE>(queries, query, (int)first, (int)steps, 1);
    cp_async_commit();
    if (thread < REC_CHUNK) {
        const rec_size t = rec_token(&p, &q, first + thread);
        s.beta[thread] = thread < count ? load_beta(p, q, t, h) : 0;
        s.head[thread] = thread < count && p.head_decay ? head_gate(p, q, t, h) : 0;
    }
    work w = work_of(a, q, h, first);
    cp_async_wait<0>();
    __syncthreads();
    if (thread < REC_CHUNK)
        s.k_factor[thread] = factor_of(p, keys, thread);
    else
        s.q_factor[thread - REC_CHUNK] = factor_of(p, queries, thread - REC_CHUNK) * (float)p.scale;
    float *rows[2], own_beta[2], along[2], f[8][4], n[8][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        own_beta[half] = s.beta[w.row + 8 * half];
        rows[half] = row_of(a, q, w, h, w.row + 8 * half);
    }
    u16 *const values[] = {direct_row(a, q, w, h, REC_VALUE, w.row), direct_row(a, q, w, h, REC_VALUE, w.row + 8)};
    multiply_columns(a, w, rows, values, own_beta, f, n, along);
    put_between(s, f, n);
    along[0] = sum_of_lanes(along[0], 4), along[1] = sum_of_lanes(along[1], 4);
    if (lane % 4 == 0) s.along[w.row] = along[0], s.along[w.row + 8] = along[1];
    read_states(a, s, w, shared_address(s.left), rows);
    __syncthreads();
    if (thread < KEY_SIZE) {
        float since = 1;
        for (int t = 0; t < REC_CHUNK; t++) s.gate[t * KEY_SIZE + thread] = 0;
        for (int at = 0; at < count; at += BLOCK) pass_block(a, s, w, q, h, keys, queries, at, thread, since);
        end_channel(a, s, w, q, h, keys, count, thread, since * meet_states(a, w, thread));
    }
    __syncthreads();
    if (thread >= count) return;
    float seen = 0, gate = 0;
    for (int n = 0; n < KEY_SIZE / 32; n++) seen += s.seen[n][thread], gate += s.gates[n][thread];
    float *numbers = row_of(a, q, w, h, thread) + a.width - REC_NUMBERS;
    numbers[REC_D_BETA] = DELTA ? s.along[thread] - seen : 0;
    numbers[REC_D_HEAD] = gate;
    numbers[REC_ALONG_U] = numbers[REC_ALONG_X] = 0;
}
