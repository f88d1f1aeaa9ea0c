/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block-sparse attention is flash attention whose problem has a block mask: the forward problem is
 * ejki_flash_problem as it is. Gradients may be given block lists besides, which have to say the same mask.
 */
#ifndef EJKI_BLOCKSPARSE_ATTENTION_PROBLEM_H
#define EJKI_BLOCKSPARSE_ATTENTION_PROBLEM_H

#include "operations/attention/flash/vjp_problem.h"

#include <ejkernel/status.h>

/* Implementations of flash attention take it for what it begins with. */
typedef struct ejki_blocksparse_vjp_problem {
    ejki_flash_vjp_problem flash; /* its block mask: dq, or fwd where that is not given; by rows */
    ejki_block_mask
        others[2]; /* fwd where it is given beside dq, and dkv; 0 mask heads = there is none */
} ejki_blocksparse_vjp_problem;

/*
 * Looks at every entry that a kernel will use. INVALID_ARGUMENT: a state other than 0, 1 and 2, a partial
 * block where no blocks are given, an index out of range, names that do not ascend.
 */
ejk_status ejki_block_mask_check(const ejki_flash_problem *problem,
                                 const ejki_block_mask *block_mask);

/*
 * INVALID_ARGUMENT, with the place, if `own`, which may have no grid, and `other` do not let the same queries see
 * the same keys. Without a block list `other` agrees with everything.
 */
ejk_status ejki_block_mask_agree(const ejki_flash_problem *problem, const ejki_block_mask *own,
                                 const ejki_block_mask *other);

#endif
