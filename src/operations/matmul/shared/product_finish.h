/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of a product: what is done to sums before they are results. */
#ifndef EJKI_PRODUCT_FINISH_H
#define EJKI_PRODUCT_FINISH_H

#include "kernels/simd/vec_element.h"
#include "kernels/simd/vec_math.h"
#include "operations/matmul/shared/product.cuh"

#include <math.h>

#define LOG2_E 1.4426950408889634f

/* x / (1 + e^(-slope x)) */
INLINE vf silu(vf x, float slope) {
    const vf e = v_exp2(v_mul(x, v_set1(-slope * LOG2_E)));
    return v_div(x, v_add(v_set1(1), e));
}
/* (1 + tanh u) / 2 is 1 / (1 + e^(-2u)), where nothing cancels. */
INLINE vf gelu_tanh(vf x) {
    const vf cube = v_mul(v_mul(v_mul(x, x), x), v_set1(0.044715f));
    const vf u = v_mul(v_add(x, cube), v_set1(0.7978845608028654f));
    return v_div(x, v_add(v_set1(1), v_exp2(v_mul(u, v_set1(-2 * LOG2_E)))));
}
/* By the C library, a lane at a time: about 15 ns each. */
INLINE vf gelu(vf x) {
    float lane[VL];
    v_store(lane, x);
    for (int i = 0; i < VL; i++) lane[i] = 0.5f * lane[i] * erfcf(-0.70710678f * lane[i]);
    return v_load(lane);
}

static vf activate(const mm_product *p, vf gate, vf value) {
    const vf limit = v_set1((float)p->limit);
    switch (p->activation) {
    case MM_relu: return v_select_gt(v_zero(), gate, v_zero(), gate); /* NaN stays */
    case MM_silu: return silu(gate, 1);
    case MM_gelu: return gelu(gate);
    case MM_gelu_tanh: return gelu_tanh(gate);
    case MM_swiglu: return v_mul(silu(gate, 1), value);
    case MM_geglu: return v_mul(gelu(gate), value);
    case MM_geglu_tanh: return v_mul(gelu_tanh(gate), value);
    case MM_swiglu_clamped:
        gate = v_select_gt(gate, limit, limit, gate);
        value = v_select_gt(value, limit, limit, value);
        value = v_select_gt(v_sub(v_zero(), limit), value, v_sub(v_zero(), limit), value);
        return v_mul(silu(gate, 1.702f), v_add(value, v_set1(1)));
    default: return gate;
    }
}

INLINE ejk_dtype dtype_of(const mm_view *v) {
    return (ejk_dtype)v->dtype;
}

/* n of VL elements of a view from `index` on. */
INLINE vf view_load(const mm_view *v, mm_size index, mm_size n) {
    return v_widen_some(dtype_of(v), element_at(dtype_of(v), v->data, index), n);
}

/* alpha · sums + bias of columns of b from `column` on. */
INLINE vf with_bias(const mm_product *p, const mm_segment *s, vf sum, mm_size column, mm_size n) {
    if (p->alpha != 1) sum = v_mul(sum, v_set1((float)p->alpha));
    if (p->bias.present) sum = v_add(sum, view_load(&p->bias, s->held * p->bias.group + column, n));
    return sum;
}

/* Every other of 2 n floats at `at`, from the first on. */
INLINE vf every_other(const float *at, mm_size n) {
    float lane[VL] = {0};
    for (mm_size i = 0; i < n && i < VL; i++) lane[i] = at[2 * i];
    return v_load(lane);
}

#endif
