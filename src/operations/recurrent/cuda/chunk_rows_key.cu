/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a chunk's rows (chunk.cuh) whose decays are those of key channels, for all chunks at once: a block for
 * each chunk of a head. What states say to rows are products of its warps, two for 16 rows; what tokens say to each
 * other is summed in floats, a thread of half of them for a channel, as on CPUs: a block of BLOCK rows, then each token
 * before it, whose decay up to it is moved along, so that an exponential is taken once for each gate. With f = d_out u'
 * and y u' up to the diagonal, e the decays between two tokens,
 *
 *     dq_t = scale (e^G S d_out + sum_s f_ts e k_s)     r_t = sum_s (y u')_ts e k_s     d_beta = y v - k (e^G S y + r)
 *     dk = sum_t f_ts e q_t - beta_t (y u')_ts e k_t - beta (e^G S y + r) + e^(G_end - G) dS u
 *
 * With BEFORE, of sums, e is that of the row before, and the bonus stands for it between a row and itself.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128), UPDATE, TERMS (1), DIRECT, WARPS (8), BEFORE.
 */
#include "operations/recurrent/cuda/chunk_rows.cuh"

#define BLOCK 8
#define BATCH 16 /* rows whose loads are under way together */
#define GROUPS (THREADS / (KEY_SIZE / 8)) /* of rows of states, by threads that have 8 channels each */

/* f and y u' lie by columns: [from][to]. */
struct parts {
    float f[REC_CHUNK * REC_CHUNK], n[REC_CHUNK * REC_CHUNK];
    float k_factor[REC_CHUNK], q_factor[REC_CHUNK], beta[REC_CHUNK], head[REC_CHUNK], along[REC_CHUNK];
    float seen[WARPS][REC_CHUNK], gates[WARPS][REC_CHUNK]; /* sums over a warp's channels */
    float dk[REC_CHUNK * KEY_SIZE], left[REC_CHUNK * KEY_SIZE], gate[REC_CHUNK * KEY_SIZE];
    float asked[REC_CHUNK * KEY_SIZE]; /* S d_out, then of gates what the state says to the row */
    float met[GROUPS * KEY_SIZE];      /* sums of S dS */
};

/* ---- States ----------------------------------------------------------------------------------------- */

/* f or n, which x is. */
DEVICE void put_between(parts &s, const float (&x)[8][4]) {
    const int warp = sub_of_warp(), lane = threadIdx.x % 32;
    float *square = warp_asks() ? s.f : s.n;
    if (!warp_asks() && !DELTA) return;
#pragma unroll
    for (int tile = 0; tile < 8; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = 16 * warp + lane / 4 + i / 2 * 8, from = 8 * tile + lane % 4 * 2 + i % 2;
            square[from * REC_CHUNK + to] = from < to || (warp_asks() && from == to) ? x[tile][i] : 0;
        }
}

DEVICE void put_rows(float *to, const work &w, const float (&x)[TILES][4]) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(to + (w.row + half * 8) * KEY_SIZE + 8 * (first_tile() + n) + threadIdx.x % 4 * 2) =
                make_float2(x[n][2 * half], x[n][2 * half + 1]);
}

/* S d_out and S y to shared memory, dS u to rows of the gates' gradients; as they are, without decays. */
DEVICE void read_states(const rec_chunked &a, parts &s, const work &w, u32 tiles, float *const (&rows)[2]) {
    float to_query[TILES][4], to_key[TILES][4];
    clear(to_query);
    clear(to_key);
    begin_slab(a, w, tiles, 0);
    for (int slab = 0; slab < slabs_of(w); slab++) {
        u32 left[SLAB / 16][1][4];
        operand back[SLAB / 16];
#pragma unroll
        for (int k = 0; k < SLAB / 16; k++) {
            load_d_out(w, w.row, slab * (SLAB / 16) + k, left[k][0]);
            if (DELTA) back[k] = kept_operand(w.backs, w, w.row, slab * (SLAB / 16) + k);
        }
        const u32 tile = take_slab(a, w, tiles, slab);
#pragma unroll
        for (int k = 0; k < SLAB / 16; k++) {
            multiply_state(tile, k, left[k], to_query);
            if (DELTA) multiply_state(tile, k, back[k].x, to_key);
        }
    }
    put_rows(s.asked, w, to_query);
    put_rows(s.dk, w, to_key);
    clear(to_query);
    for (int slab = 0; slab < slabs_of(w); slab++) {
        operand left[SLAB / 16];
#pragma unroll
        for (int k = 0; k < SLAB / 16; k++) left[k] = load_u(w, w.row, slab * (SLAB / 16) + k);
        const u32 tile = take_slab(a, w, tiles, slabs_of(w) + slab);
#pragma unroll
        for (int k = 0; k < SLAB / 16; k++) multiply_state(tile, k, left[k].x, to_query);
    }
    store_rows(rows, REC_SUM_GATE, to_query);
}

