/* SPDX-License-Identifier: Apache-2.0 */
/* rwkv4 and its gradient on GPUs: launches of rwkv4.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/state_space/rwkv4/problem.cuh"

enum { SCAN, SUMS, CLEAR };
enum { THREADS = 64, CHUNK = 8, CLEAR_BLOCKS = 64 };

static const char text[] = "operations/state_space/rwkv4/cuda/rwkv4.cu";

/* As rwkv4.cu has it. */
typedef struct arguments {
    wkv_problem p;
    float *sums, *starts;
} arguments;

static int64_t blocks_of(const wkv_problem *p) {
    return ejki_cdiv(p->channels, THREADS);
}

static bool applicable(const void *problem) {
    const wkv_problem *p = problem;
    const wkv_states *lists[] = {&p->w,   &p->u,   &p->before,  &p->after,
                                 &p->d_w, &p->d_u, &p->d_before};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i]->dtype == EJK_DTYPE_F64) return false;
    return blocks_of(p) * p->sequences.count < INT32_MAX;
}

static int64_t sum_floats(const wkv_problem *p) {
    return 2 * p->sequences.count * p->channels;
}
static int64_t start_floats(const wkv_problem *p) {
    const sequences *s = &p->sequences;
    const int64_t chunks =
        s->packed ? s->tokens / CHUNK + s->count : s->count * ejki_cdiv(s->tokens, CHUNK);
    return chunks * STATE_NUMBERS * p->channels;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const wkv_problem *p = problem;
    ejki_cuda_constants constants = {.count = 0};
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    (void)threads;
    ejki_cuda_add(&constants, "ELEMENT", p->dtype);
    ejki_cuda_add(&constants, "THREADS", THREADS);
    ejki_cuda_add(&constants, "CHUNK", CHUNK);
    ejki_cuda_want(&kernels, SCAN, text, p->gradient ? "gradients" : "forward", &constants);
    ejki_cuda_want(&kernels, CLEAR, text, "clear", &constants);
    if (p->gradient) {
        ejki_cuda_want(&kernels, SUMS, text, "add_sums", &constants);
        launch->workspace_bytes = (size_t)(sum_floats(p) + start_floats(p)) * sizeof(float);
    }
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status check(const wkv_problem *p) {
    const int64_t size = (int64_t)ejk_dtype_size((ejk_dtype)p->dtype);
    const ejki_cuda_address rows[] = {
        {p->k.data, size, "k"},
        {p->v.data, size, "v"},
        {p->y.data, size, p->gradient ? "d_out" : "out"},
        {p->d_k.data, size, "d_k"},
        {p->d_v.data, size, "d_v"},
        {p->sequences.ends, p->sequences.wide_ends ? 8 : 4, "cu_seqlens"},
        {p->sequences.indices, p->sequences.wide_indices ? 8 : 4, "state_indices"}};
    EJKI_TRY(ejki_cuda_check_tensor(p->w.data, p->w.dtype, "w"));
    EJKI_TRY(ejki_cuda_check_tensor(p->u.data, p->u.dtype, "u"));
    EJKI_TRY(ejki_cuda_check_tensor(p->before.data, p->before.dtype,
                                    p->pooled ? "state" : "initial_state"));
    EJKI_TRY(ejki_cuda_check_tensor(p->after.data, p->after.dtype,
                                    p->gradient ? "d_final_state" : "final_state"));
    EJKI_TRY(ejki_cuda_check_tensor(p->d_w.data, p->d_w.dtype, "d_w"));
    EJKI_TRY(ejki_cuda_check_tensor(p->d_u.data, p->d_u.dtype, "d_u"));
    EJKI_TRY(ejki_cuda_check_tensor(p->d_before.data, p->d_before.dtype, "d_initial_state"));
    return ejki_cuda_check_addresses(rows, sizeof rows / sizeof *rows);
}

static ejk_status begin(const ejk_run *run, int32_t slot, int64_t blocks, arguments *a) {
    const ejki_cuda_work work = {.slot = slot, .threads = THREADS, .blocks = blocks};
    return ejki_cuda_begin(run, &work, a);
}

static ejk_status run(const ejk_run *run) {
    const wkv_problem *p = run->problem;
    EJKI_TRY(check(p));
    arguments a = {.p = *p, .sums = run->workspace};
    if (p->gradient) a.starts = a.sums + sum_floats(p);
    EJKI_TRY(begin(run, SCAN, blocks_of(p) * p->sequences.count, &a));
    if (p->gradient && (p->d_w.data || p->d_u.data)) EJKI_TRY(begin(run, SUMS, blocks_of(p), &a));
    return p->sequences.packed ? begin(run, CLEAR, CLEAR_BLOCKS, &a) : EJK_OK;
}

EJKI_DECLARE(rwkv4_cuda, .version = 1, .applicable = applicable,
             .needs = "w, u, states of 32 bits or less", .prepare = prepare, .run = run)
EJKI_DECLARE(rwkv4_vjp_cuda, .version = 1, .applicable = applicable,
             .needs = "w, u, states of 32 bits or less", .prepare = prepare, .run = run)
