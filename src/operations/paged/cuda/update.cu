/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New rows to a cache: a warp has PAGED_UPDATE_HEADS heads of a token. Their rows are copied where the types are the
 * same, keys and values 16 bytes at a time where all begin at multiples of them; else they are divided by their scale
 * and rounded; quotients are float32.
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

/* Rows that are copied as they are, in pieces of 16 bytes. */
DEVICE bool is_plain(const paged_cache &c, const paged_rows &from, paged_size dim) {
    const int size = bytes_of(c.dtype);
    const u64 places = (u64)c.data | (u64)from.data |
                       (u64)((c.page | c.token | c.head | from.token | from.head | dim) * size);
    return from.dtype == c.dtype && !c.scaled && c.factor == 1 && places % 16 == 0;
}

/* All loads of a lane are under way before the first store. */
DEVICE void copy_rows(const paged_problem &p, paged_size token, paged_size page, paged_size at, int first, int end) {
    enum { TOGETHER = 4 };
    const int size = bytes_of(p.key.dtype), value_size = bytes_of(p.value.dtype);
    const int keys = (int)p.dim * size / 16, pieces = keys + (int)p.value_dim * value_size / 16;
    const char *key = (const char *)p.new_key.data + token * p.new_key.token * size;
    const char *value = (const char *)p.new_value.data + token * p.new_value.token * value_size;
    char *to_key = (char *)p.key.data + (page * p.key.page + at * p.key.token) * size;
    char *to_value = (char *)p.value.data + (page * p.value.page + at * p.value.token) * value_size;
#pragma unroll 1
    for (int begin = threadIdx.x % 32; begin < (end - first) * pieces; begin += 32 * TOGETHER) {
        uint4 x[TOGETHER];
        char *to[TOGETHER];
#pragma unroll
        for (int n = 0; n < TOGETHER; n++) {
            const int index = begin + 32 * n, head = first + index / pieces, piece = index % pieces;
            to[n] = 0;
            if (index >= (end - first) * pieces) continue;
            const char *from = piece < keys ? key + head * p.new_key.head * size + piece * 16
                                            : value + head * p.new_value.head * value_size + (piece - keys) * 16;
            to[n] = piece < keys ? to_key + head * p.key.head * size + piece * 16
                                 : to_value + head * p.value.head * value_size + (piece - keys) * 16;
            x[n] = *(const uint4 *)from;
        }
#pragma unroll
        for (int n = 0; n < TOGETHER; n++)
            if (to[n]) *(uint4 *)to[n] = x[n];
    }
}

extern "C" __global__ void __launch_bounds__(PAGED_THREADS) update(const __grid_constant__ arguments a) {
    const paged_problem &p = a.p;
    const int groups = cdiv((int)p.kv_heads, PAGED_UPDATE_HEADS);
    const paged_size n = (paged_size)blockIdx.x * WARPS + threadIdx.x / 32, token = n / groups;
    const int first = (int)(n % groups) * PAGED_UPDATE_HEADS, end = lesser(first + PAGED_UPDATE_HEADS, (int)p.kv_heads);
    paged_size page, at;
    if (token >= p.tokens || !paged_target(&p, token, &page, &at)) return;
    if (!p.new_tail.data && p.has_new_value && is_plain(p.key, p.new_key, p.dim) &&
        is_plain(p.value, p.new_value, p.value_dim)) {
        copy_rows(p, token, page, at, first, end);
        return;
    }
#pragma unroll 1
    for (int head = first; head < end; head++) {
        put_row({&p.key, &p.new_key, p.key.data, token, page, at, head, p.dim});
        if (p.new_tail.data) put_row({&p.key, &p.new_tail, p.key_tail.data, token, page, at, head, p.tail_dim});
        if (p.has_new_value) put_row({&p.value, &p.new_value, p.value.data, token, page, at, head, p.value_dim});
    }
}
