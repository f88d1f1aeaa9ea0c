/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations and cost of block-sparse attention: those of flash attention, within a block. */
#include "operations/attention/blocksparse/blocksparse_attention_steps.h"
#include "operations/attention/flash/flash_attention_steps.h"

#include "base/base.h"

/* Both configurations have the same fields, so that one's functions serve the other. */
_Static_assert(sizeof(ejk_blocksparse_attention_config) == sizeof(ejk_flash_attention_config) &&
                   offsetof(ejk_blocksparse_attention_config, fwd_params) ==
                       offsetof(ejk_flash_attention_config, fwd_params) &&
                   offsetof(ejk_blocksparse_attention_config, bwd_params) ==
                       offsetof(ejk_flash_attention_config, bwd_params) &&
                   offsetof(ejki_blocksparse_vjp_problem, flash) == 0,
               "configurations of the same fields");

/* A hook that runs in place of an implementation is told blocks within those of the mask. */
void ejki_blocksparse_heuristic_cfg(const ejk_invocation *invocation, void *config) {
    const ejki_flash_problem *p = invocation->problem;
    ejk_fwd_params *params = &((ejk_blocksparse_attention_config *)config)->fwd_params;
    if (invocation->implementation) return;
    ejki_flash_heuristic_cfg(invocation, config);
    params->num_key_splits = params->blocksize_keys = params->blocksize_heads = (ejk_opt_int){0};
    params->prefetch_hint = params->prefetch_bytes = (ejk_opt_int){0};
    if (p->block_mask.mask_heads == 0) return;
    const int64_t rows = ejki_max(1, p->block_mask.block_q * p->group);
    params->q_blocksize.value = ejki_min(params->q_blocksize.value, rows);
    params->kv_blocksize.value = ejki_min(params->kv_blocksize.value, p->block_mask.block_kv);
}

static bool is_within(const ejki_block_mask *block_mask, int64_t rows, ejk_opt_int q,
                      ejk_opt_int kv) {
    return q.value <= rows && kv.value <= block_mask->block_kv;
}

/* Takes out what is larger than a block: a kernel would compute by the block's size anyway. */
static void keep_within(const ejki_flash_problem *p, bool backward,
                        ejk_blocksparse_attention_config *list, int32_t *count) {
    const int64_t rows = ejki_max(1, p->block_mask.block_q * p->group);
    int32_t kept = 0;
    for (int32_t i = 0; p->block_mask.mask_heads > 0 && i < *count; i++) {
        const ejk_fwd_params *fwd = &list[i].fwd_params;
        const ejk_bwd_params *bwd = &list[i].bwd_params;
        if (backward ? is_within(&p->block_mask, rows, bwd->q_blocksize, bwd->kv_blocksize)
                     : is_within(&p->block_mask, rows, fwd->q_blocksize, fwd->kv_blocksize))
            list[kept++] = list[i];
    }
    if (p->block_mask.mask_heads > 0) *count = kept;
}

ejk_status ejki_blocksparse_candidate_cfgs(const ejk_invocation *invocation, void *configs,
                                           int32_t capacity, int32_t *count) {
    EJKI_TRY(ejki_flash_candidate_cfgs(invocation, configs, capacity, count));
    keep_within(invocation->problem, false, configs, count);
    return EJK_OK;
}

ejk_status ejki_blocksparse_vjp_candidate_cfgs(const ejk_invocation *invocation, void *configs,
                                               int32_t capacity, int32_t *count) {
    const ejki_blocksparse_vjp_problem *v = invocation->problem;
    EJKI_TRY(ejki_flash_vjp_candidate_cfgs(invocation, configs, capacity, count));
    keep_within(&v->flash.forward, true, configs, count);
    return EJK_OK;
}

/* Where the entries of the block lists are not in view, blocks count as alive as far as their shape lets them be. */
static void count_blocks(const ejki_flash_problem *p, const void *args, ejk_cost *cost) {
    if (p->block_mask.mask_heads == 0 || p->keys == 0 || ejki_flash_in_view(p, args)) return;
    const double alive =
        (double)p->block_mask.columns * (double)p->block_mask.block_kv / (double)p->keys;
    if (alive < 1) cost->flops *= alive;
}

void ejki_blocksparse_cost(const void *problem, const void *args, ejk_cost *cost) {
    ejki_flash_cost(problem, args, cost);
    count_blocks(problem, args, cost);
}

void ejki_blocksparse_vjp_cost(const void *problem, const void *args, ejk_cost *cost) {
    const ejki_blocksparse_vjp_problem *v = problem;
    ejk_flash_attention_vjp_kernel.cost(&v->flash, args, cost);
    count_blocks(&v->flash.forward, args, cost);
}
