/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks a token attends to, as choose.h has it for CPUs. */
#ifndef EJKI_NATIVE_SPARSE_CHOOSE_CUH
#define EJKI_NATIVE_SPARSE_CHOOSE_CUH

#include "operations/attention/native_sparse/cuda/stream.cuh"

/* The rows of query heads first to first + ROWS - 1 of a token's group; how many there are. */
DEVICE int load_heads(const nsa_arguments &a, const token &k, const nsa_view &v, bool whole, nsa_size width, int first,
                      float *rows) {
    const nsa_problem &p = a.p;
    const int count = lesser((int)p.group - first, ROWS);
    load_rows<ELEMENT>(source_of(v, whole, width), count,
                       [&](int row) { return nsa_at(&v, k.b, k.t, k.kv_head * p.group + first + row); }, rows);
    return count;
}

/* Adds the weights of means in the compressed branch, head by head. */
DEVICE void add_importance(const nsa_arguments &a, const token &k, const float *rows, int heads, bool first_heads,
                           float *importance, tile &s) {
    const nsa_problem &p = a.p;
    const view_of_branch v = view_of(p, k, NSA_COMPRESSED, nullptr, 0);
    const source keys = source_of(a.mean_key, p.dim);
    begin_rows(s);
    for (int pass = 0; pass < 2; pass++)
        for (int first = 0; first < v.count; first += COLUMNS) {
            __syncthreads();
            const int count = place_columns(a, k, v, first, s);
            __syncthreads();
            multiply<F32>(keys, s.key_at, count, rows, s.weights);
            __syncthreads();
            if (pass == 0) {
                fold_scores(s, count, (float)p.scale, false);
            } else if (threadIdx.x < count) {
                const int c = first + threadIdx.x;
                float sum = first_heads ? 0 : importance[c];
                for (int r = 0; r < heads; r++)
                    sum += weight_of(s.weights[threadIdx.x][r] * (float)p.scale, s.most[r], part_of(s, r));
                importance[c] = sum;
            }
        }
    __syncthreads();
}

/* Marks the `count` most important of the blocks before the token's own, one by one; of equal ones the first. */
DEVICE void mark_best(float *importance, int own, int count) {
    __shared__ float best_value[NSA_THREADS / 32];
    __shared__ int best_block[NSA_THREADS / 32];
    for (int c = threadIdx.x; c < own; c += NSA_THREADS) importance[c] = importance[c] >= 0 ? importance[c] : -1;
    for (int n = 0; n < count; n++) {
        float value = -3;
        int block = own;
        for (int c = threadIdx.x; c < own; c += NSA_THREADS)
            if (importance[c] > value) {
                value = importance[c];
                block = c;
            }
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(~0u, value, step);
            const int there = __shfl_xor_sync(~0u, block, step);
            if (other > value || (other == value && there < block)) {
                value = other;
                block = there;
            }
        }
        if (threadIdx.x % 32 == 0) {
            best_value[threadIdx.x / 32] = value;
            best_block[threadIdx.x / 32] = block;
        }
        __syncthreads();
        value = best_value[0];
        block = best_block[0];
        for (int w = 1; w < NSA_THREADS / 32; w++)
            if (best_value[w] > value || (best_value[w] == value && best_block[w] < block)) {
                value = best_value[w];
                block = best_block[w];
            }
        __syncthreads();
        if (threadIdx.x == 0) importance[block] = -4;
        __syncthreads();
    }
}

/* Lists what is marked, and the token's own block; how many. */
DEVICE int list_marked(const float *importance, int own, int *list) {
    __shared__ int found;
    if (threadIdx.x < 32) {
        int count = 0;
        for (int first = 0; first < own; first += 32) {
            const int c = first + threadIdx.x;
            const bool marked = c < own && importance[c] == -4;
            const u32 mask = __ballot_sync(~0u, marked);
            if (marked) list[count + __popc(mask & ((1u << threadIdx.x) - 1))] = c;
            count += __popc(mask);
        }
        if (threadIdx.x == 0) {
            list[count] = own;
            found = count + 1;
        }
    }
    __syncthreads();
    return found;
}

/* Blocks of a token, ascending; how many. `rows` has room for queries. */
DEVICE int choose_blocks(const nsa_arguments &a, const token &k, float *importance, float *rows, int *list, tile &s) {
    const nsa_problem &p = a.p;
    const bool again = p.gradient && p.selected.dtype;
    const int limit = (int)nsa_limit(&p, k.b, k.t, k.kv_head);
    __shared__ int collected;
    if (again || p.indices.dtype) {
        const nsa_view &v = again ? p.selected : p.indices;
        if (threadIdx.x == 0)
            collected = (int)nsa_collect(&v, nsa_at(&v, k.b, k.t, k.kv_head), again ? p.slots : limit, k.own, list);
        __syncthreads();
        return collected;
    }
    const int count = lesser(limit, k.own + 1);
    if (count == 0) return 0;
    if (count <= k.own) {
        for (int first = 0; count > 1 && first < p.group; first += ROWS) {
            __syncthreads();
            const int heads = load_heads(a, k, p.query, a.whole_query, p.dim, first, rows);
            __syncthreads();
            add_importance(a, k, rows, heads, first == 0, importance, s);
        }
        for (int c = threadIdx.x; count == 1 && c < k.own; c += NSA_THREADS) importance[c] = 0;
        __syncthreads();
        mark_best(importance, k.own, count - 1);
    } else {
        for (int c = threadIdx.x; c < k.own; c += NSA_THREADS) importance[c] = -4;
    }
    __syncthreads();
    return list_marked(importance, k.own, list);
}

#endif
