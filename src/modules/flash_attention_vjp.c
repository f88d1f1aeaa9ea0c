/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of flash attention: an operation whose problem holds that of the call. */
#include "modules/flash_attention_steps.h"

#include "base/base.h"
#include "kernels/flash_attention/vjp_problem.h"

#include <string.h>

#define EJK_RECORD_SELF ejk_flash_attention_vjp_args
EJK_RECORD_DEFINE(ejk_flash_attention_vjp_args_record, ejk_flash_attention_vjp_args,
                  EJK_FLASH_ATTENTION_VJP_ARGS);
#undef EJK_RECORD_SELF

/* Both structs begin with the same inputs. */
_Static_assert(offsetof(ejk_flash_attention_args, out) ==
                   offsetof(ejk_flash_attention_vjp_args, out),
               "the inputs come first");

static ejk_flash_attention_args forward_args(const ejk_flash_attention_vjp_args *args) {
    ejk_flash_attention_args forward = {.row_max = {0}};
    memcpy(&forward, args, offsetof(ejk_flash_attention_args, out));
    forward.out = args->out;
    forward.lse = args->lse;
    return forward;
}

/* A gradient of a tensor that may have several shapes. */
static ejk_status check_gradient(const ejk_tensor *gradient, const char *name,
                                 const ejk_tensor *tensor, const char *of) {
    if (!ejk_tensor_present(gradient)) return EJK_OK;
    if (!ejk_tensor_present(tensor))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is given without %s", name, of);
    if (gradient->rank == tensor->rank &&
        memcmp(gradient->shape, tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape) == 0)
        return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has another shape than %s, expected the same",
                     name, of);
}

static ejk_status check(const ejk_flash_attention_vjp_args *args) {
    if (ejk_tensor_present(&args->cum_seqlens_q) || ejk_tensor_present(&args->cum_seqlens_k))
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "%s is given, but gradients of packed sequences are not in this version",
                         ejk_tensor_present(&args->cum_seqlens_q) ? "cum_seqlens_q"
                                                                  : "cum_seqlens_k");
    if (args->normalize_output == EJK_FALSE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "normalize_output is false, expected true: there are no gradients of an "
                         "accumulator");
    EJKI_TRY(check_gradient(&args->d_bias, "d_bias", &args->bias, "bias"));
    return check_gradient(&args->d_softmax_aux, "d_softmax_aux", &args->softmax_aux, "softmax_aux");
}

static ejki_bthd bthd(const ejk_tensor *t) {
    return (ejki_bthd){NULL, t->strides[0], t->strides[1], t->strides[2]};
}

/* The step of an axis: 0 where it was summed over. */
static int64_t stride(const ejk_tensor *t, int32_t axis) {
    return t->shape[axis] == 1 ? 0 : t->strides[axis];
}

static ejk_status prepare(const void *arguments, const ejk_axes *axes, void *problem) {
    const ejk_flash_attention_vjp_args *args = arguments;
    ejki_flash_vjp_problem *v = problem;
    const ejk_flash_attention_args forward = forward_args(args);
    EJKI_TRY(check(args));
    EJKI_TRY(ejki_flash_check(&forward, axes));
    *v = (ejki_flash_vjp_problem){
        .wants_query = ejk_tensor_present(&args->d_query),
        .wants_key = ejk_tensor_present(&args->d_key),
        .wants_value = ejk_tensor_present(&args->d_value),
        .wants_bias = ejk_tensor_present(&args->d_bias),
        .wants_sinks = ejk_tensor_present(&args->d_softmax_aux),
        .has_lse_cotangent = ejk_tensor_present(&args->d_lse),
        .out_cotangent = bthd(&args->d_out),
        .lse_cotangent = {NULL, args->d_lse.strides[0], args->d_lse.strides[1], 1},
        .d_query = bthd(&args->d_query),
        .d_key = bthd(&args->d_key),
        .d_value = bthd(&args->d_value),
        .d_bias = {NULL, stride(&args->d_bias, 0), stride(&args->d_bias, 1),
                   stride(&args->d_bias, 2)},
        .d_sink_stride_h = args->d_softmax_aux.rank == 2 ? stride(&args->d_softmax_aux, 0) : 0,
    };
    ejki_flash_problem_of(&forward, axes, &v->forward);
    v->forward.lse = (ejki_bht){NULL, args->lse.strides[0], args->lse.strides[1], 1};
    return EJK_OK;
}

static inline void *pointer(const ejk_tensor *tensor) {
    return tensor->dtype == EJK_DTYPE_UNSET ? NULL : tensor->data;
}

static void bind(const void *arguments, void *problem) {
    const ejk_flash_attention_vjp_args *args = arguments;
    ejki_flash_vjp_problem *v = problem;
    const ejk_flash_attention_args forward = forward_args(args);
    ejki_flash_bind(&forward, &v->forward);
    v->out_cotangent.data = args->d_out.data;
    v->lse_cotangent.data = pointer(&args->d_lse);
    v->d_query.data = pointer(&args->d_query);
    v->d_key.data = pointer(&args->d_key);
    v->d_value.data = pointer(&args->d_value);
    v->d_bias.data = pointer(&args->d_bias);
    v->d_sinks = pointer(&args->d_softmax_aux);
}

/* Five products for the forward pass' two; inputs and results once. */
static void cost(const void *problem, ejk_cost *out) {
    const ejki_flash_vjp_problem *v = problem;
    ejk_cost forward;
    ejki_flash_cost(&v->forward, &forward);
    const double d = (double)v->forward.head_dim, dv = (double)v->forward.value_dim;
    *out = (ejk_cost){.flops = d + dv > 0 ? forward.flops * (3 * d + 2 * dv) / (d + dv) : 0,
                      .bytes = 2 * forward.bytes};
}

const ejk_kernel ejk_flash_attention_vjp_kernel = {
    .op_id = "flash_attention_vjp",
    .version = "0",
    .doc = "gradients of flash_attention",
    .args = &ejk_flash_attention_vjp_args_record,
    .config = &ejk_flash_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "bwd_params",
    .problem_size = sizeof(ejki_flash_vjp_problem),
    .prepare = prepare,
    .bind = bind,
    .heuristic_cfg = ejki_flash_vjp_heuristic_cfg,
    .candidate_cfgs = ejki_flash_vjp_candidate_cfgs,
    .cost = cost,
    .forward = &ejk_flash_attention_kernel,
};

ejk_status ejk_flash_attention_fwd(ejk_context *context, const ejk_flash_attention_args *args) {
    if (args && !ejk_tensor_present(&args->lse))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "lse is not given, expected it: the gradients need it");
    if (args && args->normalize_output == EJK_FALSE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "normalize_output is false, expected true: there are no gradients of an "
                         "accumulator");
    return ejk_call(context, &ejk_flash_attention_kernel, args);
}

ejk_status ejk_flash_attention_vjp(ejk_context *context, const ejk_flash_attention_vjp_args *args) {
    return ejk_call(context, &ejk_flash_attention_vjp_kernel, args);
}
