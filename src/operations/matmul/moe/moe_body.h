/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of experts in vectors: sorts the tokens, then two grouped products, each by the same tier's own. */
#include "operations/matmul/moe/moe_sort.h"

#include "kernels/declare.h"

/* Rounds rows to bytes, which matmul does not. */
#if defined(EJKI_TIER_AVX512_VNNI) || defined(MOE_BYTES)
EJKI_DECLARE_OTHER(product, EJKI_LINE_OF(quantized_matmul))
#else
EJKI_DECLARE_OTHER(product, EJKI_LINE_OF(matmul))
#endif

/* One of the products by itself. */
static mm_problem only(const mm_problem *both, int which) {
    mm_problem one = {.count = 1};
    one.product[0] = both->product[which];
    return one;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const moe_problem *p = problem;
    for (int i = MOE_FIRST; i <= MOE_SECOND; i++) {
        const mm_problem one = only(&p->products, i);
        ejk_launch own = {.workers = 1};
        EJKI_TRY(product->prepare(&one, parameters, threads, &own));
        if (own.workers > launch->workers) launch->workers = own.workers;
        if (own.workspace_bytes > launch->workspace_bytes)
            launch->workspace_bytes = own.workspace_bytes;
    }
    launch->workspace_bytes += (size_t)moe_bytes(p);
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const moe_problem *p = run->problem;
    const mm_problem sorted = moe_sort(p, run->workspace);
    for (int i = MOE_FIRST; i <= MOE_SECOND; i++) {
        const mm_problem one = only(&sorted, i);
        ejk_launch launch = {.workers = 1};
        EJKI_TRY(product->prepare(&one, run->parameters, run->workers, &launch));
        ejk_run own = *run;
        own.problem = &one;
        own.workers = launch.workers;
        own.workspace = (char *)run->workspace + moe_bytes(p);
        EJKI_TRY(product->run(&own));
    }
    return EJK_OK;
}

static bool applicable(const void *problem) {
    return product->applicable(&((const moe_problem *)problem)->products);
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .needs = "no float64", .applicable = applicable,
             .prepare = prepare, .run = run)
