/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the parts of sequences with one row, in order: a block for each head of a sequence. */
#include "operations/paged/cuda/rows.cuh"

extern "C" __global__ void __launch_bounds__(PAGED_THREADS) combine(const __grid_constant__ paged_arguments a) {
    const paged_problem &p = a.p;
    const paged_size n = blockIdx.x / p.heads, h = blockIdx.x % p.heads, size = p.value_dim + 2;
    if (n >= paged_count(&p) || a.flags[p.sequences] || a.flags[n]) return;
    const paged_sequence s = paged_sequence_of(&p, n);
    if (s.rows != 1) return;
    const paged_size keys = paged_least(paged_high(&p, &s, 0), s.keys) - paged_low(&p, &s, 0);
    const paged_size each = paged_split_keys(keys, PAGED_SPLITS, PAGED_LEAST_KEYS);
    const paged_size splits = keys > 0 ? (keys + each - 1) / each : 0;
    const float *part = a.parts + paged_part(&a, n, h / p.group, 0) + h % p.group * size;
    float top = NEG_INF, sum = 0, weights[PAGED_SPLITS];
#pragma unroll
    for (int i = 0; i < PAGED_SPLITS; i++) {
        weights[i] = i < splits ? part[i * p.group * size + p.value_dim] : NEG_INF;
        top = fmaxf(top, weights[i]);
    }
#pragma unroll
    for (int i = 0; i < PAGED_SPLITS; i++) {
        weights[i] = weights[i] == NEG_INF ? 0 : expf(weights[i] - top);
        if (i < splits) sum += weights[i] * part[i * p.group * size + p.value_dim + 1];
    }
    const float factor = finish_row(p, s.begin, h, false, top, sum, threadIdx.x == 0);
    const paged_size row = paged_row_at(&p, &p.out, s.begin, h);
    for (paged_size d = threadIdx.x; d < p.value_dim; d += PAGED_THREADS) {
        float x = 0;
#pragma unroll
        for (int i = 0; i < PAGED_SPLITS; i++)
            if (i < splits && weights[i] != 0) x += weights[i] * part[i * p.group * size + d];
        put_out(p, row, d, factor == 0 ? 0 : x * factor);
    }
}
