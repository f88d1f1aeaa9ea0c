/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a run of neighbouring splits are folded one after the other, from the run's first on: by decode.cu as far as
 * a CTA has them, and by join.cu, with the same bits. Ends are a maximum, as an exponent of 2, and a sum of weights; a
 * part that has been folded into an earlier one has a maximum of -inf.
 */
#ifndef EJKI_PAGED_CUDA_FOLD_CUH
#define EJKI_PAGED_CUDA_FOLD_CUH

#include "kernels/cuda/element.cuh"

/* The sum so far times the first, the part times the second; a factor of 0 leaves out what may not be finite. */
DEVICE float fold(float2 factors, float sum, float part) {
    const float kept = factors.x != 0 ? __fmul_rn(factors.x, sum) : 0;
    return factors.y != 0 ? fmaf(factors.y, part, kept) : kept;
}

/* Folds ends, and returns the factors of sums. */
DEVICE float2 fold_ends(float2 &ends, float2 part) {
    if (part.x == NEG_INF) return make_float2(1, 0);
    const float max = fmaxf(ends.x, part.x);
    const float2 factors = make_float2(power_of_2(ends.x - max), power_of_2(part.x - max));
    ends = make_float2(max, fold(factors, ends.y, part.y));
    return factors;
}

#endif
