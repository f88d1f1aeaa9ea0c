/* SPDX-License-Identifier: Apache-2.0 */
/* update_kv_cache on GPUs: launches of update.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/paged/cuda/addresses.h"
#include "operations/paged/cuda/paged.cuh"

enum { WARPS = PAGED_THREADS / 32 };

static int64_t blocks_of(const paged_problem *p) {
    return ejki_cdiv(p->tokens * ejki_cdiv(p->kv_heads, PAGED_UPDATE_HEADS), WARPS);
}

static bool applicable(const void *problem) {
    const paged_problem *p = problem;
    return ejki_paged_cuda_types(p) && blocks_of(p) <= INT32_MAX && p->kv_heads <= INT32_MAX;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)problem;
    (void)parameters;
    (void)threads;
    const ejki_cuda_constants none = {.count = 0};
    return ejki_cuda_ready(launch, 0, "operations/paged/cuda/update.cu", "update", &none);
}

static ejk_status run(const ejk_run *run) {
    paged_problem p = *(const paged_problem *)run->problem;
    EJKI_TRY(ejki_paged_cuda_check(&p));
    const ejki_cuda_work work = {.threads = PAGED_THREADS, .blocks = blocks_of(&p)};
    return ejki_cuda_begin(run, &work, &p);
}

EJKI_DECLARE(update_kv_cache_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run, .needs = "no float64")
