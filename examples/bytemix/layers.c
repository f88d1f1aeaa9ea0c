/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layers. Products give float32; what is mixed has the model's element type. On a GPU all has that type, and the
 * library's calls run there: what rotates heads, chooses experts and gates codes are plain loops on the CPU.
 */
#include "layers.h"

#include <math.h>
#include <string.h>

/* ---- Views ------------------------------------------------------------------------------------------ */

static ejk_tensor columns(ejk_tensor x, int64_t start, int64_t count) {
    return ejk_tensor_slice(x, x.rank - 1, start, count);
}

/* [rows, heads · n] as [rows, heads, n]. */
static ejk_tensor heads(ejk_tensor x, int64_t count) {
    ejk_tensor y = x;
    y.rank = 3;
    y.shape[1] = count;
    y.shape[2] = x.shape[1] / count;
    y.strides[1] = y.shape[2];
    y.strides[2] = 1;
    return y;
}

/* [rows, n] as the one entry of a batch. */
static ejk_tensor entry(ejk_tensor x) {
    ejk_tensor y = x;
    y.rank = 3;
    for (int i = 0; i < 2; i++) {
        y.shape[i + 1] = x.shape[i];
        y.strides[i + 1] = x.strides[i];
    }
    y.shape[0] = 1;
    return y;
}

/* All of a contiguous matrix. */
static ejk_tensor flat(ejk_tensor x) {
    x.rank = 1;
    x.shape[0] = x.shape[0] * x.shape[1];
    x.strides[0] = 1;
    return x;
}

static ejk_tensor scratch(bytemix *m, int64_t count) {
    return bytemix_scratch(m, m->options.dtype, m->rows, count);
}

/* ---- Plain loops ------------------------------------------------------------------------------------ */

/* Rotates each head [rows, heads, numbers] of float32 by the angles of the row's position. */
static void rotate(const bytemix *m, ejk_tensor x) {
    const int64_t half = x.shape[2] / 2;
    for (int64_t i = 0; i < x.shape[0] * x.shape[1]; i++) {
        const int64_t row = i / x.shape[1], head = i % x.shape[1];
        float *at = (float *)x.data + row * x.strides[0] + head * x.strides[1];
        const float *cosine = (const float *)m->cosine.data + m->positions[row] * half,
                    *sine = (const float *)m->sine.data + m->positions[row] * half;
        for (int64_t k = 0; k < half; k++) {
            const float a = at[k], b = at[k + half];
            at[k] = a * cosine[k] - b * sine[k];
            at[k + half] = b * cosine[k] + a * sine[k];
        }
    }
}

/* The likeliest experts of a row, and the softmax of their logits. */
static void choose(const float *logits, int64_t experts, int32_t *index, float *weight) {
    float sum = 0;
    for (int i = 0; i < CHOSEN; i++) {
        index[i] = -1;
        for (int32_t e = 0; e < experts; e++)
            if ((i == 0 || e != index[0]) && (index[i] < 0 || logits[e] > logits[index[i]]))
                index[i] = e;
        weight[i] = expf(logits[index[i]] - logits[index[0]]);
        sum += weight[i];
    }
    for (int i = 0; i < CHOSEN; i++) weight[i] /= sum;
}

/* ---- Products and norms ----------------------------------------------------------------------------- */

ejk_status bytemix_linear(const bytemix *m, const matrix *w, ejk_tensor x, ejk_tensor y) {
    if (!ejk_tensor_present(&w->codes.w))
        return ejk_matmul(m->context, &(ejk_matmul_args){.lhs = x,
                                                         .rhs = w->values,
                                                         .transpose_rhs = true,
                                                         .preferred_element_type = y.dtype,
                                                         .out = y});
    ejk_quantized_matmul_args args = w->codes;
    args.x = x;
    args.out = y;
    args.preferred_element_type = y.dtype;
    return ejk_quantized_matmul(m->context, &args);
}

static int64_t outputs(const matrix *w) {
    return ejk_tensor_present(&w->codes.w) ? w->codes.w.shape[0] : w->values.shape[0];
}

/* A part of the rows of a matrix of codes. */
static ejk_quantized_matmul_args part(const matrix *w, int64_t start, int64_t count) {
    ejk_quantized_matmul_args args = w->codes;
    args.w = ejk_tensor_slice(args.w, 0, start, count);
    args.scales = ejk_tensor_slice(args.scales, 0, start, count);
    if (ejk_tensor_present(&args.zeros)) args.zeros = ejk_tensor_slice(args.zeros, 0, start, count);
    return args;
}

