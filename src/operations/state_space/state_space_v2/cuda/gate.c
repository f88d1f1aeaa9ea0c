/* SPDX-License-Identifier: Apache-2.0 */
/* Gate and norm of state_space_v2 on GPUs: launches of gate.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/state_space/state_space_v2/problem.cuh"

enum { THREADS = 128 };

static int64_t blocks_of(const ssd_problem *p) {
    return p->group ? p->recurrence.batch * p->recurrence.tokens * (ssd_width(p) / p->group) : 0;
}

static bool applicable(const void *problem) {
    return blocks_of(problem) <= INT32_MAX;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const ssd_problem *p = problem;
    ejki_cuda_constants constants = {.count = 0};
    (void)parameters;
    (void)threads;
    ejki_cuda_add(&constants, "THREADS", THREADS);
    ejki_cuda_add(&constants, "NORM", p->has_norm);
    ejki_cuda_add(&constants, "FIRST", p->has_norm && p->norm_first);
    ejki_cuda_add(&constants, "GATE", p->has_gate);
    return ejki_cuda_ready(launch, 0, "operations/state_space/state_space_v2/cuda/gate.cu", "gate",
                           &constants);
}

static ejk_status run(const ejk_run *run) {
    const ssd_problem *p = run->problem;
    const rec_view *views[] = {&p->gate, &p->weight, &p->result};
    const char *const names[] = {"gate", "rmsnorm_weight", "out"};
    for (int i = 0; i < 3; i++)
        if (views[i]->present)
            EJKI_TRY(ejki_cuda_check_tensor(views[i]->data, views[i]->dtype, names[i]));
    ssd_problem argument = *p;
    const ejki_cuda_work work = {.threads = THREADS, .blocks = blocks_of(p)};
    return ejki_cuda_begin(run, &work, &argument);
}

EJKI_DECLARE(state_space_v2_gate_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run)
