/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a token of a head brings to the recurrence, prepared by a warp in shared memory: rows of floats as the CPU's
 * token_body.h has them. Element types are those of the call's tensors and known only at run time; a branch on them is
 * the same for all threads. Bits of rows are loaded before any is looked at: a token takes the time of one load.
 *
 * A column of the state is spread over PARTS neighbouring threads with ROWS rows each: row r of a thread is row_of(r).
 * Four rows follow each other, so that rows of shared memory are read 16 bytes at a time by neighbours side by side.
 *
 * Constants: PARTS, THREADS (that have columns), UPDATE, BEFORE, KEY_DECAY; ROWS (32 unless given), and whether
 * gradients are made (BACK), before this is included.
 */
#ifndef EJKI_RECURRENT_TOKEN_CUH
#define EJKI_RECURRENT_TOKEN_CUH

#include "operations/recurrent/cuda/call.cuh"

#ifndef ROWS
#define ROWS 32
#endif
#define PITCH   (ROWS * PARTS)
#define COLUMNS (THREADS / PARTS)
#define WARPS   (THREADS / 32)

DEVICE int row_of(int r) {
    return r / 4 * (4 * PARTS) + threadIdx.x % PARTS * 4 + r % 4;
}

/* ---- States ----------------------------------------------------------------------------------------- */

/* Four rows of a column that follow each other begin at multiples of 16 bytes. */
DEVICE bool are_rows_whole(const rec_problem &p, const rec_view &v, rec_size at) {
    return v.dtype == F32 && v.stride[2] == 1 && p.key_size % 4 == 0 && ((u64)v.data / 4 + at) % 4 == 0;
}

/* A thread's rows of column j; 0 where there is none. The type is asked for once, so that all loads are under way. */
DEVICE void load_state(const rec_problem &p, const rec_view &v, rec_size row, rec_size h, rec_size j,
                       float (&s)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) s[r] = 0;
    if (!v.present || row < 0 || j >= p.value_size) return;
    const rec_size at = rec_state_at(&v, row, h) + j * v.stride[3], step = v.stride[2];
    if (are_rows_whole(p, v, at)) {
#pragma unroll
        for (int r = 0; r < ROWS; r += 4) {
            if (row_of(r) >= p.key_size) continue;
            const float4 x = *(const float4 *)((const float *)v.data + at + row_of(r));
            s[r] = x.x, s[r + 1] = x.y, s[r + 2] = x.z, s[r + 3] = x.w;
        }
    } else if (v.dtype == F32) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (row_of(r) < p.key_size) s[r] = ((const float *)v.data)[at + row_of(r) * step];
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (row_of(r) < p.key_size) s[r] = load(v, at + row_of(r) * step);
    }
}
DEVICE void store_state(const rec_problem &p, const rec_view &v, rec_size row, rec_size h,
                        rec_size j, const float (&s)[ROWS]) {
    if (!v.present || row < 0 || j >= p.value_size) return;
    const rec_size at = rec_state_at(&v, row, h) + j * v.stride[3], step = v.stride[2];
    if (are_rows_whole(p, v, at)) {
#pragma unroll
        for (int r = 0; r < ROWS; r += 4)
            if (row_of(r) < p.key_size)
                *(float4 *)((float *)v.data + at + row_of(r)) = make_float4(s[r], s[r + 1], s[r + 2], s[r + 3]);
    } else if (v.dtype == F32) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (row_of(r) < p.key_size) ((float *)v.data)[at + row_of(r) * step] = s[r];
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (row_of(r) < p.key_size) store(v, at + row_of(r) * step, s[r]);
    }
}

/* ---- A token ---------------------------------------------------------------------------------------- */

#define OTHERS (UPDATE == REC_RANK_ONE ? PITCH : 4)

struct token {
    float y[PITCH], k[PITCH], d[PITCH]; /* query, key, decays */
    float x[OTHERS], a[OTHERS];         /* of rank-one updates: what reads the state, and what is written for it */
    float qk, qa, own, beta;            /* as in the CPU's; qk and qa of gradients only */
    float q_norm, k_norm;
    int t, counts, resets, pad[3];
};

