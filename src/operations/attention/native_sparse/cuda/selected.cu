/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The selected branch and the window of native_sparse_attention on tensor cores, after forward(), which has chosen
 * blocks and left the compressed branch in float32. A warp has a token and up to 16 query heads of a key head, which
 * are the rows of its products; 32 keys at a time come to its own two stages in shared memory, and nothing is shared
 * between warps but caches. Weights are rounded to the type of the call.
 *
 * Constants: ELEMENT, HEAD_DIM and VALUE_DIM, multiples of 16, CHUNKS, WARPS.
 */
#include "kernels/cuda/mma.cuh"
#include "operations/attention/native_sparse/cuda/stream.cuh"

#define KEYS   32
#define STAGES 2
#define STAGE_BYTES (2 * KEYS * (pitch_of(HEAD_DIM) + pitch_of(VALUE_DIM)))

/* A warp's token and rows. */
struct warp_rows {
    token k;
    int first, heads;
    u32 stage; /* shared address of the first */
    bool whole;
    u32 query[HEAD_DIM / 16][4];
    float total[VALUE_DIM / 8][4];
};

/* Pieces of a row, of which `there` are to be copied; rows that do not lie at multiples of 16 bytes by elements. */
template <int dim> DEVICE void copy_row_piece(u32 to, const u16 *row, int piece, bool there, bool whole) {
    if (whole)
        copy_piece(to, row + (there ? piece * 8 : 0), there);
    else
        copy_elements<dim>(to, row + piece * 8, piece * 8, there);
}

DEVICE bool is_whole(const nsa_view &v) {
    return (((u64)v.data >> 1 | v.batch | v.token | v.head) & 7) == 0;
}

/* Queries through the first stage to registers. */
DEVICE void load_queries(const nsa_problem &p, warp_rows &w) {
    const int lane = threadIdx.x % 32;
    const bool whole = is_whole(p.query);
    for (int n = lane; n < 16 * (HEAD_DIM / 8); n += 32) {
        const int row = n / (HEAD_DIM / 8), piece = n % (HEAD_DIM / 8);
        const bool there = row < w.heads;
        const nsa_size head = w.k.kv_head * p.group + w.first + (there ? row : 0);
        copy_row_piece<HEAD_DIM>(piece_at<HEAD_DIM>(w.stage, row, piece),
                                 (const u16 *)p.query.data + nsa_at(&p.query, w.k.b, w.k.t, head), piece, there, whole);
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) load_left<HEAD_DIM>(w.query[k], w.stage, 0, k);
    __syncwarp();
}

/* Keys and values `first` on of what a branch sees into a stage; zeros behind the last. */
DEVICE void load_stage(const nsa_problem &p, const warp_rows &w, const view_of_branch &v, int first, int stage) {
    const int lane = threadIdx.x % 32, chunk = (int)p.blocks.chunk, own = first + lane;
    const u32 keys = w.stage + stage * STAGE_BYTES, values = keys + 2 * KEYS * pitch_of(HEAD_DIM);
    i64 u = w.k.t;
    if (own < v.count) {
        u = w.k.t - v.count + 1 + own;
        if (v.branch == NSA_SELECTED) u = w.k.line.begin + (i64)v.list[own / chunk] * chunk + own % chunk;
    }
    const i64 key_at = nsa_at(&p.key, w.k.b, u, w.k.kv_head), value_at = nsa_at(&p.value, w.k.b, u, w.k.kv_head);
#pragma unroll 4
    for (int n = 0; n < KEYS * (HEAD_DIM / 8) / 32; n++) {
        const int row = (n * 32 + lane) / (HEAD_DIM / 8), piece = (n * 32 + lane) % (HEAD_DIM / 8);
        const i64 at = __shfl_sync(~0u, key_at, row);
        copy_row_piece<HEAD_DIM>(piece_at<HEAD_DIM>(keys, row, piece), (const u16 *)p.key.data + at, piece,
                                 first + row < v.count, w.whole);
    }
#pragma unroll 4
    for (int n = 0; n < KEYS * (VALUE_DIM / 8) / 32; n++) {
        const int row = (n * 32 + lane) / (VALUE_DIM / 8), piece = (n * 32 + lane) % (VALUE_DIM / 8);
        const i64 at = __shfl_sync(~0u, value_at, row);
        copy_row_piece<VALUE_DIM>(piece_at<VALUE_DIM>(values, row, piece), (const u16 *)p.value.data + at, piece,
                                  first + row < v.count, w.whole);
    }
    cp_async_commit();
}

/* Of four neighbouring lanes, which have a row of an accumulator. */
DEVICE float larger_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
DEVICE float sum_of_row(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Scores of a stage. */
DEVICE void multiply_keys(const warp_rows &w, u32 keys, float (&score)[KEYS / 8][4]) {
    clear(score);
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++)
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            u32 x[4];
            load_right<HEAD_DIM>(x, keys, 16 * n, k);
            mma(score[2 * n], w.query[k], x[0], x[1]);
            mma(score[2 * n + 1], w.query[k], x[2], x[3]);
        }
}

