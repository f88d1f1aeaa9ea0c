/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a token of a head brings to the recurrence, prepared by a warp in shared memory: rows of floats as the CPU's
 * token_body.h has them. Element types are those of the call's tensors and known only at run time; a branch on them is
 * the same for all threads. Bits of rows are loaded before any is looked at: a token takes the time of one load.
 *
 * A column of the state is spread over PARTS neighbouring threads with ROWS rows each: row r of a thread is row_of(r).
 * Four rows follow each other, so that rows of shared memory are read 16 bytes at a time by neighbours side by side.
 * Threads have ACROSS columns that follow each other, which what they read of a token serves.
 *
 * Constants: PARTS, THREADS (that have columns), UPDATE, BEFORE, KEY_DECAY; ROWS and ACROSS (32 and 1 unless given),
 * the element type of all rows but gates (ROW_TYPE, 0 unless they have one), and whether gradients are made (BACK),
 * before this is included.
 */
#ifndef EJKI_RECURRENT_TOKEN_CUH
#define EJKI_RECURRENT_TOKEN_CUH

#include "operations/recurrent/cuda/call.cuh"

#ifndef ROWS
#define ROWS 32
#endif
#ifndef ROW_TYPE
#define ROW_TYPE 0
#endif
#ifndef ACROSS
#define ACROSS 1
#endif
#define PITCH   (ROWS * PARTS)
#define COLUMNS (THREADS / PARTS * ACROSS)
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

/* Where a head of a sequence has its part of a tensor, NULL if there is none. */
struct source {
    const char *at;
    bool is_whole; /* four elements of a row can be read at once */
};
DEVICE source source_of(const rec_problem &p, int role, rec_size batch, rec_size h, rec_size heads) {
    const rec_view &v = p.view[role];
    const int bytes = v.dtype == F32 ? 4 : 2;
    if (!v.present) return {NULL, false};
    const char *at = (const char *)v.data + rec_at(&v, batch, 0, rec_head(&p, h, heads)) * bytes;
    return {at, ((v.stride[1] | p.key_size) & 3) == 0 && ((u64)at & (4 * bytes - 1)) == 0};
}
/* From the first token of the batch entry to token t, or from one to the next of so many. */
DEVICE rec_size bytes_to(const rec_problem &p, int role, rec_size t) {
    return p.view[role].present ? t * p.view[role].stride[1] * (p.view[role].dtype == F32 ? 4 : 2) : 0;
}
DEVICE int type_of(const rec_problem &p, int role) {
    return ROW_TYPE && role <= REC_B ? ROW_TYPE : p.view[role].dtype;
}

/* Bits of a row of `size` elements; 0 behind it. */
DEVICE void load_bits(const source &from, int type, int size, row_bits &to) {
#pragma unroll
    for (int n = 0; n < FOURS; n++) {
        const int i = element_of_lane(n);
        uint4 x = make_uint4(0, 0, 0, 0);
        if (!from.is_whole) {
            if (i < size) x = load_few(type, from.at, i, size - i);
        } else if (type == F32) {
            if (i < size) x = *(const uint4 *)(from.at + 4 * i);
        } else if (i < size) {
            const uint2 half = *(const uint2 *)(from.at + 2 * i);
            x.x = half.x, x.y = half.y;
        }
        to.at[n][0] = x.x, to.at[n][1] = x.y, to.at[n][2] = x.z, to.at[n][3] = x.w;
    }
}

