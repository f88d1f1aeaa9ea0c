/* SPDX-License-Identifier: Apache-2.0 */
#include "modules/flash_attention_steps.h"

#include "base/base.h"

#define EJK_RECORD_SELF ejk_flash_attention_config
EJK_RECORD_DEFINE(ejk_flash_attention_config_record, ejk_flash_attention_config,
                  EJK_FLASH_ATTENTION_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_flash_attention_args
EJK_RECORD_DEFINE(ejk_flash_attention_args_record, ejk_flash_attention_args,
                  EJK_FLASH_ATTENTION_ARGS);
#undef EJK_RECORD_SELF

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    EJKI_TRY(ejki_flash_check(args, axes));
    ejki_flash_problem_of(args, axes, problem);
    return EJK_OK;
}

static inline void *pointer(const ejk_tensor *tensor) {
    return tensor->dtype == EJK_DTYPE_UNSET ? NULL : tensor->data;
}

static void bind(const void *arguments, void *problem) {
    const ejk_flash_attention_args *args = arguments;
    ejki_flash_problem *p = problem;
    p->query.data = args->query.data;
    p->key.data = args->key.data;
    p->value.data = args->value.data;
    p->out.data = args->out.data;
    p->lse.data = pointer(&args->lse);
    p->row_max.data = pointer(&args->row_max);
    p->row_sum.data = pointer(&args->row_sum);
    p->bias.data = pointer(&args->bias);
    p->mask.data = pointer(&args->attention_mask);
    p->query_segments.data = pointer(&args->q_segment_ids);
    p->key_segments.data = pointer(&args->kv_segment_ids);
    p->sinks = pointer(&args->softmax_aux);
}

/*
 * Blocks that suit a head dim: the first row whose bound is not below it. 0 leaves a block to the
 * implementation.
 */
static const struct {
    int64_t head_dim, q_blocksize, kv_blocksize;
} blocks[] = {
    {INT64_MAX, 0, 0},
};

static void heuristic_cfg(const ejk_invocation *invocation, void *config) {
    const ejki_flash_problem *problem = invocation->problem;
    ejk_fwd_params *params = &((ejk_flash_attention_config *)config)->fwd_params;
    size_t row = 0;
    while (blocks[row].head_dim < ejki_max(problem->head_dim, problem->value_dim)) row++;
    if (blocks[row].q_blocksize) params->q_blocksize = ejk_int(blocks[row].q_blocksize);
    if (blocks[row].kv_blocksize) params->kv_blocksize = ejk_int(blocks[row].kv_blocksize);
}

const ejk_kernel ejk_flash_attention_kernel = {
    .op_id = "flash_attention",
    .version = "0",
    .doc = "exact attention in memory linear in the sequence lengths",
    .args = &ejk_flash_attention_args_record,
    .config = &ejk_flash_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "fwd_params",
    .problem_size = sizeof(ejki_flash_problem),
    .prepare = prepare,
    .bind = bind,
    .heuristic_cfg = heuristic_cfg,
    .cost = ejki_flash_cost,
};

ejk_status ejk_flash_attention(ejk_context *context, const ejk_flash_attention_args *args) {
    return ejk_call(context, &ejk_flash_attention_kernel, args);
}
