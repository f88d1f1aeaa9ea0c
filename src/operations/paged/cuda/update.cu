/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New rows to a cache: a warp has PAGED_UPDATE_HEADS heads of a token. Their rows are copied where the types are the
 * same, 16 bytes at a time where all begin at multiples of them; else they are divided by their scale and rounded;
 * quotients are float32.
 */
#include "kernels/cuda/stored.cuh"
#include "operations/paged/cuda/paged.cuh"

#define WARPS (PAGED_THREADS / 32)

struct arguments {
    paged_problem p;
};

/* A row of one of the parts. */
struct row {
    const paged_cache *cache;
    const paged_rows *from;
    void *data; /* of the cache: the tail has the keys' strides */
    paged_size token, page, at, head, dim;
};

DEVICE float largest_of(const row &r, paged_size source) {
    float most = 0;
    for (paged_size d = threadIdx.x % 32; d < r.dim; d += 32)
        most = fmaxf(most, fabsf(load_float(r.from->dtype, r.from->data, source + d)));
    return larger_of_lanes(most, 32);
}

/* The scale of a row; one of its own follows from its values and is stored. */
DEVICE float scale_of(const row &r, paged_size source) {
    const paged_cache &c = *r.cache;
    const paged_size at = r.page * c.scale_page + r.at * c.scale_token + r.head * c.scale_head;
    if (!c.scaled) return c.factor;
    if (!c.scaled_rows) return c.factor * c.scale[at];
    const float limit = c.dtype == I8 ? 127 : c.dtype == F8E4M3 ? 448 : c.dtype == F8E5M2 ? 57344 : 0;
    const float most = largest_of(r, source);
    const float scale = limit > 0 && most > 0 && most < INFINITY ? most / limit : 1;
    if (threadIdx.x % 32 == 0) ((float *)c.scale)[at] = scale;
    return scale;
}

DEVICE void put_row(const row &r) {
    const paged_cache &c = *r.cache;
    const paged_size source = r.token * r.from->token + r.head * r.from->head;
    const paged_size target = r.page * c.page + r.at * c.token + r.head * c.head;
    const float scale = scale_of(r, source);
    const bool is_copy = r.from->dtype == c.dtype && scale == 1;
    for (paged_size d = threadIdx.x % 32; d < r.dim; d += 32) {
        if (is_copy && c.dtype == F32)
            ((u32 *)r.data)[target + d] = ((const u32 *)r.from->data)[source + d];
        else if (is_copy)
            ((u16 *)r.data)[target + d] = ((const u16 *)r.from->data)[source + d];
        else
            store_stored(c.dtype, r.data, target + d, load_float(r.from->dtype, r.from->data, source + d) / scale);
    }
}

/* ---- Copies ------------------------------------------------------------------------------------------ */

/* Rows of a head that go to one place: of the keys; of the values, or the tails of the keys. */
struct part {
    const paged_cache &cache; /* its strides */
    const paged_rows &from;
    void *data;
    paged_size dim;
};

/* Rows that are copied as they are, in pieces of 16 bytes. */
DEVICE bool is_plain(const part &x) {
    const paged_cache &c = x.cache;
    const int size = bytes_of(c.dtype);
    const u64 places = (u64)x.data | (u64)x.from.data |
                       (u64)((c.page | c.token | c.head | x.from.token | x.from.head | x.dim) * size);
    return x.from.dtype == c.dtype && !c.scaled && c.factor == 1 && places % 16 == 0;
}

/* All loads of a lane are under way before the first store. */
DEVICE void copy_rows(const part &a, const part &b, paged_size token, paged_size page, paged_size at, int first,
                      int end) {
    enum { TOGETHER = 4 };
    const int size_a = bytes_of(a.cache.dtype), size_b = bytes_of(b.cache.dtype);
    const int pieces_a = (int)a.dim * size_a / 16, pieces = pieces_a + (int)b.dim * size_b / 16;
    const char *from_a = (const char *)a.from.data + token * a.from.token * size_a;
    const char *from_b = (const char *)b.from.data + token * b.from.token * size_b;
    char *to_a = (char *)a.data + (page * a.cache.page + at * a.cache.token) * size_a;
    char *to_b = (char *)b.data + (page * b.cache.page + at * b.cache.token) * size_b;
#pragma unroll 1
    for (int begin = threadIdx.x % 32; begin < (end - first) * pieces; begin += 32 * TOGETHER) {
        uint4 x[TOGETHER];
        char *to[TOGETHER];
#pragma unroll
        for (int n = 0; n < TOGETHER; n++) {
            const int index = begin + 32 * n, head = first + index / pieces, piece = index % pieces;
            to[n] = 0;
            if (index >= (end - first) * pieces) continue;
            const bool is_a = piece < pieces_a;
            const char *from = is_a ? from_a + head * a.from.head * size_a + piece * 16
                                    : from_b + head * b.from.head * size_b + (piece - pieces_a) * 16;
            to[n] = is_a ? to_a + head * a.cache.head * size_a + piece * 16
                         : to_b + head * b.cache.head * size_b + (piece - pieces_a) * 16;
            x[n] = *(const uint4 *)from;
        }
#pragma unroll
        for (int n = 0; n < TOGETHER; n++)
            if (to[n]) *(uint4 *)to[n] = x[n];
    }
}

/* As paged_find() has it, by a warp: 32 places are looked at at once. */
DEVICE paged_size find_by_warp(const paged_problem &p, paged_size token) {
    if (!p.starts.data) return paged_find(&p, token);
    int low = 0, high = (int)paged_count(&p);
    while (high - low > 1) {
        const int step = cdiv(high - low, 32), own = low + (int)(threadIdx.x % 32) * step;
        const bool is_before = own < high && paged_int(&p.starts, own) <= token;
        low += step * (31 - __clz(__ballot_sync(~0u, is_before) | 1));
        high = lesser(high, low + step);
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(PAGED_THREADS) update(const __grid_constant__ arguments a) {
#if __CUDA_ARCH__ >= 900
    launch_dependents();
#endif
    const paged_problem &p = a.p;
    const int groups = cdiv((int)p.kv_heads, PAGED_UPDATE_HEADS);
    const paged_size n = (paged_size)blockIdx.x * WARPS + threadIdx.x / 32, token = n / groups;
    const int first = (int)(n % groups) * PAGED_UPDATE_HEADS, end = lesser(first + PAGED_UPDATE_HEADS, (int)p.kv_heads);
    paged_size page, at;
    if (token >= p.tokens) return;
    if (!(p.slot_mapping.data ? paged_target_of_slot(&p, token, &page, &at)
                              : paged_target_in(&p, find_by_warp(p, token), token, &page, &at)))
        return;
    const bool has_tail = p.new_tail.data != 0;
    const part keys = {p.key, p.new_key, p.key.data, p.dim};
    const part others = has_tail ? part{p.key, p.new_tail, p.key_tail.data, p.tail_dim}
                                 : part{p.value, p.new_value, p.value.data, p.value_dim};
    if (has_tail == !p.has_new_value && is_plain(keys) && is_plain(others)) {
        copy_rows(keys, others, token, page, at, first, end);
        return;
    }
#pragma unroll 1
    for (int head = first; head < end; head++) {
        put_row({&p.key, &p.new_key, p.key.data, token, page, at, head, p.dim});
        if (p.new_tail.data) put_row({&p.key, &p.new_tail, p.key_tail.data, token, page, at, head, p.tail_dim});
        if (p.has_new_value) put_row({&p.value, &p.new_value, p.value.data, token, page, at, head, p.value_dim});
    }
}
