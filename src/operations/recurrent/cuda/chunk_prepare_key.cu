/* SPDX-License-Identifier: Apache-2.0 */
/*
 * T, P and operands of chunks (chunk.cuh) whose decays are those of key channels: a block for each chunk of a head, a
 * warp for 16 of its rows, a sub-chunk. Sums of gates count from the beginning of a sub-chunk. Below the diagonal both
 * operands of a product are decayed against the first row of the sub-chunk of rows, so that no exponent of a decay is
 * above 0; blocks on the diagonal are summed in floats, with the factor of each pair and channel as it is. A gate
 * below LEAST stands for a factor of 0, which floats cannot tell from it, and sums stay finite.
 *
 * Constants: ELEMENT (BF16), KEY_SIZE, UPDATE, TERMS (1), BACK (for gradients).
 */
#include "operations/recurrent/cuda/chunk_inverse.cuh"
#include "operations/recurrent/cuda/chunk_key.cuh"

#define LEAST     -120.0f
#define SUB       16
#define LOG_PITCH (KEY_SIZE + 4)

struct parts {
    float a[REC_CHUNK * PITCH], log[REC_CHUNK * LOG_PITCH]; /* log: base-2, of a sub-chunk up to a row */
    float total[4][KEY_SIZE], gap[6][KEY_SIZE]; /* of a sub-chunk; of those from one to before another */
    float diagonal[4][SUB * (SUB + 1)];
    float beta[REC_CHUNK], k_factor[REC_CHUNK], q_factor[REC_CHUNK], head[REC_CHUNK]; /* head: gates */
    float p[BACK ? REC_CHUNK * PITCH : 1]; /* P of gradients, to be turned */
};

/* ---- Gates ------------------------------------------------------------------------------------------ */

DEVICE void add_gates(const rec_problem &p, const rec_sequence &q, rec_size first, int rows, rec_size h, parts &s) {
    const int channel = threadIdx.x % KEY_SIZE;
    for (int sub = threadIdx.x / KEY_SIZE; sub < 4; sub += THREADS / KEY_SIZE) {
        const rec_size t = rec_token(&p, &q, first + SUB * sub);
        float g[SUB], sum = 0;
#pragma unroll
        for (int n = 0; n < SUB; n++) g[n] = p.head_decay ? s.head[SUB * sub + n] : 0;
        add_channel(p, q, t, h, channel, rows - SUB * sub, g);
#pragma unroll
        for (int n = 0; n < SUB; n++) {
            if (SUB * sub + n < rows) sum += LOG2_E * (g[n] < LEAST ? LEAST : g[n]);
            s.log[(SUB * sub + n) * LOG_PITCH + channel] = sum;
        }
        s.total[sub][channel] = sum;
    }
}

/* Sums of sub-chunks first … end - 1. */
DEVICE float totals(const parts &s, int first, int end, int channel) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 4; n++)
        if (n >= first && n < end) sum += s.total[n][channel];
    return sum;
}

/* Which of `gap` is from sub-chunk `first` to before `end`. */
DEVICE int gap_of(int first, int end) {
    return end * (end - 1) / 2 + first;
}
DEVICE void add_totals(parts &s) {
    for (int end = 1; end < 4 && threadIdx.x < KEY_SIZE; end++)
        for (int first = 0; first < end; first++)
            s.gap[gap_of(first, end)][threadIdx.x] = totals(s, first, end, threadIdx.x);
}

DEVICE u32 times(u32 pair, float low, float high) {
    return pack(widen((u16)pair) * low, widen((u16)(pair >> 16)) * high);
}

/* ---- Products below the diagonal -------------------------------------------------------------------- */

/* Decays of a left operand from the beginning of the warp's sub-chunk to its rows; register n has two elements. */
DEVICE float2 decay_to(const parts &s, int k, int n) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * SUB + lane / 4 + n % 2 * 8;
    const float2 x = *(const float2 *)(s.log + row * LOG_PITCH + 16 * k + lane % 4 * 2 + n / 2 * 8);
    return make_float2(power_of_2(x.x), power_of_2(x.y));
}
/* Those of a right operand from rows of sub-chunk `sub` to the beginning of the warp's. */
DEVICE float2 decay_from(const parts &s, int sub, int k, int n) {
    const int lane = threadIdx.x % 32, row = sub * SUB + lane / 4 + n / 2 * 8, end = threadIdx.x / 32;
    const int channel = 16 * k + lane % 4 * 2 + n % 2 * 8;
    const float2 x = *(const float2 *)(s.log + row * LOG_PITCH + channel);
    const float2 gap = *(const float2 *)(s.gap[gap_of(sub, end)] + channel);
    return make_float2(power_of_2(gap.x - x.x), power_of_2(gap.y - x.y));
}

