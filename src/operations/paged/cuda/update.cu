/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New rows to a cache: a warp has a row of a head of a token. It is copied where the types are the same, else divided
 * by its scale and rounded; quotients are float32.
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

extern "C" __global__ void __launch_bounds__(PAGED_THREADS) update(const __grid_constant__ arguments a) {
    const paged_problem &p = a.p;
    const paged_size n = (paged_size)blockIdx.x * WARPS + threadIdx.x / 32;
    const paged_size token = n / p.kv_heads, head = n % p.kv_heads;
    paged_size page, at;
    if (token >= p.tokens || !paged_target(&p, token, &page, &at)) return;
    put_row({&p.key, &p.new_key, p.key.data, token, page, at, head, p.dim});
    if (p.new_tail.data) put_row({&p.key, &p.new_tail, p.key_tail.data, token, page, at, head, p.tail_dim});
    if (p.has_new_value) put_row({&p.value, &p.new_value, p.value.data, token, page, at, head, p.value_dim});
}
