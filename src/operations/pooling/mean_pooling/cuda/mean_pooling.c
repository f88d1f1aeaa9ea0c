/* SPDX-License-Identifier: Apache-2.0 */
/* mean_pooling and its gradient on GPUs: launches of mean_pooling.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/pooling/mean_pooling/problem.cuh"

enum { COMBINE = EJKI_CUDA_ROW_SLOTS, THREADS = 256, MUCH = 64 << 20 };
static const char text[] = "operations/pooling/mean_pooling/cuda/mean_pooling.cu";

static ejki_cuda_rows rows_of(const pool_problem *p) {
    return ejki_cuda_rows_of_tokens(&p->runs, (ejk_dtype)p->dtype, &p->x, &p->y);
}

/* Segments of the longest row. */
static int64_t segments_of(const pool_problem *p) {
    const ejki_size all = p->chunks.tokens, chunk = p->chunks.chunk;
    return ejki_max(ejki_cdiv(chunk ? ejki_min(chunk, all) : all, POOL_SEGMENT), 1);
}

/* Of sums of segments; each row has as many places as the longest. */
static double partial_bytes(const pool_problem *p) {
    return sizeof(float) * (double)segments_of(p) *
           (double)(pool_items(p, p->rows) * p->runs.width);
}

/* Blocks that share a row; bits do not depend on it. Of many packed sequences most places would be empty. */
static int64_t splits_of(const pool_problem *p, const ejki_cuda_rows *rows) {
    const double x = (double)(pool_items(p, p->chunks.tokens) * p->runs.width) *
                     (double)ejk_dtype_size((ejk_dtype)p->dtype);
    const int64_t tiles = pool_items(p, p->rows) * ejki_cuda_rows_tiles(rows, rows->vector > 1);
    if (partial_bytes(p) > MUCH && partial_bytes(p) > x) return 1;
    return ejki_cuda_splits(tiles, segments_of(p), 1);
}

static bool applicable(const void *problem) {
    const pool_problem *p = problem;
    const ejki_cuda_rows rows = rows_of(p);
    return p->gradient || pool_items(p, p->rows) * ejki_cuda_rows_tiles(&rows, false) <= INT32_MAX;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const pool_problem *p = problem;
    const ejki_cuda_rows rows = rows_of(p);
    const ejki_cuda_constants constants = {{{"ELEMENT", p->dtype}}, 1};
    EJKI_TRY(ejki_cuda_ready_rows(launch, text, p->gradient ? "spread" : "pool", constants, &rows));
    if (p->gradient || splits_of(p, &rows) == 1) return EJK_OK;
    launch->workspace_bytes = (size_t)partial_bytes(p);
    return ejki_cuda_ready_narrow(launch, COMBINE, text, "combine", constants, &rows);
}

static ejk_status run(const ejk_run *run) {
    const pool_problem *p = run->problem;
    const ejki_cuda_rows rows = rows_of(p);
    const int64_t size = (int64_t)ejk_dtype_size((ejk_dtype)p->dtype);
    const ejki_cuda_address all[] = {{p->x.data, size, p->gradient ? "d_x" : "x"},
                                     {p->y.data, size, p->gradient ? "d_out" : "out"},
                                     {p->chunks.ends, p->chunks.wide ? 8 : 4, "cu_seqlens"}};
    EJKI_TRY(ejki_cuda_check_addresses(all, 3));
    pool_arguments a = {*p, run->workspace, splits_of(p, &rows)};
    if (p->gradient)
        return ejki_cuda_begin_rows(
            run, &rows, pool_items(p, ejki_cdiv(p->chunks.tokens, POOL_SPREAD)), all, 2, &a);
    EJKI_TRY(ejki_cuda_begin_tiles(run, &rows, pool_items(p, p->rows), a.splits, all, 2, &a));
    if (a.splits == 1) return EJK_OK;
    const int64_t count = pool_items(p, p->rows) * p->runs.width;
    return ejki_cuda_begin_row_blocks(run, COMBINE, ejki_cdiv(count, THREADS), &a);
}

EJKI_DECLARE(mean_pooling_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run)
