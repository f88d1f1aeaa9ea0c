/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of results: their softmax statistics, sinks, LSE, and rows of no sequence. */
#ifndef EJKI_PAGED_CUDA_ROWS_CUH
#define EJKI_PAGED_CUDA_ROWS_CUH

#include "kernels/cuda/stored.cuh"
#include "operations/paged/cuda/paged.cuh"

/* What sums of weighted values are multiplied by; `writer` writes the LSE. A row of a sequence that is wrong has
 * nothing, not even sinks. */
DEVICE float finish_row(const paged_problem &p, paged_size token, paged_size h, bool is_bad, float max, float sum,
                        bool writer) {
    float top = max, total = 0;
    if (p.sink_count > 0 && !is_bad) {
        const paged_size sinks = h / p.sink_group * p.sink_step;
#pragma unroll 1
        for (paged_size i = 0; i < p.sink_count; i++) top = fmaxf(top, load_float(p.sink_dtype, p.sinks, sinks + i));
#pragma unroll 1
        for (paged_size i = 0; i < p.sink_count; i++) {
            const float z = load_float(p.sink_dtype, p.sinks, sinks + i);
            if (z != NEG_INF) total += expf(z - top);
        }
    }
    const float factor = max == NEG_INF ? 0 : expf(max - top);
    total += sum * factor;
    if (writer && p.lse.data)
        ((float *)p.lse.data)[paged_row_at(&p, &p.lse, token, h)] = total == 0 ? NEG_INF : top + logf(total);
    return total == 0 ? 0 : factor / total;
}

DEVICE void put_out(const paged_problem &p, paged_size row, paged_size d, float value) {
    store_float(p.out.dtype, p.out.data, row + d, value);
}

/* Threads that clear rows: thread `own` of `each` in every one of `blocks`, of which this is one. */
struct clearing {
    paged_size block, blocks;
    u32 own, each;
};
DEVICE clearing whole_block(paged_size block, paged_size blocks) {
    return {block, blocks, threadIdx.x, blockDim.x};
}

/* Rows first to end - 1. */
DEVICE void clear_rows(const paged_problem &p, paged_size first, paged_size end, const clearing &by) {
    const paged_size count = (end - first) * p.heads;
    for (paged_size n = by.block; n < count; n += by.blocks) {
        const paged_size token = first + n / p.heads, h = n % p.heads;
        const paged_size row = paged_row_at(&p, &p.out, token, h);
        for (paged_size d = by.own; d < p.value_dim; d += by.each) put_out(p, row, d, 0);
        if (by.own == 0 && p.lse.data) ((float *)p.lse.data)[paged_row_at(&p, &p.lse, token, h)] = NEG_INF;
    }
}

/* The word of the status, by the first warp of the first block, and rows of no sequence. Without flags no status is
 * wanted. */
DEVICE void clear_rest(const paged_arguments &a, const clearing &by, bool has_flags, bool are_starts_wrong) {
    const paged_problem &p = a.p;
    const paged_size count = paged_count(&p);
    paged_size first = 0;
    if (by.block == 0 && by.own < 32 && has_flags && p.status) {
        bool bad = false;
        for (paged_size n = by.own; n <= p.sequences; n += 32) bad = bad || a.flags[n];
        const int any = __any_sync(~0u, bad);
        if (by.own == 0) *p.status = any != 0;
    }
    if (!are_starts_wrong && count > 0) {
        const paged_sequence s = paged_sequence_of(&p, count - 1);
        first = s.begin + s.rows;
    }
    clear_rows(p, first, p.tokens, by);
}

#endif
