/* SPDX-License-Identifier: Apache-2.0 */
/* mean_pooling and its gradient on GPUs: launches of mean_pooling.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/pooling/mean_pooling/problem.cuh"

enum { COMBINE = EJKI_CUDA_ROW_SLOTS, THREADS = 256 };
enum { MUCH = 64 << 20 };

static const char text[] = "operations/pooling/mean_pooling/cuda/mean_pooling.cu";

/* As mean_pooling.cu has it. */
typedef struct arguments {
    pool_problem p;
    float *partial;
    ejki_size splits;
} arguments;

static ejki_cuda_rows rows_of(const pool_problem *p) {
    return ejki_cuda_rows_of_tokens(&p->runs, (ejk_dtype)p->dtype, &p->x, &p->y);
}

static int64_t items_of(const pool_problem *p) {
    return p->batch * p->rows * ejki_run_count(&p->runs);
}

static int64_t tiles_of(const pool_problem *p, bool wide) {
    const ejki_cuda_rows rows = rows_of(p);
    return items_of(p) * ejki_cuda_rows_tiles(&rows, wide);
}

/* Segments of the longest row. */
static int64_t segments_of(const pool_problem *p) {
    const ejki_size all = p->chunks.tokens, chunk = p->chunks.chunk;
    return ejki_max(ejki_cdiv(chunk ? ejki_min(chunk, all) : all, POOL_SEGMENT), 1);
}

/* Of sums of segments; each row has as many places as the longest. */
static double partial_bytes(const pool_problem *p) {
    return (double)segments_of(p) * (double)(items_of(p) * p->runs.width) * sizeof(float);
}

/* Blocks that share a row; bits do not depend on it. Of many packed sequences most places would be empty. */
static int64_t splits_of(const pool_problem *p) {
    const double x = (double)(p->batch * p->chunks.tokens * ejki_run_count(&p->runs)) *
                     (double)(p->runs.width * (int64_t)ejk_dtype_size((ejk_dtype)p->dtype));
    if (partial_bytes(p) > MUCH && partial_bytes(p) > x) return 1;
    return ejki_cuda_splits(tiles_of(p, rows_of(p).vector > 1), segments_of(p), 1);
}

static bool applicable(const void *problem) {
    const pool_problem *p = problem;
    return p->gradient || tiles_of(p, false) <= INT32_MAX;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const pool_problem *p = problem;
    const ejki_cuda_rows rows = rows_of(p);
    const ejki_cuda_constants constants = {{{"ELEMENT", p->dtype}}, 1};
    if (p->gradient) return ejki_cuda_ready_rows(launch, text, "spread", constants, &rows);
    EJKI_TRY(ejki_cuda_ready_rows(launch, text, "pool", constants, &rows));
    if (splits_of(p) == 1) return EJK_OK;
    launch->workspace_bytes = (size_t)partial_bytes(p);
    return ejki_cuda_ready_narrow(launch, COMBINE, text, "combine", constants, &rows);
}

static ejk_status run(const ejk_run *run) {
    const pool_problem *p = run->problem;
    const ejki_cuda_rows rows = rows_of(p);
    const int64_t size = (int64_t)ejk_dtype_size((ejk_dtype)p->dtype), wide = size * rows.vector;
    const ejki_cuda_address all[] = {{p->x.data, size, p->gradient ? "d_x" : "x"},
                                     {p->y.data, size, p->gradient ? "d_out" : "out"},
                                     {p->chunks.ends, p->chunks.wide ? 8 : 4, "cu_seqlens"}};
    const ejki_cuda_address runs[] = {{p->x.data, wide, NULL}, {p->y.data, wide, NULL}};
    EJKI_TRY(ejki_cuda_check_addresses(all, 3));
    arguments a = {*p, run->workspace, splits_of(p)};
    if (p->gradient)
        return ejki_cuda_begin_rows(
            run, &rows, p->batch * p->chunks.tokens * ejki_run_count(&p->runs), runs, 2, &a);
    const bool is_wide = ejki_cuda_rows_wide(&rows, runs, 2);
    const ejki_cuda_work work = {.slot = is_wide ? EJKI_CUDA_WIDE : EJKI_CUDA_NARROW,
                                 .threads = THREADS,
                                 .blocks = tiles_of(p, is_wide),
                                 .splits = a.splits};
    EJKI_TRY(ejki_cuda_begin(run, &work, &a));
    if (a.splits == 1) return EJK_OK;
    return ejki_cuda_begin_row_blocks(run, COMBINE, ejki_cdiv(items_of(p) * p->runs.width, THREADS),
                                      &a);
}

EJKI_DECLARE(mean_pooling_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run)
