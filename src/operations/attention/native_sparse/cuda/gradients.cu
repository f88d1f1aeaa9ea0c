/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of native_sparse_attention on any GPU. derive(): a block has a token of a key head after the other, and its
 * stream are keys: gradients of queries and gates, and of each row and branch what its softmax comes to. Then a block
 * has 16 means, derive_means(), or 16 keys, derive_keys(), and its stream are the rows of queries that see them, whose
 * weights are made again: so everything is added up by one block in the order of tokens. Constants: ELEMENT, CHUNKS.
 */
#include "operations/attention/native_sparse/cuda/choose.cuh"

/* ---- Queries ---------------------------------------------------------------------------------------- */

struct query_rows {
    float *query, *cotangent; /* in shared memory */
    int first, heads;
};

/* Scores and cotangents of weights of `count` columns from `first` on. */
template <int TYPE>
DEVICE int multiply_both(const nsa_arguments &a, const token &k, const view_of_branch &v, int first,
                         const source &keys, const source &values, const query_rows &q, tile &s) {
    __syncthreads();
    const int count = place_columns(a, k, v, first, s);
    __syncthreads();
    multiply<TYPE>(keys, s.key_at, count, q.query, s.weights);
    multiply<TYPE>(values, s.value_at, count, q.cotangent, s.own);
    __syncthreads();
    return count;
}

DEVICE void put_float(const nsa_view &v, i64 at, float value) {
    if (v.dtype) store_float(v.dtype, v.data, at, value);
}

/* Softmax of a branch, which is kept; factor is what slopes are multiplied by. */
template <int TYPE>
DEVICE void keep_softmax(const nsa_arguments &a, const token &k, const view_of_branch &v, const source &keys,
                         const source &values, const query_rows &q, tile &s) {
    const nsa_problem &p = a.p;
    __syncthreads();
    begin_rows(s);
    for (int first = 0; first < v.count; first += COLUMNS) {
        const int count = multiply_both<TYPE>(a, k, v, first, keys, values, q, s);
        fold_scores(s, count, (float)p.scale, true);
    }
    __syncthreads();
    const int r = threadIdx.x;
    if (r >= q.heads) return;
    const nsa_size head = k.kv_head * p.group + q.first + r;
    const float part = part_of(s, r);
    s.inner[r] = part == 0 ? 0 : s.inner[r] * part;
    s.factor[r] = part == 0 ? 0 : gate_of(p, v.branch, k.b, k.t, head) * (float)p.scale;
    const nsa_kept kept = {s.most[r], part, s.inner[r]};
    a.kept[v.branch][(k.b * p.tokens + k.t) * p.heads + head] = kept;
    put_float(p.d_gate[v.branch], nsa_at(&p.d_gate[v.branch], k.b, k.t, head), s.inner[r]);
}

template <int TYPE>
DEVICE void derive_branch(const nsa_arguments &a, const token &k, const view_of_branch &v, const source &keys,
                          const source &values, const query_rows &q, float (&sums)[CHUNKS][ROWS], tile &s) {
    keep_softmax<TYPE>(a, k, v, keys, values, q, s);
    for (int first = 0; a.p.d_query.dtype && first < v.count; first += COLUMNS) {
        const int count = multiply_both<TYPE>(a, k, v, first, keys, values, q, s);
        for (int n = threadIdx.x; n < COLUMNS * ROWS; n += NSA_THREADS) {
            const int column = n / ROWS, r = n % ROWS;
            float slope = 0;
            if (column < count && r < q.heads) {
                const float weight = weight_of(s.weights[column][r] * (float)a.p.scale, s.most[r], part_of(s, r));
                slope = weighted(weight, s.own[column][r] - s.inner[r]) * s.factor[r];
            }
            s.own[column][r] = slope;
        }
        __syncthreads();
        accumulate<TYPE>(keys, s.key_at, count, s.own, sums);
    }
}

/* A token of no sequence. */
DEVICE void clear_token(const nsa_problem &p, const token &k) {
    for (int d = threadIdx.x; p.d_key.dtype && d < p.dim; d += NSA_THREADS)
        put_float(p.d_key, nsa_at(&p.d_key, k.b, k.t, k.kv_head) + d, 0);
    for (int d = threadIdx.x; p.d_value.dtype && d < p.width; d += NSA_THREADS)
        put_float(p.d_value, nsa_at(&p.d_value, k.b, k.t, k.kv_head) + d, 0);
    for (int r = threadIdx.x; r < p.group; r += NSA_THREADS)
        for (int i = 0; i < NSA_BRANCHES; i++)
            put_float(p.d_gate[i], nsa_at(&p.d_gate[i], k.b, k.t, k.kv_head * p.group + r), 0);
}

