/* SPDX-License-Identifier: Apache-2.0 */
/* flash_mla: latents in place of keys and values. A batch entry is a page; of packed sequences, a token is. */
#include <ejkernel/flash_mla.h>

#include "base/base.h"
#include "operations/paged/flash_mla/flash_mla.h"

#include <math.h>

#define EJK_RECORD_SELF ejk_flash_mla_args
EJK_RECORD_DEFINE_WITH(ejk_flash_mla_args_record, ejk_flash_mla_args, EJK_FLASH_MLA_ARGS,
                       MLA_SYMBOLS, NULL);
#undef EJK_RECORD_SELF

/* Rope elements of a head: those of b_k. */
static int64_t rope(const ejk_flash_mla_args *a) {
    return ejk_tensor_present(&a->b_k) ? a->b_k.shape[2] : 0;
}

static ejk_status check(const ejk_flash_mla_args *a) {
    const bool b_q = ejk_tensor_present(&a->b_q), b_k = ejk_tensor_present(&a->b_k);
    const int64_t wanted = a->w_kc.shape[2] + (b_q ? 0 : rope(a)), heads = a->query.shape[2];
    if (b_q && !b_k)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "b_q is given alone, expected b_k too");
    if (a->query.shape[3] != wanted)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "query has %lld elements a head, expected %lld",
                         (long long)a->query.shape[3], (long long)wanted);
    if (a->w_kc.shape[1] ? heads % a->w_kc.shape[1] != 0 : heads != 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "query has %lld heads and w_kc %lld, expected a multiple of w_kc's",
                         (long long)heads, (long long)a->w_kc.shape[1]);
    if (ejk_tensor_present(&a->cu_seqlens) && a->query.shape[0] != 1)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "query has batch %lld, expected 1 with cu_seqlens",
                         (long long)a->query.shape[0]);
    if (a->softmax_scale.set && !isfinite(a->softmax_scale.value))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "softmax_scale is %g, expected a finite number", a->softmax_scale.value);
    if (a->logits_soft_cap.set &&
        !(isfinite(a->logits_soft_cap.value) && a->logits_soft_cap.value > 0))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "logits_soft_cap is %g, expected a finite number above 0",
                         a->logits_soft_cap.value);
    if (a->sliding_window.set && a->sliding_window.value > 0 && !a->causal)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "sliding_window is given without causal, expected both");
    return EJK_OK;
}

paged_rows ejki_mla_rows(const ejk_tensor *t) {
    return (paged_rows){.batch = t->strides[0],
                        .token = t->strides[1],
                        .head = t->rank == 4 ? t->strides[2] : 0,
                        .dtype = (int)t->dtype};
}

static void resolve_sinks(const ejk_tensor *sinks, paged_problem *p) {
    p->sink_group = 1;
    if (!ejk_tensor_present(sinks)) return;
    p->sink_count = sinks->shape[sinks->rank - 1];
    p->sink_dtype = (int)sinks->dtype;
    if (sinks->rank == 1) return;
    p->sink_step = sinks->strides[0];
    p->sink_group = sinks->shape[0] > 0 ? p->heads / sinks->shape[0] : 1;
}

static void resolve(const ejk_flash_mla_args *a, paged_problem *p) {
    const int64_t batch = a->query.shape[0], tokens = a->query.shape[1];
    const bool packed = ejk_tensor_present(&a->cu_seqlens);
    *p = (paged_problem){
        .tokens = batch * tokens,
        .sequences = packed       ? a->cu_seqlens.shape[0] - 1
                     : tokens > 0 ? batch
                                  : 0,
        .heads = a->query.shape[2],
        .kv_heads = a->w_kc.shape[1],
        .dim = a->w_kc.shape[2],
        .tail_dim = rope(a),
        .value_dim = a->w_vc.shape[2],
        .pages = packed ? tokens : batch,
        .page = packed ? 1 : ejki_max(tokens, 1),
        .slots = batch * tokens,
        .width = packed ? ejki_max(tokens, 1) : 1,
        .batch_rows = ejki_max(tokens, 1),
        .rows_each = packed ? 0 : tokens,
        .tables = packed ? PAGED_TOKENS : PAGED_OWN,
        .query = ejki_mla_rows(&a->query),
        .out = ejki_mla_rows(&a->out),
        .scale = a->softmax_scale.value,
        .cap = a->logits_soft_cap.set ? a->logits_soft_cap.value : 0,
        .left =
            a->sliding_window.set && a->sliding_window.value > 0 ? a->sliding_window.value - 1 : -1,
        .dtype = (int)a->query.dtype,
        .causal = a->causal,
        .attends = 1,
    };
    p->group = p->kv_heads ? p->heads / p->kv_heads : 1;
    const double depth = (double)(p->dim + p->tail_dim);
    if (!a->softmax_scale.set) p->scale = depth > 0 ? 1 / sqrt(depth) : 1;
    if (ejk_tensor_present(&a->b_q))
        p->query_tail = ejki_mla_rows(&a->b_q);
    else
        p->query_tail = p->query;
    if (ejk_tensor_present(&a->b_k))
        p->key_tail = (paged_cache){.page = a->b_k.strides[packed ? 1 : 0],
                                    .token = a->b_k.strides[1],
                                    .dtype = (int)a->b_k.dtype,
                                    .factor = 1};
    else
        p->key_tail = (paged_cache){.dtype = (int)a->query.dtype, .factor = 1};
    if (ejk_tensor_present(&a->lse))
        p->lse = (paged_rows){
            .batch = a->lse.strides[0], .head = a->lse.strides[1], .token = a->lse.strides[2]};
    resolve_sinks(&a->softmax_aux, p);
}

