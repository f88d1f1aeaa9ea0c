/* SPDX-License-Identifier: Apache-2.0 */
/* kv_cache_copy: pages to other pages, for beams and shared prefixes. */
#include <ejkernel/paged_cache.h>

#include "base/base.h"
#include "operations/paged/copy/problem.cuh"
#include "ops/core/fill.h"
#include "tensor/access.h"

#include <stdlib.h>

#define EJK_RECORD_SELF ejk_kv_cache_copy_args
EJK_RECORD_DEFINE_WITH(ejk_kv_cache_copy_args_record, ejk_kv_cache_copy_args,
                       EJK_KV_CACHE_COPY_ARGS, "pages,page=16,Hkv,D=64,Dv=D,copies", NULL);
#undef EJK_RECORD_SELF

static paged_copied part_of(const ejk_tensor *t) {
    if (!ejk_tensor_present(t)) return (paged_copied){.data = NULL};
    const int64_t size = (int64_t)ejk_dtype_size(t->dtype), last = t->rank == 4 ? t->shape[3] : 1;
    return (paged_copied){.page = ejki_step(t, 0) * size,
                          .row = ejki_step(t, 1) * size,
                          .head = ejki_step(t, 2) * size,
                          .bytes = last * size};
}

static ejk_status prepare(const void *arguments, const ejk_axes *axes, void *problem) {
    const ejk_kv_cache_copy_args *a = arguments;
    (void)axes;
    *(paged_copy_problem *)problem = (paged_copy_problem){
        .copies = a->block_mapping.shape[0],
        .pages = a->key_cache.shape[0],
        .rows = a->key_cache.shape[1],
        .heads = a->key_cache.shape[2],
        .part = {part_of(&a->key_cache), part_of(&a->value_cache), part_of(&a->k_row_scale),
                 part_of(&a->v_row_scale)},
        .mapping_step = a->block_mapping.strides[0],
    };
    return EJK_OK;
}

static void bind(const void *arguments, void *problem) {
    const ejk_kv_cache_copy_args *a = arguments;
    paged_copy_problem *p = problem;
    const ejk_tensor *tensors[4] = {&a->key_cache, &a->value_cache, &a->k_row_scale,
                                    &a->v_row_scale};
    for (int i = 0; i < 4; i++)
        p->part[i].data = ejk_tensor_present(tensors[i]) ? tensors[i]->data : NULL;
    p->mapping = (paged_ints){a->block_mapping.data, a->block_mapping.dtype == EJK_DTYPE_I64};
}

/* Copies run in any order: no page may be written that another copy reads or writes. */
static ejk_status validate(const void *problem) {
    const paged_copy_problem *p = problem;
    unsigned char *used = calloc((size_t)p->pages + 1, 1);
    if (!used) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %lld pages", p->pages);
    ejk_status status = EJK_OK;
    for (paged_size i = 0; status == EJK_OK && i < 2 * p->copies; i++) {
        const bool to = i >= p->copies;
        const paged_size copy = i % p->copies;
        const paged_size page = paged_int(&p->mapping, copy * p->mapping_step + to);
        if (page < 0 || page >= p->pages)
            status = ejki_fail(
                EJK_STATUS_INVALID_ARGUMENT, "block_mapping[%lld,%d] is %lld, expected 0 to %lld",
                (long long)copy, (int)to, (long long)page, (long long)(p->pages - 1));
        else if (to && used[page])
            status = ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                               "block_mapping[%lld,1] is %lld, which another copy reads or writes",
                               (long long)copy, (long long)page);
        else
            used[page] = 1;
    }
    free(used);
    return status;
}

/* The first half of the pages to the second. */
static ejk_status inputs(void *arguments, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_kv_cache_copy_args *a = arguments;
    const int64_t pages = a->key_cache.shape[0], copies = a->block_mapping.shape[0];
    (void)axes;
    (void)how;
    if (2 * copies > pages)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "pages is %lld, expected twice the %lld copies", (long long)pages,
                         (long long)copies);
    for (int64_t i = 0; a->block_mapping.data && i < copies; i++) {
        ejki_element_set(&a->block_mapping, i * a->block_mapping.strides[0], i);
        ejki_element_set(&a->block_mapping, i * a->block_mapping.strides[0] + 1, pages - 1 - i);
    }
    return EJK_OK;
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    const paged_copy_problem *p = problem;
    (void)args;
    out->flops = out->bytes = 0;
    for (int i = 0; i < 4; i++)
        out->bytes += 2 * (double)(p->copies * p->rows * p->heads) * (double)p->part[i].bytes;
}

/* Implementations copy bytes, whatever they are. */
static ejk_dtype dtype(const void *args) {
    (void)args;
    return EJK_DTYPE_F32;
}

const ejk_kernel ejk_kv_cache_copy_kernel = {
    .op_id = "kv_cache_copy",
    .version = "0",
    .doc = "pages of a cache copied to others",
    .args = &ejk_kv_cache_copy_args_record,
    .config = &ejk_paged_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "fwd_params",
    .problem_size = sizeof(paged_copy_problem),
    .prepare = prepare,
    .bind = bind,
    .inputs = inputs,
    .validate = validate,
    .cost = cost,
    .dtype = dtype,
};

ejk_status ejk_kv_cache_copy(ejk_context *context, const ejk_kv_cache_copy_args *args) {
    return ejk_call(context, &ejk_kv_cache_copy_kernel, args);
}
