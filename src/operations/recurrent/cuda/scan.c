/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence on GPUs: launches of scan.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/recurrent/cuda/plan.h"

static const char text[] = "operations/recurrent/cuda/scan.cu";

/* As scan.cu has it. */
typedef struct arguments {
    rec_problem p;
} arguments;

enum { REST = 32 };

static bool applicable(const void *problem) {
    return rec_cuda_fits(problem);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    ejki_cuda_constants constants = rec_cuda_constants(p);
    (void)parameters;
    (void)threads;
    ejki_cuda_add(&constants, "TOKENS", rec_cuda_tokens(p));
    ejki_cuda_add(&constants, "REST", REST);
    return ejki_cuda_ready(launch, 0, text, "scan", &constants);
}

static ejk_status run(const ejk_run *run) {
    const rec_problem *p = run->problem;
    EJKI_TRY(rec_cuda_check(p));
    arguments a = {*p};
    const ejki_cuda_work work = {.threads = REC_CUDA_THREADS,
                                 .blocks = rec_cuda_blocks(p) + (p->packed ? REST : 0),
                                 .shared_bytes = rec_cuda_tokens(p) * rec_cuda_token_bytes(p)};
    return ejki_cuda_begin(run, &work, &a);
}

EJKI_DECLARE(recurrent_attention_scan_cuda, .version = 1, .applicable = applicable,
             .prepare = prepare, .run = run, .needs = "Dk up to 1024")