ejk_status ejki_mla_prepare(const ejk_flash_mla_args *a, mla_problem *m) {
    int64_t count;
    EJKI_TRY(check(a));
    *m = (mla_problem){.latent = a->key_value.shape[2],
                       .key_value = ejki_mla_rows(&a->key_value),
                       .w_kc = {NULL, a->w_kc.strides[0], a->w_kc.strides[1]},
                       .w_vc = {NULL, a->w_vc.strides[0], a->w_vc.strides[1]}};
    resolve(a, &m->core);
    const paged_problem *p = &m->core;
    if (!ejki_mul(p->tokens, ejki_max(p->heads, 1), &count) ||
        !ejki_mul(count, p->dim + p->tail_dim + p->value_dim + 64, &count) ||
        count > INT64_C(1) << 52)
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld tokens cannot be counted",
                         (long long)p->tokens);
    mla_put_caches(m, EJK_DTYPE_F32, NULL, 0, NULL, 0);
    return EJK_OK;
}

static const void *given(const ejk_tensor *t) {
    return ejk_tensor_present(t) ? t->data : NULL;
}

void ejki_mla_bind(const ejk_flash_mla_args *a, mla_problem *m) {
    paged_problem *p = &m->core;
    const int64_t size = (int64_t)ejk_dtype_size(a->query.dtype);
    p->query.data = a->query.data;
    p->query_tail.data = ejk_tensor_present(&a->b_q)
                             ? a->b_q.data
                             : (void *)((uintptr_t)a->query.data + (uintptr_t)(p->dim * size));
    p->key_tail.data = (void *)(uintptr_t)given(&a->b_k);
    p->starts = (paged_ints){given(&a->cu_seqlens), a->cu_seqlens.dtype == EJK_DTYPE_I64};
    p->sinks = given(&a->softmax_aux);
    p->out.data = a->out.data;
    p->lse.data = (void *)(uintptr_t)given(&a->lse);
    m->key_value.data = a->key_value.data;
    m->w_kc.data = a->w_kc.data;
    m->w_vc.data = a->w_vc.data;
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    return ejki_mla_prepare(args, problem);
}

static void bind(const void *args, void *problem) {
    ejki_mla_bind(args, problem);
}

/* Both products with the weights, and attention. */
void ejki_mla_cost(const void *problem, const void *args, ejk_cost *out) {
    const mla_problem *m = problem;
    const paged_problem *p = &m->core;
    const double tokens = (double)p->tokens, size = (double)ejk_dtype_size((ejk_dtype)p->dtype);
    const double each = p->sequences > 0 ? tokens / (double)p->sequences : 0;
    const double keys = p->causal ? (each + 1) / 2 : each, own = (double)(p->dim + p->value_dim);
    (void)args;
    out->flops = 2 * tokens * (double)p->heads * keys * (own + (double)p->tail_dim) +
                 2 * tokens * (double)m->latent * (double)p->kv_heads * own;
    out->bytes = size * (tokens * ((double)p->heads * (own + (double)p->tail_dim) +
                                   (double)(m->latent + p->tail_dim)) +
                         (double)m->latent * (double)p->kv_heads * own);
}

const ejk_kernel ejk_flash_mla_kernel = {
    .op_id = "flash_mla",
    .version = "0",
    .doc = "attention to latents, whose keys and values are products of them",
    .args = &ejk_flash_mla_args_record,
    .config = &ejk_paged_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "fwd_params",
    .problem_size = sizeof(mla_problem),
    .prepare = prepare,
    .bind = bind,
    .cost = ejki_mla_cost,
};

ejk_status ejk_flash_mla(ejk_context *context, const ejk_flash_mla_args *args) {
    return ejk_call(context, &ejk_flash_mla_kernel, args);
}
