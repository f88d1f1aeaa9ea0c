/* SPDX-License-Identifier: Apache-2.0 */
/* multi_latent_ragged_page_attention: latents in pages, weights absorbed. */
#include <ejkernel/paged_attention.h>

#include "base/base.h"
#include "operations/paged/shared/paged_call.h"

#define EJK_RECORD_SELF ejk_multi_latent_ragged_page_attention_args
EJK_RECORD_DEFINE_WITH(ejk_multi_latent_ragged_page_attention_args_record, ejk_multi_latent_ragged_page_attention_args, EJK_MULTI_LATENT_RAGGED_PAGE_ATTENTION_ARGS,
                       "T,N=T,Hq,R=512,P=64,page=16,max_pages=1,pages,lanes=R+P,rows=1,pack=1", NULL);
#undef EJK_RECORD_SELF

/* Where the rope part of a cache row begins. */
static int64_t tail_at(const ejk_multi_latent_ragged_page_attention_args *a) {
    const int64_t latent = a->queries_nope.shape[2], rope = a->queries_pe.shape[2];
    const int64_t lanes = a->kv_cache.shape[a->kv_cache.rank - 1];
    return lanes == latent + rope ? latent : ejki_round_up(latent, 128);
}

static ejk_status check_cache(const ejk_multi_latent_ragged_page_attention_args *a) {
    const ejk_tensor *t = &a->kv_cache;
    const int64_t lanes = t->shape[t->rank - 1], wanted = tail_at(a) + a->queries_pe.shape[2];
    if (lanes < wanted)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "kv_cache has %lld lanes, expected at least %lld",
                         (long long)lanes, (long long)wanted);
    if (t->rank == 4 && t->shape[1] > 1 && t->shape[2] > 1 &&
        t->strides[1] != t->shape[2] * t->strides[2])
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                         "kv_cache has stride %lld on axis 1, expected %lld: rows lie one after the "
                         "other",
                         (long long)t->strides[1], (long long)(t->shape[2] * t->strides[2]));
    if (a->v_scale.set && a->v_scale.value != (a->k_scale.set ? a->k_scale.value : 1))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "v_scale is %g, expected k_scale",
                         a->v_scale.value);
    return EJK_OK;
}

static ejk_status call_of(const ejk_multi_latent_ragged_page_attention_args *a, ejki_paged_call *c) {
    EJKI_TRY(check_cache(a));
    *c = (ejki_paged_call){
        .query = &a->queries_nope,
        .query_tail = &a->queries_pe,
        .out = &a->out,
        .lse = ejki_paged_given(&a->lse),
        .status = ejki_paged_given(&a->status),
        .key_cache = &a->kv_cache,
        .axes = EJKI_PAGED_LATENT,
        .dim = a->queries_nope.shape[2],
        .tail_at = tail_at(a),
        .value_dim = a->queries_nope.shape[2],
        .k_factor = a->k_scale,
        .v_factor = a->k_scale,
        .q_scale = a->q_scale,
        .table = &a->block_tables,
        .table_width = a->kv_lens.shape[0] > 0 ? a->block_tables.shape[0] / a->kv_lens.shape[0] : 0,
        .starts = &a->query_start_loc,
        .lens = &a->kv_lens,
        .count = &a->distribution,
        .count_at = 2,
        .sequences = a->kv_lens.shape[0],
        .new_key = &a->keys_values,
        .new_tail = &a->keys_pe,
        .scale = a->softmax_scale,
        .cap = a->logits_soft_cap,
        .window = a->sliding_window,
    };
    if (a->kv_cache.rank == 4) c->latent_rows = a->kv_cache.shape[1] * a->kv_cache.shape[2];
    return EJK_OK;
}

EJKI_PAGED_HOOKS(ejk_multi_latent_ragged_page_attention_args)

const ejk_kernel ejk_multi_latent_ragged_page_attention_kernel = {
    .op_id = "multi_latent_ragged_page_attention",
    .doc = "new latents to pages, then attention with absorbed weights",
    .args = &ejk_multi_latent_ragged_page_attention_args_record,
    EJKI_PAGED_WRITES,
    EJKI_PAGED_KERNEL,
};

ejk_status ejk_multi_latent_ragged_page_attention(ejk_context *context, const ejk_multi_latent_ragged_page_attention_args *args) {
    return ejk_call(context, &ejk_multi_latent_ragged_page_attention_kernel, args);
}