DEVICE void multiply(u32 keys, u32 queries, const parts &s, float (&kk)[6][4], float (&qk)[6][4]) {
    const int warp = threadIdx.x / 32;
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
            key[n] = times(key[n], by.x, by.y);
            query[n] = times(query[n], by.x, by.y);
        }
#pragma unroll
        for (int sub = 0; sub < 3; sub++) {
            if (sub >= warp) break;
            load_right<KEY_SIZE>(right, keys, SUB * sub, k);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const float2 by = decay_from(s, sub, k, n);
                right[n] = times(right[n], by.x, by.y);
            }
            mma(kk[2 * sub], key, right[0], right[1]);
            mma(kk[2 * sub + 1], key, right[2], right[3]);
            mma(qk[2 * sub], query, right[0], right[1]);
            mma(qk[2 * sub + 1], query, right[2], right[3]);
        }
    }
}

DEVICE void put_products(parts &s, float (&kk)[6][4], float (&qk)[6][4], uint4 *scores) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 6; n++) {
        if (n / 2 >= warp) break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int to = SUB * warp + lane / 4 + i / 2 * 8, from = 8 * n + lane % 4 * 2 + i % 2;
            qk[n][i] *= s.q_factor[to] * s.k_factor[from];
            if (BACK) s.p[to * PITCH + from] = qk[n][i];
            s.a[to * PITCH + from] = kk[n][i] * (s.k_factor[to] * s.k_factor[from] * s.beta[to]);
        }
    }
#pragma unroll
    for (int n = 0; n < 3; n++)
        if (n < warp && !BACK)
            scores[(warp * (warp + 1) / 2 + n) * 32 + lane] =
                make_uint4(pack(qk[2 * n][0], qk[2 * n][1]), pack(qk[2 * n + 1][0], qk[2 * n + 1][1]),
                           pack(qk[2 * n][2], qk[2 * n][3]), pack(qk[2 * n + 1][2], qk[2 * n + 1][3]));
}

/* ---- The diagonal ----------------------------------------------------------------------------------- */

#define PAIRS (KEY_SIZE / 64) /* pairs of channels of a lane, 64 apart */

/* Halves the numbers of a lane, and adds those of the lane `apart` from it, until one is left: sum of number `lane`. */
template <int count> DEVICE void add_lanes(float (&x)[32]) {
    if constexpr (count > 1) {
        const bool is_high = threadIdx.x & (count / 2);
#pragma unroll
        for (int n = 0; n < count / 2; n++) {
            const float own = is_high ? x[n + count / 2] : x[n], other = is_high ? x[n] : x[n + count / 2];
            x[n] = own + __shfl_xor_sync(~0u, other, count / 2);
        }
        add_lanes<count / 2>(x);
    }
}

/*
 * Row `row` of the warp's block times the first `count`: a lane has its channels of all rows in registers. Those behind
 * the row are of no use, but a loop of fixed length hides the time that an exponential takes.
 */
template <int count>
DEVICE void multiply_row(u32 keys, u32 queries, const parts &s, int row, const u32 (&key)[SUB][PAIRS],
                         const float2 (&log)[SUB][PAIRS], float (&sum)[32]) {
    const int to = threadIdx.x / 32 * SUB + row, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 32; n++) sum[n] = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int channel = 64 * i + 2 * lane;
        const float2 k = widen_pair(load_pair(keys, to, channel)), q = widen_pair(load_pair(queries, to, channel));
        const float2 end = *(const float2 *)(s.log + to * LOG_PITCH + channel);
#pragma unroll
        for (int n = 0; n < count; n++) {
            const float2 other = widen_pair(key[n][i]);
            const float x = other.x * power_of_2(end.x - log[n][i].x), y = other.y * power_of_2(end.y - log[n][i].y);
            sum[n] += k.x * x + k.y * y;
            sum[SUB + n] += q.x * x + q.y * y;
        }
    }
}

/* Of the warp's block; lanes of the first half have columns of A, those of the second columns of P. */
DEVICE void put_diagonal(u32 keys, u32 queries, parts &s, uint4 *scores) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane % SUB, from = SUB * warp + column;
    float *block = s.diagonal[warp];
    u32 key[SUB][PAIRS];
    float2 log[SUB][PAIRS];
#pragma unroll
    for (int n = 0; n < SUB; n++)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            key[n][i] = load_pair(keys, SUB * warp + n, 64 * i + 2 * lane);
            log[n][i] = *(const float2 *)(s.log + (SUB * warp + n) * LOG_PITCH + 64 * i + 2 * lane);
        }
