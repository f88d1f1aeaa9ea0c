/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A row of logits in vectors: CHUNK of them at a time become floats in the first-level cache, with their cap, sums of a
 * chunk in float32, those of chunks in float64.
 */
#ifndef EJKI_LOSS_CHUNK_H
#define EJKI_LOSS_CHUNK_H

#include "kernels/simd/vec_element.h"
#include "kernels/simd/vec_math.h"

enum { CHUNK = 1024 };
#define LOG2_E 1.4426950408889634f

/* Powers are of the distance to the largest logit so far, which those of a chunk may be above by this much. */
#define ABOVE 60

INLINE vf capped(const bool caps, const v_cap *cap, vf x) {
    if (caps) v_cap_some(1, cap, &x);
    return x;
}

/* b where a is NaN, but for tiers whose largest is NaN then: of a token with one only that is told. */
INLINE vf larger(vf a, vf b) {
    return v_max(a, b);
}

/*
 * Asked for while logits are read: lines behind them, and as many of what is read next, if there is any. In pages of
 * 4 KiB bf16 took 3.6 ns a vector with 2 KiB ahead, 2.8 with 3 and 6, 3.1 to 3.5 with 4; float32 5.2 with 2 to 3 KiB,
 * 5.7 with 4 and more (a Xeon of model 167).
 */
enum { AHEAD = 3072 };
INLINE void ask(const ejk_dtype dtype, const void *x, int64_t i) {
    __builtin_prefetch((const void *)((uintptr_t)element_at(dtype, x, i) + AHEAD), 0, 2);
}

INLINE float largest_of(const ejk_dtype dtype, const bool caps, const v_cap *cap, const void *x,
                        int64_t n) {
    vf most = v_set1(-__builtin_inff());
    for (int64_t i = 0; i < n; i += VL) {
        const vf z = capped(caps, cap, v_widen_some(dtype, element_at(dtype, x, i), n - i));
        most = larger(v_keep(z, 0, n - i), most);
    }
    return v_largest(most);
}

#endif