/* Four elements follow each other in a lane, then come those of the next one. */
#define FOURS cdiv(PITCH, 128)
DEVICE int element_of_lane(int four) {
    return 4 * (threadIdx.x % 32 + 32 * four);
}

/* Bits of a lane's elements of a row as they lie: of 16 bits, two in each of the first words of four. */
struct row_bits {
    u32 at[FOURS][4];
};

/* Up to four elements one by one. */
static __device__ __noinline__ uint4 load_few(int type, const void *data, i64 at, int count) {
    u32 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = 0;
        if (i < count) x[i] = type == F32 ? ((const u32 *)data)[at + i] : ((const u16 *)data)[at + i];
    }
    return type == F32 ? make_uint4(x[0], x[1], x[2], x[3]) : make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, 0, 0);
}

/* Of a row that begins at `at` of a tensor and has `size` elements; 0 behind it. */
DEVICE void load_bits(const rec_view &v, rec_size at, int size, row_bits &to) {
    const bool is_wide = v.dtype == F32, is_whole = ((at | size) & 3) == 0 && ((u64)v.data & (is_wide ? 15 : 7)) == 0;
#pragma unroll
    for (int n = 0; n < FOURS; n++) {
        const int i = element_of_lane(n);
        uint4 x = make_uint4(0, 0, 0, 0);
        if (!is_whole) {
            if (i < size) x = load_few(v.dtype, v.data, at + i, size - i);
        } else if (is_wide) {
            if (i < size) x = *(const uint4 *)((const float *)v.data + at + i);
        } else if (i < size) {
            const uint2 half = *(const uint2 *)((const u16 *)v.data + at + i);
            x.x = half.x, x.y = half.y;
        }
        to.at[n][0] = x.x, to.at[n][1] = x.y, to.at[n][2] = x.z, to.at[n][3] = x.w;
    }
}

/* A lane's elements. */
struct row_values {
    float at[4 * FOURS];
};
template <int TYPE> DEVICE void widen_bits(const row_bits &from, row_values &to) {
#pragma unroll
    for (int n = 0; n < FOURS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if constexpr (TYPE == F32)
                to.at[4 * n + i] = __int_as_float(from.at[n][i]);
            else
                to.at[4 * n + i] = value_of<TYPE>((u16)(from.at[n][i / 2] >> i % 2 * 16));
}
DEVICE void widen_row(int type, const row_bits &from, row_values &to) {
    if (type == F32)
        widen_bits<F32>(from, to);
    else if (type == BF16)
        widen_bits<BF16>(from, to);
    else
        widen_bits<F16>(from, to);
}
DEVICE void put_values(const row_values &from, float *row) {
#pragma unroll
    for (int n = 0; n < FOURS; n++) {
        const float *x = from.at + 4 * n;
        if (element_of_lane(n) < PITCH) *(float4 *)(row + element_of_lane(n)) = make_float4(x[0], x[1], x[2], x[3]);
    }
}

/* A token of a head, and bits of its rows. */
struct token_at {
    rec_size batch, t, h;
};
struct token_bits {
    row_bits q, k, g, a, b; /* g: of the first that there is of two tensors of gates */
};
DEVICE void load_row(const rec_problem &p, const token_at &at, int role, rec_size heads, row_bits &to) {
    const rec_view &v = p.view[role];
    load_bits(v, rec_at(&v, at.batch, at.t, rec_head(&p, at.h, heads)), (int)p.key_size, to);
}

/* Rows that registers hold all of are loaded ahead, others when they are looked at. */
#define IS_AHEAD (FOURS <= 2)
DEVICE void load_rows(const rec_problem &p, const token_at &at, token_bits &to) {
    if (!IS_AHEAD) return;
    load_row(p, at, REC_QUERY, p.query_heads, to.q);
    load_row(p, at, REC_KEY, p.key_heads, to.k);
    if (KEY_DECAY) load_row(p, at, p.g_is_wide ? REC_G : REC_GK, p.heads, to.g);
    if (UPDATE == REC_RANK_ONE) load_row(p, at, REC_A, p.heads, to.a), load_row(p, at, REC_B, p.heads, to.b);
}
DEVICE void widen_row(const rec_problem &p, const token_at &at, int role, rec_size heads, const row_bits &from,
                      row_values &to) {
    row_bits bits = from;
    if (!IS_AHEAD) load_row(p, at, role, heads, bits);
    widen_row(p.view[role].dtype, bits, to);
}

/* Multiplies a row so that it is normalised, if it is to be; by what. */
DEVICE float normalise(const rec_problem &p, row_values &x) {
    float sum = 0;
    if (!p.normalise) return 1;
#pragma unroll
    for (int n = 0; n < 4 * FOURS; n++) sum += x.at[n] * x.at[n];
    const float factor = 1 / sqrtf(sum_of_lanes(sum, 32) + (float)REC_EPSILON);
#pragma unroll
    for (int n = 0; n < 4 * FOURS; n++) x.at[n] *= factor;
    return factor;
}

DEVICE float along(const row_values &x, const row_values &y) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 4 * FOURS; n++) sum += x.at[n] * y.at[n];
    return sum_of_lanes(sum, 32);
}

