/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all kernels of the family on GPUs read of a call alike: elements, whose types are known only at run time, gates,
 * and tokens in no sequence. A branch on a type is the same for all threads.
 */
#ifndef EJKI_RECURRENT_CALL_CUH
#define EJKI_RECURRENT_CALL_CUH

#include "kernels/cuda/element.cuh"
#include "operations/recurrent/shared/problem.cuh"

/* ---- Elements --------------------------------------------------------------------------------------- */

DEVICE float load(const rec_view &v, rec_size index) {
    return load_float(v.dtype, v.data, index);
}
DEVICE void store(const rec_view &v, rec_size index, float value) {
    store_float(v.dtype, v.data, index, value);
}

/* ---- Gates ------------------------------------------------------------------------------------------ */

DEVICE float softplus(float x) {
    return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}
DEVICE float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

/* What softplus of raw gates is of. */
DEVICE float raw_of(const rec_problem &p, rec_size b, rec_size t, rec_size h, rec_size i) {
    const rec_view &g = p.view[REC_G], &bias = p.view[REC_DT_BIAS];
    const float x = load(g, rec_at(&g, b, t, h) + i * g.stride[3]);
    return bias.present ? x + load(bias, h * bias.stride[2] + i * bias.stride[3]) : x;
}
DEVICE float gate_of(const rec_problem &p, rec_size b, rec_size t, rec_size h, rec_size i) {
    const rec_view &rate = p.view[REC_A_LOG];
    if (!p.view[REC_G].present) return 0;
    const float x = raw_of(p, b, t, h, i);
    return rate.present ? -expf(load(rate, h * rate.stride[2])) * softplus(x) : x;
}

DEVICE float step_size(const rec_problem &p, float x) {
    const float size = p.softplus ? softplus(x) : x;
    return size < (float)p.least ? (float)p.least : size > (float)p.most ? (float)p.most : size;
}
DEVICE float step_size(const rec_problem &p, rec_size b, rec_size t, rec_size h) {
    return step_size(p, raw_of(p, b, t, h, 0));
}

/* What gates of a head have in common: the part that is the same for all tokens, the factor and bias of raw ones. */
struct head_constants {
    float same, rate, bias, skip;
};
DEVICE head_constants head_constants_of(const rec_problem &p, const rec_sequence &s, rec_size h) {
    const rec_view &gamma = p.view[REC_GAMMA], &rate = p.view[REC_A_LOG], &bias = p.view[REC_DT_BIAS];
    const rec_view &skip = p.view[REC_SKIP];
    head_constants c = {p.slope == 0 ? 0 : (float)(p.slope * (double)h), 0, 0, 0};
    if (gamma.present) c.same += load(gamma, s.index * gamma.stride[0] + h * gamma.stride[2]);
    if (rate.present) c.rate = load(rate, h * rate.stride[2]);
    if (rate.present && !p.by_step) c.rate = -expf(c.rate);
    if (bias.present && !p.g_is_wide) c.bias = load(bias, h * bias.stride[2]);
    if (skip.present) c.skip = load(skip, h * skip.stride[2]);
    return c;
}

/* Log decay of a head, of what the tensor has, if one has it. */
DEVICE float head_gate(const rec_problem &p, const head_constants &c, float x) {
    if (p.by_step) return step_size(p, x + c.bias) * c.rate;
    if (p.g_is_wide || !p.view[REC_G].present) return c.same;
    return c.same + (p.view[REC_A_LOG].present ? c.rate * softplus(x + c.bias) : x);
}
DEVICE float head_gate(const rec_problem &p, const rec_sequence &s, rec_size t, rec_size h) {
    const rec_view &g = p.view[REC_G];
    const bool is_there = g.present && !p.g_is_wide;
    return head_gate(p, head_constants_of(p, s, h), is_there ? load(g, rec_at(&g, s.batch, t, h)) : 0);
}

/* Of a key channel, that of the head included. */
DEVICE float key_gate(const rec_problem &p, const rec_sequence &s, rec_size t, rec_size h, rec_size i, float head) {
    const rec_view &gk = p.view[REC_GK];
    if (p.g_is_wide) head += gate_of(p, s.batch, t, h, i);
    return gk.present ? head + load(gk, rec_at(&gk, s.batch, t, h) + i) : head;
}
DEVICE float key_decay(const rec_problem &p, const rec_sequence &s, rec_size t, rec_size h, rec_size i, float head) {
    return exp_of(key_gate(p, s, t, h, i, head));
}

DEVICE float value_decay(const rec_problem &p, const rec_sequence &s, rec_size t, rec_size h,
                         rec_size j) {
    const rec_view &gv = p.view[REC_GV];
    return gv.present && j < p.value_size ? exp_of(load(gv, rec_at(&gv, s.batch, t, h) + j)) : 1;
}

DEVICE float beta_of(const rec_problem &p, float x) {
    return p.beta_logits ? sigmoid(x) : x;
}
DEVICE float load_beta(const rec_problem &p, const rec_sequence &s, rec_size t, rec_size h) {
    const rec_view &beta = p.view[REC_BETA];
    if (p.by_step) return step_size(p, s.batch, t, h);
    return beta_of(p, beta.present ? load(beta, rec_at(&beta, s.batch, t, h)) : 1);
}

/* ---- Tokens in no sequence -------------------------------------------------------------------------- */

/* Clears out by the threads of `blocks` blocks, of which this is number `block`. */
DEVICE void clear_rest(const rec_problem &p, rec_size block, int blocks) {
    const rec_view &out = p.view[REC_OUT];
    const rec_size first = rec_covered(&p), row = p.heads * p.value_size;
    const rec_size count = (p.tokens - first) * row;
    for (rec_size n = block * blockDim.x + threadIdx.x; n < count; n += blocks * blockDim.x)
        store(out, rec_at(&out, 0, first + n / row, n % row / p.value_size) + n % p.value_size, 0);
}

#endif
