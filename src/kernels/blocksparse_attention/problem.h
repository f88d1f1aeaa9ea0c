/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block-sparse attention is flash attention whose problem has a pattern: the forward problem is
 * ejki_flash_problem as it is. The gradients may be given a grid of their own for keys and values.
 */
#ifndef EJKI_BLOCKSPARSE_ATTENTION_PROBLEM_H
#define EJKI_BLOCKSPARSE_ATTENTION_PROBLEM_H

#include "kernels/flash_attention/vjp_problem.h"

#include <ejkernel/status.h>

typedef struct ejki_blocksparse_vjp_problem {
    ejki_flash_vjp_problem
        flash;         /* its pattern: that of query, bias and sinks, and, alone, of all */
    ejki_pattern keys; /* that of keys and values; 0 planes = there is none */
} ejki_blocksparse_vjp_problem;

/*
 * Looks at every entry that a kernel will use. INVALID_ARGUMENT: a state other than 0, 1 and 2, a partial
 * block where no blocks are given, an index out of range, names that do not ascend.
 */
ejk_status ejki_pattern_check(const ejki_flash_problem *problem, const ejki_pattern *pattern);

#endif
