/* SPDX-License-Identifier: Apache-2.0 */
/* Backwards through gate and norm of state_space_v2 on GPUs: launches of gate_vjp.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/state_space/state_space_v2/problem.cuh"

enum { ROWS_BACK, WEIGHTS };
enum { THREADS = 128, ROWS = 32 };

static const char text[] = "operations/state_space/state_space_v2/cuda/gate_vjp.cu";

/* As gate_vjp.cu has it. */
typedef struct arguments {
    ssd_problem p;
    float *sums;
} arguments;

static int64_t row_blocks(const ssd_problem *p) {
    return ejki_cdiv(p->recurrence.batch * p->recurrence.tokens, ROWS);
}
static int64_t blocks_of(const ssd_problem *p) {
    return p->group ? row_blocks(p) * (ssd_width(p) / p->group) : 0;
}

static bool applicable(const void *problem) {
    return blocks_of(problem) <= INT32_MAX;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const ssd_problem *p = problem;
    ejki_cuda_constants constants = {.count = 0};
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    (void)threads;
    ejki_cuda_add(&constants, "THREADS", THREADS);
    ejki_cuda_add(&constants, "ROWS", ROWS);
    ejki_cuda_add(&constants, "NORM", p->has_norm);
    ejki_cuda_add(&constants, "FIRST", p->has_norm && p->norm_first);
    ejki_cuda_add(&constants, "GATE", p->has_gate);
    ejki_cuda_want(&kernels, ROWS_BACK, text, "gate_back", &constants);
    ejki_cuda_want(&kernels, WEIGHTS, text, "add_weights", &constants);
    if (p->d_weight.present)
        launch->workspace_bytes = (size_t)(row_blocks(p) * ssd_width(p)) * sizeof(float);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const ssd_problem *p = run->problem;
    const rec_view *views[] = {&p->gate, &p->d_gate, &p->weight, &p->d_weight, &p->result};
    const char *const names[] = {"gate", "d_gate", "rmsnorm_weight", "d_rmsnorm_weight", "d_out"};
    for (int i = 0; i < 5; i++)
        if (views[i]->present)
            EJKI_TRY(ejki_cuda_check_tensor(views[i]->data, views[i]->dtype, names[i]));
    arguments a = {*p, run->workspace};
    const ejki_cuda_work rows = {.slot = ROWS_BACK, .threads = THREADS, .blocks = blocks_of(p)};
    const ejki_cuda_work weights = {
        .slot = WEIGHTS, .threads = THREADS, .blocks = ejki_cdiv(ssd_width(p), THREADS)};
    EJKI_TRY(ejki_cuda_begin(run, &rows, &a));
    return p->d_weight.present ? ejki_cuda_begin(run, &weights, &a) : EJK_OK;
}

EJKI_DECLARE(state_space_v2_gate_vjp_cuda, .version = 1, .applicable = applicable,
             .prepare = prepare, .run = run)
