/* SPDX-License-Identifier: Apache-2.0 */
/* decode_attention: one query a sequence, rows of a buffer in place of pages. */
#include <ejkernel/paged_attention.h>

#include "base/base.h"
#include "operations/paged/shared/paged_call.h"

#define EJK_RECORD_SELF ejk_decode_attention_args
EJK_RECORD_DEFINE_WITH(ejk_decode_attention_args_record, ejk_decode_attention_args, EJK_DECODE_ATTENTION_ARGS,
                       "B,Hq,Hkv=Hq,D=64,Dv=D,max_pages=1,slots", NULL);
#undef EJK_RECORD_SELF

static ejk_status call_of(const ejk_decode_attention_args *a, ejki_paged_call *c) {
    const int64_t page = a->page_size.set ? a->page_size.value : 1;
    if (page < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "page_size is %lld, expected at least 1",
                         (long long)page);
    *c = (ejki_paged_call){
        .query = &a->query,
        .out = &a->out,
        .lse = ejki_paged_given(&a->lse),
        .status = ejki_paged_given(&a->status),
        .lse_by_token = true,
        .key_cache = &a->key_buffer,
        .value_cache = &a->value_buffer,
        .axes = EJKI_PAGED_SLOTS,
        .slots_a_page = page,
        .k_scale = ejki_paged_given(&a->k_scale),
        .v_scale = ejki_paged_given(&a->v_scale),
        .table = &a->req_to_tokens,
        .lens = &a->seq_lens,
        .sequences = a->seq_lens.shape[0],
        .rows_each = 1,
        .scale = a->softmax_scale,
        .cap = a->logits_soft_cap,
    };
    return EJK_OK;
}

EJKI_PAGED_HOOKS(ejk_decode_attention_args)

const ejk_kernel ejk_decode_attention_kernel = {
    .op_id = "decode_attention",
    .doc = "attention of one query a sequence over rows of a buffer",
    .args = &ejk_decode_attention_args_record,
    .algorithm = "unified_attention",
    EJKI_PAGED_KERNEL,
};

ejk_status ejk_decode_attention(ejk_context *context, const ejk_decode_attention_args *args) {
    return ejk_call(context, &ejk_decode_attention_kernel, args);
}
