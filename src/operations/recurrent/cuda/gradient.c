/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the recurrence on GPUs: launches of gradient.cu and gradient_sums.cu. */
#include "operations/recurrent/cuda/gradient.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/recurrent/cuda/plan.h"

enum { BACK, SPREAD, TOTAL };
/* A block of gradient.cu, and threads of all that are under way at once. */
enum { MOST_THREADS = 512, THREADS_IN_ALL = 160 * 512 };
/* Of shared memory: sums of warps, and tokens. */
enum { SUM_BYTES = 49152, TOKEN_BYTES = 24576 };

static int64_t warp_bytes(const rec_problem *p) {
    return (rec_vectors(p) * rec_cuda_parts(p) * REC_CUDA_ROWS + REC_NUMBERS) *
           (int64_t)sizeof(float);
}

/* As many columns as the value has, as far as there is shared memory for the sums of all warps. */
static int64_t threads_of(const rec_problem *p) {
    const int64_t wanted = ejki_round_up(p->value_size * rec_cuda_parts(p), 32);
    const int64_t most = ejki_min(SUM_BYTES / warp_bytes(p) * 32, MOST_THREADS);
    return ejki_max(ejki_min(wanted, most), 32);
}
static int64_t token_bytes(const rec_problem *p) {
    return rec_cuda_token_bytes(p, rec_cuda_parts(p) * REC_CUDA_ROWS);
}
static int64_t tokens_of(const rec_problem *p) {
    const int64_t fit = TOKEN_BYTES / token_bytes(p);
    return ejki_max(ejki_min(fit, REC_CUDA_MOST_TOKENS), 1);
}

static int64_t tasks_of(const rec_problem *p) {
    return p->sequences * p->heads;
}
static int64_t blocks_of(const rec_problem *p) {
    return ejki_min(tasks_of(p), THREADS_IN_ALL / threads_of(p));
}

/* Memory of a call in floats. */
static int64_t sum_floats(const rec_problem *p) {
    return ejki_round_up(p->batch * p->tokens * p->heads * rec_row_size(p), 64);
}
static int64_t kept_floats(const rec_problem *p) {
    return rec_segments(p) * p->heads * threads_of(p) * REC_CUDA_ROWS;
}
static int64_t state_floats(const rec_problem *p) {
    return blocks_of(p) * REC_SEGMENT * threads_of(p) * (REC_CUDA_ROWS + 2);
}

static bool applicable(const void *problem) {
    const rec_problem *p = problem;
    return p->key_size <= 1024 && p->tokens <= INT32_MAX && rec_sum_blocks(p, 0) < INT32_MAX;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    ejki_cuda_constants back = {.count = 0}, sums = {.count = 0};
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    (void)threads;
    ejki_cuda_add(&back, "PARTS", rec_cuda_parts(p));
    ejki_cuda_add(&sums, "PARTS", rec_cuda_parts(p));
    ejki_cuda_add(&back, "THREADS", threads_of(p));
    ejki_cuda_add(&back, "TOKENS", tokens_of(p));
    ejki_cuda_add(&back, "UPDATE", p->update);
    ejki_cuda_add(&back, "BEFORE", p->read == REC_BEFORE);
    ejki_cuda_add(&back, "KEY_DECAY", p->key_decay);
    ejki_cuda_want(&kernels, BACK, "operations/recurrent/cuda/gradient.cu", "back_over", &back);
    ejki_cuda_want(&kernels, SPREAD, "operations/recurrent/cuda/gradient_sums.cu", "spread", &sums);
    ejki_cuda_want(&kernels, TOTAL, "operations/recurrent/cuda/gradient_sums.cu", "total", &sums);
    launch->workspace_bytes =
        (size_t)(sum_floats(p) + kept_floats(p) + state_floats(p)) * sizeof(float);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const rec_problem *p = run->problem;
    EJKI_TRY(rec_cuda_check(p));
    float *memory = run->workspace;
    rec_gradient a = {.p = *p,
                      .apart = 1,
                      .sums = memory,
                      .kept = memory + sum_floats(p),
                      .states = memory + sum_floats(p) + kept_floats(p),
                      .tasks = tasks_of(p),
                      .segments = rec_segments(p),
                      .width = rec_row_size(p)};
    const int64_t shared = tokens_of(p) * token_bytes(p) + threads_of(p) / 32 * warp_bytes(p);
    const ejki_cuda_work back = {.slot = BACK,
                                 .threads = (int32_t)threads_of(p),
                                 .blocks = blocks_of(p),
                                 .shared_bytes = shared};
    EJKI_TRY(ejki_cuda_begin(run, &back, &a));
    return rec_begin_sums(run, SPREAD, TOTAL, &a);
}

EJKI_DECLARE(recurrent_attention_vjp_back_cuda, .version = 1, .applicable = applicable,
             .prepare = prepare, .run = run, .needs = "Dk up to 1024")
