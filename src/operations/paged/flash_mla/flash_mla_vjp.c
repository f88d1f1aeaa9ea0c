/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of flash_mla: the call's own problem, and where gradients go. */
#include "base/base.h"
#include "operations/paged/flash_mla/flash_mla.h"
#include "tensor/view.h"

#define EJK_RECORD_SELF ejk_flash_mla_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_flash_mla_vjp_args_record, ejk_flash_mla_vjp_args,
                       EJK_FLASH_MLA_VJP_ARGS, MLA_SYMBOLS, NULL);
#undef EJK_RECORD_SELF

/* The call that the gradients are of; it has the cotangents in place of results. */
static ejk_flash_mla_args call_of(const ejk_flash_mla_vjp_args *a) {
    return (ejk_flash_mla_args){.query = a->query,
                                .key_value = a->key_value,
                                .w_kc = a->w_kc,
                                .w_vc = a->w_vc,
                                .b_q = a->b_q,
                                .b_k = a->b_k,
                                .cu_seqlens = a->cu_seqlens,
                                .softmax_aux = a->softmax_aux,
                                .softmax_scale = a->softmax_scale,
                                .causal = a->causal,
                                .sliding_window = a->sliding_window,
                                .logits_soft_cap = a->logits_soft_cap,
                                .out = a->d_out,
                                .lse = a->d_lse};
}

static ejk_status check_like(const ejk_tensor *gradient, const ejk_tensor *input, const char *name,
                             const char *of) {
    if (!ejk_tensor_present(gradient)) return EJK_OK;
    if (!ejk_tensor_present(input))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is given without %s, expected both", name,
                         of);
    return ejki_tensor_expect_shape(gradient, name, input->rank, input->shape);
}

static paged_rows rows_of(const ejk_tensor *t) {
    return ejk_tensor_present(t) ? ejki_mla_rows(t) : (paged_rows){.data = NULL};
}

static mla_weight weight_of(const ejk_tensor *t) {
    return ejk_tensor_present(t) ? (mla_weight){NULL, t->strides[0], t->strides[1]}
                                 : (mla_weight){.data = NULL};
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_flash_mla_vjp_args *a = args;
    const ejk_flash_mla_args call = call_of(a);
    const ejk_tensor *sinks = &a->softmax_aux;
    mla_vjp_problem *v = problem;
    mla_problem m;
    (void)axes;
    EJKI_TRY(ejki_mla_prepare(&call, &m));
    EJKI_TRY(check_like(&a->d_b_q, &a->b_q, "d_b_q", "b_q"));
    EJKI_TRY(check_like(&a->d_b_k, &a->b_k, "d_b_k", "b_k"));
    EJKI_TRY(check_like(&a->d_softmax_aux, sinks, "d_softmax_aux", "softmax_aux"));
    const bool own = ejk_tensor_present(&a->b_q);
    *v = (mla_vjp_problem){.m = m,
                           .d_out = m.core.out,
                           .d_lse = m.core.lse,
                           .d_query = rows_of(&a->d_query),
                           .d_query_tail = rows_of(own ? &a->d_b_q : &a->d_query),
                           .d_key_value = rows_of(&a->d_key_value),
                           .d_key_tail = rows_of(&a->d_b_k),
                           .d_w_kc = weight_of(&a->d_w_kc),
                           .d_w_vc = weight_of(&a->d_w_vc),
                           .d_sink_step =
                               a->d_softmax_aux.rank == 2 ? a->d_softmax_aux.strides[0] : 0,
                           .sink_rows = sinks->rank == 2 ? sinks->shape[0] : 1,
                           .shared_tail = own && a->b_q.rank == 3};
    return EJK_OK;
}

static void *given(const ejk_tensor *t) {
    return ejk_tensor_present(t) ? t->data : NULL;
}

static void bind(const void *args, void *problem) {
    const ejk_flash_mla_vjp_args *a = args;
    const ejk_flash_mla_args call = call_of(a);
    mla_vjp_problem *v = problem;
    ejki_mla_bind(&call, &v->m);
    v->d_out.data = a->d_out.data;
    v->d_lse.data = given(&a->d_lse);
    v->d_query.data = given(&a->d_query);
    v->d_query_tail.data = given(&a->d_b_q);
    if (!ejk_tensor_present(&a->b_q) && v->d_query.data)
        v->d_query_tail.data =
            (char *)v->d_query.data + v->m.core.dim * (int64_t)ejk_dtype_size(a->query.dtype);
    v->d_key_value.data = given(&a->d_key_value);
    v->d_key_tail.data = given(&a->d_b_k);
    v->d_w_kc.data = given(&a->d_w_kc);
    v->d_w_vc.data = given(&a->d_w_vc);
    v->d_sinks = given(&a->d_softmax_aux);
}

/* Five products for the call's two, and both of each weight. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    ejki_mla_cost(problem, args, out);
    out->flops *= 2.5;
    out->bytes *= 2;
}

const ejk_kernel ejk_flash_mla_vjp_kernel = {
    .op_id = "flash_mla_vjp",
    .version = "0",
    .doc = "gradient of flash_mla",
    .args = &ejk_flash_mla_vjp_args_record,
    .config = &ejk_paged_attention_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(mla_vjp_problem),
    .prepare = prepare,
    .bind = bind,
    .cost = cost,
    .forward = &ejk_flash_mla_kernel,
};

ejk_status ejk_flash_mla_vjp(ejk_context *context, const ejk_flash_mla_vjp_args *args) {
    return ejk_call(context, &ejk_flash_mla_vjp_kernel, args);
}