/* ---- Channels --------------------------------------------------------------------------------------- */

/* What a thread has of a block of rows: rows, their decays and those since the block began, gradients, and r. */
struct rows_of_channel {
    float q[BLOCK], k[BLOCK], d[BLOCK], dq[BLOCK], r[BLOCK], pass[BLOCK];
};
/* What it carries along: the decay since the chunk began; the bonus, and the sum of its gradient. */
struct channel_sums {
    float since, bonus, d_bonus;
};

DEVICE float element_of_row(u32 tile, int row, int channel) {
    const u32 x = load_pair(tile, row, channel & ~1);
    return widen((u16)(channel & 1 ? x >> 16 : x));
}

/*
 * Tokens before the block: pairs of token j pass by all gates from j + 1 up to the block's first, and then up to the
 * row's own, or with BEFORE to that of the row before.
 */
DEVICE void meet_before(parts &s, u32 keys, int at, int channel, rows_of_channel &b) {
    float hat_q[BLOCK], hat_k[BLOCK], decay[BLOCK], total = 1, sum = 0;
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        decay[i] = BEFORE ? total : total * b.d[i];
        total *= b.d[i];
        hat_q[i] = decay[i] * b.q[i];
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
        if (!BEFORE || j + 1 < at) s.gate[own + KEY_SIZE] += sum;
    }
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        const float pass = hat_q[i] * b.dq[i] + (DELTA ? hat_k[i] * b.r[i] : 0);
#pragma unroll
        for (int t = !BEFORE; t <= i - BEFORE; t++) b.pass[t] += pass;
        b.dq[i] *= decay[i];
        b.r[i] *= decay[i];
    }
}

/* Pairs inside of the block, each with its own decay; `to_key` is theirs, and left that to the block's end. */
DEVICE void meet_inside(parts &s, int at, int channel, channel_sums &sums, rows_of_channel &b,
                        float (&to_key)[BLOCK]) {
#pragma unroll
    for (int j = 0; j < BLOCK; j++) {
        const float *f = s.f + (at + j) * REC_CHUNK + at, *n = s.n + (at + j) * REC_CHUNK + at;
        float decay = 1, passes[BLOCK];
        to_key[j] = 0;
#pragma unroll
        for (int i = j; i < BLOCK; i++) {
            if (i > j && !BEFORE) decay *= b.d[i];
            const float by = BEFORE && i == j ? sums.bonus : decay, k = by * b.k[j];
            float here = f[i] * b.q[i];
            if (BEFORE && i == j) sums.d_bonus += here * b.k[j];
            b.dq[i] += f[i] * k;
            if (DELTA && i > j) {
                here -= s.beta[at + i] * (n[i] * b.k[i]);
                b.r[i] += n[i] * k;
            }
            to_key[j] += by * here;
            passes[i] = k * here;
            if (i > j && BEFORE) decay *= b.d[i];
        }
        float sum = 0;
#pragma unroll
        for (int i = BLOCK - 1; i > j; i--) {
            if (!BEFORE) sum += passes[i];
            b.pass[i] += sum;
            if (BEFORE) sum += passes[i];
        }
        s.left[(at + j) * KEY_SIZE + channel] = decay;
    }
}

/* Sums over a warp's channels of numbers of rows from `row` on. */
template <int count> DEVICE void put_sums(float (&to)[WARPS][REC_CHUNK], int row, const float (&x)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        const float sum = sum_of_lanes(x[i], 32);
        if (threadIdx.x % 32 == i) to[threadIdx.x / 32][row + i] = sum;
    }
}

