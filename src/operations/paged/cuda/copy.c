/* SPDX-License-Identifier: Apache-2.0 */
/* kv_cache_copy on GPUs: launches of copy.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/paged/copy/problem.cuh"

enum { THREADS = 128 };

static bool applicable(const void *problem) {
    const paged_copy_problem *p = problem;
    return (double)p->copies * (double)p->rows <= INT32_MAX;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)problem;
    (void)parameters;
    (void)threads;
    const ejki_cuda_constants none = {.count = 0};
    return ejki_cuda_ready(launch, 0, "operations/paged/cuda/copy.cu", "copy", &none);
}

static ejk_status run(const ejk_run *run) {
    paged_copy_problem p = *(const paged_copy_problem *)run->problem;
    EJKI_TRY(ejki_cuda_check_address(p.mapping.data, p.mapping.wide ? 8 : 4, "block_mapping"));
    const ejki_cuda_work work = {.threads = THREADS, .blocks = p.copies * p.rows};
    return ejki_cuda_begin(run, &work, &p);
}

EJKI_DECLARE(kv_cache_copy_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run)
