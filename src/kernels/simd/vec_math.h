/* SPDX-License-Identifier: Apache-2.0 */
/* Functions written in the vector vocabulary; include after a vec_*.h. */
#ifndef EJKI_VEC_MATH_H
#define EJKI_VEC_MATH_H

/*
 * tanh. Up to 5/8: x + x³·q(x²), q the minimax polynomial of degree 4 (relative error 4e-9); above:
 * 1 - 2 / (1 + 2^(2·log2(e)·|x|)), where nothing cancels any more. NaN stays NaN. The second part, three
 * quarters of the time, is left out where no lane needs it: soft caps are far above most scores.
 */
static inline bool v_tanh_is_far(vf x) {
    return v_any_gt(v_mul(x, x), v_set1(0.625f * 0.625f));
}
/* Where no lane is far. */
static inline vf v_tanh_near(vf x) {
    const vf u = v_mul(x, x);
    vf q = v_set1(-0.005704978946596384f);
    q = v_fma(q, u, v_set1(0.020639080554246902f));
    q = v_fma(q, u, v_set1(-0.05373971164226532f));
    q = v_fma(q, u, v_set1(0.13331441581249237f));
    q = v_fma(q, u, v_set1(-0.3333328068256378f));
    return v_fma(v_mul(u, x), q, x);
}
static inline vf v_tanh(vf x) {
    const vf small = v_tanh_near(x);
    if (!v_tanh_is_far(x)) return small;
    const vf a = v_abs(x);
    const vf e = v_exp2(v_mul(v_set1(2.885390081777927f), v_min(v_set1(16.0f), a)));
    const vf large = v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(v_set1(1.0f), e)));
    return v_select_gt(v_mul(x, x), v_set1(0.625f * 0.625f), v_copysign(large, x), small);
}

#endif
