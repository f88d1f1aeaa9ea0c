/* SPDX-License-Identifier: Apache-2.0 */
/* ragged_decode_attention: one query a sequence; a batch entry is a page of its own. */
#include <ejkernel/paged_attention.h>

#include "base/base.h"
#include "operations/paged/shared/paged_call.h"

#define EJK_RECORD_SELF ejk_ragged_decode_attention_args
EJK_RECORD_DEFINE_WITH(ejk_ragged_decode_attention_args_record, ejk_ragged_decode_attention_args, EJK_RAGGED_DECODE_ATTENTION_ARGS,
                       "B,Hq,Hkv=Hq,S,D=64,Dv=D,n=1", NULL);
#undef EJK_RECORD_SELF

static ejk_status call_of(const ejk_ragged_decode_attention_args *a, ejki_paged_call *c) {
    if (a->out.rank != a->query.rank)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "out has rank %d, expected %d as query",
                         (int)a->out.rank, (int)a->query.rank);
    if (a->sliding_window.right.set && a->sliding_window.right.value < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "right of sliding_window is %lld, expected 0 or more, or unset",
                         (long long)a->sliding_window.right.value);
    *c = (ejki_paged_call){
        .query = &a->query,
        .out = &a->out,
        .lse = ejki_paged_given(&a->lse),
        .status = ejki_paged_given(&a->status),
        .lse_by_token = true,
        .key_cache = &a->key,
        .value_cache = &a->value,
        .axes = EJKI_PAGED_NHD,
        .tables = PAGED_OWN,
        .lens = &a->sequence_end,
        .firsts = &a->sequence_start,
        .sequences = a->sequence_end.shape[0],
        .rows_each = 1,
        .sinks = ejki_paged_given(&a->softmax_aux),
        .scale = a->softmax_scale,
        .cap = a->logits_soft_cap,
        .left = a->sliding_window.left,
    };
    return EJK_OK;
}

EJKI_PAGED_HOOKS(ejk_ragged_decode_attention_args)

const ejk_kernel ejk_ragged_decode_attention_kernel = {
    .op_id = "ragged_decode_attention",
    .doc = "attention of one query a sequence over a range of its keys",
    .args = &ejk_ragged_decode_attention_args_record,
    .algorithm = "unified_attention",
    EJKI_PAGED_KERNEL,
};

ejk_status ejk_ragged_decode_attention(ejk_context *context, const ejk_ragged_decode_attention_args *args) {
    return ejk_call(context, &ejk_ragged_decode_attention_kernel, args);
}
