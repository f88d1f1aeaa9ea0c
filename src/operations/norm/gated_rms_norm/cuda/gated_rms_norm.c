/* SPDX-License-Identifier: Apache-2.0 */
/* gated_rms_norm and its gradients on GPUs: launches of gated_rms_norm.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/norm/gated_rms_norm/problem.cuh"

enum { ROWS, SUMS, THREADS = 128, WARPS = THREADS / 32 };
/* Rows whose gradients of the weight one warp adds up. */
enum { BLOCK_ROWS = 16 };

static const char text[] = "operations/norm/gated_rms_norm/cuda/gated_rms_norm.cu";

/* As gated_rms_norm.cu has it. */
typedef struct arguments {
    norm_problem p;
    float *sums;
} arguments;

static int64_t blocks_of(const norm_problem *p) {
    return ejki_cdiv(p->rows, BLOCK_ROWS);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const norm_problem *p = problem;
    const ejki_cuda_constants constants = {{{"ELEMENT", p->dtype},
                                            {"GATE", p->has_gate},
                                            {"WEIGHT", p->has_weight},
                                            {"NORM_FIRST", p->norm_first},
                                            {"SILU", p->silu},
                                            {"BLOCK_ROWS", BLOCK_ROWS}},
                                           6};
    ejki_cuda_kernels kernels = {.count = 0};
    ejki_cuda_want(&kernels, ROWS, text, p->gradient ? "gradients" : "forward", &constants);
    if (p->gradient) {
        ejki_cuda_want(&kernels, SUMS, text, "add_sums", &constants);
        launch->workspace_bytes = (size_t)(blocks_of(p) * p->width) * sizeof(float);
    }
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const norm_problem *p = run->problem;
    const int64_t size = (int64_t)ejk_dtype_size((ejk_dtype)p->dtype);
    const ejki_cuda_address all[] = {
        {p->x.data, size, "x"},         {p->gate.data, size, "gate"},
        {p->weight, size, "weight"},    {p->y.data, size, p->gradient ? "d_out" : "out"},
        {p->d_x.data, size, "d_x"},     {p->d_gate.data, size, "d_gate"},
        {p->d_weight, size, "d_weight"}};
    EJKI_TRY(ejki_cuda_check_addresses(all, sizeof all / sizeof *all));
    if (p->width == 0) return EJK_OK;
    arguments a = {*p, run->workspace};
    const int64_t items = (p->gradient ? blocks_of(p) : p->rows) * (p->width / p->group);
    const ejki_cuda_work rows = {
        .slot = ROWS, .threads = THREADS, .blocks = ejki_cdiv(items, WARPS)};
    EJKI_TRY(ejki_cuda_begin(run, &rows, &a));
    if (!p->gradient || !p->d_weight) return EJK_OK;
    const ejki_cuda_work sums = {
        .slot = SUMS, .threads = THREADS, .blocks = ejki_cdiv(p->width, THREADS)};
    return ejki_cuda_begin(run, &sums, &a);
}

EJKI_DECLARE(gated_rms_norm_cuda, .version = 1, .prepare = prepare, .run = run)
EJKI_DECLARE(gated_rms_norm_vjp_cuda, .version = 1, .prepare = prepare, .run = run)
