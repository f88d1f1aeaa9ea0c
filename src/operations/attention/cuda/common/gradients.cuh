/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gradient kernels share. A pair of row and key has, as flash/vjp_problem.h says, a weight P, the factor M of
 * dropout, the derivative of the soft cap, dZ (dS of the capped score) and dX (of the product).
 */
#ifndef EJKI_CUDA_GRADIENTS_CUH
#define EJKI_CUDA_GRADIENTS_CUH

#include "operations/attention/cuda/common/visibility.cuh"

/* Of a row: lse and delta as its pairs need them. */
struct row_state {
    float lse, delta;
};

DEVICE row_state row_state_of(const ejki_cuda_vjp_problem &v, const sequence &s, int h, int i) {
    const ejki_cuda_problem &p = v.forward;
    const i64 heads = (i64)p.kv_heads * p.group, token = s.query + i;
    row_state r;
    r.lse = NEG_INF;
    r.delta = 0;
    if (i >= s.known) return r;
    r.lse = ((const float *)p.lse.data)[s.entry * p.lse.stride_b + h * p.lse.stride_h +
                                        token * p.lse.stride_t];
    r.delta = v.delta[(s.entry * heads + h) * p.queries + token];
    return r;
}

struct pair {
    float kept, dz, cap_grad; /* P M, dZ */
};

/*
 * `product` is that of row and key, `back` that of the output's cotangent and the value. All is 0 where the key is
 * hidden, whatever the products are, and where the weight is 0.
 */
DEVICE pair pair_of(const ejki_cuda_problem &p, const row_context &c, const row_state &r, bool visible,
                    int j, float product, float back) {
    pair x;
    x.kept = x.dz = 0;
    x.cap_grad = 1;
    visible = visible && r.lse != NEG_INF && passes_mask(p, c, j);
    if (!visible) return x;
    const float weight = expf(score_of(p, c, j, product * p.scale, &x.cap_grad) - r.lse);
    if (weight == 0) {
        x.cap_grad = 0; /* it may be NaN */
        return x;
    }
    float factor = 1;
#if DROPOUT
    factor = dropout_keeps(p, c, j) ? p.keep_factor : 0;
#endif
    x.kept = factor == 0 ? 0 : weight * factor; /* the weight may be NaN */
    x.dz = weight * ((factor == 0 ? 0 : factor * back) - r.delta);
    return x;
}

#endif