extern "C" __global__ void __launch_bounds__(NSA_THREADS) derive(const nsa_arguments a) {
    extern __shared__ float4 memory[];
    __shared__ tile s;
    const nsa_problem &p = a.p;
    query_rows q;
    q.query = (float *)memory;
    q.cotangent = q.query + ROWS * row_pitch((int)p.dim);
    float *importance = a.importance + blockIdx.x * p.rows;
    const i64 all = p.batch * p.kv_heads * p.tokens;
    for (i64 n = all - 1 - blockIdx.x; n >= 0; n -= gridDim.x) {
        const nsa_size line = nsa_line_at(&p, n % p.tokens);
        const token k = token_of(p, n, line);
        int *list = a.chosen + n * p.slots;
        __syncthreads();
        const int listed = line < 0 ? 0 : choose_blocks(a, k, importance, q.query, list, s);
        if (threadIdx.x == 0) a.count[n] = listed;
        if (line < 0) clear_token(p, k);
        for (q.first = 0; q.first < p.group; q.first += ROWS) {
            float sums[CHUNKS][ROWS] = {};
            __syncthreads();
            q.heads = lesser((int)p.group - q.first, ROWS);
            if (line >= 0) {
                load_heads(a, k, p.query, a.whole_query, p.dim, q.first, q.query);
                load_heads(a, k, p.out, a.whole_out, p.width, q.first, q.cotangent);
                const source keys = source_of(p.key, a.whole_key, p.dim);
                const source values = source_of(p.value, a.whole_value, p.width);
                if (nsa_has(&p, NSA_COMPRESSED))
                    derive_branch<F32>(a, k, view_of(p, k, NSA_COMPRESSED, list, listed),
                                       source_of(a.mean_key, p.dim), source_of(a.mean_value, p.width), q, sums, s);
                derive_branch<ELEMENT>(a, k, view_of(p, k, NSA_SELECTED, list, listed), keys, values, q, sums, s);
                if (nsa_has(&p, NSA_WINDOW))
                    derive_branch<ELEMENT>(a, k, view_of(p, k, NSA_WINDOW, list, listed), keys, values, q, sums, s);
            }
            if (!p.d_query.dtype) continue;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < CHUNKS; c++) {
                    const int d = threadIdx.x + c * NSA_THREADS;
                    if (r < q.heads && d < p.dim)
                        ((element *)p.d_query.data)[nsa_at(&p.d_query, k.b, k.t, k.kv_head * p.group + q.first + r) +
                                                    d] = narrow(sums[c][r]);
                }
        }
    }
}

/* ---- Keys ------------------------------------------------------------------------------------------- */

/* Keys of a block, or means, and what the rows that come by are in their branch. */
struct key_rows {
    nsa_size head, b, kv_head;
    nsa_line line;
    int first, count;  /* number of the first: of its token in the line, or of its block */
    float *key, *value; /* in shared memory */
    float d_key[CHUNKS][ROWS], d_value[CHUNKS][ROWS];
};

struct query_columns {
    float most[COLUMNS], part[COLUMNS], inner[COLUMNS], gate[COLUMNS];
    int low[COLUMNS], high[COLUMNS]; /* keys that it sees */
    int tokens[NSA_THREADS];
};

/* Columns are rows of queries `first` on of the listed tokens; how many there are. */
DEVICE int place_queries(const nsa_arguments &a, const key_rows &k, int branch, int first, int all, tile &s,
                         query_columns &c) {
    const nsa_problem &p = a.p;
    const int count = lesser(all - first, COLUMNS), n = threadIdx.x;
    if (n < count) {
        const nsa_size t = c.tokens[(first + n) / p.group], before = t - k.line.begin + 1;
        const nsa_size head = k.kv_head * p.group + (first + n) % p.group;
        const nsa_kept kept = a.kept[branch][(k.b * p.tokens + t) * p.heads + head];
        s.key_at[n] = nsa_at(&p.query, k.b, t, head);
        s.value_at[n] = nsa_at(&p.out, k.b, t, head);
        c.most[n] = kept.most;
        c.part[n] = kept.part;
        c.inner[n] = kept.inner;
        c.gate[n] = gate_of(p, branch, k.b, t, head);
        c.low[n] = branch == NSA_WINDOW ? (int)(before - p.window) : 0;
        c.high[n] = (int)(branch == NSA_COMPRESSED ? before / p.blocks.chunk : before);
    }
    return count;
}

