/* SPDX-License-Identifier: Apache-2.0 */
/*
 * T, P and operands of chunks (chunk.cuh) whose decays are those of key channels: a block for each chunk of a head,
 * two warps for 16 of its rows, a sub-chunk, one of which has products, the other triangles on the diagonal. Sums of
 * gates count from the beginning of a sub-chunk. Below the diagonal both operands of a product are decayed against
 * the first row of the sub-chunk of rows, so that no exponent of a decay is above 0, and so are 8 rows of a
 * sub-chunk against the 8 before them; what is left on the diagonal, triangles of 8 rows, is summed in floats, with
 * the factor of each pair and channel as it is. A gate below LEAST stands for a factor of 0, which floats cannot
 * tell from it, and sums stay finite.
 *
 * With BEFORE, of sums, queries read the state before the token: they have the decays of the row before, and the bonus
 * makes the diagonal of P.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE, UPDATE, BEFORE, TERMS (1), LEFTS (1; of sums 3, where the state after the last
 * token is wanted: keys with their decays to the chunk's end have as many pieces), BACK (for gradients), SQUARE (T and
 * P for wgmma).
 */
#define WARPS 8
#include "operations/recurrent/cuda/chunk_inverse.cuh"
#include "operations/recurrent/cuda/chunk_logs.cuh"

struct parts : logs {
    float a[REC_CHUNK * PITCH];
    float diagonal[4][SUB * (SUB + 1)];
    float beta[REC_CHUNK], k_factor[REC_CHUNK], q_factor[REC_CHUNK];
    float p[BACK ? REC_CHUNK * PITCH : 1]; /* P of gradients, to be turned */
};

DEVICE int sub_of_warp() {
    return threadIdx.x / 32 % 4;
}
DEVICE bool warp_multiplies() {
    return threadIdx.x / 32 < 4;
}

/* Log decays that a query of a row has, of two channels from a sub-chunk's beginning on. */
DEVICE float2 log_of_query(const parts &s, int row, int channel) {
    if (BEFORE && row % SUB == 0) return make_float2(0, 0);
    return *(const float2 *)(s.log + (row - BEFORE) * LOG_PITCH + channel);
}

/* ---- Products below the diagonal -------------------------------------------------------------------- */

/* Decays of a left operand from the beginning of the warp's sub-chunk to its rows; register n has two elements. */
DEVICE float2 decay_to(const parts &s, int k, int n) {
    const int lane = threadIdx.x % 32, row = sub_of_warp() * SUB + lane / 4 + n % 2 * 8;
    const float2 x = *(const float2 *)(s.log + row * LOG_PITCH + 16 * k + lane % 4 * 2 + n / 2 * 8);
    return make_float2(power_of_2(x.x), power_of_2(x.y));
}
DEVICE float2 decay_to_query(const parts &s, int k, int n) {
    const int lane = threadIdx.x % 32, row = sub_of_warp() * SUB + lane / 4 + n % 2 * 8;
    const float2 x = log_of_query(s, row, 16 * k + lane % 4 * 2 + n / 2 * 8);
    return make_float2(power_of_2(x.x), power_of_2(x.y));
}
DEVICE void multiply(u32 keys, u32 queries, const parts &s, float (&kk)[6][4], float (&qk)[6][4]) {
    const int warp = sub_of_warp();
    clear(kk);
    clear(qk);
#pragma unroll 2
    for (int k = 0; k < KEY_SIZE / 16; k++) {
        u32 key[4], query[4], right[4];
        load_left<KEY_SIZE>(key, keys, SUB * warp, k);
        load_left<KEY_SIZE>(query, queries, SUB * warp, k);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float2 by = decay_to(s, k, n);
            const float2 by_query = BEFORE ? decay_to_query(s, k, n) : by;
            key[n] = times(key[n], by.x, by.y);
            query[n] = times(query[n], by_query.x, by_query.y);
        }
#pragma unroll
        for (int sub = 0; sub < 3; sub++) {
            if (sub >= warp) break;
            load_right<KEY_SIZE>(right, keys, SUB * sub, k);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const float2 by = decay_from(s, sub, warp, k, n);
                right[n] = times(right[n], by.x, by.y);
            }
            if (UPDATE == REC_DELTA) {
                mma(kk[2 * sub], key, right[0], right[1]);
                mma(kk[2 * sub + 1], key, right[2], right[3]);
            }
            mma(qk[2 * sub], query, right[0], right[1]);
            mma(qk[2 * sub + 1], query, right[2], right[3]);
        }
    }
}