/* y [rows, outputs] = silu(x · gate) · (x · up), both in one matrix: in one call, or of codes in two. */
static ejk_status gated(bytemix *m, const matrix *w, ejk_tensor x, ejk_tensor y) {
    if (!ejk_tensor_present(&w->codes.w))
        return ejk_matmul(m->context, &(ejk_matmul_args){.lhs = x,
                                                         .rhs = w->values,
                                                         .transpose_rhs = true,
                                                         .activation = "swiglu",
                                                         .out = y});
    const int64_t count = y.shape[1];
    ejk_quantized_matmul_args gate = part(w, 0, count), up = part(w, count, count);
    gate.x = up.x = x;
    strcpy(gate.activation, "silu");
    gate.out = bytemix_scratch(m, EJK_DTYPE_F32, m->rows, count);
    up.out = bytemix_scratch(m, EJK_DTYPE_F32, m->rows, count);
    gate.preferred_element_type = up.preferred_element_type = EJK_DTYPE_F32;
    TRY(ejk_quantized_matmul(m->context, &gate));
    TRY(ejk_quantized_matmul(m->context, &up));
    ejk_tensor a, b;
    TRY(bytemix_see(m, gate.out, &a));
    TRY(bytemix_see(m, up.out, &b));
    for (int64_t i = 0; i < m->rows * count; i++)
        ((float *)a.data)[i] *= ((const float *)b.data)[i];
    return ejk_device_copy(&a, &y, NULL);
}

ejk_status bytemix_normalise(const bytemix *m, ejk_tensor x, ejk_tensor weight, ejk_tensor y) {
    return ejk_gated_rms_norm(
        m->context,
        &(ejk_gated_rms_norm_args){.x = x, .weight = weight, .eps = ejk_float(EPSILON), .out = y});
}

/* ---- Mixers ----------------------------------------------------------------------------------------- */

static ejk_status attention(bytemix *m, layer *l, ejk_tensor all, ejk_tensor *out) {
    const int64_t count = l->sinks.shape[0], kv = l->keys.shape[2] * l->keys.shape[3];
    ejk_tensor here, q, k, v;
    TRY(bytemix_see(m, all, &here));
    rotate(m, heads(columns(here, 0, WIDTH), count));
    rotate(m, heads(columns(here, WIDTH, kv), l->keys.shape[2]));
    TRY(bytemix_put(m, all));
    TRY(bytemix_typed(m, columns(all, 0, WIDTH), &q));
    TRY(bytemix_typed(m, columns(all, WIDTH, kv), &k));
    TRY(bytemix_typed(m, columns(all, WIDTH + kv, kv), &v));
    *out = scratch(m, WIDTH);
    const ejk_chunked_prefill_paged_decode_args args = {.queries = heads(q, count),
                                                        .keys = heads(k, l->keys.shape[2]),
                                                        .values = heads(v, l->keys.shape[2]),
                                                        .key_cache = l->keys,
                                                        .value_cache = l->values,
                                                        .kv_lens = m->lengths,
                                                        .block_tables = m->table,
                                                        .query_start_loc = m->starts,
                                                        .softmax_aux = l->sinks,
                                                        .sliding_window = l->window,
                                                        .logits_soft_cap = l->cap,
                                                        .out = heads(*out, count)};
    return ejk_chunked_prefill_paged_decode(m->context, &args);
}

/* Convolves the first columns of `all`, and splits them in q, k and v as heads. */
static ejk_status convolve(bytemix *m, layer *l, ejk_tensor all, ejk_tensor qkv[3]) {
    const int64_t count = l->conv.shape[0], v = l->log_a.shape[0] * HEAD, k = (count - v) / 2;
    ejk_tensor x, y = scratch(m, count);
    TRY(bytemix_typed(m, columns(all, 0, count), &x));
    qkv[0] = heads(columns(y, 0, k), k / HEAD);
    qkv[1] = heads(columns(y, k, k), k / HEAD);
    qkv[2] = heads(columns(y, 2 * k, v), v / HEAD);
    return ejk_causal_conv1d(m->context, &(ejk_causal_conv1d_args){.x = entry(x),
                                                                   .weight = l->conv,
                                                                   .cu_seqlens = m->starts,
                                                                   .activation = "silu",
                                                                   .conv_state = l->conv_state,
                                                                   .state_indices = m->slots,
                                                                   .out = entry(y)});
}

