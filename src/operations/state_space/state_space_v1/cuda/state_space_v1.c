/* SPDX-License-Identifier: Apache-2.0 */
/* state_space_v1 and its gradients on GPUs: launches of state_space_v1.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/state_space/state_space_v1/problem.cuh"

enum { SCAN, SUMS, CLEAR, THREADS = 32, CHUNK = 16 };
/* Numbers of a state at most: a thread has them all. */
enum { MOST_STATES = 256 };

static const char text[] = "operations/state_space/state_space_v1/cuda/state_space_v1.cu";

/* As state_space_v1.cu has it. */
typedef struct arguments {
    scan_problem p;
    float *starts, *states, *sums;
} arguments;

/* Blocks of THREADS channels of a group. */
static int64_t blocks_of(const scan_problem *p) {
    return p->groups * ejki_cdiv(p->channels / p->groups, THREADS);
}

static bool applicable(const void *problem) {
    const scan_problem *p = problem;
    const scan_states *lists[] = {&p->a,   &p->d,   &p->dt_bias,   &p->before,
                                  &p->d_a, &p->d_d, &p->d_dt_bias, &p->d_before};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i]->dtype == EJK_DTYPE_F64) return false;
    return p->states <= MOST_STATES;
}

static int64_t starts_of(const scan_problem *p) {
    return ejki_cdiv(p->sequences.tokens, CHUNK) * p->states * p->channels;
}
static int64_t states_of(const scan_problem *p) {
    return (CHUNK + 1) * p->states * p->channels;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const scan_problem *p = problem;
    const ejki_cuda_constants constants = {{{"ELEMENT", p->dtype},
                                            {"STATES", ejki_max(p->states, 1)},
                                            {"GATE", p->has_gate},
                                            {"SOFTPLUS", p->softplus},
                                            {"CHUNK", CHUNK}},
                                           5};
    ejki_cuda_kernels kernels = {.count = 0};
    ejki_cuda_want(&kernels, SCAN, text, p->gradient ? "gradients" : "forward", &constants);
    ejki_cuda_want(&kernels, CLEAR, text, "clear", &constants);
    if (p->gradient) {
        ejki_cuda_want(&kernels, SUMS, text, "add_sums", &constants);
        launch->workspace_bytes =
            (size_t)(starts_of(p) + states_of(p) +
                     2 * blocks_of(p) * p->batch * p->sequences.tokens * p->states) *
            sizeof(float);
    }
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status check(const scan_problem *p) {
    const int64_t size = (int64_t)ejk_dtype_size((ejk_dtype)p->dtype);
    const ejki_cuda_address rows[] = {
        {p->x.data, size, "hidden_states"},
        {p->dt.data, size, "dt"},
        {p->gate.data, size, "gate"},
        {p->b.data, size, "b"},
        {p->c.data, size, "c"},
        {p->y.data, size, p->gradient ? "d_out" : "out"},
        {p->d_x.data, size, "d_hidden_states"},
        {p->d_dt.data, size, "d_dt"},
        {p->d_gate.data, size, "d_gate"},
        {p->d_b.data, size, "d_b"},
        {p->d_c.data, size, "d_c"},
        {p->sequences.ends, p->sequences.wide_ends ? 8 : 4, "cu_seqlens"},
        {p->sequences.indices, p->sequences.wide_indices ? 8 : 4, "state_indices"}};
    EJKI_TRY(ejki_cuda_check_tensor(p->a.data, p->a.dtype, "a"));
    EJKI_TRY(ejki_cuda_check_tensor(p->d.data, p->d.dtype, "d"));
    EJKI_TRY(ejki_cuda_check_tensor(p->dt_bias.data, p->dt_bias.dtype, "dt_bias"));
    EJKI_TRY(ejki_cuda_check_tensor(p->before.data, p->before.dtype,
                                    p->pooled ? "state" : "initial_state"));
    EJKI_TRY(ejki_cuda_check_tensor(p->after.data, p->after.dtype,
                                    p->gradient ? "d_final_state" : "final_state"));
    EJKI_TRY(ejki_cuda_check_tensor(p->d_a.data, p->d_a.dtype, "d_a"));
    EJKI_TRY(ejki_cuda_check_tensor(p->d_d.data, p->d_d.dtype, "d_d"));
    EJKI_TRY(ejki_cuda_check_tensor(p->d_dt_bias.data, p->d_dt_bias.dtype, "d_dt_bias"));
    EJKI_TRY(ejki_cuda_check_tensor(p->d_before.data, p->d_before.dtype, "d_initial_state"));
    return ejki_cuda_check_addresses(rows, sizeof rows / sizeof *rows);
}

static ejk_status begin(const ejk_run *run, int32_t slot, int64_t blocks, arguments *a) {
    const ejki_cuda_work work = {.slot = slot, .threads = THREADS, .blocks = blocks};
    return ejki_cuda_begin(run, &work, a);
}

static ejk_status run(const ejk_run *run) {
    const scan_problem *p = run->problem;
    EJKI_TRY(check(p));
    arguments a = {.p = *p, .starts = run->workspace};
    const int64_t tokens = p->batch * p->sequences.tokens;
    if (p->gradient) {
        a.states = a.starts + starts_of(p);
        a.sums = a.states + states_of(p);
    }
    EJKI_TRY(begin(run, SCAN, blocks_of(p) * (p->gradient ? 1 : p->sequences.count), &a));
    if (p->gradient && (p->d_b.data || p->d_c.data)) EJKI_TRY(begin(run, SUMS, tokens, &a));
    return p->sequences.packed ? begin(run, CLEAR, tokens, &a) : EJK_OK;
}

EJKI_DECLARE(state_space_v1_cuda, .version = 1, .applicable = applicable,
             .needs = "at most 256 numbers of a state, none of 64 bits", .prepare = prepare,
             .run = run)
EJKI_DECLARE(state_space_v1_vjp_cuda, .version = 1, .applicable = applicable,
             .needs = "at most 256 numbers of a state, none of 64 bits", .prepare = prepare,
             .run = run)
