/* SPDX-License-Identifier: Apache-2.0 */
/* gated_rms_norm and its gradients on GPUs: launches of gated_rms_norm.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/norm/gated_rms_norm/problem.cuh"

enum { SUMS = EJKI_CUDA_ROW_SLOTS, THREADS = 256, MOST_HELD = 4, COLUMNS = 8, PHASES = 128 };
/* Rows whose gradients of the weight one team adds up, at least; and parts of that sum, at most. */
enum { LEAST_ROWS = 8, MOST_PARTS = 8192 };

static const char text[] = "operations/norm/gated_rms_norm/cuda/gated_rms_norm.cu";

/* As gated_rms_norm.cu has it. */
typedef struct arguments {
    norm_problem p;
    float *sums;
    int64_t each;
} arguments;

/* Runs of 16 bytes that a group is long, and threads that share them: a power of two. */
static int64_t runs_of(const norm_problem *p) {
    return ejki_cdiv(p->group * (int64_t)ejk_dtype_size((ejk_dtype)p->dtype), 16);
}
static int64_t team_of(const norm_problem *p) {
    int64_t count = 1;
    while (count < THREADS && count < runs_of(p)) count *= 2;
    return count;
}

/* Rows of a block of gradients. */
static int64_t each_of(const norm_problem *p) {
    const int64_t teams = THREADS / team_of(p);
    return ejki_round_up(ejki_max(ejki_cdiv(p->rows, MOST_PARTS), LEAST_ROWS * teams), teams);
}

/* One outer axis in place of two that follow each other in all tensors, so that rows are found without divisions. */
static void join_axes(norm_problem *p) {
    norm_rows *const all[] = {&p->x, &p->gate, &p->y, &p->d_x, &p->d_gate};
    for (int axis = 1; axis >= 0 && p->rows > 0; axis--) {
        const int64_t length = axis == 1 ? p->outer[0] : p->rows / p->outer[1];
        for (size_t i = 0; length > 1 && i < sizeof all / sizeof *all; i++)
            if (all[i]->data && all[i]->stride[axis] != p->outer[1] * all[i]->stride[2]) return;
        p->outer[1] *= length;
        p->outer[0] = 1;
    }
}

static ejki_cuda_rows rows_of(const norm_problem *p) {
    const norm_rows *all[] = {&p->x, &p->gate, &p->y, &p->d_x, &p->d_gate};
    int64_t strides[3 * sizeof all / sizeof *all + 1] = {p->group};
    size_t count = 1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int k = 0; k < 3; k++) strides[count++] = all[i]->data ? all[i]->stride[k] : 0;
    return ejki_cuda_rows_of(p->group, (ejk_dtype)p->dtype, strides, count);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const norm_problem *p = problem;
    const int64_t held = ejki_cdiv(runs_of(p), team_of(p));
    ejki_cuda_constants constants = {{{"ELEMENT", p->dtype},
                                      {"GATE", p->has_gate},
                                      {"WEIGHT", p->has_weight},
                                      {"NORM_FIRST", p->norm_first},
                                      {"SILU", p->silu},
                                      {"TEAM", team_of(p)},
                                      {"HELD", held > MOST_HELD ? 0 : held}},
                                     7};
    ejki_cuda_kernels kernels = {.count = 0};
    const char *entry = p->gradient ? "gradients" : "forward";
    ejki_cuda_constants wide = constants;
    ejki_cuda_add(&constants, "WIDE", 0);
    ejki_cuda_add(&wide, "WIDE", 1);
    ejki_cuda_want(&kernels, EJKI_CUDA_NARROW, text, entry, &constants);
    if (rows_of(p).vector > 1) ejki_cuda_want(&kernels, EJKI_CUDA_WIDE, text, entry, &wide);
    if (p->gradient) {
        ejki_cuda_want(&kernels, SUMS, text, "add_sums", &constants);
        launch->workspace_bytes =
            (size_t)(ejki_cdiv(p->rows, each_of(p)) * p->width) * sizeof(float);
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
    arguments a = {*p, run->workspace, each_of(p)};
    join_axes(&a.p);
    const ejki_cuda_rows rows = rows_of(p);
    const int64_t groups = p->width / p->group, teams = THREADS / team_of(p);
    const ejki_cuda_work work = {.slot = ejki_cuda_is_wide(&rows, all, 6) ? EJKI_CUDA_WIDE
                                                                          : EJKI_CUDA_NARROW,
                                 .threads = THREADS,
                                 .blocks = p->gradient ? ejki_cdiv(p->rows, a.each) * groups
                                                       : ejki_cdiv(p->rows * groups, teams)};
    EJKI_TRY(ejki_cuda_begin(run, &work, &a));
    if (!p->gradient || !p->d_weight) return EJK_OK;
    const ejki_cuda_work sums = {
        .slot = SUMS, .threads = COLUMNS * PHASES, .blocks = ejki_cdiv(p->width, COLUMNS)};
    return ejki_cuda_begin(run, &sums, &a);
}

EJKI_DECLARE(gated_rms_norm_cuda, .version = 1, .prepare = prepare, .run = run)
EJKI_DECLARE(gated_rms_norm_vjp_cuda, .version = 1, .prepare = prepare, .run = run)
