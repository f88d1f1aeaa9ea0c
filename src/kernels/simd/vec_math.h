/* SPDX-License-Identifier: Apache-2.0 */
/* Functions written in the vector vocabulary. */
#ifndef EJKI_VEC_MATH_H
#define EJKI_VEC_MATH_H

#include "kernels/simd/vec.h"

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

/*
 * factor · tanh(scale · z), as soft caps need it, in fewer steps: up to |scale · z| = 1/2 it is z times a polynomial in
 * z² (error 1.5e-8), whose coefficients hold both constants. Lanes are far or near by themselves, whatever lies
 * beside them. `high` + `low` is factor, less what near[0] has lost of it, so that both parts are off by the same;
 * of tanh alone, whose slope is wanted too, it is 1.
 */
typedef struct v_cap {
    float near[5], limit, scale, high, low;
} v_cap;

/* True if the coefficients are ordinary numbers, factor being above 0; else all lanes are far. */
static inline bool v_cap_has_near(double scale, double factor) {
    const double a = scale < 0 ? -scale : scale, fourth = a * a * a * a;
    const double last = fourth * fourth * a * factor;
    return last > 1e-36 && last < 1e36 && a > 1e-6 && a < 1e6;
}
static inline v_cap v_cap_of(double scale, double factor) {
    static const double series[5] = {1, -0.3333314389644208, 0.1332587896140313,
                                     -0.05304549453445045, 0.017241492035510092};
    v_cap cap = {.limit = -1, .scale = (float)scale, .high = (float)factor};
    if (!v_cap_has_near(scale, factor)) return cap;
    double power = scale * factor;
    for (int i = 0; i < 5; i++, power *= scale * scale) cap.near[i] = (float)(series[i] * power);
    cap.limit = (float)(0.25 / (scale * scale));
    if (factor == 1) return cap; /* where tanh ends at 1, its slope 1 - tanh² is 0 */
    const double rest = (double)cap.near[0] / scale;
    cap.high = (float)rest;
    cap.low = (float)(rest - (double)cap.high);
    return cap;
}
static inline vf v_cap_near(const v_cap *cap, vf z, vf square) {
    vf p = v_set1(cap->near[4]);
    p = v_fma(p, square, v_set1(cap->near[3]));
    p = v_fma(p, square, v_set1(cap->near[2]));
    p = v_fma(p, square, v_set1(cap->near[1]));
    p = v_fma(p, square, v_set1(cap->near[0]));
    return v_mul(p, z);
}
/* Of any lanes; NaN stays NaN. */
static inline vf v_cap_any(const v_cap *cap, vf z) {
    const vf square = v_mul(z, z), tanh = v_tanh(v_mul(z, v_set1(cap->scale)));
    const vf far = v_fma(tanh, v_set1(cap->high), v_mul(tanh, v_set1(cap->low)));
    return v_select_gt(square, v_set1(cap->limit), far, v_cap_near(cap, z, square));
}
/* Of some vectors in place: one look tells whether any lane is far. */
static inline __attribute__((always_inline)) void v_cap_some(const int vectors, const v_cap *cap,
                                                             vf *z) {
    bool far = false;
    for (int i = 0; i < vectors; i++) far |= v_any_gt(v_mul(z[i], z[i]), v_set1(cap->limit));
    if (far)
        for (int i = 0; i < vectors; i++) z[i] = v_cap_any(cap, z[i]);
    else
        for (int i = 0; i < vectors; i++) z[i] = v_cap_near(cap, z[i], v_mul(z[i], z[i]));
}

/*
 * exp to the accuracy of v_exp2 and |x| / 2 ulp: of what decays, what is left of a large |x| counts little. Then the
 * logistic function and x times it; where x is far below 0 their quotient is 0, as exp is infinite there.
 */
static inline vf v_exp(vf x) {
    return v_exp2(v_mul(x, v_set1(1.4426950408889634f)));
}
static inline vf v_sigmoid(vf x) {
    const vf e = v_exp2(v_mul(x, v_set1(-1.4426950408889634f)));
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), e));
}
static inline vf v_silu(vf x) {
    const vf e = v_exp2(v_mul(x, v_set1(-1.4426950408889634f)));
    return v_div(x, v_add(v_set1(1.0f), e));
}
/* Slope of silu at x, where s is the logistic function there. */
static inline vf v_silu_slope(vf x, vf s) {
    return v_mul(s, v_fma(x, v_sub(v_set1(1.0f), s), v_set1(1.0f)));
}

/*
 * log2 of normal numbers above 0: of 2^e m with m around 1, e + log2(m), the latter by 2 artanh(s) with s = (m - 1) /
 * (m + 1) up to 0.172, whose series ends with s^9 (1e-9 of the first term). Of others, NaN too, any number.
 */
static inline vf v_log2(vf x) {
    typedef int32_t lanes __attribute__((vector_size(VL * 4)));
    typedef float floats __attribute__((vector_size(VL * 4)));
    const int32_t root = 0x3f3504f3; /* sqrt(1/2) */
    const lanes bits = (lanes)x - root, e = bits >> 23;
    const vf m = (vf)((bits & 0x7fffff) + root);
    const vf s = v_div(v_sub(m, v_set1(1.0f)), v_add(m, v_set1(1.0f))), square = v_mul(s, s);
    vf q = v_set1(2.8853900817779268f / 9);
    q = v_fma(q, square, v_set1(2.8853900817779268f / 7));
    q = v_fma(q, square, v_set1(2.8853900817779268f / 5));
    q = v_fma(q, square, v_set1(2.8853900817779268f / 3));
    q = v_fma(q, square, v_set1(2.8853900817779268f));
    return v_fma(q, s, (vf) __builtin_convertvector(e, floats));
}

/*
 * log(1 + e^x) = max(x, 0) + log(1 + u), given u = e^-|x|; the logarithm by 2 artanh(s), s = u / (2 + u) up to 1/3,
 * whose series ends with s^15 (1.5e-9). NaN stays NaN.
 */
static inline vf v_softplus_of(vf x, vf u) {
    const vf s = v_div(u, v_add(u, v_set1(2.0f))), square = v_mul(s, s);
    vf q = v_set1(2.0f / 15);
    q = v_fma(q, square, v_set1(2.0f / 13));
    q = v_fma(q, square, v_set1(2.0f / 11));
    q = v_fma(q, square, v_set1(2.0f / 9));
    q = v_fma(q, square, v_set1(2.0f / 7));
    q = v_fma(q, square, v_set1(2.0f / 5));
    q = v_fma(q, square, v_set1(2.0f / 3));
    q = v_fma(q, square, v_set1(2.0f));
    return v_fma(q, s, v_max(v_zero(), x));
}
static inline vf v_softplus(vf x) {
    return v_softplus_of(x, v_exp(v_sub(v_zero(), v_abs(x))));
}

#endif