static ejk_status gated_delta_net(bytemix *m, layer *l, ejk_tensor all, ejk_tensor *out) {
    const int64_t conv = l->conv.shape[0], count = l->log_a.shape[0];
    ejk_tensor qkv[3], z, y = scratch(m, count * HEAD);
    TRY(convolve(m, l, all, qkv));
    TRY(bytemix_typed(m, columns(all, conv, count * HEAD), &z));
    *out = scratch(m, count * HEAD);
    const ejk_gated_delta_rule_args rule = {.query = qkv[0],
                                            .key = qkv[1],
                                            .value = qkv[2],
                                            .beta = columns(all, conv + count * HEAD, count),
                                            .decay =
                                                columns(all, conv + count * HEAD + count, count),
                                            .cu_seqlens = m->starts,
                                            .A_log = l->log_a,
                                            .dt_bias = l->dt_bias,
                                            .use_beta_sigmoid = true,
                                            .state = l->state,
                                            .state_indices = m->slots,
                                            .out = heads(y, count)};
    TRY(ejk_gated_delta_rule(m->context, &rule));
    return ejk_gated_rms_norm(m->context, &(ejk_gated_rms_norm_args){.x = heads(y, count),
                                                                     .gate = heads(z, count),
                                                                     .weight = l->o_norm,
                                                                     .eps = ejk_float(EPSILON),
                                                                     .out = heads(*out, count)});
}

/* Decays and gates are products of two matrices, a number for each channel. */
static ejk_status kimi_delta_attention(bytemix *m, layer *l, ejk_tensor all, ejk_tensor *out) {
    const int64_t conv = l->conv.shape[0], count = l->log_a.shape[0], width = count * HEAD;
    ejk_tensor qkv[3], f, g, y = scratch(m, width), gate = scratch(m, width),
                             decay = bytemix_scratch(m, m->plain, m->rows, width);
    TRY(convolve(m, l, all, qkv));
    TRY(bytemix_typed(m, columns(all, conv, HEAD), &f));
    TRY(bytemix_typed(m, columns(all, conv + HEAD, HEAD), &g));
    TRY(bytemix_linear(m, &l->decay, f, decay));
    TRY(bytemix_linear(m, &l->gate, g, gate));
    *out = scratch(m, width);
    const ejk_kda_attention_args rule = {.query = qkv[0],
                                         .key = qkv[1],
                                         .value = qkv[2],
                                         .beta = columns(all, conv + 2 * HEAD, count),
                                         .decay = heads(decay, count),
                                         .cu_seqlens = m->starts,
                                         .A_log = l->log_a,
                                         .dt_bias = l->dt_bias,
                                         .use_beta_sigmoid = true,
                                         .state = l->state,
                                         .state_indices = m->slots,
                                         .out = heads(y, count)};
    TRY(ejk_kda_attention(m->context, &rule));
    return ejk_gated_rms_norm(m->context, &(ejk_gated_rms_norm_args){.x = heads(y, count),
                                                                     .gate = heads(gate, count),
                                                                     .weight = l->o_norm,
                                                                     .activation = "sigmoid",
                                                                     .eps = ejk_float(EPSILON),
                                                                     .out = heads(*out, count)});
}

/* Each head's part of x [rows, heads · n] times its matrix of w [latent, heads, n], or times the transpose. */
static ejk_status by_heads(const bytemix *m, ejk_tensor x, ejk_tensor w, bool transpose,
                           ejk_tensor y) {
    return ejk_matmul(m->context, &(ejk_matmul_args){.lhs = ejk_tensor_transpose(x, 0, 1),
                                                     .rhs = ejk_tensor_transpose(w, 0, 1),
                                                     .transpose_rhs = transpose,
                                                     .out = ejk_tensor_transpose(y, 0, 1)});
}

