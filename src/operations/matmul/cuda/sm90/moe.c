/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of experts whose products are those of sm_90, where these take them. */
#include "kernels/declare.h"
#include "operations/matmul/cuda/moe.h"

static bool applicable(const void *problem) {
    return ejki_moe_cuda_applicable(problem, ejki_mm_fast_of);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    return ejki_moe_cuda_prepare(problem, ejki_mm_fast_of, launch);
}

static ejk_status run(const ejk_run *run) {
    return ejki_moe_cuda_run(run, ejki_mm_fast_of);
}

EJKI_DECLARE(moe_sm90_cuda, .version = 1, .priority = 20, .applicable = applicable,
             .prepare = prepare, .run = run, .needs = "no float64")