DEVICE void put_products(parts &s, float (&kk)[6][4], float (&qk)[6][4], char *scores) {
    const int warp = sub_of_warp(), lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 6; n++) {
        if (n / 2 >= warp) break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = SUB * warp + lane / 4 + i / 2 * 8, from = 8 * n + lane % 4 * 2 + i % 2;
            qk[n][i] *= s.q_factor[to] * s.k_factor[from];
            if (BACK) s.p[to * PITCH + from] = qk[n][i];
            if (UPDATE == REC_DELTA)
                s.a[to * PITCH + from] = kk[n][i] * (s.k_factor[to] * s.k_factor[from] * s.beta[to]);
        }
    }
#pragma unroll
    for (int n = 0; n < 3; n++)
        if (n < warp && !BACK)
            put_block(scores, warp, n,
                      make_uint4(pack(qk[2 * n][0], qk[2 * n][1]), pack(qk[2 * n + 1][0], qk[2 * n + 1][1]),
                                 pack(qk[2 * n][2], qk[2 * n][3]), pack(qk[2 * n + 1][2], qk[2 * n + 1][3])));
}

/* ---- The diagonal ----------------------------------------------------------------------------------- */

/* Rows of the warp's second half times those of the first, by products: decayed against the row between. */
DEVICE void multiply_below(u32 keys, u32 queries, const parts &s, float (&kk)[4], float (&qk)[4]) {
    const int lane = threadIdx.x % 32, first = sub_of_warp() * SUB, own = first + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) kk[i] = qk[i] = 0;
#pragma unroll 2
    for (int k = 0; k < KEY_SIZE / 16; k++) {
        u32 key[4], query[4], right[4];
        load_left<KEY_SIZE>(key, keys, first, k);
        load_left<KEY_SIZE>(query, queries, first, k);
        load_right<KEY_SIZE>(right, keys, first, k);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            /* Of delta rules keys that read the state have the decays of queries. */
            const int channel = 16 * k + 8 * n + lane % 4 * 2;
            const decays_of_halves by = decay_halves(s, first, own, channel, log_of_query(s, own + HALF, channel));
            key[2 * n] = query[2 * n] = 0;
            if (UPDATE == REC_DELTA) key[2 * n + 1] = times(key[2 * n + 1], by.second.x, by.second.y);
            query[2 * n + 1] = times(query[2 * n + 1], by.second.x, by.second.y);
            right[n] = times(right[n], by.first.x, by.first.y);
        }
        if (UPDATE == REC_DELTA) mma(kk, key, right[0], right[1]);
        mma(qk, query, right[0], right[1]);
    }
}

/*
 * Row `to` times the first `count` of its half of the warp's block: a lane has its channels of all rows in registers.
 * Those behind the row are of no use, but a loop of fixed length hides the time that an exponential takes. Of sums
 * nothing is asked of keys: with BEFORE the first number is what the bonus makes.
 */
template <int count>
DEVICE void multiply_row(u32 keys, u32 queries, const parts &s, int to, const u32 (&key)[HALF][PAIRS],
                         const float2 (&log)[HALF][PAIRS], const float2 (&bonus)[PAIRS], float (&sum)[SUB]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < SUB; n++) sum[n] = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int channel = 64 * i + 2 * lane;
        const float2 k = widen_pair(load_pair(keys, to, channel)), q = widen_pair(load_pair(queries, to, channel));
        const float2 end = log_of_query(s, to, channel); /* with BEFORE that of keys is not asked for */
        if (BEFORE) sum[0] += q.x * bonus[i].x * k.x + q.y * bonus[i].y * k.y;
#pragma unroll
        for (int n = 0; n < count; n++) {
            const float2 other = widen_pair(key[n][i]);
            const float2 by = decay_of_pair(end, log[n][i]);
            const float x = other.x * by.x, y = other.y * by.y;
            if (UPDATE == REC_DELTA) sum[n] += k.x * x + k.y * y;
            sum[HALF + n] += q.x * x + q.y * y;
        }
    }
}

/* The triangle of a half of the warp's block; lanes of a first half have columns of A, those of the second of P. */
DEVICE void put_triangle(u32 keys, u32 queries, parts &s, int half, const float2 (&bonus)[PAIRS], float *block) {
    const int lane = threadIdx.x % 32, column = lane % HALF, first = sub_of_warp() * SUB + half * HALF;
    u32 key[HALF][PAIRS];
    float2 log[HALF][PAIRS];
    load_half(keys, first, key);
    load_logs(s, first, log);
#pragma unroll 1
    for (int row = 0; row < HALF; row++) {
        const int to = first + row;
        float sum[SUB];
        if (row < HALF / 2)
            multiply_row<HALF / 2>(keys, queries, s, to, key, log, bonus, sum);
        else
            multiply_row<HALF>(keys, queries, s, to, key, log, bonus, sum);
        const float all = sum_of_row(sum), by = all * s.k_factor[first + column];
        const float own = BEFORE ? __shfl_sync(~0u, all, 0) * s.k_factor[to] : by;
        if (lane >= SUB) continue;
        if (lane >= HALF)
            block[(half * HALF + row) * (SUB + 1) + half * HALF + column] =
                column <= row ? (column < row ? by : own) * s.q_factor[to] : 0;
        else if (UPDATE == REC_DELTA)
            s.a[to * PITCH + first + column] = column < row ? by * (s.k_factor[to] * s.beta[to]) : 0;
    }
}