/* Where a channel's gradients of rows go: those of gates, queries and keys, and how far the next row is. */
struct channel_rows {
    float *gate;
    rec_size width; /* of gate */
    u16 *query, *key;
    rec_size query_step, key_step;

    DEVICE_MEMBER channel_rows(const rec_chunked &a, const work &w, const rec_sequence &q, rec_size h, int channel) {
        const rec_view &d_query = a.p.view[REC_D(REC_QUERY)], &d_key = a.p.view[REC_D(REC_KEY)];
        const int sign = a.p.reverse ? -1 : 1;
        gate = row_of(a, q, w, h, 0) + REC_SUM_GATE * KEY_SIZE + channel;
        width = sign * a.p.heads * a.width;
        query = DIRECT & REC_DIRECT_QUERY ? direct_row(a, q, w, h, REC_QUERY, 0) : NULL;
        key = DIRECT & REC_DIRECT_KEY ? direct_row(a, q, w, h, REC_KEY, 0) : NULL;
        query += query ? channel : 0, key += key ? channel : 0;
        query_step = sign * d_query.stride[1], key_step = sign * d_key.stride[1];
    }
    /* To the tensor, or to the row that gradients are summed from. */
    DEVICE_MEMBER void put_query(int row, float x) const {
        if (!(DIRECT & REC_DIRECT_QUERY))
            gate[row * width + (REC_SUM_QUERY - REC_SUM_GATE) * KEY_SIZE] = x;
        else if (query)
            query[row * query_step] = narrow(x);
    }
    DEVICE_MEMBER void put_key(int row, float x) const {
        if (!(DIRECT & REC_DIRECT_KEY))
            gate[row * width + (REC_SUM_KEY - REC_SUM_GATE) * KEY_SIZE] = x;
        else if (key)
            key[row * key_step] = narrow(x);
    }
};

/* A block of rows of a channel, whose decay since the chunk began is carried along. */
DEVICE void pass_block(const rec_chunked &a, parts &s, const work &w, const rec_sequence &q, rec_size h, u32 keys,
                       u32 queries, const channel_rows &to, int at, int channel, channel_sums &carried) {
    const rec_problem &p = a.p;
    const int count = lesser(w.steps - w.first - at, BLOCK);
    rows_of_channel b;
    float to_key[BLOCK], g[BLOCK], sums[BLOCK];
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
    meet_inside(s, at, channel, carried, b, to_key);
    const float scale = (float)p.scale;
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        const int own = (at + i) * KEY_SIZE + channel;
        const float before = carried.since, since = before * b.d[i], asked = (BEFORE ? before : since) * s.asked[own];
        carried.since = since;
        const float seen = DELTA ? since * s.dk[own] : 0, all = seen + b.r[i], by = -s.beta[at + i];
        if (i < count) to.put_query(at + i, scale * (asked + b.dq[i]));
        s.asked[own] = b.q[i] * asked + (DELTA ? by * (b.k[i] * seen) : 0);
        s.dk[own] = to_key[i] + (DELTA ? by * all : 0);
        s.gate[own] += b.pass[i];
        sums[i] = b.k[i] * all;
    }
    if (DELTA) put_sums(s.seen, at, sums);
}

/* The cotangent's part, and gates from the last row on: what the state says to rows is added up. */
DEVICE void end_channel(parts &s, const channel_rows &to, u32 keys, int rows, int channel, float whole) {
    float sum = 0;
    for (int first = 0; first < rows; first += BATCH) {
        float x[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) x[i] = first + i < rows ? to.gate[(first + i) * to.width] : 0;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int t = first + i, at = t * KEY_SIZE + channel;
            if (t >= rows) break;
            const float own = s.left[at] * x[i], all = s.dk[at] + own;
            s.gate[at] += sum;
            to.put_key(t, all);
            sum += element_of_row(keys, t, channel) * s.k_factor[t] * own;
        }
    }
    sum = whole;
    for (int first = (rows - 1) / BATCH * BATCH; first >= 0; first -= BATCH) {
        float x[BATCH];
#pragma unroll
        for (int i = BATCH - 1; i >= 0; i--) {
            const int t = first + i, at = t * KEY_SIZE + channel;
            x[i] = 0;
            if (t >= rows) continue;
            const float next = sum + s.asked[at];
            to.gate[t * to.width] = x[i] = s.gate[at] + (BEFORE ? sum : next);
            sum = next;
        }
        put_sums(s.gates, first, x);
    }
}

