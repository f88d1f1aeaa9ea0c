/* SPDX-License-Identifier: Apache-2.0 */
/* ragged_page_attention: keys and values interleaved in one cache. */
#include <ejkernel/paged_attention.h>

#include "base/base.h"
#include "operations/paged/shared/paged_call.h"

#define EJK_RECORD_SELF ejk_ragged_page_attention_args
EJK_RECORD_DEFINE_WITH(ejk_ragged_page_attention_args_record, ejk_ragged_page_attention_args, EJK_RAGGED_PAGE_ATTENTION_ARGS,
                       "T,N=T,Hq,Hkv=Hq,D=64,page=16,max_pages=1,pages,n=1", NULL);
#undef EJK_RECORD_SELF

static ejk_status call_of(const ejk_ragged_page_attention_args *a, ejki_paged_call *c) {
    *c = (ejki_paged_call){
        .query = &a->queries,
        .out = &a->out,
        .lse = ejki_paged_given(&a->lse),
        .status = ejki_paged_given(&a->status),
        .key_cache = &a->kv_pages,
        .axes = EJKI_PAGED_NHD,
        .interleaved = true,
        .table = &a->block_tables,
        .starts = &a->query_start_loc,
        .lens = &a->context_lens,
        .count = ejki_paged_given(&a->num_seqs),
        .sequences = a->context_lens.shape[0],
        .sinks = ejki_paged_given(&a->softmax_aux),
        .scale = a->softmax_scale,
        .cap = a->logits_soft_cap,
        .window = a->sliding_window,
    };
    return EJK_OK;
}

EJKI_PAGED_HOOKS(ejk_ragged_page_attention_args)

const ejk_kernel ejk_ragged_page_attention_kernel = {
    .op_id = "ragged_page_attention",
    .doc = "attention over pages of interleaved keys and values",
    .args = &ejk_ragged_page_attention_args_record,
    .algorithm = "unified_attention",
    EJKI_PAGED_KERNEL,
};

ejk_status ejk_ragged_page_attention(ejk_context *context, const ejk_ragged_page_attention_args *args) {
    return ejk_call(context, &ejk_ragged_page_attention_kernel, args);
}
