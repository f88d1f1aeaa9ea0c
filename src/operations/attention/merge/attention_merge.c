/* SPDX-License-Identifier: Apache-2.0 */
/* Partial results of attention merged, in two forms, and the gradients of the first. */
#include <ejkernel/attention_merge.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/attention/merge/problem.h"

#include <string.h>

#define EJK_RECORD_SELF ejk_attention_merge_config
EJK_RECORD_DEFINE(ejk_attention_merge_config_record, ejk_attention_merge_config,
                  EJK_ATTENTION_MERGE_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_attention_merge_args
EJK_RECORD_DEFINE_WITH(ejk_attention_merge_args_record, ejk_attention_merge_args,
                       EJK_ATTENTION_MERGE_ARGS, "B=1,Hq,Hkv=Hq,T,Dv,N,n=1",
                       "bthd|bhtd b=B t=T h=Hq d=Dv");
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_attention_merge_accumulators_args
EJK_RECORD_DEFINE_WITH(ejk_attention_merge_accumulators_args_record,
                       ejk_attention_merge_accumulators_args, EJK_ATTENTION_MERGE_ACCUMULATORS_ARGS,
                       "B=1,Hq,Hkv=Hq,T,Dv,N,n=1", "bthd|bhtd b=B t=T h=Hq d=Dv");
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_attention_merge_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_attention_merge_vjp_args_record, ejk_attention_merge_vjp_args,
                       EJK_ATTENTION_MERGE_VJP_ARGS, "B=1,Hq,Hkv=Hq,T,Dv,N,n=1",
                       "bthd|bhtd b=B t=T h=Hq d=Dv");
#undef EJK_RECORD_SELF

/* ---- What the forms share --------------------------------------------------------------------------- */

/* The step of an axis: 0 where one element serves all. */
static int64_t stride(const ejk_tensor *t, int32_t axis) {
    return t->shape[axis] == 1 ? 0 : t->strides[axis];
}

static ejki_merge_parts parts(const ejk_tensor *t) {
    return (ejki_merge_parts){NULL, t->strides[0], t->strides[1], t->strides[2], t->strides[3]};
}

static ejki_merge_rows rows(const ejk_tensor *t) {
    return (ejki_merge_rows){NULL, t->strides[0], t->strides[1], t->strides[2]};
}

static ejki_bthd bthd(const ejk_tensor *t) {
    return (ejki_bthd){NULL, t->strides[0], t->strides[1], t->strides[2]};
}

static ejki_bht bht(const ejk_tensor *t) {
    return (ejki_bht){NULL, t->strides[0], t->strides[1], 1};
}

/* Heads of rank 2 sinks may be any part of the heads, as those of keys are. */
static ejk_status resolve_sinks(const ejk_tensor *sinks, ejki_merge_problem *p) {
    p->sink_group = 1;
    if (!ejk_tensor_present(sinks)) return EJK_OK;
    p->sink_count = sinks->shape[sinks->rank - 1];
    p->has_sinks = p->sink_count > 0;
    if (sinks->rank == 1) return EJK_OK;
    const int64_t heads = sinks->shape[0];
    if (heads ? p->heads % heads != 0 : p->heads != 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "softmax_aux has %lld heads, expected a divisor of the %lld heads",
                         (long long)heads, (long long)p->heads);
    p->sink_stride_h = stride(sinks, 0);
    p->sink_group = heads ? p->heads / heads : 1;
    return EJK_OK;
}

static ejk_status resolve(const ejk_axes *axes, const ejk_tensor *part, const ejk_tensor *lse,
                          const ejk_tensor *sinks, ejki_merge_problem *p) {
    *p = (ejki_merge_problem){.parts = ejk_axes_get(axes, "N"),
                              .batch = ejk_axes_get(axes, "B"),
                              .queries = ejk_axes_get(axes, "T"),
                              .heads = ejk_axes_get(axes, "Hq"),
                              .value_dim = ejk_axes_get(axes, "Dv"),
                              .dtype = part->dtype,
                              .part = parts(part),
                              .lse = rows(lse)};
    return resolve_sinks(sinks, p);
}

