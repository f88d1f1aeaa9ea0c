/* SPDX-License-Identifier: Apache-2.0 */
/* Epilogue of a row: sinks, lse and softmax statistics, and the factor of its sums. */
#ifndef EJKI_CUDA_FINISH_CUH
#define EJKI_CUDA_FINISH_CUH

#include "operations/attention/cuda/common/visibility.cuh"

DEVICE void row_store(const ejki_cuda_bhts &t, i64 entry, int h, int i, float value) {
    if (t.data)
        ((float *)t.data)[entry * t.stride_b + h * t.stride_h + i * t.stride_t] = value;
}

DEVICE i64 sinks_start(const ejki_cuda_problem &p, int h) {
    return h / p.sink_group * p.sink_stride_h;
}

/*
 * Without normalization, the factor of sums that are relative to `base`, in units of log 2, which makes them relative
 * to the maximum as it is written: the rounding of both is of the size of the scores, not of the weights. Exponents
 * were `unit` times a number of which the score is `scale` times.
 */
DEVICE float sum_factor(const ejki_cuda_problem &p, float base, float max, float sum, float unit,
                        float scale) {
    if (p.normalize || sum == 0) return 1;
    return expf(fmaf(base, __fdividef(fmaf(-unit, LOG_2, scale), unit), fmaf(base, LOG_2, -max)));
}

/*
 * From a row's max (-inf = no visible key) and its sum relative to it, in natural units; `writer` is the one lane that
 * writes. Returns the factor of the row's sums. A NaN in the sum makes the whole row NaN, whatever dropout keeps.
 */
DEVICE float row_epilogue(const ejki_cuda_problem &p, const sequence &s, int h, int i, float max,
                        float sum, bool writer) {
    float all_max = max, all = sum, part = 1;
    if (p.sinks && i < s.known) {
        const element *sinks = (const element *)p.sinks + sinks_start(p, h);
#pragma unroll 1
        for (int n = 0; n < p.sink_count; n++) all_max = fmaxf(all_max, widen(sinks[n]));
        const float base = all_max == NEG_INF ? 0 : all_max;
        part = expf(max - base);
        all = sum * part;
#pragma unroll 1
        for (int n = 0; n < p.sink_count; n++) all += expf(widen(sinks[n]) - base);
    }
    if (writer) {
        if (p.lse.data) /* else no logarithm either */
            row_store(p.lse, s.entry, h, s.query + i, all == 0 ? NEG_INF : all_max + logf(all));
        row_store(p.row_max, s.entry, h, s.query + i, max);
        row_store(p.row_sum, s.entry, h, s.query + i, sum);
    }
    float factor = 1;
    if (p.normalize) factor = all == 0 ? 0 : part / all;
    if (sum != sum) factor = sum;
#if DROPOUT
    factor *= p.keep_factor;
#endif
    return factor;
}

#endif
