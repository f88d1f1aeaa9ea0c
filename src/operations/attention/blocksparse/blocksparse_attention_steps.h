/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of block-sparse attention that lie in files of their own. */
#ifndef EJKI_MODULES_BLOCKSPARSE_ATTENTION_STEPS_H
#define EJKI_MODULES_BLOCKSPARSE_ATTENTION_STEPS_H

#include <ejkernel/blocksparse_attention.h>

#include "operations/attention/blocksparse/problem.h"

/* The arrays of one MaskInfo in the arguments. */
typedef struct ejki_block_mask_args {
    const char *name;
    const ejk_tensor *next, *id, *state, *blocks;
    ejk_opt_int
        block; /* the size that the block lists do not tell: of keys, by column of queries */
    bool by_column;
} ejki_block_mask_args;

static inline bool ejki_block_mask_given(const ejki_block_mask_args *grid) {
    return ejk_tensor_present(grid->next) || ejk_tensor_present(grid->id) ||
           ejk_tensor_present(grid->state) || ejk_tensor_present(grid->blocks);
}

/*
 * Checks the arrays of a MaskInfo and writes them into `out`, whose predicate is there already; without
 * arrays nothing is written.
 */
ejk_status ejki_block_mask_of(const ejki_block_mask_args *grid, const ejki_flash_problem *problem,
                              ejki_block_mask *out);

/* Puts the pointers of the same arrays into a block mask. */
void ejki_block_mask_bind(const ejki_block_mask_args *grid, ejki_block_mask *out);

/* Checks predicate, chunks and positions of a call and writes them into its problem. */
ejk_status ejki_limits_of(const ejk_blocksparse_attention_args *args, ejki_flash_problem *problem);

/*
 * blocksparse_attention_inputs.c: writes the arrays of MaskInfos that say the same mask. The first block mask is the
 * one by which the call computes; those of 0 mask heads are not there. Arrays without data are left alone.
 */
extern const ejk_input_option ejki_blocksparse_input_options[2];
ejk_status ejki_block_masks_fill(const ejki_flash_problem *problem,
                                 const ejki_block_mask *const *block_masks, int32_t count,
                                 const ejk_inputs *how);
/* Positions and segment ids of a call. */
ejk_status ejki_blocksparse_inputs(const ejk_blocksparse_attention_args *args, const ejk_axes *axes,
                                   const ejk_inputs *how);

/* blocksparse_attention_config.c: see ejk_kernel. */
void ejki_blocksparse_heuristic_cfg(const ejk_invocation *invocation, void *config);
ejk_status ejki_blocksparse_candidate_cfgs(const ejk_invocation *invocation, void *configs,
                                           int32_t capacity, int32_t *count);
ejk_status ejki_blocksparse_vjp_candidate_cfgs(const ejk_invocation *invocation, void *configs,
                                               int32_t capacity, int32_t *count);
void ejki_blocksparse_cost(const void *problem, const void *args, ejk_cost *cost);
void ejki_blocksparse_vjp_cost(const void *problem, const void *args, ejk_cost *cost);

#endif
