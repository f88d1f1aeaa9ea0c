/* SPDX-License-Identifier: Apache-2.0 */
/* Exponentials of gates, in the vector vocabulary; whatever the tier. */
#ifndef EJKI_RECURRENT_GATES_H
#define EJKI_RECURRENT_GATES_H

#include "kernels/simd/vec.h"

#include <math.h>

/*
 * e^x: 2^y of y = x·log2(e) rounded, times 1 + ln(2)·(what y lost), so that a decay of many nats is as good as one of
 * few; by the integer nearest to y, since decays are just below 1 and multiplied hundreds of times, where a floor
 * would lose a bit each time (1.3 times the tolerance). ±∞ would lose NaN there, so x is kept within ±10⁴, where e^x is
 * 0 or ∞.
 */
static inline vf v_exp(vf x) {
    const vf high = v_set1(1.44269502f), low = v_set1(1.92596303e-8f);
    x = v_max(v_set1(-1e4f), v_min(v_set1(1e4f), x));
    const vf y = v_mul(x, high);
    const vf lost = v_fma(x, low, v_fms(x, high, y));
    return v_mul(v_exp2_near(y), v_fma(lost, v_set1(0.693147182f), v_set1(1)));
}

/* log(1 + e^x) = max(x, 0) + 2·atanh(e / (2 + e)) with e = e^-|x|; the series is good to 2e-8 up to 1/3. */
static inline vf v_softplus(vf x) {
    const vf e = v_exp(v_sub(v_zero(), v_abs(x)));
    const vf z = v_div(e, v_add(e, v_set1(2))), u = v_mul(z, z);
    vf p = v_set1(2 / 15.0f);
    p = v_fma(p, u, v_set1(2 / 13.0f));
    p = v_fma(p, u, v_set1(2 / 11.0f));
    p = v_fma(p, u, v_set1(2 / 9.0f));
    p = v_fma(p, u, v_set1(2 / 7.0f));
    p = v_fma(p, u, v_set1(2 / 5.0f));
    p = v_fma(p, u, v_set1(2 / 3.0f));
    p = v_fma(p, u, v_set1(2));
    return v_fma(p, z, v_max(v_zero(), x));
}

static inline vf v_sigmoid(vf x) {
    return v_div(v_set1(1), v_add(v_set1(1), v_exp(v_sub(v_zero(), x))));
}

#endif
