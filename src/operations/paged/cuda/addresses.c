/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/paged/cuda/addresses.h"

#include "kernels/cuda/launch.h"

static bool is_stored(int dtype) {
    return dtype != EJK_DTYPE_F64;
}

bool ejki_paged_cuda_types(const paged_problem *p) {
    return is_stored(p->key.dtype) && is_stored(p->value.dtype) && is_stored(p->key_tail.dtype) &&
           is_stored(p->dtype) && is_stored(p->sink_dtype) && is_stored(p->new_key.dtype) &&
           is_stored(p->new_tail.dtype) && is_stored(p->new_value.dtype) &&
           is_stored(p->query.dtype) && is_stored(p->query_tail.dtype) && is_stored(p->out.dtype);
}

static ejk_status check_ints(const paged_ints *list, const char *name) {
    return ejki_cuda_check_address(list->data, list->wide ? 8 : 4, name);
}

static ejk_status check_lists(const paged_problem *p) {
    EJKI_TRY(check_ints(&p->table, "a table of pages"));
    EJKI_TRY(check_ints(&p->lists, "kv_indptr"));
    EJKI_TRY(check_ints(&p->starts, "starts"));
    EJKI_TRY(check_ints(&p->lens, "lengths"));
    EJKI_TRY(check_ints(&p->firsts, "firsts"));
    EJKI_TRY(check_ints(&p->count, "a count"));
    return check_ints(&p->slot_mapping, "slot_mapping");
}

static ejk_status check_caches(const paged_problem *p) {
    EJKI_TRY(ejki_cuda_check_tensor(p->key.data, p->key.dtype, "a cache of keys"));
    EJKI_TRY(ejki_cuda_check_tensor(p->value.data, p->value.dtype, "a cache of values"));
    EJKI_TRY(ejki_cuda_check_tensor(p->key_tail.data, p->key_tail.dtype, "a cache of keys"));
    EJKI_TRY(ejki_cuda_check_tensor(p->key.scale, EJK_DTYPE_F32, "k_scale"));
    return ejki_cuda_check_tensor(p->value.scale, EJK_DTYPE_F32, "v_scale");
}

ejk_status ejki_paged_cuda_check(const paged_problem *p) {
    EJKI_TRY(check_lists(p));
    EJKI_TRY(check_caches(p));
    EJKI_TRY(ejki_cuda_check_tensor(p->query.data, p->query.dtype, "query"));
    EJKI_TRY(ejki_cuda_check_tensor(p->query_tail.data, p->query_tail.dtype, "query"));
    EJKI_TRY(ejki_cuda_check_tensor(p->out.data, p->out.dtype, "out"));
    EJKI_TRY(ejki_cuda_check_tensor(p->new_key.data, p->new_key.dtype, "new keys"));
    EJKI_TRY(ejki_cuda_check_tensor(p->new_tail.data, p->new_tail.dtype, "new keys"));
    EJKI_TRY(ejki_cuda_check_tensor(p->new_value.data, p->new_value.dtype, "new values"));
    EJKI_TRY(ejki_cuda_check_tensor(p->lse.data, EJK_DTYPE_F32, "lse"));
    EJKI_TRY(ejki_cuda_check_tensor(p->status, EJK_DTYPE_I32, "status"));
    EJKI_TRY(ejki_cuda_check_tensor(p->alibi, EJK_DTYPE_F32, "alibi_slopes"));
    EJKI_TRY(ejki_cuda_check_tensor(p->bias, EJK_DTYPE_F32, "qq_bias"));
    return ejki_cuda_check_tensor(p->sinks, p->sink_dtype, "softmax_aux");
}
