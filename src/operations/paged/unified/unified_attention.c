/* SPDX-License-Identifier: Apache-2.0 */
/* unified_attention: the core of the paged family under its own name, and the configuration of all of them. */
#include <ejkernel/paged_attention.h>

#include "base/base.h"
#include "operations/paged/shared/paged_call.h"

#define EJK_RECORD_SELF ejk_paged_attention_config
EJK_RECORD_DEFINE(ejk_paged_attention_config_record, ejk_paged_attention_config,
                  EJK_PAGED_ATTENTION_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_unified_attention_args
EJK_RECORD_DEFINE_WITH(ejk_unified_attention_args_record, ejk_unified_attention_args,
                       EJK_UNIFIED_ATTENTION_ARGS,
                       "T,N=T,Hq,Hkv=Hq,D=64,Dv=D,page=16,max_pages=1,pages,entries=1,Q=1,n=1",
                       NULL);
#undef EJK_RECORD_SELF

static ejk_status check(const ejk_unified_attention_args *a) {
    const bool table = ejk_tensor_present(&a->block_tables);
    const bool lists = ejk_tensor_present(&a->kv_indptr),
               indices = ejk_tensor_present(&a->kv_indices);
    if (table == lists || lists != indices)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "block_tables is %sgiven, kv_indptr is %sgiven, kv_indices is %sgiven, "
                         "expected the first alone or both others",
                         table ? "" : "not ", lists ? "" : "not ", indices ? "" : "not ");
    if (a->causal == EJK_FALSE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "causal is false, expected true");
    return EJK_OK;
}

static ejk_status call_of(const ejk_unified_attention_args *a, ejki_paged_call *c) {
    EJKI_TRY(check(a));
    const bool lists = ejk_tensor_present(&a->kv_indptr);
    *c = (ejki_paged_call){
        .query = &a->query,
        .out = &a->out,
        .lse = ejki_paged_given(&a->lse),
        .status = ejki_paged_given(&a->status),
        .key_cache = &a->key_cache,
        .value_cache = &a->value_cache,
        .axes = EJKI_PAGED_NHD,
        .k_scale = ejki_paged_given(&a->k_scale),
        .v_scale = ejki_paged_given(&a->v_scale),
        .tables = lists ? PAGED_LISTS : PAGED_TABLE,
        .table = lists ? &a->kv_indices : &a->block_tables,
        .lists = lists ? &a->kv_indptr : NULL,
        .starts = &a->query_start_loc,
        .lens = &a->kv_lens,
        .sequences = a->kv_lens.shape[0],
        .alibi = ejki_paged_given(&a->alibi_slopes),
        .bias = ejki_paged_given(&a->qq_bias),
        .sinks = ejki_paged_given(&a->softmax_aux),
        .scale = a->softmax_scale,
        .cap = a->logits_soft_cap,
        .window = a->sliding_window,
        .prefix = a->common_prefix_len,
    };
    return EJK_OK;
}

EJKI_PAGED_HOOKS(ejk_unified_attention_args)

const ejk_kernel ejk_unified_attention_kernel = {
    .op_id = "unified_attention",
    .doc = "attention over pages, for prefilling and decoding sequences in one call",
    .args = &ejk_unified_attention_args_record,
    EJKI_PAGED_KERNEL,
};

ejk_status ejk_unified_attention(ejk_context *context, const ejk_unified_attention_args *args) {
    return ejk_call(context, &ejk_unified_attention_kernel, args);
}
