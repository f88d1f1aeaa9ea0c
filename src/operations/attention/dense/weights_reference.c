/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of dense attention as their formula reads, row by row, in double precision. */
#include "kernels/declare.h"
#include "base/base.h"
#include "operations/attention/dense/problem.h"
#include "operations/attention/shared/dropout.h"
#include "operations/attention/flash/reference_row.h"

/* Writes a row; keys that positions hide have weight 0. `scratch` has room for its scores. */
static void compute(const ejki_attention_problem *a, reference_row *row, double *scratch) {
    const ejki_flash_problem *p = &a->flash;
    ejki_flash_visible(p, row->i, &row->first, &row->end);
    double max;
    const double sum = row_soften(row, scratch, NULL, &max);
    double all_max = max;
    const double all_sum = row_add_sinks(row, sum, &all_max);
    const double factor = all_sum == 0 ? 0 : row_weight(max, all_max) / all_sum;
    const double kept = p->dropout > 0 ? ejki_dropout_factor(p->dropout) : 1;
    const int64_t start =
        row->b * a->weights.stride_b + row->h * a->weights.stride_h + row->i * a->weights.stride_t;
    for (int64_t j = 0; j < p->keys; j++) {
        double weight = 0;
        if (j >= row->first && j < row->end && scratch[j] != 0) weight = scratch[j] * factor * kept;
        if (p->dropout > 0 && !ejki_dropout_keeps(p, row->b, row->h, row->i, j)) weight = 0;
        row_store(p->dtype, a->weights.data, start + j, weight);
    }
}

static bool scratch_bytes(const ejki_flash_problem *p, int64_t *bytes) {
    if (!ejki_mul(p->keys, (int64_t)sizeof(double), bytes) || !ejki_add(*bytes, 63, bytes))
        return false;
    *bytes &= ~INT64_C(63);
    return true;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const ejki_flash_problem *p = problem;
    int64_t bytes, rows;
    if (!scratch_bytes(p, &bytes) || !ejki_mul(bytes, threads, &bytes) ||
        !ejki_mul(p->batch, p->query_heads, &rows) || !ejki_mul(rows, p->queries, &rows))
        return ejki_fail(EJK_STATUS_OVERFLOW, "rows of %lld weights are more than can be counted",
                         (long long)p->keys);
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, rows));
    launch->workspace_bytes = (size_t)(bytes / threads * launch->workers);
    return EJK_OK;
}

/* Every workers-th row, so that causal rows, which grow, are spread evenly. */
static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const ejki_attention_problem *a = run->problem;
    const ejki_flash_problem *p = &a->flash;
    int64_t bytes = 0;
    if (!scratch_bytes(p, &bytes)) return; /* prepare() refused these */
    double *scratch = (double *)(void *)((char *)run->workspace + index * bytes);
    const int64_t rows = p->batch * p->query_heads * p->queries;
    for (int64_t n = index; n < rows; n += run->workers) {
        const int64_t heads = n / p->queries;
        reference_row row = {.problem = p,
                             .b = heads / p->query_heads,
                             .h = heads % p->query_heads,
                             .i = n % p->queries};
        compute(a, &row, scratch);
    }
}

static ejk_status run(const ejk_run *run) {
    const ejki_attention_problem *a = run->problem;
    if (a->flash.keys == 0) return EJK_OK;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(attention_weights_reference, .version = 1, .prepare = prepare, .run = run)