/* What is written and read besides; what the query says of the former, of gradients. */
DEVICE float put_rank_one(const rec_problem &p, const token_at &at, const token_bits &bits, const row_values &q,
                          token &to) {
    row_values a, b;
    widen_row(p, at, REC_A, p.heads, bits.a, a);
    widen_row(p, at, REC_B, p.heads, bits.b, b);
#pragma unroll
    for (int n = 0; n < 4 * FOURS && p.multiply; n++) a.at[n] *= b.at[n], b.at[n] = -b.at[n];
    put_values(a, to.a);
    put_values(b, to.x);
    return BACK && !BEFORE ? along(q, a) : 0;
}

/* A number for each channel of a head, which is the same for all tokens; 0 behind the last. */
DEVICE void load_channels(const rec_problem &p, const rec_view &v, rec_size h, row_values &to) {
#pragma unroll
    for (int n = 0; n < 4 * FOURS; n++) {
        const int i = element_of_lane(n / 4) + n % 4;
        to.at[n] = v.present && i < p.key_size ? load(v, h * v.stride[2] + i * v.stride[3]) : 0;
    }
}

/* Gates of raw ones. */
DEVICE void end_raw_gates(const rec_problem &p, rec_size h, row_values &x) {
    const rec_view &rate = p.view[REC_A_LOG];
    const float by = -expf(load(rate, h * rate.stride[2]));
    row_values bias;
    load_channels(p, p.view[REC_DT_BIAS], h, bias);
#pragma unroll
    for (int n = 0; n < 4 * FOURS; n++) x.at[n] = by * softplus(x.at[n] + bias.at[n]);
}

/* Decays of key channels, of which `head` is what the head has. */
DEVICE void put_decays(const rec_problem &p, const token_at &at, const token_bits &bits, float head, token &to) {
    row_values gate, other;
    const float own = KEY_DECAY ? head : exp_of(head);
#pragma unroll
    for (int n = 0; n < 4 * FOURS; n++) gate.at[n] = own;
    if (KEY_DECAY && p.g_is_wide) {
        widen_row(p, at, REC_G, p.heads, bits.g, other);
        if (p.view[REC_A_LOG].present) end_raw_gates(p, at.h, other);
#pragma unroll
        for (int n = 0; n < 4 * FOURS; n++) gate.at[n] += other.at[n];
    }
    if (KEY_DECAY && p.view[REC_GK].present) {
        row_bits more = bits.g;
        if (p.g_is_wide) load_row(p, at, REC_GK, p.heads, more);
        widen_row(p, at, REC_GK, p.heads, more, other);
#pragma unroll
        for (int n = 0; n < 4 * FOURS; n++) gate.at[n] += other.at[n];
    }
#pragma unroll
    for (int n = 0; n < 4 * FOURS && KEY_DECAY; n++) gate.at[n] = exp_of(gate.at[n]);
    put_values(gate, to.d);
}

