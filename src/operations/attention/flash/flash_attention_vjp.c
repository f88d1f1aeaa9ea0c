/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of flash attention: an operation whose problem holds that of the call. */
#include "kernels/declare.h"
#include "operations/attention/flash/flash_attention_steps.h"
#include "operations/attention/shared/attention_symbols.h"

#include "base/base.h"
#include "operations/attention/flash/vjp_problem.h"

#include <string.h>

#define EJK_RECORD_SELF ejk_flash_attention_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_flash_attention_vjp_args_record, ejk_flash_attention_vjp_args,
                       EJK_FLASH_ATTENTION_VJP_ARGS, "B=1!N,Hq,Hkv=Hq,T,S=T,D,Dv=D,N,n=1",
                       EJKI_ATTENTION_TOKENS_FIRST);
#undef EJK_RECORD_SELF

/* Both structs begin with the same inputs. */
_Static_assert(offsetof(ejk_flash_attention_args, out) ==
                   offsetof(ejk_flash_attention_vjp_args, out),
               "the inputs come first");

/* So that a check of the forward problem serves both. */
_Static_assert(offsetof(ejki_flash_vjp_problem, forward) == 0, "the forward problem comes first");

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

/* Cotangents and gradients have a batch axis if the inputs have one. */
static ejk_status check_ranks(const ejk_flash_attention_vjp_args *args) {
    const struct {
        const ejk_tensor *tensor;
        const char *name;
        int32_t axes; /* besides that of the batch */
    } all[] = {
        {&args->d_out, "d_out", 3}, {&args->d_lse, "d_lse", 2},     {&args->d_query, "d_query", 3},
        {&args->d_key, "d_key", 3}, {&args->d_value, "d_value", 3},
    };
    const int32_t batch = args->query.rank - 3;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (ejk_tensor_present(all[i].tensor) && all[i].tensor->rank != all[i].axes + batch)
            return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                             "%s has rank %d, expected %d beside query's %d", all[i].name,
                             (int)all[i].tensor->rank, (int)(all[i].axes + batch),
                             (int)args->query.rank);
    return EJK_OK;
}

static ejk_status check(const ejk_flash_attention_vjp_args *args) {
    if (args->normalize_output == EJK_FALSE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "normalize_output is false, expected true: there are no gradients of an "
                         "accumulator");
    EJKI_TRY(check_ranks(args));
    EJKI_TRY(check_gradient(&args->d_bias, "d_bias", &args->bias, "bias"));
    return check_gradient(&args->d_softmax_aux, "d_softmax_aux", &args->softmax_aux, "softmax_aux");
}

/* Without a batch axis tokens of packed sequences lie one after the other. */
static ejki_bthd bthd(const ejk_tensor *t) {
    if (t->rank == 3) return (ejki_bthd){NULL, 0, t->strides[0], t->strides[1]};
    return (ejki_bthd){NULL, t->strides[0], t->strides[1], t->strides[2]};
}

static ejki_bht bht(const ejk_tensor *t) {
    if (t->rank == 2) return (ejki_bht){NULL, 0, t->strides[0], 1};
    return (ejki_bht){NULL, t->strides[0], t->strides[1], 1};
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
        .unordered = args->deterministic == EJK_FALSE,
        .out_cotangent = bthd(&args->d_out),
        .lse_cotangent = bht(&args->d_lse),
        .d_query = bthd(&args->d_query),
        .d_key = bthd(&args->d_key),
        .d_value = bthd(&args->d_value),
        .d_bias = {NULL, stride(&args->d_bias, 0), stride(&args->d_bias, 1),
                   stride(&args->d_bias, 2)},
        .d_sink_stride_h = args->d_softmax_aux.rank == 2 ? stride(&args->d_softmax_aux, 0) : 0,
    };
    ejki_flash_problem_of(&forward, axes, &v->forward);
    v->forward.lse = bht(&args->lse);
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

static ejk_status inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_flash_attention_args forward = forward_args(args);
    return ejki_flash_inputs(&forward, axes, how);
}

/* Five products for the forward pass' two; inputs and results once. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    const ejki_flash_vjp_problem *v = problem;
    ejk_cost forward;
    ejki_flash_cost(&v->forward, args, &forward);
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
    .validate = ejki_flash_validate,
    .inputs = inputs,
    .input_options = ejki_flash_input_options,
    .input_option_count = 1,
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

EJKI_DEFINE_CALL(flash_attention_vjp)
