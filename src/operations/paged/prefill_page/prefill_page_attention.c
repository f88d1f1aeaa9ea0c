/* SPDX-License-Identifier: Apache-2.0 */
/* prefill_page_attention: a chunk of one sequence, caches head by head. */
#include <ejkernel/paged_attention.h>

#include "base/base.h"
#include "operations/paged/shared/paged_call.h"

#define EJK_RECORD_SELF ejk_prefill_page_attention_args
EJK_RECORD_DEFINE_WITH(ejk_prefill_page_attention_args_record, ejk_prefill_page_attention_args, EJK_PREFILL_PAGE_ATTENTION_ARGS,
                       "T,Hq,Hkv=Hq,D=64,Dv=D,page=16,max_pages=1,pages", NULL);
#undef EJK_RECORD_SELF

static ejk_status call_of(const ejk_prefill_page_attention_args *a, ejki_paged_call *c) {
    *c = (ejki_paged_call){
        .query = &a->query,
        .out = &a->out,
        .lse = ejki_paged_given(&a->lse),
        .status = ejki_paged_given(&a->status),
        .key_cache = &a->key_cache,
        .value_cache = &a->value_cache,
        .axes = EJKI_PAGED_HEADS,
        .table = &a->page_indices,
        .lens = &a->context_len,
        .sequences = 1,
        .rows_each = a->query.shape[0],
        .scale = a->softmax_scale,
        .cap = a->logits_soft_cap,
        .window = a->sliding_window,
    };
    return EJK_OK;
}

EJKI_PAGED_HOOKS(ejk_prefill_page_attention_args)

const ejk_kernel ejk_prefill_page_attention_kernel = {
    .op_id = "prefill_page_attention",
    .doc = "attention of a chunk of one sequence over pages",
    .args = &ejk_prefill_page_attention_args_record,
    .algorithm = "unified_attention",
    EJKI_PAGED_KERNEL,
};

ejk_status ejk_prefill_page_attention(ejk_context *context, const ejk_prefill_page_attention_args *args) {
    return ejk_call(context, &ejk_prefill_page_attention_kernel, args);
}
