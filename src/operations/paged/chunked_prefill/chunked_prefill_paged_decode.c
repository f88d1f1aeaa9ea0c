/* SPDX-License-Identifier: Apache-2.0 */
/* chunked_prefill_paged_decode: writes, then attends. */
#include <ejkernel/paged_attention.h>

#include "base/base.h"
#include "operations/paged/shared/paged_call.h"

#define EJK_RECORD_SELF ejk_chunked_prefill_paged_decode_args
EJK_RECORD_DEFINE_WITH(ejk_chunked_prefill_paged_decode_args_record, ejk_chunked_prefill_paged_decode_args, EJK_CHUNKED_PREFILL_PAGED_DECODE_ARGS,
                       "T,N=T,Hq,Hkv=Hq,D=64,Dv=D,page=16,max_pages=1,pages,n=1", NULL);
#undef EJK_RECORD_SELF

static ejk_status call_of(const ejk_chunked_prefill_paged_decode_args *a, ejki_paged_call *c) {
    if (a->causal == EJK_FALSE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "causal is false, expected true");
    *c = (ejki_paged_call){
        .query = &a->queries,
        .out = &a->out,
        .lse = ejki_paged_given(&a->lse),
        .status = ejki_paged_given(&a->status),
        .key_cache = &a->key_cache,
        .value_cache = &a->value_cache,
        .axes = EJKI_PAGED_NHD,
        .k_scale = ejki_paged_given(&a->k_scale),
        .v_scale = ejki_paged_given(&a->v_scale),
        .table = &a->block_tables,
        .starts = &a->query_start_loc,
        .lens = &a->kv_lens,
        .sequences = a->kv_lens.shape[0],
        .new_key = &a->keys,
        .new_value = &a->values,
        .alibi = ejki_paged_given(&a->alibi_slopes),
        .sinks = ejki_paged_given(&a->softmax_aux),
        .scale = a->softmax_scale,
        .cap = a->logits_soft_cap,
        .window = a->sliding_window,
    };
    return EJK_OK;
}

EJKI_PAGED_HOOKS(ejk_chunked_prefill_paged_decode_args)

const ejk_kernel ejk_chunked_prefill_paged_decode_kernel = {
    .op_id = "chunked_prefill_paged_decode",
    .doc = "new keys and values to pages, then attention",
    .args = &ejk_chunked_prefill_paged_decode_args_record,
    EJKI_PAGED_WRITES,
    EJKI_PAGED_KERNEL,
};

ejk_status ejk_chunked_prefill_paged_decode(ejk_context *context, const ejk_chunked_prefill_paged_decode_args *args) {
    return ejk_call(context, &ejk_chunked_prefill_paged_decode_kernel, args);
}
