/* SPDX-License-Identifier: Apache-2.0 */
/* attention_merge on GPUs: launches of merge.cu. */
#include "operations/attention/merge/cuda/merge.h"

static const char text[] = "operations/attention/merge/cuda/merge.cu";

static ejki_cuda_rows rows_of(const ejki_merge_problem *p) {
    const int64_t strides[] = {p->value_dim,     p->part.stride_n, p->part.stride_b,
                               p->part.stride_t, p->part.stride_h, p->out.stride_b,
                               p->out.stride_t,  p->out.stride_h};
    return ejki_cuda_rows_of(p->value_dim, p->dtype, strides, sizeof strides / sizeof *strides);
}

static bool applicable(const void *problem) {
    const ejki_merge_problem *p = problem;
    int64_t rows;
    return p->out_dtype != EJK_DTYPE_F64 && ejki_mul(p->batch, p->heads, &rows) &&
           ejki_mul(rows, p->queries, &rows);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const ejki_merge_problem *p = problem;
    const ejki_cuda_rows rows = rows_of(p);
    const ejki_cuda_constants constants = {{{"ELEMENT", p->dtype}, {"OUT", p->out_dtype}}, 2};
    return ejki_cuda_ready_rows(launch, text, "merge", constants, &rows);
}

merge_arguments ejki_merge_arguments(const ejki_merge_problem *p) {
    return (merge_arguments){
        .parts = p->parts,
        .batch = p->batch,
        .queries = p->queries,
        .heads = p->heads,
        .value_dim = p->value_dim,
        .part = p->part.data,
        .part_n = p->part.stride_n,
        .part_b = p->part.stride_b,
        .part_t = p->part.stride_t,
        .part_h = p->part.stride_h,
        .lse = (const float *)(const void *)p->lse.data,
        .lse_n = p->lse.stride_n,
        .lse_b = p->lse.stride_b,
        .lse_h = p->lse.stride_h,
        .sums = p->has_sums ? (const float *)(const void *)p->sums.data : NULL,
        .sums_n = p->sums.stride_n,
        .sums_b = p->sums.stride_b,
        .sums_h = p->sums.stride_h,
        .sinks = p->sinks,
        .sink_count = p->has_sinks ? p->sink_count : 0,
        .sink_stride_h = p->sink_stride_h,
        .sink_group = p->sink_group,
        .out = p->out.data,
        .out_b = p->out.stride_b,
        .out_t = p->out.stride_t,
        .out_h = p->out.stride_h,
        .merged = (float *)(void *)p->merged_lse.data,
        .merged_b = p->merged_lse.stride_b,
        .merged_h = p->merged_lse.stride_h,
        .merged_t = p->merged_lse.stride_t,
    };
}

static ejk_status run(const ejk_run *run) {
    const ejki_merge_problem *p = run->problem;
    const ejki_cuda_rows rows = rows_of(p);
    const int64_t size = (int64_t)ejk_dtype_size(p->dtype);
    const int64_t out_size = (int64_t)ejk_dtype_size(p->out_dtype);
    const ejki_cuda_address all[] = {
        {p->part.data, size, "the output of the parts"}, /* these two in runs */
        {p->out.data, out_size, "out"},
        {p->lse.data, 4, "the lse of the parts"},
        {p->sums.data, 4, "the row_sum of the parts"},
        {p->merged_lse.data, 4, "lse"},
        {p->sinks, size, "softmax_aux"},
    };
    EJKI_TRY(ejki_cuda_check_addresses(all, sizeof all / sizeof *all));
    merge_arguments arguments = ejki_merge_arguments(p);
    return ejki_cuda_begin_rows(run, &rows, p->batch * p->heads * p->queries, all, 2, &arguments);
}

EJKI_DECLARE(attention_merge_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run)
