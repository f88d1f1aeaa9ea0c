/* SPDX-License-Identifier: Apache-2.0 */
/* page_attention: one query a sequence, pages head by head. */
#include <ejkernel/paged_attention.h>

#include "base/base.h"
#include "operations/paged/shared/paged_call.h"

#define EJK_RECORD_SELF ejk_page_attention_args
EJK_RECORD_DEFINE_WITH(ejk_page_attention_args_record, ejk_page_attention_args, EJK_PAGE_ATTENTION_ARGS,
                       "N,Hq,Hkv=Hq,D=64,Dv=D,page=16,max_pages=1,pages", NULL);
#undef EJK_RECORD_SELF

static ejk_status call_of(const ejk_page_attention_args *a, ejki_paged_call *c) {
    *c = (ejki_paged_call){
        .query = &a->query,
        .out = &a->out,
        .lse = ejki_paged_given(&a->lse),
        .status = ejki_paged_given(&a->status),
        .lse_by_token = true,
        .key_cache = &a->key_cache,
        .value_cache = &a->value_cache,
        .axes = EJKI_PAGED_HND,
        .k_scale = ejki_paged_given(&a->k_scale),
        .v_scale = ejki_paged_given(&a->v_scale),
        .table = &a->block_tables,
        .lens = &a->context_lens,
        .sequences = a->context_lens.shape[0],
        .rows_each = 1,
        .scale = a->attn_scale,
        .cap = a->attn_logits_soft_cap,
        .window = a->sliding_window,
    };
    return EJK_OK;
}

EJKI_PAGED_HOOKS(ejk_page_attention_args)

const ejk_kernel ejk_page_attention_kernel = {
    .op_id = "page_attention",
    .doc = "attention of one query a sequence over pages",
    .args = &ejk_page_attention_args_record,
    .algorithm = "unified_attention",
    EJKI_PAGED_KERNEL,
};

ejk_status ejk_page_attention(ejk_context *context, const ejk_page_attention_args *args) {
    return ejk_call(context, &ejk_page_attention_kernel, args);
}
