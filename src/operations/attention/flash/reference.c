/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention as its formula reads: one row at a time, all scores of the row kept, two passes of
 * softmax, everything in double precision. What the fast implementations are measured against and
 * what runs where none of them fits.
 *
 * A key of weight 0 adds nothing, whether masking, a score of -inf or underflow made it so: its value is
 * not read.
 */
#include "kernels/declare.h"
#include "base/base.h"
#include "operations/attention/shared/dropout.h"
#include "operations/attention/flash/reference_row.h"
#include "operations/attention/shared/sequences.h"

/* Weights of dropped keys become 0, those of the others larger. */
static void drop(const reference_row *row, double *weights) {
    const ejki_flash_problem *p = row->problem;
    const double factor = ejki_dropout_factor(p->dropout);
    for (int64_t j = row->first; j < row->end; j++)
        weights[j] = ejki_dropout_keeps(p, row->b, row->h, row->i, j) ? weights[j] * factor : 0;
}

static void write_out(const reference_row *row, const double *weights, double *sums,
                      double factor) {
    const ejki_flash_problem *p = row->problem;
    for (int64_t d = 0; d < p->value_dim; d++) sums[d] = 0;
    for (int64_t j = row->first; j < row->end; j++) {
        if (weights[j] == 0) continue;
        const int64_t start = row_key_start(row, &p->value, j);
        for (int64_t d = 0; d < p->value_dim; d++)
            sums[d] += weights[j] * row_load(p->dtype, p->value.data, start + d);
    }
    const int64_t start = row_start(row, &p->out);
    const ejk_dtype dtype = p->normalize ? p->dtype : EJK_DTYPE_F32;
    for (int64_t d = 0; d < p->value_dim; d++)
        row_store(dtype, p->out.data, start + d, sums[d] * factor);
}

static void write_scalar(const reference_row *row, const ejki_bht *target, double value) {
    if (!target->data) return;
    row_store(EJK_DTYPE_F32, target->data,
              row->b * target->stride_b + row->h * target->stride_h + row->i * target->stride_t,
              value);
}

/* `scratch` has room for the row's scores and its output. */
static void compute(reference_row *row, double *scratch) {
    const ejki_flash_problem *p = row->problem;
    ejki_flash_visible(p, row->i, &row->first, &row->end);
    double max, sum = row_soften(row, scratch, NULL, &max);
    double all_max = max, all_sum = row_add_sinks(row, sum, &all_max);
    /* A row that sees nothing has weights of 0 only; 0/0 must not make a NaN of it. */
    double factor = all_sum == 0 ? 0 : row_weight(max, all_max) / all_sum;
    /* One NaN makes a NaN of the whole row, even if dropout keeps nothing of it. */
    double whole = isnan(sum) ? sum : 1;
    if (!p->normalize && isfinite(max)) {
        /* Relative to the maximum as it is written. */
        const double rounded = (double)(float)max;
        if (isfinite(rounded)) {
            whole *= exp(max - rounded);
            sum *= exp(max - rounded);
            max = rounded;
        }
    }
    if (p->dropout > 0) drop(row, scratch);
    write_out(row, scratch, scratch + p->keys, p->normalize ? factor : whole);
    write_scalar(row, &p->lse, all_max + log(all_sum));
    write_scalar(row, &p->row_max, max);
    write_scalar(row, &p->row_sum, sum);
}

/* Bytes of one worker's scratch. */
static bool scratch_bytes(const ejki_flash_problem *p, int64_t *bytes) {
    if (!ejki_add(p->keys, p->value_dim, bytes) ||
        !ejki_mul(*bytes, (int64_t)sizeof(double), bytes) || !ejki_add(*bytes, 63, bytes))
        return false;
    *bytes &= ~INT64_C(63);
    return true;
}

static bool row_count(const ejki_flash_problem *p, int64_t *rows) {
    return ejki_mul(p->batch, p->query_heads, rows) && ejki_mul(*rows, p->queries, rows);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const ejki_flash_problem *p = problem;
    int64_t bytes, rows;
    if (!row_count(p, &rows) || !scratch_bytes(p, &bytes) || !ejki_mul(bytes, threads, &bytes))
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "%lld x %lld x %lld rows of %lld scores are more than can be counted",
                         (long long)p->batch, (long long)p->query_heads, (long long)p->queries,
                         (long long)p->keys);
    int64_t workers = ejki_max(1, ejki_min(threads, rows));
    launch->workers = (int32_t)workers;
    launch->workspace_bytes = (size_t)(bytes / threads * workers);
    return EJK_OK;
}

/* Worker `index` takes every workers-th row, so that causal rows, which grow, are spread evenly. */
static void work_through(const ejki_flash_problem *p, int64_t index, int64_t workers,
                         double *scratch) {
    int64_t rows = 0;
    if (!row_count(p, &rows)) return; /* prepare() refused these */
    for (int64_t n = index; n < rows; n += workers) {
        int64_t heads = n / p->queries;
        reference_row row = {.problem = p,
                             .b = heads / p->query_heads,
                             .h = heads % p->query_heads,
                             .i = n % p->queries};
        compute(&row, scratch);
    }
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const ejki_flash_problem *p = run->problem;
    int64_t bytes = 0;
    if (!scratch_bytes(p, &bytes)) return;
    double *scratch = (double *)(void *)((char *)run->workspace + index * bytes);
    if (p->layout == EJKI_FLASH_DENSE) {
        work_through(p, index, run->workers, scratch);
        return;
    }
    for (int64_t part = 0; part < ejki_flash_parts(p); part++) {
        const ejki_flash_problem own = ejki_flash_part(p, part);
        work_through(&own, index, run->workers, scratch);
    }
}

static ejk_status run(const ejk_run *run) {
    const ejki_flash_problem *p = run->problem;
    /* With nothing to write, the rows may be more than any memory holds. */
    if (p->value_dim == 0 && !p->lse.data && !p->row_max.data && !p->row_sum.data) return EJK_OK;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(flash_attention_reference, .version = 1, .prepare = prepare, .run = run)