/* Gradients of the keys += what rows of queries of the listed tokens make of them. */
DEVICE void add_tokens(const nsa_arguments &a, key_rows &k, int branch, int tokens, tile &s, query_columns &c) {
    const nsa_problem &p = a.p;
    const source queries = source_of(p.query, a.whole_query, p.dim);
    const source cotangents = source_of(p.out, a.whole_out, p.width);
    const int all = tokens * (int)p.group;
    for (int first = 0; first < all; first += COLUMNS) {
        const int count = place_queries(a, k, branch, first, all, s, c);
        __syncthreads();
        multiply<ELEMENT>(queries, s.key_at, count, k.key, s.weights);
        multiply<ELEMENT>(cotangents, s.value_at, count, k.value, s.own);
        __syncthreads();
        for (int n = threadIdx.x; n < COLUMNS * ROWS; n += NSA_THREADS) {
            const int column = n / ROWS, r = n % ROWS, key = k.first + r;
            float weight = 0, slope = 0;
            if (column < count && r < k.count && key >= c.low[column] && key < c.high[column]) {
                weight = weight_of(s.weights[column][r] * (float)p.scale, c.most[column], c.part[column]);
                slope = weighted(weight, s.own[column][r] - c.inner[column]) * c.gate[column] * (float)p.scale;
                weight = weighted(weight, c.gate[column]);
            }
            s.weights[column][r] = weight;
            s.own[column][r] = slope;
        }
        __syncthreads();
        accumulate<ELEMENT>(cotangents, s.value_at, count, s.weights, k.d_value);
        accumulate<ELEMENT>(queries, s.key_at, count, s.own, k.d_key);
        __syncthreads();
    }
}

/* Tokens t on, as many as threads, that chose a block; -1: all. In order to c.tokens; how many. */
DEVICE int list_tokens(const nsa_arguments &a, const key_rows &k, nsa_size t, nsa_size end, int block,
                       query_columns &c) {
    __shared__ int found[NSA_THREADS / 32];
    const nsa_size own = t + threadIdx.x;
    bool sees = own < end;
    if (sees && block >= 0) {
        const i64 n = k.head * a.p.tokens + own;
        const int *list = a.chosen + n * a.p.slots, count = a.count[n];
        int i = 0;
        while (i < count && list[i] < block) i++;
        sees = i < count && list[i] == block;
    }
    const u32 mask = __ballot_sync(~0u, sees);
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) found[warp] = __popc(mask);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < NSA_THREADS / 32; w++) {
        if (w < warp) before += found[w];
        all += found[w];
    }
    if (sees) c.tokens[before + __popc(mask & ((1u << (threadIdx.x % 32)) - 1))] = (int)own;
    __syncthreads();
    return all;
}

DEVICE void add_range(const nsa_arguments &a, key_rows &k, int branch, nsa_size begin, nsa_size end, int block,
                      tile &s, query_columns &c) {
    for (nsa_size t = begin; t < end; t += NSA_THREADS)
        add_tokens(a, k, branch, list_tokens(a, k, t, end, block, c), s, c);
}

DEVICE void open_keys(const nsa_problem &p, i64 head, float4 *memory, key_rows &k) {
    k.head = head;
    k.b = head / p.kv_heads;
    k.kv_head = head % p.kv_heads;
    k.key = (float *)memory;
    k.value = k.key + ROWS * row_pitch((int)p.dim);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) k.d_key[c][r] = k.d_value[c][r] = 0;
}

DEVICE nsa_size line_of_row(const nsa_problem &p, nsa_size row) {
    return p.blocks.packed ? ejki_sequence_at(&p.blocks, row, 1) : 0;
}