#pragma unroll 1
    for (int row = 0; row < SUB; row++) {
        const int to = SUB * warp + row;
        float sum[32];
        if (row < SUB / 2)
            multiply_row<SUB / 2>(keys, queries, s, row, key, log, sum);
        else
            multiply_row<SUB>(keys, queries, s, row, key, log, sum);
        add_lanes<32>(sum);
        const float by = sum[0] * s.k_factor[from];
        if (lane >= SUB)
            block[row * (SUB + 1) + column] = column <= row ? by * s.q_factor[to] : 0;
        else
            s.a[to * PITCH + from] = column < row ? by * (s.k_factor[to] * s.beta[to]) : 0;
    }
    __syncwarp();
    if constexpr (BACK) {
        for (int n = lane; n < SUB * SUB; n += 32)
            s.p[(SUB * warp + n / SUB) * PITCH + SUB * warp + n % SUB] = block[n / SUB * (SUB + 1) + n % SUB];
    } else {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = block[element_row(i) * (SUB + 1) + element_column(i)];
        scores[(warp * (warp + 1) / 2 + warp) * 32 + lane] =
            make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
    }
}

/* ---- Operands --------------------------------------------------------------------------------------- */

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
            const float left_x = power_of_2(after.x - log.x), left_y = power_of_2(after.y - log.y);
            const float by_k = s.k_factor[row], by_q = s.q_factor[row];
            u32 *at = to + row * WORDS + channel / 2;
            at[0] = pack(k.x * (x * by_k), k.y * (y * by_k));
            at[ALL] = pack(q.x * (x * by_q), q.y * (y * by_q));
            at[2 * ALL] = pack(k.x * (left_x * by_k), k.y * (left_y * by_k));
        }
    }
    if (threadIdx.x < KEY_SIZE) passed[threadIdx.x] = power_of_2(totals(s, 0, 4, threadIdx.x));
}

extern "C" __global__ void __launch_bounds__(THREADS) prepare_key(const __grid_constant__ rec_chunked a) {
    extern __shared__ __align__(128) char memory[];
    const rec_problem &p = a.p;
    const rec_size chunk = blockIdx.x / p.heads, h = blockIdx.x % p.heads, place = blockIdx.x;
    const rec_sequence q = rec_sequence_of(&p, rec_sequence_at(&p, chunk));
    const rec_size first = (chunk - rec_first_chunk(&p, q.index, q.begin)) * REC_CHUNK, steps = q.end - q.begin;
    if (first >= steps) return;
    const int rows = lesser((int)(steps - first), REC_CHUNK), thread = threadIdx.x;
    const u32 keys = shared_address(memory), queries = keys + TILE;
    parts &s = *(parts *)(memory + larger(2 * TILE, REC_CHUNK * PITCH * 4));
    const rows_of key = rows_in(p, p.view[REC_KEY], q, rec_head(&p, h, p.key_heads), 0);
    const rows_of query = rows_in(p, p.view[REC_QUERY], q, rec_head(&p, h, p.query_heads), 0);
    copy_tile<REC_CHUNK, KEY_SIZE>(keys, key, (int)first, (int)steps, 1);
    copy_tile<REC_CHUNK, KEY_SIZE>(queries, query, (int)first, (int)steps, 1);
    cp_async_commit();
    if (thread < REC_CHUNK) {
        const rec_size t = rec_token(&p, &q, first + thread);
        s.beta[thread] = thread < rows ? load_beta(p, q, t, h) : 0;
        s.head[thread] = thread < rows && p.head_decay ? head_gate(p, q, t, h) : 0;
    }
    __syncthreads();
    add_gates(p, q, first, rows, h, s);
    cp_async_wait<0>();
    __syncthreads();
    if (thread < REC_CHUNK)
        s.k_factor[thread] = factor_of(p, keys, thread);
    else
        s.q_factor[thread - REC_CHUNK] = factor_of(p, queries, thread - REC_CHUNK) * (float)p.scale;
    add_totals(s);
    __syncthreads();
    float kk[6][4], qk[6][4];
    multiply(keys, queries, s, kk, qk);
    __syncthreads();
    uint4 *scores = (uint4 *)(a.scores + place * (REC_TILES * REC_TILE_BYTES));
    put_products(s, kk, qk, scores);
    put_diagonal(keys, queries, s, scores);
    put_operands(keys, queries, s, (u32 *)(a.operands + place * (3 * REC_CHUNK * KEY_SIZE * 2)),
                 a.factors + place * (KEY_SIZE + REC_CHUNK));
    if (thread < REC_CHUNK) a.factors[(place + 1) * (KEY_SIZE + REC_CHUNK) - REC_CHUNK + thread] = s.beta[thread];
    if (UPDATE != REC_DELTA && !BACK) return;
    __syncthreads();
    if (BACK) put_blocks<TERMS, true>(s.p, NULL, scores);
    if (UPDATE != REC_DELTA) return;
    invert(s.a, s.beta, (float *)memory,
           (uint4 *)(a.inverses + place * ((BACK ? 2 : 1) * REC_TILES * REC_TILE_BYTES)));
}
