/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of experts in vectors: sorts the tokens, then the two products of product_body.h one after the other. */
#define PRODUCT_PART
#include "operations/matmul/shared/product_body.h"

#include "operations/matmul/moe/moe_sort.h"

/* One of the products by itself. */
static mm_problem only(const mm_problem *both, int which) {
    mm_problem one = {.count = 1};
    one.product[0] = both->product[which];
    return one;
}

static ejk_status prepare_both(const void *problem, const int64_t *parameters, int32_t threads,
                               ejk_launch *launch) {
    const moe_problem *p = problem;
    launch->workers = 1;
    for (int i = MOE_FIRST; i <= MOE_SECOND; i++) {
        const mm_problem one = only(&p->products, i);
        ejk_launch own = {.workers = 1};
        EJKI_TRY(prepare(&one, parameters, threads, &own));
        if (own.workers > launch->workers) launch->workers = own.workers;
    }
    for (int i = MOE_FIRST; i <= MOE_SECOND; i++) {
        const mm_problem one = only(&p->products, i);
        const product_memory memory = memory_of(&one, launch->workers);
        const size_t bytes =
            (size_t)(memory.workers + memory.own * launch->workers) * sizeof(float);
        if (bytes > launch->workspace_bytes) launch->workspace_bytes = bytes;
    }
    launch->workspace_bytes += (size_t)moe_bytes(p);
    return EJK_OK;
}

static ejk_status run_both(const ejk_run *given) {
    const moe_problem *p = given->problem;
    const mm_problem sorted = moe_sort(p, given->workspace);
    for (int i = MOE_FIRST; i <= MOE_SECOND; i++) {
        const mm_problem one = only(&sorted, i);
        ejk_run own = *given;
        own.problem = &one;
        own.workspace = (char *)given->workspace + moe_bytes(p);
        EJKI_TRY(run(&own));
    }
    return EJK_OK;
}

static bool applies(const void *problem) {
    return applicable(&((const moe_problem *)problem)->products);
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .needs = "no float64", .applicable = applies,
             .prepare = prepare_both, .run = run_both)