static inline void *pointer(const ejk_tensor *tensor) {
    return tensor->dtype == EJK_DTYPE_UNSET ? NULL : tensor->data;
}

/* Parts are read and the result is written once. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const ejki_merge_problem *p = problem;
    const double rows = (double)p->batch * (double)p->queries * (double)p->heads,
                 n = (double)p->parts, dv = (double)p->value_dim;
    out->flops = 2 * rows * n * dv;
    out->bytes =
        rows * (n * (dv * (double)ejk_dtype_size(p->dtype) + (p->has_sums ? 8 : 4)) +
                dv * (double)ejk_dtype_size(p->out_dtype) + (p->merged_lse.stride_t ? 4 : 0));
}

/* ---- Parts with their logarithms -------------------------------------------------------------------- */

static ejk_status prepare(const void *arguments, const ejk_axes *axes, void *problem) {
    const ejk_attention_merge_args *args = arguments;
    ejki_merge_problem *p = problem;
    EJKI_TRY(resolve(axes, &args->partial_out, &args->partial_lse, &args->softmax_aux, p));
    p->out_dtype = args->out.dtype;
    p->out = bthd(&args->out);
    if (ejk_tensor_present(&args->lse)) p->merged_lse = bht(&args->lse);
    return EJK_OK;
}

static void bind(const void *arguments, void *problem) {
    const ejk_attention_merge_args *args = arguments;
    ejki_merge_problem *p = problem;
    p->part.data = args->partial_out.data;
    p->lse.data = args->partial_lse.data;
    p->sinks = pointer(&args->softmax_aux);
    p->out.data = args->out.data;
    p->merged_lse.data = pointer(&args->lse);
}

const ejk_kernel ejk_attention_merge_kernel = {
    .op_id = "attention_merge",
    .version = "0",
    .doc = "partial results of attention merged by their log-sum-exp",
    .args = &ejk_attention_merge_args_record,
    .config = &ejk_attention_merge_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(ejki_merge_problem),
    .prepare = prepare,
    .bind = bind,
    .cost = cost,
};

/* ---- Parts that are not normalised ------------------------------------------------------------------ */

static ejk_status prepare_sums(const void *arguments, const ejk_axes *axes, void *problem) {
    const ejk_attention_merge_accumulators_args *args = arguments;
    ejki_merge_problem *p = problem;
    EJKI_TRY(resolve(axes, &args->accumulator, &args->row_max, &args->softmax_aux, p));
    p->has_sums = true;
    p->sums = rows(&args->row_sum);
    p->out_dtype = args->out.dtype;
    p->out = bthd(&args->out);
    if (ejk_tensor_present(&args->lse)) p->merged_lse = bht(&args->lse);
    return EJK_OK;
}

static void bind_sums(const void *arguments, void *problem) {
    const ejk_attention_merge_accumulators_args *args = arguments;
    ejki_merge_problem *p = problem;
    p->part.data = args->accumulator.data;
    p->lse.data = args->row_max.data;
    p->sums.data = args->row_sum.data;
    p->sinks = pointer(&args->softmax_aux);
    p->out.data = args->out.data;
    p->merged_lse.data = pointer(&args->lse);
}

const ejk_kernel ejk_attention_merge_accumulators_kernel = {
    .op_id = "attention_merge_accumulators",
    .version = "0",
    .doc = "attention_merge of accumulators with their row_max and row_sum",
    .args = &ejk_attention_merge_accumulators_args_record,
    .config = &ejk_attention_merge_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(ejki_merge_problem),
    .prepare = prepare_sums,
    .bind = bind_sums,
    .cost = cost,
    .algorithm = "attention_merge",
};

/* ---- Gradients -------------------------------------------------------------------------------------- */

