/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of experts by the two products of the reference, in double precision. */
#include "operations/matmul/moe/moe_sort.h"

#include "kernels/declare.h"

EJKI_DECLARE_OTHER(products, matmul_reference)

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const moe_problem *p = problem;
    EJKI_TRY(products->prepare(&p->products, parameters, threads, launch));
    launch->workspace_bytes += (size_t)moe_bytes(p);
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const moe_problem *p = run->problem;
    const mm_problem sorted = moe_sort(p, run->workspace);
    ejk_run own = *run;
    own.problem = &sorted;
    own.workspace = (char *)run->workspace + moe_bytes(p);
    return products->run(&own);
}

EJKI_DECLARE(moe_reference, .version = 1, .prepare = prepare, .run = run)