/* By a warp: a token that counts, of which two numbers are given. The query is times the scale unless BACK. */
DEVICE void put_token(const rec_problem &p, const token_at &at, const token_bits &bits, float head, float beta,
                      token &to) {
    const rec_view &skip = p.view[REC_SKIP];
    const int lane = threadIdx.x % 32;
    const float scale = BACK ? 1 : (float)p.scale;
    row_values q, k;
    widen_row(p, at, REC_QUERY, p.query_heads, bits.q, q);
    widen_row(p, at, REC_KEY, p.key_heads, bits.k, k);
    const float q_norm = normalise(p, q), k_norm = normalise(p, k);
    put_values(k, to.k);
    put_decays(p, at, bits, head, to);
#pragma unroll
    for (int n = 0; n < 4 * FOURS; n++) q.at[n] *= scale;
    put_values(q, to.y);
    const float qa = UPDATE == REC_RANK_ONE ? put_rank_one(p, at, bits, q, to) : 0;
    const float qk = BACK && !BEFORE ? along(q, k) : 0;
    float own = skip.present ? load(skip, at.h * skip.stride[2]) : 0;
    if (BEFORE) {
        row_values bonus;
        load_channels(p, p.view[REC_BONUS], at.h, bonus);
#pragma unroll
        for (int n = 0; n < 4 * FOURS; n++) k.at[n] *= bonus.at[n];
        own += along(q, k);
    }
    if (lane == 0) to.qk = qk, to.qa = qa, to.own = own, to.beta = beta, to.q_norm = q_norm, to.k_norm = k_norm;
}

/* By a warp: the token of step n, or that it counts for nothing. */
DEVICE void load_token(const rec_problem &p, const rec_sequence &s, rec_size n, rec_size h, token &to) {
    const rec_turn turn = rec_turn_of(&p, &s, n);
    const token_at at = {s.batch, rec_token(&p, &s, n), h};
    const int lane = threadIdx.x % 32;
    token_bits bits;
    if (lane == 0) to.t = (int)at.t, to.counts = turn.counts, to.resets = turn.resets;
    if (!turn.counts) return;
    load_rows(p, at, bits);
    const float head = head_gate(p, s, at.t, h), beta = load_beta(p, s, at.t, h);
    put_token(p, at, bits, head, beta, to);
}

/* ---- The recurrence --------------------------------------------------------------------------------- */

/* Sums over a thread's rows of a row in shared memory times its column; of fours, so that sums need not wait. */
DEVICE float along_rows(const float *row, const float (&s)[ROWS]) {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        const float4 by = *(const float4 *)(row + row_of(r));
        sum[0] += by.x * s[r], sum[1] += by.y * s[r + 1], sum[2] += by.z * s[r + 2], sum[3] += by.w * s[r + 3];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
/* And over the column's threads. */
DEVICE float along(const float *row, const float (&s)[ROWS]) {
    return sum_of_lanes(along_rows(row, s), PARTS);
}

/* s += x times a row. */
DEVICE void add_row(const float *row, float x, float (&s)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        const float4 by = *(const float4 *)(row + row_of(r));
        s[r] += by.x * x, s[r + 1] += by.y * x, s[r + 2] += by.z * x, s[r + 3] += by.w * x;
    }
}

/*
 * The column after a token. u and x are what k and a were multiplied by; of delta rules x is v less what the state says
 * of the key, of sums v.
 */
DEVICE void pass(const token &t, float v, float dv, float (&s)[ROWS], float &u, float &x) {
    x = UPDATE == REC_RANK_ONE ? along(t.x, s) : v;
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        const float4 d = *(const float4 *)(t.d + row_of(r));
        s[r] *= d.x * dv, s[r + 1] *= d.y * dv, s[r + 2] *= d.z * dv, s[r + 3] *= d.w * dv;
    }
    if (UPDATE == REC_DELTA) x -= along(t.k, s);
    u = UPDATE == REC_RANK_ONE ? v : t.beta * x;
    add_row(t.k, u, s);
    if (UPDATE == REC_RANK_ONE) add_row(t.a, x, s);
}

#endif