static ejk_status check_sink_gradient(const ejk_tensor *gradient, const ejk_tensor *sinks) {
    if (!ejk_tensor_present(gradient)) return EJK_OK;
    if (!ejk_tensor_present(sinks))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "d_softmax_aux is given without softmax_aux");
    if (gradient->rank == sinks->rank &&
        memcmp(gradient->shape, sinks->shape, (size_t)sinks->rank * sizeof *sinks->shape) == 0)
        return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "d_softmax_aux has another shape than softmax_aux, expected the same");
}

static ejk_status prepare_vjp(const void *arguments, const ejk_axes *axes, void *problem) {
    const ejk_attention_merge_vjp_args *args = arguments;
    ejki_merge_vjp_problem *v = problem;
    EJKI_TRY(check_sink_gradient(&args->d_softmax_aux, &args->softmax_aux));
    const bool per_head = ejk_tensor_present(&args->d_softmax_aux) &&
                          args->d_softmax_aux.rank == 2 && args->d_softmax_aux.shape[0] > 1;
    *v = (ejki_merge_vjp_problem){
        .wants_parts = ejk_tensor_present(&args->d_partial_out),
        .wants_lse = ejk_tensor_present(&args->d_partial_lse),
        .wants_sinks = ejk_tensor_present(&args->d_softmax_aux),
        .has_lse_cotangent = ejk_tensor_present(&args->d_lse),
        .d_out = bthd(&args->d_out),
        .d_lse = bht(&args->d_lse),
        .d_part = parts(&args->d_partial_out),
        .d_part_lse = rows(&args->d_partial_lse),
        .d_sink_stride_h = per_head ? args->d_softmax_aux.strides[0] : 0,
    };
    ejki_merge_problem *p = &v->forward;
    EJKI_TRY(resolve(axes, &args->partial_out, &args->partial_lse, &args->softmax_aux, p));
    p->out_dtype = args->out.dtype;
    p->out = bthd(&args->out);
    p->merged_lse = bht(&args->lse);
    return EJK_OK;
}

static void bind_vjp(const void *arguments, void *problem) {
    const ejk_attention_merge_vjp_args *args = arguments;
    ejki_merge_vjp_problem *v = problem;
    v->forward.part.data = args->partial_out.data;
    v->forward.lse.data = args->partial_lse.data;
    v->forward.sinks = pointer(&args->softmax_aux);
    v->forward.out.data = args->out.data;
    v->forward.merged_lse.data = args->lse.data;
    v->d_out.data = args->d_out.data;
    v->d_lse.data = pointer(&args->d_lse);
    v->d_part.data = pointer(&args->d_partial_out);
    v->d_part_lse.data = pointer(&args->d_partial_lse);
    v->d_sinks = pointer(&args->d_softmax_aux);
}

/* Parts are read, their gradients written. */
static void cost_vjp(const void *problem, const void *args, ejk_cost *out) {
    const ejki_merge_vjp_problem *v = problem;
    cost(&v->forward, args, out);
    out->flops *= 2;
    out->bytes *= 2;
}

const ejk_kernel ejk_attention_merge_vjp_kernel = {
    .op_id = "attention_merge_vjp",
    .version = "0",
    .doc = "gradients of attention_merge",
    .args = &ejk_attention_merge_vjp_args_record,
    .config = &ejk_attention_merge_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(ejki_merge_vjp_problem),
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .cost = cost_vjp,
    .forward = &ejk_attention_merge_kernel,
};

/* ---- Calls ------------------------------------------------------------------------------------------ */

EJKI_DEFINE_CALL(attention_merge)
EJKI_DEFINE_CALL(attention_merge_accumulators)

ejk_status ejk_attention_merge_fwd(ejk_context *context, const ejk_attention_merge_args *args) {
    if (args && !ejk_tensor_present(&args->lse))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "lse is not given, expected it: the gradients need it");
    return ejk_call(context, &ejk_attention_merge_kernel, args);
}

EJKI_DEFINE_CALL(attention_merge_vjp)