/* Sums over the columns of a thread's group of states times their cotangents, of 8 channels. */
DEVICE void meet_states(const rec_chunked &a, parts &s, const work &w) {
    const int octet = threadIdx.x % (KEY_SIZE / 8), group = threadIdx.x / (KEY_SIZE / 8);
    const rec_size first = w.place * w.columns * KEY_SIZE / 8 + octet * 8;
    const uint4 *state = (const uint4 *)a.states + first, *cotangent = (const uint4 *)a.cotangents + first;
    float sum[8] = {};
#pragma unroll 4
    for (int j = group; j < w.columns; j += GROUPS) {
        const int at = j / 8 * KEY_SIZE + j % 8;
        const uint4 x = state[at], y = cotangent[at];
        const u32 own[] = {x.x, x.y, x.z, x.w}, other[] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 one = widen_pair(own[i]), two = widen_pair(other[i]);
            sum[2 * i] += one.x * two.x, sum[2 * i + 1] += one.y * two.y;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) s.met[group * KEY_SIZE + octet * 8 + i] = sum[i];
}
DEVICE float met_states(const parts &s, int channel) {
    float sum = 0;
    for (int group = 0; group < GROUPS; group++) sum += s.met[group * KEY_SIZE + channel];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) rows_key(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    chunk_of_head c;
    if (!find_chunk(p, c)) return;
    const rec_sequence &q = c.q;
    const rec_size h = c.h;
    const int count = c.rows, thread = threadIdx.x, lane = thread % 32;
    const u32 keys = shared_address(memory), queries = keys + TILE;
    parts &s = *(parts *)(memory + 2 * TILE);
    copy_rows(p, c, REC_KEY, p.key_heads, keys);
    copy_rows(p, c, REC_QUERY, p.query_heads, queries);
    cp_async_commit();
    if (thread < REC_CHUNK) {
        const rec_size t = rec_token(&p, &q, c.first + thread);
        s.beta[thread] = thread < count ? load_beta(p, q, t, h) : 0;
        s.head[thread] = thread < count && p.head_decay ? head_gate(p, q, t, h) : 0;
    }
    work w = work_of(a, c);
    cp_async_wait<0>();
    __syncthreads();
    if (thread < REC_CHUNK)
        s.k_factor[thread] = factor_of(p, keys, thread);
    else if (thread < 2 * REC_CHUNK)
        s.q_factor[thread - REC_CHUNK] = factor_of(p, queries, thread - REC_CHUNK) * (float)p.scale;
    float *rows[2], own_beta[2], along[2], x[8][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        own_beta[half] = s.beta[w.row + 8 * half];
        rows[half] = row_of(a, q, w, h, w.row + 8 * half);
    }
    u16 *const values[] = {direct_row(a, q, w, h, REC_VALUE, w.row), direct_row(a, q, w, h, REC_VALUE, w.row + 8)};
    multiply_columns(a, w, rows, values, own_beta, x, x, along);
    put_between(s, x);
    along[0] = sum_of_lanes(along[0], 4), along[1] = sum_of_lanes(along[1], 4);
    if (lane % 4 == 0 && warp_tells()) s.along[w.row] = along[0], s.along[w.row + 8] = along[1];
    read_states(a, s, w, shared_address(s.left), rows);
    meet_states(a, s, w);
    __syncthreads();
    if (thread < KEY_SIZE) {
        const channel_rows to(a, w, q, h, thread);
        const rec_view &u = p.view[REC_BONUS];
        const bool has_bonus = BEFORE && u.present;
        channel_sums carried = {1, has_bonus ? load(u, h * u.stride[2] + thread * u.stride[3]) : 0, 0};
        for (int t = 0; t < REC_CHUNK; t++) s.gate[t * KEY_SIZE + thread] = 0;
        for (int at = 0; at < count; at += BLOCK) pass_block(a, s, w, q, h, keys, queries, to, at, thread, carried);
        end_channel(s, to, keys, count, thread, carried.since * met_states(s, thread));
        if (has_bonus) a.bonuses[c.place * KEY_SIZE + thread] = carried.d_bonus;
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
