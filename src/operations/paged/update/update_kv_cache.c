/* SPDX-License-Identifier: Apache-2.0 */
/* update_kv_cache: new rows to a cache, by slots or by positions. */
#include <ejkernel/paged_cache.h>

#include "base/base.h"
#include "operations/paged/shared/paged_call.h"

#define EJK_RECORD_SELF ejk_update_kv_cache_args
EJK_RECORD_DEFINE_WITH(ejk_update_kv_cache_args_record, ejk_update_kv_cache_args, EJK_UPDATE_KV_CACHE_ARGS,
                       "T,N=T,Hkv,D=64,Dv=D,page=16,max_pages=1,pages", NULL);
#undef EJK_RECORD_SELF

static ejk_status check(const ejk_update_kv_cache_args *a) {
    const int given = ejk_tensor_present(&a->kv_lens) + ejk_tensor_present(&a->block_tables) +
                      ejk_tensor_present(&a->query_start_loc);
    const bool slots = ejk_tensor_present(&a->slot_mapping);
    if (slots ? given == 0 : given == 3) {
        if (!ejk_tensor_present(&a->k_row_scale) || !ejk_tensor_present(&a->k_scale)) return EJK_OK;
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "k_scale is given beside k_row_scale, expected one of them");
    }
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "slot_mapping is %sgiven beside %d of kv_lens, block_tables and query_start_loc, "
                     "expected it alone or all of these",
                     slots ? "" : "not ", given);
}

static ejk_status call_of(const ejk_update_kv_cache_args *a, ejki_paged_call *c) {
    EJKI_TRY(check(a));
    const ejk_tensor *k_rows = ejki_paged_given(&a->k_row_scale);
    const ejk_tensor *v_rows = ejki_paged_given(&a->v_row_scale);
    *c = (ejki_paged_call){
        .key_cache = &a->key_cache,
        .value_cache = &a->value_cache,
        .axes = EJKI_PAGED_NHD,
        .k_scale = k_rows ? k_rows : ejki_paged_given(&a->k_scale),
        .v_scale = v_rows ? v_rows : ejki_paged_given(&a->v_scale),
        .slot_mapping = ejki_paged_given(&a->slot_mapping),
        .table = ejki_paged_given(&a->block_tables),
        .starts = ejki_paged_given(&a->query_start_loc),
        .lens = ejki_paged_given(&a->kv_lens),
        .sequences = ejk_tensor_present(&a->kv_lens) ? a->kv_lens.shape[0] : 0,
        .new_key = &a->key,
        .new_value = &a->value,
    };
    return EJK_OK;
}

EJKI_PAGED_HOOKS(ejk_update_kv_cache_args)

const ejk_kernel ejk_update_kv_cache_kernel = {
    .op_id = "update_kv_cache",
    .doc = "new keys and values to a cache in pages",
    .args = &ejk_update_kv_cache_args_record,
    .algorithm = "update_kv_cache",
    EJKI_PAGED_KERNEL,
};

ejk_status ejk_update_kv_cache(ejk_context *context, const ejk_update_kv_cache_args *args) {
    return ejk_call(context, &ejk_update_kv_cache_kernel, args);
}
