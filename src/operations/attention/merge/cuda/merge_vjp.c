/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of attention_merge on GPUs: launches of merge_vjp.cu. */
#include "operations/attention/merge/cuda/merge.h"

enum { SINKS = EJKI_CUDA_ROW_SLOTS }; /* the slot after those of the kernel over rows */

static const char text[] = "operations/attention/merge/cuda/merge_vjp.cu";

static ejki_cuda_rows rows_of(const ejki_merge_vjp_problem *v) {
    const ejki_merge_problem *p = &v->forward;
    const ejki_merge_parts none = {0}, *d = v->wants_parts ? &v->d_part : &none;
    const int64_t strides[] = {
        p->value_dim,      p->part.stride_n, p->part.stride_b, p->part.stride_t,  p->part.stride_h,
        p->out.stride_b,   p->out.stride_t,  p->out.stride_h,  v->d_out.stride_b, v->d_out.stride_t,
        v->d_out.stride_h, d->stride_n,      d->stride_b,      d->stride_t,       d->stride_h};
    return ejki_cuda_rows_of(p->value_dim, p->dtype, strides, sizeof strides / sizeof *strides);
}

static bool applicable(const void *problem) {
    const ejki_merge_problem *p = &((const ejki_merge_vjp_problem *)problem)->forward;
    int64_t rows;
    return p->dtype == p->out_dtype && ejki_mul(p->batch, p->heads, &rows) &&
           ejki_mul(rows, p->queries, &rows) && ejki_mul(rows, (int64_t)sizeof(float), &rows) &&
           ejki_mul(p->heads, p->sink_count, &rows) && rows <= INT32_MAX;
}

static int64_t count_of(const ejki_merge_problem *p) {
    return p->batch * p->heads * p->queries;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const ejki_merge_vjp_problem *v = problem;
    const ejki_cuda_rows rows = rows_of(v);
    const ejki_cuda_constants constants = {{{"ELEMENT", v->forward.dtype}}, 1};
    EJKI_TRY(ejki_cuda_ready_rows(launch, text, "merge_vjp", constants, &rows));
    if (!v->wants_sinks) return EJK_OK;
    launch->workspace_bytes = (size_t)count_of(&v->forward) * sizeof(float);
    return ejki_cuda_ready_narrow(launch, SINKS, text, "merge_sinks", constants, &rows);
}

static merge_vjp_arguments arguments_of(const ejki_merge_vjp_problem *v, void *workspace) {
    merge_vjp_arguments a = {
        .forward = ejki_merge_arguments(&v->forward),
        .d_out = v->d_out.data,
        .d_out_b = v->d_out.stride_b,
        .d_out_t = v->d_out.stride_t,
        .d_out_h = v->d_out.stride_h,
        .d_lse_b = v->d_lse.stride_b,
        .d_lse_h = v->d_lse.stride_h,
        .d_lse_t = v->d_lse.stride_t,
        .d_part_n = v->d_part.stride_n,
        .d_part_b = v->d_part.stride_b,
        .d_part_t = v->d_part.stride_t,
        .d_part_h = v->d_part.stride_h,
        .d_part_lse_n = v->d_part_lse.stride_n,
        .d_part_lse_b = v->d_part_lse.stride_b,
        .d_part_lse_h = v->d_part_lse.stride_h,
        .d_sink_stride_h = v->d_sink_stride_h,
    };
    if (v->has_lse_cotangent) a.d_lse = (const float *)(const void *)v->d_lse.data;
    if (v->wants_parts) a.d_part = v->d_part.data;
    if (v->wants_lse) a.d_part_lse = (float *)(void *)v->d_part_lse.data;
    if (v->wants_sinks) a.d_sinks = v->d_sinks, a.delta = workspace;
    return a;
}

static ejk_status run(const ejk_run *run) {
    const ejki_merge_vjp_problem *v = run->problem;
    const ejki_merge_problem *p = &v->forward;
    const ejki_cuda_rows rows = rows_of(v);
    merge_vjp_arguments a = arguments_of(v, run->workspace);
    const int64_t size = (int64_t)ejk_dtype_size(p->dtype);
    const ejki_cuda_address all[] = {
        {a.forward.part, size, "the output of the parts"}, /* these four in runs */
        {a.forward.out, size, "out"},
        {a.d_out, size, "the cotangent of out"},
        {a.d_part, size, "d_partial_out"},
        {a.forward.sinks, size, "softmax_aux"},
        {a.d_sinks, size, "d_softmax_aux"},
        {a.forward.lse, 4, "the lse of the parts"},
        {a.forward.merged, 4, "lse"},
        {a.d_lse, 4, "the cotangent of lse"},
        {a.d_part_lse, 4, "d_partial_lse"},
    };
    EJKI_TRY(ejki_cuda_check_addresses(all, sizeof all / sizeof *all));
    EJKI_TRY(ejki_cuda_begin_rows(run, &rows, count_of(p), all, 4, &a));
    if (!v->wants_sinks) return EJK_OK;
    const int64_t own = v->d_sink_stride_h ? ejki_cdiv(p->heads, p->sink_group) : 1;
    return ejki_cuda_begin_row_blocks(run, SINKS, own * p->sink_count, &a);
}

EJKI_DECLARE(attention_merge_vjp_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run)
