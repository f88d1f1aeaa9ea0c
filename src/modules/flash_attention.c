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

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return ejki_max(low, ejki_min(value, high));
}

/*
 * Blocks by the second-level cache, of which the tiled kernel gives a quarter to a task's queries and
 * sums and an eighth to the keys and values at hand; queries packed beyond 512 rows, or keys beyond 256,
 * gained nothing (docs/kernels/flash_attention.md has the figures). Below that, tasks are made small
 * enough for four per thread. The size of a task changes no result; the block of keys and the splits
 * follow from the shapes and the processor, never from the number of threads.
 */
static void heuristic_cfg(const ejk_invocation *invocation, void *config) {
    const ejki_flash_problem *p = invocation->problem;
    ejk_fwd_params *params = &((ejk_flash_attention_config *)config)->fwd_params;
    const int64_t cache = ejk_cpu()->l2_bytes > 0 ? ejk_cpu()->l2_bytes : 1 << 20;
    /* Bounds far above any real size keep the sums below from overflowing. */
    const int64_t dims = clamp(p->head_dim, 1, 1 << 20) + clamp(p->value_dim, 1, 1 << 20);
    const int64_t row = dims * (int64_t)sizeof(float), kv_heads = clamp(p->kv_heads, 1, 1 << 20);
    const int64_t heads = ejki_max(1, p->batch * p->kv_heads);
    const int64_t tasks_per_head = ejki_cdiv((int64_t)invocation->threads * 4, heads);
    const int64_t share = ejki_cdiv(p->queries * p->group, tasks_per_head);
    const int64_t rows = clamp(cache / 4 / row, 48, 512);
    params->q_blocksize = ejk_int(ejki_min(rows, ejki_max(share, 48)));
    /* A window's edges cut blocks, which costs less where blocks are much shorter than the window. */
    const int64_t window = p->last_offset - p->first_offset + 1;
    params->kv_blocksize = ejk_int(clamp(ejki_min(cache / 8 / row, window / 4) / 32 * 32, 32, 256));
    /* The row-wise kernel: a block of all heads' keys and values well inside the cache, and enough splits
     * for many threads, but none below 512 keys. */
    params->blocksize_keys = ejk_int(clamp((1 << 17) / (row * kv_heads) / 32 * 32, 32, 128));
    params->num_key_splits = ejk_int(clamp(p->keys / 512, 1, ejki_cdiv(64, ejki_max(1, p->batch))));
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