/* 16 means of a sequence, from each row whose number in it is a multiple of 16 on. */
extern "C" __global__ void __launch_bounds__(NSA_THREADS) derive_means(const nsa_arguments a) {
    extern __shared__ float4 memory[];
    __shared__ tile s;
    __shared__ query_columns c;
    const nsa_problem &p = a.p;
    const nsa_size row = blockIdx.x % p.rows;
    key_rows k;
    open_keys(p, blockIdx.x / p.rows, memory, k);
    k.line = nsa_line_of(&p, line_of_row(p, row));
    k.first = (int)(row - k.line.row);
    k.count = lesser((int)((k.line.end - k.line.begin) / p.blocks.chunk) - k.first, ROWS);
    if (k.first % ROWS != 0 || k.count <= 0) return;
    const nsa_size at = k.head * p.rows + row;
    load_rows<F32>(source_of(a.mean_key, p.dim), k.count, [&](int r) { return (at + r) * a.key_pitch; }, k.key);
    load_rows<F32>(source_of(a.mean_value, p.width), k.count, [&](int r) { return (at + r) * a.value_pitch; }, k.value);
    add_range(a, k, NSA_COMPRESSED, k.line.begin + (k.first + 1) * p.blocks.chunk - 1, k.line.end, -1, s, c);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int n = 0; n < CHUNKS; n++) {
            const int d = threadIdx.x + n * NSA_THREADS;
            if (r < k.count && d < p.dim) a.d_mean_key[(at + r) * a.key_pitch + d] = k.d_key[n][r];
            if (r < k.count && d < p.width) a.d_mean_value[(at + r) * a.value_pitch + d] = k.d_value[n][r];
        }
}

/* 16 keys of a block, with their share of its mean. */
extern "C" __global__ void __launch_bounds__(NSA_THREADS) derive_keys(const nsa_arguments a) {
    extern __shared__ float4 memory[];
    __shared__ tile s;
    __shared__ query_columns c;
    const nsa_problem &p = a.p;
    const i64 parts = (p.blocks.chunk + ROWS - 1) / ROWS;
    const nsa_size row = blockIdx.x / parts % p.rows;
    const ejki_range block = ejki_chunk_of_row(&p.blocks, row);
    const nsa_size begin = block.begin + blockIdx.x % parts * ROWS;
    key_rows k;
    if (begin >= block.end) return;
    open_keys(p, blockIdx.x / parts / p.rows, memory, k);
    k.line = nsa_line_of(&p, line_of_row(p, row));
    k.first = (int)(begin - k.line.begin);
    k.count = block.end - begin < ROWS ? (int)(block.end - begin) : ROWS;
    load_rows<ELEMENT>(source_of(p.key, a.whole_key, p.dim), k.count,
                       [&](int r) { return nsa_at(&p.key, k.b, begin + r, k.kv_head); }, k.key);
    load_rows<ELEMENT>(source_of(p.value, a.whole_value, p.width), k.count,
                       [&](int r) { return nsa_at(&p.value, k.b, begin + r, k.kv_head); }, k.value);
    __syncthreads();
    add_range(a, k, NSA_SELECTED, begin, k.line.end, (int)(row - k.line.row), s, c);
    if (nsa_has(&p, NSA_WINDOW)) {
        const nsa_size last = begin + k.count - 1 + p.window;
        add_range(a, k, NSA_WINDOW, begin, last < k.line.end ? last : k.line.end, -1, s, c);
    }
    const bool shares = nsa_has(&p, NSA_COMPRESSED) && block.end - block.begin == p.blocks.chunk;
    const float part = 1 / (float)p.blocks.chunk;
    const nsa_size mean = k.head * p.rows + row;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int n = 0; n < CHUNKS; n++) {
            const int d = threadIdx.x + n * NSA_THREADS;
            if (r >= k.count) continue;
            if (p.d_key.dtype && d < p.dim) {
                const float own = shares ? part * a.d_mean_key[mean * a.key_pitch + d] : 0;
                ((element *)p.d_key.data)[nsa_at(&p.d_key, k.b, begin + r, k.kv_head) + d] =
                    narrow(k.d_key[n][r] + own);
            }
            if (p.d_value.dtype && d < p.width) {
                const float own = shares ? part * a.d_mean_value[mean * a.value_pitch + d] : 0;
                ((element *)p.d_value.data)[nsa_at(&p.d_value, k.b, begin + r, k.kv_head) + d] =
                    narrow(k.d_value[n][r] + own);
            }
        }
}
