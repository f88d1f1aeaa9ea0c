/* SPDX-License-Identifier: Apache-2.0 */
/* attention_merge on GPUs: launches of src/kernels/cuda/merge.cu. */
#include "operations/attention/merge/merge_cuda.h"

int64_t ejki_merge_lanes(const ejki_merge_problem *p, int64_t vector) {
    int64_t count = 1;
    while (count < MERGE_MOST_LANES && count * vector < p->value_dim) count *= 2;
    return count;
}

bool ejki_merge_divides(int64_t vector, const int64_t *strides, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (strides[i] % vector) return false;
    return true;
}

/* True if every row begins where its first one does, seen in steps of a run. */
static bool can_widen(const ejki_merge_problem *p) {
    const int64_t strides[] = {p->value_dim,     p->part.stride_n, p->part.stride_b,
                               p->part.stride_t, p->part.stride_h, p->out.stride_b,
                               p->out.stride_t,  p->out.stride_h};
    return ejki_merge_divides(ejki_merge_widest(p), strides, sizeof strides / sizeof *strides);
}

static bool applicable(const void *problem) {
    const ejki_merge_problem *p = problem;
    int64_t rows;
    return p->out_dtype != EJK_DTYPE_F64 && ejki_mul(p->batch, p->heads, &rows) &&
           ejki_mul(rows, p->queries, &rows);
}

static ejk_status compile(const ejki_merge_problem *p, int32_t device, int64_t vector, void **out) {
    const ejki_cuda_constant constants[] = {{"TYPE", p->dtype},
                                            {"OUT", p->out_dtype},
                                            {"VECTOR", vector},
                                            {"LANES", ejki_merge_lanes(p, vector)}};
    ejki_cuda_function_t *function;
    EJKI_TRY(ejki_cuda_function(device, ejki_cuda_text("merge.cu"), "merge", constants,
                                sizeof constants / sizeof *constants, &function));
    *out = function;
    return EJK_OK;
}

/* Pointers may turn out not to be aligned, so that the narrow form is needed in any case. */
static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const ejki_merge_problem *p = problem;
    EJKI_TRY(compile(p, launch->device, 1, &launch->prepared[0]));
    return can_widen(p) ? compile(p, launch->device, ejki_merge_widest(p), &launch->prepared[1])
                        : EJK_OK;
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

static ejk_status check_alignment(const ejki_merge_problem *p) {
    const int64_t size = (int64_t)ejk_dtype_size(p->dtype),
                  out_size = (int64_t)ejk_dtype_size(p->out_dtype);
    if (ejki_merge_aligned(p->part.data, size) && ejki_merge_aligned(p->out.data, out_size) &&
        ejki_merge_aligned(p->sinks, size) && ejki_merge_aligned(p->lse.data, 4) &&
        ejki_merge_aligned(p->sums.data, 4) && ejki_merge_aligned(p->merged_lse.data, 4))
        return EJK_OK;
    return ejki_fail(
        EJK_STATUS_INVALID_LAYOUT,
        "a tensor of attention_merge on a GPU begins at an address that is no multiple "
        "of its element's size, expected one that is");
}

static ejk_status run(const ejk_run *run) {
    const ejki_merge_problem *p = run->problem;
    const int64_t rows = p->batch * p->heads * p->queries;
    if (rows == 0) return EJK_OK;
    EJKI_TRY(check_alignment(p));
    const int64_t out_run = ejki_merge_widest(p) * (int64_t)ejk_dtype_size(p->out_dtype);
    const bool wide = run->prepared[1] && ejki_merge_aligned(p->part.data, MERGE_RUN_BYTES) &&
                      ejki_merge_aligned(p->out.data, out_run);
    const int64_t in_block = MERGE_THREADS / ejki_merge_lanes(p, wide ? ejki_merge_widest(p) : 1);
    merge_arguments given = ejki_merge_arguments(p);
    void *arguments[] = {&given};
    const ejki_cuda_launch how = {
        .grid = {(uint32_t)ejki_min(ejki_cdiv(rows, in_block), INT32_MAX), 1, 1},
        .block = {MERGE_THREADS, 1, 1},
        .stream = run->stream};
    return ejki_cuda_run(run->prepared[wide], &how, arguments);
}

#define CUDA(type, element)                                                                        \
    extern const ejk_implementation ejki_attention_merge_##type##_cuda;                            \
    const ejk_implementation ejki_attention_merge_##type##_cuda = {.algorithm = "attention_merge", \
                                                                   .name = #type "/cuda",          \
                                                                   .platform = EJK_PLATFORM_CUDA,  \
                                                                   .backend = EJK_BACKEND_GPU,     \
                                                                   .dtype = element,               \
                                                                   .version = 1,                   \
                                                                   .applicable = applicable,       \
                                                                   .prepare = prepare,             \
                                                                   .run = run,                     \
                                                                   .least_capability = 80}

CUDA(f32, EJK_DTYPE_F32);
CUDA(bf16, EJK_DTYPE_BF16);
CUDA(f16, EJK_DTYPE_F16);
