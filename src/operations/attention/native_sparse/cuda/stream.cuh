/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block of NSA_THREADS has NSA_ROWS rows of float32 in shared memory, and multiplies a stream of other rows with
 * them, NSA_COLUMNS at a time: four threads have a row of the stream for products with the rows, and a thread has
 * columns of it, NSA_THREADS apart, for what weights make of the stream. Sums run in the order of the stream, whatever
 * the grid is. Constants: ELEMENT, and CHUNKS, columns of a thread.
 */
#ifndef EJKI_NATIVE_SPARSE_STREAM_CUH
#define EJKI_NATIVE_SPARSE_STREAM_CUH

#include "kernels/cuda/element.cuh"
#include "operations/attention/native_sparse/cuda/arguments.cuh"

#define ROWS    NSA_ROWS
#define COLUMNS NSA_COLUMNS
#define PITCH   (ROWS + 4) /* of weights: float4 of a column, and few columns in one bank */

/* Rows in memory: row `at` begins there, counted in elements. */
struct source {
    const void *data;
    bool whole; /* rows begin at multiples of four elements */
    int width;
};

/* Four elements from d on, 0 behind the row. */
template <int TYPE> DEVICE float4 load_four(const source &s, i64 at, int d) {
    typedef typename element_of<TYPE>::bits bits;
    const bits *from = (const bits *)s.data + at + d;
    float x[4] = {};
    if (s.whole && d + 4 <= s.width) {
        const run_of<TYPE, 4> run = *(const run_of<TYPE, 4> *)from;
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = value_of<TYPE>(run.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (d + i < s.width) x[i] = value_of<TYPE>(from[i]);
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

DEVICE int row_pitch(int width) {
    return round_up(width, 4);
}

/* Rows of a source, or zeros where there are none, to shared memory. */
template <int TYPE, typename place>
DEVICE void load_rows(const source &s, int count, place at, float *rows) {
    const int fours = row_pitch(s.width) / 4;
    for (int n = threadIdx.x; n < ROWS * fours; n += NSA_THREADS) {
        const int row = n / fours, d = n % fours * 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (row < count) x = load_four<TYPE>(s, at(row), d);
        *(float4 *)(rows + row * row_pitch(s.width) + d) = x;
    }
}

/* Weights of the stream's columns, and where these begin; statistics of rows. */
struct __align__(16) tile {
    float weights[COLUMNS][PITCH], own[COLUMNS][PITCH];
    i64 key_at[COLUMNS], value_at[COLUMNS];
    float most[ROWS], sum[ROWS], inner[ROWS], factor[ROWS];
};

/* to[column][row] = products of `count` columns of a source with the rows; of the other columns 0. */
template <int TYPE>
DEVICE void multiply(const source &s, const i64 *at, int count, const float *rows, float (*to)[PITCH]) {
    const int column = threadIdx.x / 4, part = threadIdx.x % 4, pitch = row_pitch(s.width);
    float sum[ROWS] = {};
    if (column < count) {
        const i64 begin = at[column];
        for (int d = 4 * part; d < s.width; d += 16) {
            const float4 x = load_four<TYPE>(s, begin, d);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float4 y = *(const float4 *)(rows + r * pitch + d);
                sum[r] = fmaf(x.x, y.x, sum[r]);
                sum[r] = fmaf(x.y, y.y, sum[r]);
                sum[r] = fmaf(x.z, y.z, sum[r]);
                sum[r] = fmaf(x.w, y.w, sum[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        if (r % 4 == part) to[column][r] = sum[r];
    }
}

/* sums[chunk][row] += weights of `count` columns of a source. A weight of 0 adds nothing, whatever it is of. */
template <int TYPE>
DEVICE void accumulate(const source &s, const i64 *at, int count, const float (*weights)[PITCH],
                       float (&sums)[CHUNKS][ROWS]) {
    typedef typename element_of<TYPE>::bits bits;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int d = threadIdx.x + c * NSA_THREADS;
        if (d >= s.width) break;
#pragma unroll 4
        for (int n = 0; n < count; n++) {
            const float x = value_of<TYPE>(((const bits *)s.data)[at[n] + d]);
#pragma unroll
            for (int r = 0; r < ROWS; r += 4) {
                const float4 w = *(const float4 *)&weights[n][r];
                sums[c][r] = w.x != 0 ? fmaf(w.x, x, sums[c][r]) : sums[c][r];
                sums[c][r + 1] = w.y != 0 ? fmaf(w.y, x, sums[c][r + 1]) : sums[c][r + 1];
                sums[c][r + 2] = w.z != 0 ? fmaf(w.z, x, sums[c][r + 2]) : sums[c][r + 2];
                sums[c][r + 3] = w.w != 0 ? fmaf(w.w, x, sums[c][r + 3]) : sums[c][r + 3];
            }
        }
    }
}

/* What a weight makes of a number: 0 where it is 0, even of NaN. */
DEVICE float weighted(float weight, float number) {
    return weight != 0 ? weight * number : 0;
}

/* e^x of a difference of scores; 0 for -inf. */
DEVICE float exponential(float x) {
    return power_of_2(x * LOG2_E);
}

/* ---- Tokens ----------------------------------------------------------------------------------------- */

DEVICE source source_of(const nsa_view &v, bool whole, nsa_size width) {
    const source s = {v.data, whole, (int)width};
    return s;
}
DEVICE source source_of(const float *rows, nsa_size width) {
    const source s = {rows, true, (int)width};
    return s;
}

DEVICE float gate_of(const nsa_problem &p, int branch, nsa_size b, nsa_size t, nsa_size head) {
    const nsa_view &v = p.gate[branch];
    return v.dtype ? load_float(v.dtype, v.data, nsa_at(&v, b, t, head)) : 1;
}

/* A token of a key head, and its sequence; none if line is -1. */
struct token {
    nsa_size head, b, kv_head, t; /* head: of all entries' */
    nsa_line line;
    int own; /* its block */
};

DEVICE token token_of(const nsa_problem &p, i64 n, nsa_size line) {
    token k;
    k.head = n / p.tokens;
    k.b = k.head / p.kv_heads;
    k.kv_head = k.head % p.kv_heads;
    k.t = n % p.tokens;
    const nsa_line none = {0, 0, 0};
    k.line = line < 0 ? none : nsa_line_of(&p, line);
    k.own = (int)((k.t - k.line.begin) / p.blocks.chunk);
    return k;
}

/* What a branch of a token sees: means, or tokens of the listed blocks, or of the window, which end with the token. */
struct view_of_branch {
    int branch, count;
    const int *list;
};

DEVICE view_of_branch view_of(const nsa_problem &p, const token &k, int branch, const int *list, int listed) {
    view_of_branch v = {branch, 0, list};
    const int chunk = (int)p.blocks.chunk, before = (int)(k.t - k.line.begin) + 1;
    if (branch == NSA_COMPRESSED) {
        v.count = before / chunk;
    } else if (branch == NSA_WINDOW) {
        v.count = before < p.window ? before : (int)p.window;
    } else {
        v.count = listed * chunk;
        if (listed > 0 && list[listed - 1] == k.own) v.count += before - (k.own + 1) * chunk;
    }
    return v;
}

/* Where columns `first` to first + COLUMNS - 1 of what is seen begin; how many there are. */
DEVICE int place_columns(const nsa_arguments &a, const token &k, const view_of_branch &v, int first, tile &s) {
    const nsa_problem &p = a.p;
    const int count = lesser(v.count - first, COLUMNS), chunk = (int)p.blocks.chunk;
    const int n = first + threadIdx.x;
    if (threadIdx.x < count) {
        if (v.branch == NSA_COMPRESSED) {
            const i64 row = k.head * p.rows + k.line.row + n;
            s.key_at[threadIdx.x] = row * a.key_pitch;
            s.value_at[threadIdx.x] = row * a.value_pitch;
        } else {
            i64 u = k.t - v.count + 1 + n;
            if (v.branch == NSA_SELECTED) u = k.line.begin + (i64)v.list[n / chunk] * chunk + n % chunk;
            s.key_at[threadIdx.x] = nsa_at(&p.key, k.b, u, k.kv_head);
            s.value_at[threadIdx.x] = nsa_at(&p.value, k.b, u, k.kv_head);
        }
    }
    return count;
}

/* ---- Softmax ---------------------------------------------------------------------------------------- */

DEVICE void begin_rows(tile &s) {
    if (threadIdx.x < ROWS) {
        s.most[threadIdx.x] = NEG_INF;
        s.sum[threadIdx.x] = s.inner[threadIdx.x] = 0;
    }
}

/* Scores of `count` columns become exponentials relative to the largest so far; sums follow, inner ones of products
 * with `own` if there are such. */
DEVICE void fold_scores(tile &s, int count, float scale, bool inner) {
    const int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < ROWS; r += NSA_THREADS / 32) {
        const float z = lane < count ? s.weights[lane][r] * scale : NEG_INF;
        const float before = s.most[r], most = fmaxf(before, larger_of_lanes(z, 32));
        /* fmaxf() passes NaN by: it stays in the sum. */
        const float base = most == NEG_INF ? 0 : most;
        const float weight = z == NEG_INF ? 0 : exponential(z - base);
        const float factor = before == NEG_INF ? 0 : exponential(before - base);
        const float sum = sum_of_lanes(weight, 32);
        const float all = inner ? sum_of_lanes(weighted(weight, lane < count ? s.own[lane][r] : 0), 32) : 0;
        __syncwarp();
        s.weights[lane][r] = weight;
        if (lane == 0) {
            s.most[r] = most;
            s.factor[r] = factor;
            s.sum[r] = s.sum[r] * factor + sum;
            if (inner) s.inner[r] = s.inner[r] * factor + all;
        }
        __syncwarp();
    }
}

DEVICE float part_of(const tile &s, int row) {
    return s.sum[row] == 0 ? 0 : 1 / s.sum[row];
}

/* Scores of a row become weights. */
DEVICE float weight_of(float score, float most, float part) {
    const float base = most == NEG_INF ? 0 : most;
    return score == NEG_INF ? 0 : weighted(exponential(score - base), part);
}

#endif
