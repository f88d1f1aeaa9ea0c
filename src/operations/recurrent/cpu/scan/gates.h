/* SPDX-License-Identifier: Apache-2.0 */
/* Exponentials of gates, in the vector vocabulary; whatever the tier. */
#ifndef EJKI_RECURRENT_GATES_H
#define EJKI_RECURRENT_GATES_H

#include "kernels/simd/vec_math.h"

/*
 * e^x, closer than v_exp(): 2^y of y = x·log2(e) rounded, times 1 + ln(2)·(what y lost), so that a decay of many nats
 * is as good as one of few; by the integer nearest to y, since decays are just below 1 and multiplied hundreds of
 * times, where a floor would lose a bit each time (1.3 times the tolerance). ±∞ would lose NaN there, so x is kept
 * within ±10⁴, where e^x is 0 or ∞.
 */
static inline vf gate_exp(vf x) {
    const vf high = v_set1(1.44269502f), low = v_set1(1.92596303e-8f);
    x = v_max(v_set1(-1e4f), v_min(v_set1(1e4f), x));
    const vf y = v_mul(x, high);
    const vf lost = v_fma(x, low, v_fms(x, high, y));
    return v_mul(v_exp2_near(y), v_fma(lost, v_set1(0.693147182f), v_set1(1)));
}

/* The same for what is rounded to bf16: of large |x| bits are lost. */
static inline vf gate_exp_short(vf x) {
    return v_exp2_near(v_mul(x, v_set1(1.44269502f)));
}

static inline vf gate_softplus(vf x) {
    return v_softplus_of(x, gate_exp(v_sub(v_zero(), v_abs(x))));
}

static inline vf gate_sigmoid(vf x) {
    return v_div(v_set1(1), v_add(v_set1(1), gate_exp(v_sub(v_zero(), x))));
}

#endif
