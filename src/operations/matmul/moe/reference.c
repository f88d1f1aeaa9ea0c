/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of experts by the two products of the reference, in double precision. */
#define PRODUCT_PART
#include "operations/matmul/shared/product_reference_body.h"

#include "operations/matmul/moe/moe_sort.h"

static ejk_status prepare_both(const void *problem, const int64_t *parameters, int32_t threads,
                               ejk_launch *launch) {
    const moe_problem *p = problem;
    EJKI_TRY(prepare(&p->products, parameters, threads, launch));
    launch->workspace_bytes += (size_t)moe_bytes(p);
    return EJK_OK;
}

static ejk_status run_both(const ejk_run *given) {
    const moe_problem *p = given->problem;
    const mm_problem sorted = moe_sort(p, given->workspace);
    ejk_run own = *given;
    own.problem = &sorted;
    own.workspace = (char *)given->workspace + moe_bytes(p);
    return run(&own);
}

EJKI_DECLARE(moe_reference, .version = 1, .prepare = prepare_both, .run = run_both)