/* The lower half of the warp's block against its upper half. */
DEVICE void put_below(u32 keys, u32 queries, parts &s) {
    const int warp = sub_of_warp(), lane = threadIdx.x % 32;
    float *block = s.diagonal[warp], kk[4], qk[4];
    multiply_below(keys, queries, s, kk, qk);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = lane / 4 + HALF, column = lane % 4 * 2 + i, to = SUB * warp + row, from = SUB * warp + column;
        block[row * (SUB + 1) + column] = qk[2 + i] * (s.q_factor[to] * s.k_factor[from]);
        block[(row - HALF) * (SUB + 1) + column + HALF] = 0;
        if (UPDATE == REC_DELTA)
            s.a[to * PITCH + from] = kk[2 + i] * (s.k_factor[to] * s.k_factor[from] * s.beta[to]);
    }
}

DEVICE void put_triangles(const rec_problem &p, rec_size h, u32 keys, u32 queries, parts &s) {
    const rec_view &u = p.view[REC_BONUS];
    float2 bonus[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const rec_size at = h * u.stride[2] + 64 * i + 2 * (threadIdx.x % 32);
        bonus[i] = BEFORE && u.present ? make_float2(load(u, at), load(u, at + 1)) : make_float2(0, 0);
    }
#pragma unroll 1
    for (int half = 0; half < 2; half++) put_triangle(keys, queries, s, half, bonus, s.diagonal[sub_of_warp()]);
}

/* The warp's block on the diagonal of P, when it is whole. */
DEVICE void put_diagonal(parts &s, char *scores) {
    const int warp = sub_of_warp(), lane = threadIdx.x % 32;
    const float *block = s.diagonal[warp];
    if constexpr (BACK) {
        for (int n = lane; n < SUB * SUB; n += 32)
            s.p[(SUB * warp + n / SUB) * PITCH + SUB * warp + n % SUB] = block[n / SUB * (SUB + 1) + n % SUB];
    } else {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = block[element_row(i) * (SUB + 1) + element_column(i)];
        put_block(scores, warp, warp,
                  make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])));
    }
}

/* ---- Operands --------------------------------------------------------------------------------------- */

/* Sums of gates behind each row, in place of those up to it: differences of these would have lost bits. */
DEVICE void add_gates_behind(const rec_problem &p, const chunk_of_head &c, parts &s, float *passed) {
    const int channel = threadIdx.x;
    float sum = 0;
    if (channel >= KEY_SIZE) return;
#pragma unroll 1
    for (int sub = 3; sub >= 0; sub--) {
        float g[SUB];
        load_gates(p, c.q, c.first, c.rows, c.h, sub, channel, s, g);
#pragma unroll
        for (int n = SUB - 1; n >= 0; n--) {
            s.log[(SUB * sub + n) * LOG_PITCH + channel] = sum;
            if (SUB * sub + n < c.rows) sum += g[n] < LEAST ? LEAST : g[n];
        }
    }
    passed[channel] = exp_of(sum);
}

/* Keys with their decays to the chunk's end, in three pieces. */
DEVICE void put_pieces(u32 keys, const parts &s, u32 *to) {
    enum { WORDS = KEY_SIZE / 2, ALL = REC_CHUNK * WORDS };
    const int channel = threadIdx.x % WORDS * 2;
#pragma unroll 2
    for (int row = threadIdx.x / WORDS; row < REC_CHUNK; row += THREADS / WORDS) {
        const float2 k = widen_pair(load_pair(keys, row, channel));
        const float2 log = *(const float2 *)(s.log + row * LOG_PITCH + channel);
        const float by = s.k_factor[row];
        float x = k.x * by * exp_of(log.x), y = k.y * by * exp_of(log.y);
#pragma unroll
        for (int piece = 0; piece < 3; piece++) {
            const u32 own = pack(x, y);
            to[(piece == 2 ? 0 : 2 + piece) * ALL + row * WORDS + channel / 2] = own;
            x -= widen((u16)own), y -= widen((u16)(own >> 16));
        }
    }
}