/* Scores of `count` keys become exponentials, relative to the largest of a row so far; sums follow. */
DEVICE void fold_rows(float (&score)[KEYS / 8][4], int count, float scale, float (&most)[2], float (&sum)[2],
                      float (&sums)[VALUE_DIM / 8][4]) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = most[half];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &z = score[n][2 * half + e];
                z = 8 * n + column + e < count ? z * scale : NEG_INF;
                top = fmaxf(top, z);
            }
        top = larger_of_row(top);
        const float base = top == NEG_INF ? 0 : top;
        const float factor = most[half] == NEG_INF ? 0 : exponential(most[half] - base);
        float all = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &z = score[n][2 * half + e];
                z = z == NEG_INF ? 0 : exponential(z - base);
                all += z;
            }
        sum[half] = sum[half] * factor + sum_of_row(all);
        most[half] = top;
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 8; n++) {
            sums[n][2 * half] *= factor;
            sums[n][2 * half + 1] *= factor;
        }
    }
}

DEVICE void multiply_values(u32 values, const float (&weight)[KEYS / 8][4], float (&sums)[VALUE_DIM / 8][4]) {
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        u32 x[4];
        pack_left(x, weight[2 * n], weight[2 * n + 1]);
#pragma unroll
        for (int d = 0; d < VALUE_DIM / 16; d++) {
            u32 y[4];
            load_right_trans<VALUE_DIM>(y, values, 16 * n, d);
            mma(sums[2 * d], x, y[0], y[1]);
            mma(sums[2 * d + 1], x, y[2], y[3]);
        }
    }
}

DEVICE void attend_branch(const nsa_problem &p, warp_rows &w, const view_of_branch &v) {
    float sums[VALUE_DIM / 8][4], most[2] = {NEG_INF, NEG_INF}, sum[2] = {};
    clear(sums);
    load_stage(p, w, v, 0, 0);
    for (int first = 0, stage = 0; first < v.count; first += KEYS, stage ^= 1) {
        load_stage(p, w, v, first + KEYS, stage ^ 1);
        cp_async_wait<1>();
        __syncwarp();
        const u32 keys = w.stage + stage * STAGE_BYTES;
        float score[KEYS / 8][4];
        multiply_keys(w, keys, score);
        fold_rows(score, v.count - first, (float)p.scale, most, sum, sums);
        multiply_values(keys + 2 * KEYS * pitch_of(HEAD_DIM), score, sums);
        __syncwarp();
    }
    cp_async_wait<0>();
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = threadIdx.x % 32 / 4 + 8 * half;
        if (row >= w.heads || sum[half] == 0) continue;
        const float factor = gate_of(p, v.branch, w.k.b, w.k.t, w.k.kv_head * p.group + w.first + row) / sum[half];
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                w.total[n][2 * half + e] = fmaf(sums[n][2 * half + e], factor, w.total[n][2 * half + e]);
    }
}

/* The compressed branch, as forward() left it. */
DEVICE void load_total(const nsa_arguments &a, warp_rows &w) {
    const nsa_problem &p = a.p;
    clear(w.total);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = threadIdx.x % 32 / 4 + 8 * half;
        if (row >= w.heads || !nsa_has(&p, NSA_COMPRESSED)) continue;
        const float *from = a.total + ((w.k.b * p.tokens + w.k.t) * p.heads + w.k.kv_head * p.group + w.first + row) *
                                          VALUE_DIM + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 8; n++) {
            w.total[n][2 * half] = from[8 * n];
            w.total[n][2 * half + 1] = from[8 * n + 1];
        }
    }
}

DEVICE void put_rows(const nsa_problem &p, const warp_rows &w) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = threadIdx.x % 32 / 4 + 8 * half;
        if (row >= w.heads) continue;
        element *to = (element *)p.out.data + nsa_at(&p.out, w.k.b, w.k.t, w.k.kv_head * p.group + w.first + row) +
                      threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 8; n++) {
            to[8 * n] = narrow(w.total[n][2 * half]);
            to[8 * n + 1] = narrow(w.total[n][2 * half + 1]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attend_selected(const nsa_arguments a) {
    extern __shared__ float4 memory[];
    const nsa_problem &p = a.p;
    const i64 parts = (p.group + 15) / 16, all = p.batch * p.kv_heads * parts * p.tokens;
    const i64 own = (i64)blockIdx.x * WARPS + threadIdx.x / 32;
    if (own >= all) return;
    /* Tokens of a key head follow each other, the last, which see the most, first. */
    const nsa_size t = p.tokens - 1 - own % p.tokens, head = own / p.tokens / parts;
    const i64 n = head * p.tokens + t;
    const nsa_size line = nsa_line_at(&p, t);
    warp_rows w;
    w.k = token_of(p, n, line);
    w.first = (int)(own / p.tokens % parts) * 16;
    w.heads = lesser((int)p.group - w.first, 16);
    w.stage = shared_address(memory) + threadIdx.x / 32 * STAGES * STAGE_BYTES;
    w.whole = is_whole(p.key) && is_whole(p.value);
    if (line < 0) {
        clear(w.total);
        put_rows(p, w);
        return;
    }
    load_queries(p, w);
    load_total(a, w);
    const int *list = a.chosen + n * p.slots, listed = a.count[n];
    attend_branch(p, w, view_of(p, w.k, NSA_SELECTED, list, listed));
    if (nsa_has(&p, NSA_WINDOW)) attend_branch(p, w, view_of(p, w.k, NSA_WINDOW, list, listed));
    put_rows(p, w);
}
