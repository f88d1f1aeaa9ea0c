/* SPDX-License-Identifier: Apache-2.0 */
/* attention_merge as its formulas read, a row at a time, in double precision. */
#include "kernels/declare.h"
#include "base/base.h"
#include "operations/attention/merge/merge_row.h"

#include <ejkernel/registry.h>

static double largest_of(const ejki_merge_problem *p, const merge_row *r) {
    double largest = -INFINITY;
    for (int64_t n = 0; n < p->parts; n++) largest = row_larger(largest, merge_log(p, r, n));
    for (int64_t m = 0; p->has_sinks && m < p->sink_count; m++)
        largest = row_larger(largest, merge_sink(p, r->h, m));
    return largest;
}

/* Parts and sinks together, relative to the largest. */
static double total_of(const ejki_merge_problem *p, const merge_row *r, double largest) {
    double total = 0;
    for (int64_t n = 0; n < p->parts; n++) {
        const double weight = row_weight(merge_log(p, r, n), largest);
        if (weight == 0) continue;
        total += p->has_sums ? weight * row_load(EJK_DTYPE_F32, p->sums.data,
                                                 merge_lse_start(&p->sums, r, n))
                             : weight;
    }
    for (int64_t m = 0; p->has_sinks && m < p->sink_count; m++)
        total += row_weight(merge_sink(p, r->h, m), largest);
    return total;
}

static void merge(const ejki_merge_problem *p, const merge_row *r) {
    const double largest = largest_of(p, r), total = total_of(p, r, largest);
    const int64_t start = merge_out_start(&p->out, r);
    for (int64_t d = 0; d < p->value_dim; d++) {
        double sum = 0;
        for (int64_t n = 0; n < p->parts; n++) {
            const double weight = row_weight(merge_log(p, r, n), largest);
            if (weight == 0) continue;
            sum += weight / total *
                   row_load(p->dtype, p->part.data, merge_part_start(&p->part, r, n) + d);
        }
        row_store(p->out_dtype, p->out.data, start + d, sum);
    }
    if (p->merged_lse.data)
        row_store(EJK_DTYPE_F32, p->merged_lse.data, merge_scalar_start(&p->merged_lse, r),
                  largest + log(total));
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const ejki_merge_problem *p = problem;
    int64_t rows;
    if (!ejki_mul(p->batch, p->heads, &rows) || !ejki_mul(rows, p->queries, &rows))
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld x %lld x %lld rows cannot be counted",
                         (long long)p->batch, (long long)p->heads, (long long)p->queries);
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, rows));
    return EJK_OK;
}

static merge_row row_at(const ejki_merge_problem *p, int64_t n) {
    const int64_t tokens = n / p->heads;
    return (merge_row){tokens / p->queries, n % p->heads, tokens % p->queries};
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const ejki_merge_problem *p = run->problem;
    const int64_t rows = p->batch * p->heads * p->queries;
    for (int64_t n = rows * index / run->workers; n < rows * (index + 1) / run->workers; n++) {
        const merge_row r = row_at(p, n);
        merge(p, &r);
    }
}

EJKI_DEFINE_RUN(work)

/* ---- Gradients -------------------------------------------------------------------------------------- */

/* <d_out, out> less the cotangent of lse. */
static double delta_of(const ejki_merge_vjp_problem *v, const merge_row *r) {
    const ejki_merge_problem *p = &v->forward;
    const int64_t at = merge_out_start(&p->out, r), d_at = merge_out_start(&v->d_out, r);
    double delta = 0;
    for (int64_t d = 0; d < p->value_dim; d++)
        delta +=
            row_load(p->dtype, v->d_out.data, d_at + d) * row_load(p->dtype, p->out.data, at + d);
    if (v->has_lse_cotangent)
        delta -= row_load(EJK_DTYPE_F32, v->d_lse.data, merge_scalar_start(&v->d_lse, r));
    return delta;
}

static double merged_lse(const ejki_merge_problem *p, const merge_row *r) {
    return row_load(EJK_DTYPE_F32, p->merged_lse.data, merge_scalar_start(&p->merged_lse, r));
}

static void derive_row(const ejki_merge_vjp_problem *v, const merge_row *r) {
    const ejki_merge_problem *p = &v->forward;
    const double delta = delta_of(v, r), lse = merged_lse(p, r);
    const int64_t d_at = merge_out_start(&v->d_out, r);
    for (int64_t n = 0; n < p->parts; n++) {
        const double weight = row_weight(merge_log(p, r, n), lse);
        const int64_t at = merge_part_start(&p->part, r, n),
                      to = merge_part_start(&v->d_part, r, n);
        double dot = 0;
        for (int64_t d = 0; d < p->value_dim; d++) {
            const double cotangent = row_load(p->dtype, v->d_out.data, d_at + d);
            if (weight != 0) dot += cotangent * row_load(p->dtype, p->part.data, at + d);
            if (v->wants_parts)
                row_store(p->dtype, v->d_part.data, to + d, weight == 0 ? 0 : weight * cotangent);
        }
        if (v->wants_lse)
            row_store(EJK_DTYPE_F32, v->d_part_lse.data, merge_lse_start(&v->d_part_lse, r, n),
                      weight == 0 ? 0 : weight * (dot - delta));
    }
}

static void derive(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const ejki_merge_vjp_problem *v = run->problem;
    const ejki_merge_problem *p = &v->forward;
    const int64_t rows = p->batch * p->heads * p->queries;
    for (int64_t n = rows * index / run->workers; n < rows * (index + 1) / run->workers; n++) {
        const merge_row r = row_at(p, n);
        derive_row(v, &r);
    }
}

/* Sinks that some heads share, over all rows of these heads, in order. */
static void derive_sinks(void *argument, int64_t group) {
    const ejki_merge_vjp_problem *v = ((const ejk_run *)argument)->problem;
    const ejki_merge_problem *p = &v->forward;
    const int64_t heads = v->d_sink_stride_h ? p->sink_group : p->heads, first = group * heads;
    for (int64_t m = 0; m < p->sink_count; m++) {
        double sum = 0;
        for (int64_t n = 0; n < p->batch * heads * p->queries; n++) {
            const int64_t tokens = n / heads;
            const merge_row r = {tokens / p->queries, first + n % heads, tokens % p->queries};
            const double weight = row_weight(merge_sink(p, r.h, m), merged_lse(p, &r));
            if (weight != 0) sum -= weight * delta_of(v, &r);
        }
        row_store(p->dtype, v->d_sinks, group * v->d_sink_stride_h + m, sum);
    }
}

static ejk_status run_vjp(const ejk_run *run) {
    const ejki_merge_vjp_problem *v = run->problem;
    const ejki_merge_problem *p = &v->forward;
    if (v->wants_parts || v->wants_lse)
        ejk_parallel_for(run->threads, run->workers, derive, (void *)(uintptr_t)run);
    if (v->wants_sinks)
        ejk_parallel_for(run->threads, v->d_sink_stride_h ? p->heads / p->sink_group : 1,
                         derive_sinks, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(attention_merge_reference, .version = 1, .prepare = prepare, .run = run)
EJKI_DECLARE(attention_merge_vjp_reference, .version = 1, .prepare = prepare, .run = run_vjp)
