/* SPDX-License-Identifier: Apache-2.0 */
/* ragged_page_attention_v3: writes, then attends; head slots of one cache. */
#include <ejkernel/paged_attention.h>

#include "base/base.h"
#include "operations/paged/shared/paged_call.h"

#define EJK_RECORD_SELF ejk_ragged_page_attention_v3_args
EJK_RECORD_DEFINE_WITH(ejk_ragged_page_attention_v3_args_record, ejk_ragged_page_attention_v3_args, EJK_RAGGED_PAGE_ATTENTION_V3_ARGS,
                       "T,N=T,Hq,Hkv=Hq,D=64,page=16,max_pages=1,pages,X=2*Hkv,pack=1,lanes=D", NULL);
#undef EJK_RECORD_SELF

/* Head slots have to be enough, and where K and V of a head are not all of a pack, to lie one after the other. */
static ejk_status check_cache(const ejk_ragged_page_attention_v3_args *a) {
    const ejk_tensor *t = &a->kv_cache;
    const int64_t *n = t->shape, heads = a->keys.shape[1], dim = a->queries.shape[2];
    if (n[3] > 1 && n[3] % 2 != 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "kv_cache has packs of %lld, expected 1 or even",
                         (long long)n[3]);
    if (n[4] < dim || n[3] < 1 || n[2] < ejki_cdiv(2 * heads, n[3]))
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "kv_cache has %lld x %lld head slots of %lld lanes, expected room for %lld "
                         "of %lld",
                         (long long)n[2], (long long)n[3], (long long)n[4], (long long)(2 * heads),
                         (long long)dim);
    if (n[2] > 1 && n[3] > 2 && t->strides[2] != n[3] * t->strides[3])
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                         "kv_cache has stride %lld on axis 2, expected %lld: head slots lie one after "
                         "the other",
                         (long long)t->strides[2], (long long)(n[3] * t->strides[3]));
    return EJK_OK;
}

static int64_t table_width(const ejk_ragged_page_attention_v3_args *a) {
    return a->kv_lens.shape[0] > 0 ? a->block_tables.shape[0] / a->kv_lens.shape[0] : 0;
}

static ejk_status call_of(const ejk_ragged_page_attention_v3_args *a, ejki_paged_call *c) {
    EJKI_TRY(check_cache(a));
    *c = (ejki_paged_call){
        .query = &a->queries,
        .out = &a->out,
        .lse = ejki_paged_given(&a->lse),
        .status = ejki_paged_given(&a->status),
        .key_cache = &a->kv_cache,
        .axes = EJKI_PAGED_NHD,
        .interleaved = true,
        .packed = true,
        .dim = a->queries.shape[2],
        .k_factor = a->k_scale,
        .v_factor = a->v_scale,
        .q_scale = a->q_scale,
        .table = &a->block_tables,
        .table_width = table_width(a),
        .starts = &a->query_start_loc,
        .lens = &a->kv_lens,
        .count = &a->distribution,
        .count_at = 2,
        .sequences = a->kv_lens.shape[0],
        .new_key = &a->keys,
        .new_value = &a->values,
        .scale = a->softmax_scale,
        .cap = a->logits_soft_cap,
        .window = a->sliding_window,
    };
    return EJK_OK;
}

EJKI_PAGED_HOOKS(ejk_ragged_page_attention_v3_args)

const ejk_kernel ejk_ragged_page_attention_v3_kernel = {
    .op_id = "ragged_page_attention_v3",
    .doc = "new keys and values to a cache of interleaved head slots, then attention",
    .args = &ejk_ragged_page_attention_v3_args_record,
    EJKI_PAGED_WRITES,
    EJKI_PAGED_KERNEL,
};

ejk_status ejk_ragged_page_attention_v3(ejk_context *context, const ejk_ragged_page_attention_v3_args *args) {
    return ejk_call(context, &ejk_ragged_page_attention_v3_kernel, args);
}
