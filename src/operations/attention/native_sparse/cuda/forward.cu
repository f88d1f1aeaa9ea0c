/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_sparse_attention on any GPU: means() first, then forward(), where a block has a token of a key head after the
 * other: which blocks are chosen, then all branches of 16 query heads at a time. Constants: ELEMENT, CHUNKS.
 */
#include "operations/attention/native_sparse/cuda/choose.cuh"

/* Means of a block of keys and values, a block of the grid each. */
extern "C" __global__ void __launch_bounds__(NSA_THREADS) means(const nsa_arguments a) {
    const nsa_problem &p = a.p;
    const nsa_size head = blockIdx.x / p.rows, row = blockIdx.x % p.rows;
    const ejki_range block = ejki_chunk_of_row(&p.blocks, row);
    const nsa_size b = head / p.kv_heads, h = head % p.kv_heads, count = block.end - block.begin;
    if (count <= 0) return;
    for (int d = threadIdx.x; d < p.dim + p.width; d += NSA_THREADS) {
        const bool is_key = d < p.dim;
        const nsa_view &v = is_key ? p.key : p.value;
        const nsa_size at = is_key ? d : d - p.dim;
        float sum = 0;
        for (nsa_size t = block.begin; t < block.end; t++)
            sum += widen(((const element *)v.data)[nsa_at(&v, b, t, h) + at]);
        (is_key ? a.mean_key + blockIdx.x * a.key_pitch : a.mean_value + blockIdx.x * a.value_pitch)[at] =
            sum / (float)count;
    }
}

/* A branch of rows: what it comes to, times gates, is added to `total`. */
template <int TYPE>
DEVICE void attend(const nsa_arguments &a, const token &k, const view_of_branch &v, const source &keys,
                   const source &values, const float *rows, int first_head, int heads, float *total, tile &s) {
    const nsa_problem &p = a.p;
    float sums[CHUNKS][ROWS] = {};
    __syncthreads();
    begin_rows(s);
    for (int first = 0; first < v.count; first += COLUMNS) {
        __syncthreads();
        const int count = place_columns(a, k, v, first, s);
        __syncthreads();
        multiply<TYPE>(keys, s.key_at, count, rows, s.weights);
        __syncthreads();
        fold_scores(s, count, (float)p.scale, false);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) sums[c][r] *= s.factor[r];
        accumulate<TYPE>(values, s.value_at, count, s.weights, sums);
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= heads || s.sum[r] == 0) continue;
        const float factor = part_of(s, r) * gate_of(p, v.branch, k.b, k.t, k.kv_head * p.group + first_head + r);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int d = threadIdx.x + c * NSA_THREADS;
            if (d < p.width) total[r * p.width + d] = fmaf(sums[c][r], factor, total[r * p.width + d]);
        }
    }
}

DEVICE void put_heads(const nsa_arguments &a, const token &k, int first_head, int heads, const float *total) {
    const nsa_problem &p = a.p;
    for (int n = threadIdx.x; a.rests && n < heads * p.width; n += NSA_THREADS)
        a.total[((k.b * p.tokens + k.t) * p.heads + k.kv_head * p.group + first_head) * p.width + n] = total[n];
    if (a.rests) return;
    for (int r = 0; r < heads; r++)
        for (int d = threadIdx.x; d < p.width; d += NSA_THREADS)
            ((element *)p.out.data)[nsa_at(&p.out, k.b, k.t, k.kv_head * p.group + first_head + r) + d] =
                narrow(total[r * p.width + d]);
}

DEVICE void put_list(const nsa_problem &p, const token &k, const int *list, int count) {
    const nsa_view &v = p.selected;
    for (int i = threadIdx.x; v.dtype && i < p.slots; i += NSA_THREADS) {
        const i64 at = nsa_at(&v, k.b, k.t, k.kv_head) + i;
        const int block = i < count ? list[i] : -1;
        if (v.wide)
            ((i64 *)v.data)[at] = block;
        else
            ((int *)v.data)[at] = block;
    }
}

extern "C" __global__ void __launch_bounds__(NSA_THREADS) forward(const nsa_arguments a) {
    extern __shared__ float4 memory[];
    __shared__ tile s;
    const nsa_problem &p = a.p;
    float *rows = (float *)memory, *total = rows + ROWS * row_pitch((int)p.dim);
    float *importance = a.importance + blockIdx.x * p.rows;
    const i64 all = p.batch * p.kv_heads * p.tokens;
    /* The last tokens see the most. */
    for (i64 n = all - 1 - blockIdx.x; n >= 0; n -= gridDim.x) {
        const nsa_size line = nsa_line_at(&p, n % p.tokens);
        const token k = token_of(p, n, line);
        int *list = a.chosen + n * p.slots;
        __syncthreads();
        const int listed = line < 0 ? 0 : choose_blocks(a, k, importance, rows, list, s);
        put_list(p, k, list, listed);
        if (a.rests && threadIdx.x == 0) a.count[n] = listed;
        for (int first = 0; first < p.group && (!a.rests || nsa_has(&p, NSA_COMPRESSED)); first += ROWS) {
            __syncthreads();
            for (int i = threadIdx.x; i < ROWS * p.width; i += NSA_THREADS) total[i] = 0;
            int heads = lesser((int)p.group - first, ROWS);
            if (line >= 0) {
                heads = load_heads(a, k, p.query, a.whole_query, p.dim, first, rows);
                const source keys = source_of(p.key, a.whole_key, p.dim);
                const source values = source_of(p.value, a.whole_value, p.width);
                if (nsa_has(&p, NSA_COMPRESSED))
                    attend<F32>(a, k, view_of(p, k, NSA_COMPRESSED, list, listed), source_of(a.mean_key, p.dim),
                                source_of(a.mean_value, p.width), rows, first, heads, total, s);
                if (!a.rests)
                    attend<ELEMENT>(a, k, view_of(p, k, NSA_SELECTED, list, listed), keys, values, rows, first, heads,
                                    total, s);
                if (!a.rests && nsa_has(&p, NSA_WINDOW))
                    attend<ELEMENT>(a, k, view_of(p, k, NSA_WINDOW, list, listed), keys, values, rows, first, heads,
                                    total, s);
            }
            __syncthreads();
            put_heads(a, k, first, heads, total);
        }
    }
}
