/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a chunk's rows (chunk.cuh) whose decays are those of key channels, for all chunks at once: a block for
 * each chunk of a head. What states say to rows are products of its warps, two for 16 rows; then a warp has 16 channels
 * of all rows (chunk_tokens.cuh), and at last rows, which it writes. With f = d_out u' and y u' up to the diagonal, e
 * the decays between two tokens,
 *
 *     dq_t = scale (e^G S d_out + sum_s f_ts e k_s)     r_t = sum_s (y u')_ts e k_s     d_beta = y v - k (e^G S y + r)
 *     dk = sum_t f_ts e q_t - beta_t (y u')_ts e k_t - beta (e^G S y + r) + e^(G_end - G) dS u
 *
 * With BEFORE, of sums, e is that of the row before, and the bonus stands for it between a row and itself.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE (64, 128), UPDATE, TERMS (1), WARPS (8), BEFORE.
 */
#define DIRECT a.direct
#include "operations/recurrent/cuda/chunk_rows.cuh"
#include "operations/recurrent/cuda/chunk_tokens.cuh"

#define BATCH        16                       /* rows whose gates are loaded together */
#define GROUPS       (THREADS / (KEY_SIZE / 8)) /* of rows of states, by threads that have 8 channels each */
#define OWN_CHANNELS (KEY_SIZE / 32)          /* of a lane that has rows */

struct parts : tokens {
    float along[REC_CHUNK], q_norm[REC_CHUNK], head[REC_CHUNK];
    float met[GROUPS * KEY_SIZE]; /* sums of S dS */
};

/* ---- States ----------------------------------------------------------------------------------------- */

DEVICE float round_tf32(float x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

/* f or n, which x is, up to the warp's last row. */
DEVICE void put_between(parts &s, const float (&x)[8][4]) {
    const int row = 16 * sub_of_warp() + threadIdx.x % 32 / 4;
    float *square = warp_asks() ? s.f : s.n;
    if (!warp_asks() && !DELTA) return;
#pragma unroll
    for (int tile = 0; tile < 8; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int to = row + 8 * half, from = 8 * tile + threadIdx.x % 4 * 2;
            float two[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float own = x[tile][2 * half + i];
                two[i] = from + i < to ? round_tf32(own) : from + i == to && warp_asks() ? own : 0;
            }
            *(float2 *)(square + to * PITCH + from) = make_float2(two[0], two[1]);
        }
}

DEVICE void put_rows(float *to, const work &w, const float (&x)[TILES][4]) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(to + (w.row + half * 8) * ROW_PITCH + 8 * (first_tile() + n) + threadIdx.x % 4 * 2) =
                make_float2(x[n][2 * half], x[n][2 * half + 1]);
}

/* S d_out, S y and dS u to shared memory, as they are, without decays. Slabs of states lie where the last go. */
DEVICE void read_states(const rec_chunked &a, parts &s, const work &w) {
    const u32 tiles = shared_address(s.told);
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
    if (DELTA) put_rows(s.seen, w, to_key);
    clear(to_query);
    for (int slab = 0; slab < slabs_of(w); slab++) {
        operand left[SLAB / 16];
#pragma unroll
        for (int k = 0; k < SLAB / 16; k++) left[k] = load_u(w, w.row, slab * (SLAB / 16) + k);
        const u32 tile = take_slab(a, w, tiles, slabs_of(w) + slab);
#pragma unroll
        for (int k = 0; k < SLAB / 16; k++) multiply_state(tile, k, left[k].x, to_query);
    }
    __syncthreads();
    put_rows(s.told, w, to_query);
}

/* Decays of the chunk's single gates. Products in tf32 are made of them: their last two bits count for nothing. */
DEVICE void load_decays(const rec_problem &p, const chunk_of_head &c, parts &s) {
    const int channel = threadIdx.x % KEY_SIZE;
    for (int first = threadIdx.x / KEY_SIZE * BATCH; first < REC_CHUNK; first += THREADS / KEY_SIZE * BATCH) {
        float g[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) g[i] = p.head_decay ? s.head[first + i] : 0;
        add_channel(p, c.q, rec_token(&p, &c.q, c.first + first), c.h, channel, c.rows - first, g);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            s.gate[(first + i) * ROW_PITCH + channel] = first + i < c.rows ? power_of_2(LOG2_E * g[i]) : 1;
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

/* ---- Rows ------------------------------------------------------------------------------------------- */

typedef float channels_of_row[OWN_CHANNELS];

DEVICE void take_row(const float *rows, int row, channels_of_row &x) {
    const float *at = rows + row * ROW_PITCH + threadIdx.x % 32 * OWN_CHANNELS;
#pragma unroll
    for (int i = 0; i < OWN_CHANNELS; i += 2) {
        const float2 two = *(const float2 *)(at + i);
        x[i] = two.x, x[i + 1] = two.y;
    }
}
DEVICE void take_row(u32 tile, int row, float factor, channels_of_row &x) {
#pragma unroll
    for (int i = 0; i < OWN_CHANNELS; i += 2) {
        const float2 two = widen_pair(load_pair(tile, row, threadIdx.x % 32 * OWN_CHANNELS + i));
        x[i] = two.x * factor, x[i + 1] = two.y * factor;
    }
}
DEVICE float inner(const channels_of_row &x, const channels_of_row &y) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < OWN_CHANNELS; i++) sum += x[i] * y[i];
    return sum;
}

/* Where a lane's channels of a warp's rows go, from its first row on: places in rows of sums, and of a tensor. */
struct sums_of_rows {
    float *at;
    rec_size step;

    DEVICE_MEMBER sums_of_rows(const rec_chunked &a, const rec_sequence &q, const work &w, rec_size h, int row) {
        at = row_of(a, q, w, h, row);
        step = (a.p.reverse ? -WARPS : WARPS) * a.p.heads * a.width;
    }
    DEVICE_MEMBER void put(int vector, const channels_of_row &x) const {
#pragma unroll
        for (int i = 0; i < OWN_CHANNELS; i += 2)
            *(float2 *)(at + vector * KEY_SIZE + threadIdx.x % 32 * OWN_CHANNELS + i) = make_float2(x[i], x[i + 1]);
    }
};
struct tensor_of_rows {
    const rec_view &v;
    rec_size at, step;

    DEVICE_MEMBER tensor_of_rows(const rec_chunked &a, const rec_sequence &q, const work &w, rec_size h, int role,
                                 int row)
        : v(a.p.view[REC_D(role)]) {
        at = rec_at(&v, q.batch, rec_token(&a.p, &q, w.first + row), h) + threadIdx.x % 32 * OWN_CHANNELS;
        step = (a.p.reverse ? -WARPS : WARPS) * v.stride[1];
    }
    DEVICE_MEMBER void put(const channels_of_row &x) const {
        if (!v.present) return;
        if (v.dtype == BF16) {
#pragma unroll
            for (int i = 0; i < OWN_CHANNELS; i += 2) store_pair((u16 *)v.data + at + i, x[i], x[i + 1]);
        } else {
#pragma unroll
            for (int i = 0; i < OWN_CHANNELS; i++) store(v, at + i, x[i]);
        }
    }
};

/* A gradient through the normalisation by `norm` of what `own` is times it. */
DEVICE void normalise_back(float norm, const channels_of_row &own, channels_of_row &x) {
    const float along = sum_of_lanes(inner(own, x), 32);
#pragma unroll
    for (int i = 0; i < OWN_CHANNELS; i++) x[i] = norm * (x[i] - own[i] * along);
}

/* Every so many rows, by a warp each. */
DEVICE void write_rows(const rec_chunked &a, const parts &s, const chunk_of_head &c, const work &w, u32 keys,
                       u32 queries) {
    const rec_problem &p = a.p;
    const int first = threadIdx.x / 32;
    if (first >= c.rows) return;
    sums_of_rows sums(a, c.q, w, c.h, first);
    tensor_of_rows d_query(a, c.q, w, c.h, REC_QUERY, first), d_key(a, c.q, w, c.h, REC_KEY, first);
    tensor_of_rows d_gate(a, c.q, w, c.h, REC_GK, first), d_raw(a, c.q, w, c.h, REC_G, first);
#pragma unroll 2
    for (int row = first; row < c.rows; row += WARPS) {
        channels_of_row x, own;
        float seen = 0, gate = 0;
        take_row(s.gate, row, x);
        if (p.head_decay) {
#pragma unroll
            for (int i = 0; i < OWN_CHANNELS; i++) gate += x[i];
            gate = sum_of_lanes(gate, 32);
        }
        if (DIRECT & REC_DIRECT_GATE) {
            d_gate.put(x);
            if (p.g_is_wide) d_raw.put(x);
        } else {
            sums.put(REC_SUM_GATE, x);
        }
        take_row(keys, row, s.k_factor[row], own);
        if (DELTA) {
            take_row(s.seen, row, x);
            seen = sum_of_lanes(inner(own, x), 32);
        }
        take_row(s.told, row, x);
        if (DIRECT & REC_DIRECT_KEY) {
            if (p.normalise) normalise_back(s.k_factor[row], own, x);
            d_key.put(x);
        } else {
            sums.put(REC_SUM_KEY, x);
        }
        take_row(queries, row, s.q_norm[row], own);
        take_row(s.asked, row, x);
#pragma unroll
        for (int i = 0; i < OWN_CHANNELS; i++) x[i] *= (float)p.scale;
        if (DIRECT & REC_DIRECT_QUERY) {
            if (p.normalise) normalise_back(s.q_norm[row], own, x);
            d_query.put(x);
        } else {
            sums.put(REC_SUM_QUERY, x);
        }
        if (threadIdx.x % 32 == 0)
            *(float4 *)(sums.at + a.width - REC_NUMBERS) = make_float4(DELTA ? s.along[row] - seen : 0, gate, 0, 0);
        sums.at += sums.step, d_query.at += d_query.step, d_key.at += d_key.step;
        d_gate.at += d_gate.step, d_raw.at += d_raw.step;
    }
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
    const int row = thread / 2 % REC_CHUNK; /* two threads for a row of keys, or of queries */
    const float norm = factor_of_pair(p, thread < 2 * REC_CHUNK ? keys : queries, row);
    if (thread < 2 * REC_CHUNK)
        s.k_factor[row] = norm;
    else
        s.q_norm[row] = norm, s.q_factor[row] = norm * (float)p.scale;
    load_decays(p, c, s);
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
    read_states(a, s, w);
    meet_states(a, s, w);
    __syncthreads();
    const int first = thread / 32 * 16, channel = first + lane / 4;
    if (first < KEY_SIZE) {
        const rec_view &u = p.view[REC_BONUS];
        const float met[] = {met_states(s, channel), met_states(s, channel + 8)};
        float bonus[2] = {0, 0}, d_bonus[2];
        if (BEFORE && u.present)
            for (int n = 0; n < 2; n++) bonus[n] = load(u, h * u.stride[2] + (channel + 8 * n) * u.stride[3]);
        meet_tokens(s, keys, queries, first, met, bonus, d_bonus);
        if (BEFORE && u.present && lane % 4 == 0)
            for (int n = 0; n < 2; n++) a.bonuses[c.place * KEY_SIZE + channel + 8 * n] = d_bonus[n];
    }
    __syncthreads();
    write_rows(a, s, c, w, keys, queries);
}