/* With w_kc absorbed by the queries and w_vc by the output, so that latents are all that is kept. */
static ejk_status latent_attention(bytemix *m, layer *l, ejk_tensor all, ejk_tensor *out) {
    const int64_t count = l->w_kc.shape[1], q_width = count * 2 * NOPE;
    const ejk_tensor normed = bytemix_scratch(m, m->plain, m->rows, LATENT),
                     latent_q = heads(scratch(m, count * LATENT), count),
                     latent_out = heads(scratch(m, count * LATENT), count);
    ejk_tensor here, q, c, k_rope;
    TRY(bytemix_see(m, all, &here));
    rotate(m, columns(heads(columns(here, 0, q_width), count), NOPE, NOPE));
    rotate(m, heads(columns(here, q_width + LATENT, NOPE), 1));
    TRY(bytemix_put(m, all));
    TRY(bytemix_normalise(m, columns(all, q_width, LATENT), l->kv_norm, normed));
    TRY(bytemix_typed(m, columns(all, 0, q_width), &q));
    TRY(bytemix_typed(m, normed, &c));
    TRY(bytemix_typed(m, columns(all, q_width + LATENT, NOPE), &k_rope));
    q = heads(q, count);
    TRY(by_heads(m, columns(q, 0, NOPE), l->w_kc, true, latent_q));
    const ejk_multi_latent_ragged_page_attention_args args = {
        .queries_nope = latent_q,
        .queries_pe = columns(q, NOPE, NOPE),
        .keys_values = c,
        .keys_pe = k_rope,
        .kv_cache = l->keys,
        .kv_lens = m->lengths,
        .block_tables = flat(m->table),
        .query_start_loc = m->starts,
        .distribution = m->distribution,
        .softmax_scale = ejk_float(0.125), /* 1 / sqrt of the numbers of a head, 2 · NOPE */
        .out = latent_out};
    TRY(ejk_multi_latent_ragged_page_attention(m->context, &args));
    *out = scratch(m, count * NOPE);
    return by_heads(m, latent_out, l->w_vc, false, heads(*out, count));
}

ejk_status bytemix_mix(bytemix *m, layer *l, ejk_tensor x, ejk_tensor y) {
    static ejk_status (*const mixers[])(bytemix *, layer *, ejk_tensor,
                                        ejk_tensor *) = {[MIX_ATTENTION] = attention,
                                                         [MIX_GDN] = gated_delta_net,
                                                         [MIX_KDA] = kimi_delta_attention,
                                                         [MIX_MLA] = latent_attention};
    ejk_tensor out, all = bytemix_scratch(m, m->plain, m->rows, outputs(&l->in));
    ejk_tensor typed;
    TRY(bytemix_typed(m, x, &typed));
    TRY(bytemix_linear(m, &l->in, typed, all));
    TRY(mixers[l->kind](m, l, all, &out));
    return bytemix_linear(m, &l->out, out, y);
}

/* ---- MLPs ------------------------------------------------------------------------------------------- */

static ejk_status experts(bytemix *m, const layer *l, ejk_tensor x, ejk_tensor y) {
    const int64_t count = l->router.shape[0];
    const ejk_tensor logits = bytemix_scratch(m, m->plain, m->rows, count),
                     index = bytemix_scratch(m, EJK_DTYPE_I32, m->rows, CHOSEN),
                     weight = bytemix_scratch(m, EJK_DTYPE_F32, m->rows, CHOSEN),
                     out = y.dtype == m->options.dtype ? y : scratch(m, WIDTH);
    int32_t *chosen = bytemix_here(m, index).data;
    float *share = bytemix_here(m, weight).data;
    ejk_tensor typed, here;
    TRY(bytemix_typed(m, x, &typed));
    TRY(bytemix_linear(m, &(matrix){.values = l->router}, x, logits));
    TRY(bytemix_see(m, logits, &here));
    for (int64_t row = 0; row < m->rows; row++)
        choose((const float *)here.data + row * count, count, chosen + row * CHOSEN,
               share + row * CHOSEN);
    TRY(bytemix_put(m, index));
    TRY(bytemix_put(m, weight));
    const matrix *first = &l->gate_up, *second = &l->down;
    const bool codes = ejk_tensor_present(&first->codes.w);
    ejk_moe_args args = {.hidden = typed,
                         .expert_index = index,
                         .expert_weight = weight,
                         .w_gate_up = codes ? first->codes.w : first->values,
                         .w_down = codes ? second->codes.w : second->values,
                         .gate_up_scales = first->codes.scales,
                         .gate_up_zeros = first->codes.zeros,
                         .down_scales = second->codes.scales,
                         .down_zeros = second->codes.zeros,
                         .bits = first->codes.bits,
                         .group_size = first->codes.group_size,
                         .transpose = true,
                         .out = out};
    memcpy(args.mode, first->codes.mode, sizeof args.mode);
    TRY(ejk_moe(m->context, &args));
    return out.data == y.data ? EJK_OK : ejk_tensor_copy(&out, &y);
}

ejk_status bytemix_mlp(bytemix *m, layer *l, ejk_tensor x, ejk_tensor y) {
    if (ejk_tensor_present(&l->router)) return experts(m, l, x, y);
    const ejk_tensor hidden = scratch(m, outputs(&l->gate_up) / 2);
    ejk_tensor typed;
    TRY(bytemix_typed(m, x, &typed));
    TRY(gated(m, &l->gate_up, typed, hidden));
    return bytemix_linear(m, &l->down, hidden, y);
}