/* A thread has two channels of every so many rows. */
DEVICE void put_operands(u32 keys, u32 queries, const parts &s, u32 *to, float *passed) {
    enum { WORDS = KEY_SIZE / 2, ALL = REC_CHUNK * WORDS };
    const int channel = threadIdx.x % WORDS * 2, first = threadIdx.x / WORDS, step = THREADS / WORDS;
#pragma unroll
    for (int sub = 0; sub < 4; sub++) {
        const float2 before = make_float2(totals(s, 0, sub, channel), totals(s, 0, sub, channel + 1));
        const float2 after = make_float2(totals(s, sub, 4, channel), totals(s, sub, 4, channel + 1));
#pragma unroll 4
        for (int row = SUB * sub + first; row < SUB * sub + SUB; row += step) {
            const float2 k = widen_pair(load_pair(keys, row, channel));
            const float2 q = widen_pair(load_pair(queries, row, channel));
            const float2 log = *(const float2 *)(s.log + row * LOG_PITCH + channel);
            const float x = power_of_2(before.x + log.x), y = power_of_2(before.y + log.y);
            const float2 asked = log_of_query(s, row, channel);
            const float asked_x = BEFORE ? power_of_2(before.x + asked.x) : x;
            const float asked_y = BEFORE ? power_of_2(before.y + asked.y) : y;
            const float left_x = power_of_2(after.x - log.x), left_y = power_of_2(after.y - log.y);
            const float by_k = s.k_factor[row], by_q = s.q_factor[row];
            u32 *at = to + row * WORDS + channel / 2;
            if (UPDATE == REC_DELTA) at[0] = pack(k.x * (x * by_k), k.y * (y * by_k));
            at[ALL] = pack(q.x * (asked_x * by_q), q.y * (asked_y * by_q));
            if (LEFTS == 1) at[2 * ALL] = pack(k.x * (left_x * by_k), k.y * (left_y * by_k));
        }
    }
    if (LEFTS == 1 && threadIdx.x < KEY_SIZE) passed[threadIdx.x] = power_of_2(totals(s, 0, 4, threadIdx.x));
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) prepare_key(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    chunk_of_head c;
    if (!find_chunk(p, c)) return;
    const int thread = threadIdx.x;
    const u32 keys = shared_address(memory), queries = keys + TILE;
    parts &s = *(parts *)(memory + 2 * TILE);
    copy_rows(p, c, REC_KEY, p.key_heads, keys);
    copy_rows(p, c, REC_QUERY, p.query_heads, queries);
    cp_async_commit();
    if (thread < REC_CHUNK) {
        const rec_size t = rec_token(&p, &c.q, c.first + thread);
        s.beta[thread] = thread < c.rows ? load_beta(p, c.q, t, c.h) : 0;
        s.head[thread] = thread < c.rows && p.head_decay ? head_gate(p, c.q, t, c.h) : 0;
    }
    __syncthreads();
    add_gates(p, c.q, c.first, c.rows, c.h, s);
    cp_async_wait<0>();
    __syncthreads();
    const int row = thread / 2 % REC_CHUNK; /* two threads for a row of keys, or of queries */
    const float norm = factor_of_pair(p, thread < 2 * REC_CHUNK ? keys : queries, row);
    if (thread < 2 * REC_CHUNK)
        s.k_factor[row] = norm;
    else
        s.q_factor[row] = norm * (float)p.scale;
    add_totals(s);
    __syncthreads();
    char *scores = a.scores + c.place * REC_TRIANGLE_BYTES;
    if (warp_multiplies()) {
        float kk[6][4], qk[6][4];
        multiply(keys, queries, s, kk, qk);
        put_products(s, kk, qk, scores);
        put_below(keys, queries, s);
    } else {
        put_triangles(p, c.h, keys, queries, s);
    }
    u32 *operands = (u32 *)(a.operands + c.place * ((LEFTS > 1 ? 4 : 3) * REC_CHUNK * KEY_SIZE * 2));
    float *passed = a.factors + c.place * (KEY_SIZE + REC_CHUNK);
    put_operands(keys, queries, s, operands, passed);
    __syncthreads();
    if (!warp_multiplies()) put_diagonal(s, scores);
    if (LEFTS > 1) {
        add_gates_behind(p, c, s, passed);
        __syncthreads();
        put_pieces(keys, s, operands);
    }
    if (thread < REC_CHUNK) passed[KEY_SIZE + thread] = s.beta[thread];
    if (UPDATE != REC_DELTA && !BACK) return;
    __syncthreads();
    if (BACK) put_blocks<TERMS, true>(s.p, NULL, scores);
    if (UPDATE != REC_DELTA) return;
    invert(s.a, s.beta, a.inverses + c.place * ((BACK ? 2 : 1) * REC_TRIANGLE_BYTES));
}