DEVICE u32 load_number(const source &from, int type) {
    return !from.at ? 0 : type == F32 ? *(const u32 *)from.at : *(const u16 *)from.at;
}
DEVICE float widen_number(int type, u32 bits) {
    return type == F32    ? __int_as_float(bits)
           : type == BF16 ? value_of<BF16>((u16)bits)
                          : value_of<F16>((u16)bits);
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

/*
 * Where a token of a head of a sequence is, and what all of them have in common; `g` is the first that there is of two
 * tensors of gates.
 */
struct token_sources {
    source q, k, g, more, a, b, head, beta;
    head_constants gate;
    row_values bias, bonus; /* loaded with the rows */
    rec_size h;
    float scale;
};

/* Bits of a token. */
struct token_bits {
    row_bits q, k, g, a, b;
    u32 head, beta;
};
DEVICE void load_row(const rec_problem &p, int role, const source &from, row_bits &to) {
    load_bits(from, type_of(p, role), (int)p.key_size, to);
}

/* Rows that registers hold all of are loaded ahead, others when they are looked at. */
#define IS_AHEAD   (FOURS <= 2)
#define FIRST_GATE (p.g_is_wide ? REC_G : REC_GK)
DEVICE void load_token_bits(const rec_problem &p, const token_sources &from, token_bits &to) {
    to.head = load_number(from.head, p.view[REC_G].dtype);
    to.beta = load_number(from.beta, p.view[REC_BETA].dtype);
    if (!IS_AHEAD) return;
    load_row(p, REC_QUERY, from.q, to.q);
    load_row(p, REC_KEY, from.k, to.k);
    if (KEY_DECAY) load_row(p, FIRST_GATE, from.g, to.g);
    if (UPDATE == REC_RANK_ONE) load_row(p, REC_A, from.a, to.a), load_row(p, REC_B, from.b, to.b);
}
DEVICE void widen_row(const rec_problem &p, int role, const source &source, const row_bits &from, row_values &to) {
    row_bits bits = from;
    if (!IS_AHEAD) load_row(p, role, source, bits);
    widen_row(type_of(p, role), bits, to);
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
DEVICE float put_rank_one(const rec_problem &p, const token_sources &from, const token_bits &bits, const row_values &q,
                          token &to) {
    row_values a, b;
    widen_row(p, REC_A, from.a, bits.a, a);
    widen_row(p, REC_B, from.b, bits.b, b);
#pragma unroll
    for (int n = 0; n < 4 * FOURS && p.multiply; n++) a.at[n] *= b.at[n], b.at[n] = -b.at[n];
    put_values(a, to.a);
    put_values(b, to.x);
    return BACK && !BEFORE ? along(q, a) : 0;
}

/* A number for each channel of a head, which is the same for all tokens; 0 behind the last. */
DEVICE void load_channels(const rec_problem &p, int role, rec_size h, row_values &to) {
    const rec_view &v = p.view[role];
#pragma unroll
    for (int n = 0; n < 4 * FOURS; n++) {
        const int i = element_of_lane(n / 4) + n % 4;
        to.at[n] = v.present && i < p.key_size ? load(v, h * v.stride[2] + i * v.stride[3]) : 0;
    }
}

/* Of the first token of the batch entry. */
DEVICE token_sources sources_of(const rec_problem &p, const rec_sequence &q, rec_size h) {
    const rec_size b = q.batch;
    const source none = {NULL, false};
    token_sources from;
    from.q = source_of(p, REC_QUERY, b, h, p.query_heads);
    from.k = source_of(p, REC_KEY, b, h, p.key_heads);
    from.g = source_of(p, FIRST_GATE, b, h, p.heads);
    from.more = p.g_is_wide ? source_of(p, REC_GK, b, h, p.heads) : none;
    from.a = source_of(p, REC_A, b, h, p.heads);
    from.b = source_of(p, REC_B, b, h, p.heads);
    from.head = p.g_is_wide ? none : source_of(p, REC_G, b, h, p.heads);
    from.beta = source_of(p, REC_BETA, b, h, p.heads);
    from.gate = head_constants_of(p, q, h);
    from.h = h;
    from.scale = BACK ? 1 : (float)p.scale; /* of the query */
    if (IS_AHEAD && KEY_DECAY && p.g_is_wide) load_channels(p, REC_DT_BIAS, h, from.bias);
    if (IS_AHEAD && BEFORE) load_channels(p, REC_BONUS, h, from.bonus);
    return from;
}

/* Goes on by what bytes(role) says. */
template <typename function> DEVICE void advance(const rec_problem &p, token_sources &from, function bytes) {
    const auto move = [](source &s, rec_size by) { s.at += s.at ? by : 0; };
    from.q.at += bytes(REC_QUERY);
    from.k.at += bytes(REC_KEY);
    if (KEY_DECAY) move(from.g, bytes(FIRST_GATE)), move(from.more, bytes(REC_GK));
    if (UPDATE == REC_RANK_ONE) from.a.at += bytes(REC_A), from.b.at += bytes(REC_B);
    move(from.head, bytes(REC_G));
    move(from.beta, bytes(REC_BETA));
}

/* Decays of key channels, of which `head` is what the head has. */
DEVICE void put_decays(const rec_problem &p, const token_sources &from, const token_bits &bits, float head, token &to) {
    row_values gate, other;
    const float own = KEY_DECAY ? head : exp_of(head);
#pragma unroll
    for (int n = 0; n < 4 * FOURS; n++) gate.at[n] = own;
    if (KEY_DECAY && from.g.at) {
        widen_row(p, FIRST_GATE, from.g, bits.g, other);
        if (p.g_is_wide && p.view[REC_A_LOG].present) {
            row_values bias = from.bias;
            if (!IS_AHEAD) load_channels(p, REC_DT_BIAS, from.h, bias);
#pragma unroll
            for (int n = 0; n < 4 * FOURS; n++) other.at[n] = from.gate.rate * softplus(other.at[n] + bias.at[n]);
        }
#pragma unroll
        for (int n = 0; n < 4 * FOURS; n++) gate.at[n] += other.at[n];
    }
    if (KEY_DECAY && from.more.at) {
        row_bits more;
        load_row(p, REC_GK, from.more, more);
        widen_row(p.view[REC_GK].dtype, more, other);
#pragma unroll
        for (int n = 0; n < 4 * FOURS; n++) gate.at[n] += other.at[n];
    }
#pragma unroll
    for (int n = 0; n < 4 * FOURS && KEY_DECAY; n++) gate.at[n] = exp_of(gate.at[n]);
    put_values(gate, to.d);
}

/* By a warp: a token that counts. The query is times the scale unless BACK. */
DEVICE void put_token(const rec_problem &p, const token_sources &from, const token_bits &bits, token &to) {
    const float raw = widen_number(p.view[REC_G].dtype, bits.head), head = head_gate(p, from.gate, raw);
    row_values q, k;
    widen_row(p, REC_QUERY, from.q, bits.q, q);
    widen_row(p, REC_KEY, from.k, bits.k, k);
    const float q_norm = normalise(p, q), k_norm = normalise(p, k);
    put_values(k, to.k);
    put_decays(p, from, bits, head, to);
#pragma unroll
    for (int n = 0; n < 4 * FOURS; n++) q.at[n] *= from.scale;
    put_values(q, to.y);
    const float qa = UPDATE == REC_RANK_ONE ? put_rank_one(p, from, bits, q, to) : 0;
    const float qk = BACK && !BEFORE ? along(q, k) : 0;
    float own = from.gate.skip;
    if (BEFORE) {
        row_values bonus = from.bonus;
        if (!IS_AHEAD) load_channels(p, REC_BONUS, from.h, bonus);
#pragma unroll
        for (int n = 0; n < 4 * FOURS; n++) k.at[n] *= bonus.at[n];
        own += along(q, k);
    }
    if (threadIdx.x % 32 != 0) return;
    to.beta = p.by_step      ? step_size(p, raw + from.gate.bias)
              : from.beta.at ? beta_of(p, widen_number(p.view[REC_BETA].dtype, bits.beta))
                             : 1;
    to.qk = qk, to.qa = qa, to.own = own, to.q_norm = q_norm, to.k_norm = k_norm;
}

/* By a warp: the token of step n, or that it counts for nothing. */
DEVICE void load_token(const rec_problem &p, const token_sources &from, const rec_sequence &s, rec_size n, token &to) {
    const rec_turn turn = rec_turn_of(&p, &s, n);
    const rec_size t = rec_token(&p, &s, n);
    token_bits bits;
    if (threadIdx.x % 32 == 0) to.t = (int)t, to.counts = turn.counts, to.resets = turn.resets;
    if (!turn.counts) return;
    token_sources here = from;
    advance(p, here, [&](int role) { return bytes_to(p, role, t); });
    load_token_bits(p, here, bits);
    put_token(p, here, bits, to);
}

/* ---- The recurrence --------------------------------------------------------------------------------- */

/* Sums over a thread's rows of a row in shared memory times its columns; of a few, so that sums need not wait. */
#define CHAINS (ROWS <= 8 ? 2 : 4)
template <int N> DEVICE void along_rows(const float *row, const float (&s)[N][ROWS], float (&to)[N]) {
    float sum[N][4] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        const float4 by = *(const float4 *)(row + row_of(r));
#pragma unroll
        for (int n = 0; n < N; n++) {
            sum[n][0] += by.x * s[n][r], sum[n][1] += by.y * s[n][r + 1];
            sum[n][2 % CHAINS] += by.z * s[n][r + 2], sum[n][3 % CHAINS] += by.w * s[n][r + 3];
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
        to[n] = CHAINS == 2 ? sum[n][0] + sum[n][1] : (sum[n][0] + sum[n][1]) + (sum[n][2] + sum[n][3]);
}
/* And over a column's threads. */
template <int N> DEVICE void along(const float *row, const float (&s)[N][ROWS], float (&to)[N]) {
    along_rows(row, s, to);
#pragma unroll
    for (int n = 0; n < N; n++) to[n] = sum_of_lanes(to[n], PARTS);
}
DEVICE float along(const float *row, const float (&s)[ROWS]) {
    float sum[1];
    along(row, reinterpret_cast<const float(&)[1][ROWS]>(s), sum);
    return sum[0];
}

/* s += x times a row. */
template <int N> DEVICE void add_row(const float *row, const float (&x)[N], float (&s)[N][ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        const float4 by = *(const float4 *)(row + row_of(r));
#pragma unroll
        for (int n = 0; n < N; n++)
            s[n][r] += by.x * x[n], s[n][r + 1] += by.y * x[n], s[n][r + 2] += by.z * x[n], s[n][r + 3] += by.w * x[n];
    }
}

/*
 * Columns after a token. u and x are what k and a were multiplied by; of delta rules x is v less what the state says of
 * the key, of sums v.
 */
template <int N>
DEVICE void pass(const token &t, const float (&v)[N], const float (&dv)[N], float (&s)[N][ROWS], float (&u)[N],
                 float (&x)[N]) {
    if (UPDATE == REC_RANK_ONE) along(t.x, s, x);
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        const float4 d = *(const float4 *)(t.d + row_of(r));
#pragma unroll
        for (int n = 0; n < N; n++)
            s[n][r] *= d.x * dv[n], s[n][r + 1] *= d.y * dv[n], s[n][r + 2] *= d.z * dv[n], s[n][r + 3] *= d.w * dv[n];
    }
    if (UPDATE == REC_DELTA) along(t.k, s, x);
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (UPDATE != REC_RANK_ONE) x[n] = UPDATE == REC_DELTA ? v[n] - x[n] : v[n];
        u[n] = UPDATE == REC_RANK_ONE ? v[n] : t.beta * x[n];
    }
    add_row(t.k, u, s);
    if (UPDATE == REC_RANK_ONE) add_row(t.a, x, s);
}

#endif
