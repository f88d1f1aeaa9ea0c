/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the formula: queries as they are rounded, scales of caches, scores. */
#ifndef EJKI_PAGED_CUDA_SCORES_CUH
#define EJKI_PAGED_CUDA_SCORES_CUH

#include "kernels/cuda/stored.cuh"
#include "operations/paged/cuda/paged.cuh"

/* A query over query_scale, as the type of the cache has it. */
DEVICE float rounded_query(const paged_problem &p, float value) {
    const float x = value / (float)p.query_scale;
    switch (p.key.dtype) {
    case BF16: return value_of<BF16>(bits_of<BF16>(x));
    case F16: return value_of<F16>(bits_of<F16>(x));
    case F8E4M3: return value_of_e4m3(bits_of_e4m3(x));
    case F8E5M2: return value_of_e5m2(bits_of_e5m2(x));
    case I8: return bits_of_i8(x);
    }
    return x;
}

/* Queries as scores take them; rounded to the type of the cache, where a scale is given. */
DEVICE float query_of(const paged_problem &p, const paged_rows &rows, paged_size at) {
    const float value = load_float(rows.dtype, rows.data, at);
    return p.query_scale == 0 ? value : rounded_query(p, value) * (float)p.query_scale;
}

/* What a row's elements are multiplied by. */
DEVICE float scale_of(const paged_cache &c, paged_size page, int row, paged_size head) {
    if (!c.scaled) return c.factor;
    return c.factor * c.scale[page * c.scale_page + row * c.scale_token + head * c.scale_head];
}

DEVICE float score_of(const paged_problem &p, const paged_sequence &s, paged_size r, paged_size h, paged_size key,
                      float z) {
    const paged_size context = s.keys - s.rows;
    z *= (float)p.scale;
    if (p.cap > 0) z = (float)p.cap * tanhf(z / (float)p.cap);
    if (p.has_alibi) z += p.alibi[h] * (float)(key - context);
    if (p.has_bias && key >= context && r < p.bias_rows && key - context < p.bias_columns)
        z += p.bias[r * p.bias_step + key - context];
    return z;
}

#endif
