/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a token of a head brings to the recurrence, prepared by a warp in shared memory: rows of floats as the CPU's
 * token_body.h has them. Element types are those of the call's tensors and known only at run time; a branch on them is
 * the same for all threads.
 *
 * A column of the state is spread over PARTS neighbouring threads with ROWS rows each: row r of a thread is row_of(r).
 * Four rows follow each other, so that rows of shared memory are read 16 bytes at a time by neighbours side by side.
 */
#ifndef EJKI_RECURRENT_TOKEN_CUH
#define EJKI_RECURRENT_TOKEN_CUH

#include "operations/recurrent/cuda/call.cuh"

#define ROWS    32
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

struct token {
    float x[PITCH], y[PITCH], k[PITCH], a[PITCH], d[PITCH];
    float qk, qa, own, beta; /* as in the CPU's */
    float q_norm, k_norm;
    int t, counts, resets, pad[3];
};

/* A row of the tensor, normalised if it is to be, 0 behind its end; what it was multiplied by. */
DEVICE float load_vector(const rec_problem &p, const rec_view &v, rec_size at, float *row) {
    const int lane = threadIdx.x % 32;
    float sum = 0, factor = 1;
    for (int i = lane; i < PITCH; i += 32) {
        row[i] = i < p.key_size ? load(v, at + i) : 0;
        sum += row[i] * row[i];
    }
    if (p.normalise) factor = 1 / sqrtf(sum_of_lanes(sum, 32) + (float)REC_EPSILON);
    for (int i = lane; i < PITCH; i += 32) row[i] *= factor;
    return factor;
}

DEVICE void load_rank_one(const rec_problem &p, const rec_sequence &s, rec_size t, rec_size h,
                          token &to) {
    const rec_view &a = p.view[REC_A], &b = p.view[REC_B];
    for (int i = threadIdx.x % 32; i < PITCH; i += 32) {
        float own = i < p.key_size ? load(a, rec_at(&a, s.batch, t, h) + i) : 0;
        float by = i < p.key_size ? load(b, rec_at(&b, s.batch, t, h) + i) : 0;
        if (p.multiply) own *= by, by = -by;
        to.a[i] = own;
        to.x[i] = by;
    }
}

/*
 * By a warp: the token of step n, or that it counts for nothing. y is q times the scale, and times d unless
 * KEEP_Q, where x is left as it is for delta rules, too.
 */
template <bool KEEP_Q>
DEVICE void load_token(const rec_problem &p, const rec_sequence &s, rec_size n, rec_size h, token &to) {
    const rec_view &q = p.view[REC_QUERY], &k = p.view[REC_KEY], &u = p.view[REC_BONUS];
    const rec_turn turn = rec_turn_of(&p, &s, n);
    const rec_size t = rec_token(&p, &s, n);
    const int lane = threadIdx.x % 32;
    if (lane == 0) to.t = (int)t, to.counts = turn.counts, to.resets = turn.resets;
    if (!turn.counts) return;
    const float q_norm = load_vector(p, q, rec_at(&q, s.batch, t, rec_head(&p, h, p.query_heads)), to.y);
    const float k_norm = load_vector(p, k, rec_at(&k, s.batch, t, rec_head(&p, h, p.key_heads)), to.k);
    if (UPDATE == REC_RANK_ONE) load_rank_one(p, s, t, h, to);
    const float head = head_gate(p, s, t, h), scale = (float)p.scale;
    float qk = 0, qa = 0, own = 0;
    for (int i = lane; i < PITCH; i += 32) {
        const float d = i < p.key_size ? key_decay(p, s, t, h, i, head) : 1, x = to.y[i];
        if (!BEFORE) qk += x * to.k[i];
        if (!BEFORE && UPDATE == REC_RANK_ONE) qa += x * to.a[i];
        if (BEFORE && u.present && i < p.key_size)
            own += x * load(u, h * u.stride[2] + i) * to.k[i];
        to.d[i] = d;
        to.y[i] = KEEP_Q ? x : BEFORE ? scale * x : scale * x * d;
        if (UPDATE == REC_DELTA) to.x[i] = to.k[i] * d;
    }
    qk = sum_of_lanes(qk, 32), qa = sum_of_lanes(qa, 32), own = sum_of_lanes(own, 32);
    if (lane > 0) return;
    const float by = KEEP_Q ? 1 : scale;
    const rec_view &skip = p.view[REC_SKIP];
    to.qk = by * qk, to.qa = by * qa, to.own = by * own;
    if (skip.present) to.own += load(skip, h * skip.stride[2]);
    to.q_norm = q_norm, to.k_norm = k_norm;
    to.beta = load_beta(p, s, t, h);
}

/* Sums over a thread's rows of a row in shared memory times its column, and over the column's threads. */
DEVICE float along(const float *row, const float (&s)[ROWS]) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        const float4 by = *(const float4 *)(row + row_of(r));
        sum += by.x * s[r] + by.y * s[r + 1] + by.z * s[r + 2] + by.w * s[r + 3];
    }
    return sum_of_lanes(sum, PARTS);
}

/* The update of a column: s <- d s dv + k u + a x. */
DEVICE void update(const token &t, float dv, float u, float x, float (&s)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r += 4) {
        const int i = row_of(r);
        const float4 d = *(const float4 *)(t.d + i), k = *(const float4 *)(t.k + i);
        s[r] = s[r] * (d.x * dv) + k.x * u;
        s[r + 1] = s[r + 1] * (d.y * dv) + k.y * u;
        s[r + 2] = s[r + 2] * (d.z * dv) + k.z * u;
        s[r + 3] = s[r + 3] * (d.w * dv) + k.w * u;
        if (UPDATE != REC_RANK_ONE) continue;
        const float4 a = *(const float4 *)(t.a + i);
        s[r] += a.x * x, s[r + 1] += a.y * x, s[r + 2] += a.z * x, s[r + 3] += a.w * x;
    }
}

#endif
