/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of attention_merge on GPUs: launches of src/kernels/cuda/merge_vjp.cu. */
#include "operations/attention/merge/merge_cuda.h"

enum { NARROW, WIDE, SINKS }; /* what is prepared */

/* True if every row begins where its first one does, seen in steps of a run. */
static bool can_widen(const ejki_merge_vjp_problem *v) {
    const ejki_merge_problem *p = &v->forward;
    const ejki_merge_parts none = {0}, *d = v->wants_parts ? &v->d_part : &none;
    const int64_t strides[] = {
        p->value_dim,      p->part.stride_n, p->part.stride_b, p->part.stride_t,  p->part.stride_h,
        p->out.stride_b,   p->out.stride_t,  p->out.stride_h,  v->d_out.stride_b, v->d_out.stride_t,
        v->d_out.stride_h, d->stride_n,      d->stride_b,      d->stride_t,       d->stride_h};
    return ejki_merge_divides(ejki_merge_widest(p), strides, sizeof strides / sizeof *strides);
}

static bool applicable(const void *problem) {
    const ejki_merge_problem *p = &((const ejki_merge_vjp_problem *)problem)->forward;
    int64_t rows;
    return p->dtype == p->out_dtype && ejki_mul(p->batch, p->heads, &rows) &&
           ejki_mul(rows, p->queries, &rows) && ejki_mul(rows, (int64_t)sizeof(float), &rows) &&
           ejki_mul(p->heads, p->sink_count, &rows) && rows <= INT32_MAX;
}

static int64_t rows_of(const ejki_merge_problem *p) {
    return p->batch * p->heads * p->queries;
}

static ejk_status compile(const ejki_merge_problem *p, ejk_launch *launch, int32_t place,
                          const char *entry, int64_t vector) {
    const ejki_cuda_constant constants[] = {
        {"TYPE", p->dtype}, {"VECTOR", vector}, {"LANES", ejki_merge_lanes(p, vector)}};
    ejki_cuda_function_t *function;
    EJKI_TRY(ejki_cuda_function(launch->device, ejki_cuda_text("merge_vjp.cu"), entry, constants,
                                sizeof constants / sizeof *constants, &function));
    launch->prepared[place] = function;
    return EJK_OK;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const ejki_merge_vjp_problem *v = problem;
    const ejki_merge_problem *p = &v->forward;
    EJKI_TRY(compile(p, launch, NARROW, "merge_vjp", 1));
    if (can_widen(v)) EJKI_TRY(compile(p, launch, WIDE, "merge_vjp", ejki_merge_widest(p)));
    if (!v->wants_sinks) return EJK_OK;
    launch->workspace_bytes = (size_t)rows_of(p) * sizeof(float);
    return compile(p, launch, SINKS, "merge_sinks", 1);
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

static ejk_status check_alignment(const ejki_merge_problem *p, const merge_vjp_arguments *a) {
    const void *const elements[] = {a->forward.part, a->forward.out, a->forward.sinks,
                                    a->d_out,        a->d_part,      a->d_sinks};
    const void *const floats[] = {a->forward.lse, a->forward.merged, a->d_lse, a->d_part_lse};
    bool good = true;
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
        good = good && ejki_merge_aligned(elements[i], (int64_t)ejk_dtype_size(p->dtype));
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        good = good && ejki_merge_aligned(floats[i], 4);
    if (good) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                     "a tensor of attention_merge_vjp on a GPU begins at an address that is no "
                     "multiple of its element's size, expected one that is");
}

static bool is_wide(const ejk_run *run, const merge_vjp_arguments *a) {
    const void *const rows[] = {a->forward.part, a->forward.out, a->d_out, a->d_part};
    bool wide = run->prepared[WIDE] != NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        wide = wide && ejki_merge_aligned(rows[i], MERGE_RUN_BYTES);
    return wide;
}

static ejk_status begin(const ejk_run *run, int32_t place, int64_t blocks, merge_vjp_arguments *a) {
    void *arguments[] = {a};
    const ejki_cuda_launch how = {.grid = {(uint32_t)ejki_min(blocks, INT32_MAX), 1, 1},
                                  .block = {MERGE_THREADS, 1, 1},
                                  .stream = run->stream};
    return blocks > 0 ? ejki_cuda_run(run->prepared[place], &how, arguments) : EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const ejki_merge_vjp_problem *v = run->problem;
    const ejki_merge_problem *p = &v->forward;
    merge_vjp_arguments a = arguments_of(v, run->workspace);
    EJKI_TRY(check_alignment(p, &a));
    const int32_t form = is_wide(run, &a) ? WIDE : NARROW;
    const int64_t lanes = ejki_merge_lanes(p, form == WIDE ? ejki_merge_widest(p) : 1);
    EJKI_TRY(begin(run, form, ejki_cdiv(rows_of(p), MERGE_THREADS / lanes), &a));
    if (!v->wants_sinks) return EJK_OK;
    const int64_t own = v->d_sink_stride_h ? ejki_cdiv(p->heads, p->sink_group) : 1;
    return begin(run, SINKS, own * p->sink_count, &a);
}

#define CUDA(type, element)                                                                        \
    extern const ejk_implementation ejki_attention_merge_vjp_##type##_cuda;                        \
    const ejk_implementation ejki_attention_merge_vjp_##type##_cuda = {                            \
        .algorithm = "attention_merge_vjp",                                                        \
        .name = #type "/cuda",                                                                     \
        .platform = EJK_PLATFORM_CUDA,                                                             \
        .backend = EJK_BACKEND_GPU,                                                                \
        .dtype = element,                                                                          \
        .version = 1,                                                                              \
        .applicable = applicable,                                                                  \
        .prepare = prepare,                                                                        \
        .run = run,                                                                                \
        .least_capability = 80,                                                                    \
    }

CUDA(f32, EJK_DTYPE_F32);
CUDA(bf16, EJK_DTYPE_BF16);
CUDA(f16, EJK_DTYPE_F16);
