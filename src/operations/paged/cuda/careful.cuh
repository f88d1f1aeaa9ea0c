/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A row and a head by one warp, key by key in float32: for what tensor cores cannot do. A weight of 0 times an
 * infinity or a NaN is NaN, where a hidden key must add nothing; so what has come out as such is made once more here.
 * Constants: HEAD_DIM, VALUE_DIM; TAIL_DIM of queries and keys in two parts.
 */
#ifndef EJKI_PAGED_CUDA_CAREFUL_CUH
#define EJKI_PAGED_CUDA_CAREFUL_CUH

#include "operations/paged/cuda/pages.cuh"
#include "operations/paged/cuda/scores.cuh"

#ifndef TAIL_DIM
#define TAIL_DIM 0
#endif

struct careful_row {
    float max, sum, out[VALUE_DIM / 32]; /* relative to max; a lane's components: lane + 32 n */
};

static __device__ __noinline__ void attend_carefully(const paged_problem &p, const paged_sequence &s,
                                                     const page_list &pages, int r, int head, int h, int begin,
                                                     int end, careful_row &row) {
    const int lane = threadIdx.x % 32;
    const paged_size low = paged_low(&p, &s, r), high = paged_high(&p, &s, r);
    const paged_size query = paged_row_at(&p, &p.query, s.begin + r, h);
    row.max = NEG_INF, row.sum = 0;
    for (int n = 0; n < VALUE_DIM / 32; n++) row.out[n] = 0;
#pragma unroll 1
    for (int j0 = begin; j0 < end; j0 += 32) {
        const int key = j0 + lane, at = (int)((u32)key % page_rows(p));
        const paged_size page = key < end ? entry_of(p, pages, key) : -1;
        const bool is_seen = key < end && key >= low && key < high && is_in_cache(p, page, at);
        float z = NEG_INF;
        if (is_seen) {
            const paged_size place = page * p.key.page + at * p.key.token + head * p.key.head;
            z = 0;
#pragma unroll 1
            for (int d = 0; d < HEAD_DIM; d++)
                z = fmaf(query_of(p, p.query, query + d), load_stored(p.key.dtype, p.key.data, place + d), z);
#if TAIL_DIM > 0
            const paged_size tail = paged_row_at(&p, &p.query_tail, s.begin + r, h);
            const paged_size rest = page * p.key_tail.page + at * p.key_tail.token + head * p.key_tail.head;
#pragma unroll 1
            for (int d = 0; d < TAIL_DIM; d++)
                z = fmaf(query_of(p, p.query_tail, tail + d),
                         load_stored(p.key_tail.dtype, p.key_tail.data, rest + d), z);
#endif
            z = score_of(p, s, r, h, key, z * scale_of(p.key, page, at, head));
        }
        const float top = fmaxf(row.max, larger_of_lanes(z, 32)), base = top == NEG_INF ? 0 : top;
        const float scale = expf(row.max - base), weight = expf(z - base);
        row.sum = row.sum * scale + sum_of_lanes(weight, 32);
        row.max = top;
        const float own = is_seen && weight != 0 ? weight * scale_of(p.value, page, at, head) : 0;
        for (int n = 0; n < VALUE_DIM / 32; n++) row.out[n] *= scale;
#pragma unroll 1
        for (int k = 0; k < 32; k++) {
            const float factor = __shfl_sync(~0u, own, k);
            const paged_size place = __shfl_sync(~0u, page, k) * p.value.page +
                                     __shfl_sync(~0u, at, k) * p.value.token + head * p.value.head;
            if (factor != 0)
                for (int n = 0; n < VALUE_DIM / 32; n++)
                    row.out[n] = fmaf(factor, load_stored(p.value.dtype, p.value.data, place + lane + 32 * n),
                                      row.out[n]);
        }
    }
}

#endif
