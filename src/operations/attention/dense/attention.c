/* SPDX-License-Identifier: Apache-2.0 */
/* Dense attention: flash attention, and then the weights where they are asked for (docs/adr/0009). */
#include <ejkernel/attention.h>

#include "kernels/declare.h"
#include "operations/attention/shared/attention_symbols.h"
#include "base/base.h"
#include "operations/attention/dense/problem.h"
#include "operations/attention/flash/vjp_problem.h"
#include "operations/attention/dense/dense_steps.h"

#define EJK_RECORD_SELF ejk_attention_config
EJK_RECORD_DEFINE(ejk_attention_config_record, ejk_attention_config, EJK_ATTENTION_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_attention_args
EJK_RECORD_DEFINE_WITH(ejk_attention_args_record, ejk_attention_args, EJK_ATTENTION_ARGS,
                       "B=1,Hq,Hkv=Hq,T,S=T,D,Dv=D,n=1", EJKI_ATTENTION_TOKENS_FIRST);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_attention_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_attention_vjp_args_record, ejk_attention_vjp_args,
                       EJK_ATTENTION_VJP_ARGS, "B=1,Hq,Hkv=Hq,T,S=T,D,Dv=D,n=1",
                       EJKI_ATTENTION_TOKENS_FIRST);
#undef EJK_RECORD_SELF

/* Flash attention's arguments, from either struct; dropout_prob is checked even where it does not count. */
#define FLASH_INPUTS(to, from)                                                                     \
    (EJKI_DENSE_SHARED(to, from), (to)->softmax_aux = (from)->softmax_aux,                         \
     (to)->logits_soft_cap = (from)->logits_soft_cap, (to)->dropout_prob = (from)->dropout_prob,   \
     (to)->dropout_seed = (from)->dropout_seed, (to)->logits_dtype = EJK_DTYPE_UNSET)

static ejk_status check_types(ejk_dtype query, ejk_dtype dtype, ejk_dtype softmax) {
    if (dtype != EJK_DTYPE_UNSET && dtype != query)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "dtype is %s, only %s, that of query, is in this version",
                         ejk_dtype_name(dtype), ejk_dtype_name(query));
    if (softmax == EJK_DTYPE_UNSET || softmax == EJK_DTYPE_F32) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNAVAILABLE, "softmax_dtype is %s, only float32 is in this version",
                     ejk_dtype_name(softmax));
}

static ejk_status prepare(const void *arguments, const ejk_axes *axes, void *problem) {
    const ejk_attention_args *args = arguments;
    ejki_attention_problem *p = problem;
    ejk_flash_attention_args flash = {.row_max = {0}};
    FLASH_INPUTS(&flash, args);
    EJKI_TRY(check_types(args->query.dtype, args->dtype, args->softmax_dtype));
    if (args->return_weights == EJK_TRUE && !ejk_tensor_present(&args->weights))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "return_weights is true, but weights is not given");
    EJKI_TRY(ejk_flash_attention_kernel.prepare(&flash, axes, &p->flash));
    if (args->deterministic != EJK_FALSE) p->flash.dropout = 0;
    p->wants_weights = ejk_tensor_present(&args->weights) && args->return_weights != EJK_FALSE;
    p->weights.stride_b = args->weights.strides[0];
    p->weights.stride_h = args->weights.strides[1];
    p->weights.stride_t = args->weights.strides[2];
    return EJK_OK;
}

static inline void *pointer(const ejk_tensor *tensor) {
    return tensor->dtype == EJK_DTYPE_UNSET ? NULL : tensor->data;
}

static void bind(const void *arguments, void *problem) {
    const ejk_attention_args *args = arguments;
    ejki_attention_problem *p = problem;
    ejk_flash_attention_args flash = {.row_max = {0}};
    FLASH_INPUTS(&flash, args);
    ejk_flash_attention_kernel.bind(&flash, &p->flash);
    p->weights.data = pointer(&args->weights);
}

static ejk_status inputs(void *arguments, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_attention_args *args = arguments;
    ejk_flash_attention_args flash = {.causal = false};
    FLASH_INPUTS(&flash, args);
    return ejki_flash_inputs(&flash, axes, how);
}

static bool wants_weights(const void *problem) {
    return ((const ejki_attention_problem *)problem)->wants_weights;
}

static const ejk_step steps[] = {
    {"flash_attention", "out and lse", NULL},
    {"attention_weights", "the weights, from the scores once more", wants_weights},
};

static void heuristic_cfg(const ejk_invocation *invocation, void *config) {
    ejki_dense_fwd_params(invocation, &((ejk_attention_config *)config)->fwd_params);
}

static ejk_status candidate_cfgs(const ejk_invocation *invocation, void *configs, int32_t capacity,
                                 int32_t *count) {
    return ejki_dense_candidates(invocation, configs, sizeof(ejk_attention_config),
                                 offsetof(ejk_attention_config, fwd_params),
                                 offsetof(ejk_attention_config, bwd_params), capacity, count);
}

/* The weights take the first product again, and are written once. */
static void cost(const void *problem, const void *args, ejk_cost *out) {
    const ejki_attention_problem *p = problem;
    const ejki_flash_problem *f = &p->flash;
    ejki_flash_cost(f, args, out);
    if (!p->wants_weights) return;
    const double d = (double)f->head_dim, dv = (double)f->value_dim;
    if (d + dv > 0) out->flops *= (2 * d + dv) / (d + dv);
    out->bytes += (double)f->batch * (double)f->query_heads * (double)f->queries * (double)f->keys *
                  (double)ejk_dtype_size(f->dtype);
}

const ejk_kernel ejk_attention_kernel = {
    .op_id = "attention",
    .version = "0",
    .doc = "dense attention, whose weights can be had",
    .args = &ejk_attention_args_record,
    .config = &ejk_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "fwd_params",
    .problem_size = sizeof(ejki_attention_problem),
    .prepare = prepare,
    .bind = bind,
    .inputs = inputs,
    .input_options = ejki_flash_input_options,
    .input_option_count = 1,
    .heuristic_cfg = heuristic_cfg,
    .cost = cost,
    .candidate_cfgs = candidate_cfgs,
    .steps = steps,
    .step_count = sizeof steps / sizeof *steps,
};

/* ---- Gradients -------------------------------------------------------------------------------------- */

static ejk_flash_attention_vjp_args flash_vjp(const ejk_attention_vjp_args *args) {
    ejk_flash_attention_vjp_args flash = {.causal = false};
    FLASH_INPUTS(&flash, args);
    EJKI_DENSE_SHARED_VJP(&flash, args);
    flash.d_softmax_aux = args->d_softmax_aux;
    flash.deterministic = args->deterministic;
    return flash;
}

static ejk_status prepare_vjp(const void *arguments, const ejk_axes *axes, void *problem) {
    const ejk_attention_vjp_args *args = arguments;
    if (ejk_tensor_present(&args->d_weights))
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "d_weights is given, but gradients through the weights are not in this "
                         "version: derive by out");
    EJKI_TRY(check_types(args->query.dtype, args->dtype, args->softmax_dtype));
    ejk_flash_attention_vjp_args flash = flash_vjp(args);
    EJKI_TRY(ejk_flash_attention_vjp_kernel.prepare(&flash, axes, problem));
    if (args->deterministic != EJK_FALSE) ((ejki_flash_vjp_problem *)problem)->forward.dropout = 0;
    return EJK_OK;
}

static void bind_vjp(const void *arguments, void *problem) {
    const ejk_flash_attention_vjp_args flash = flash_vjp(arguments);
    ejk_flash_attention_vjp_kernel.bind(&flash, problem);
}

static ejk_status inputs_vjp(void *arguments, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_attention_vjp_args *args = arguments;
    ejk_flash_attention_args flash = {.causal = false};
    FLASH_INPUTS(&flash, args);
    return ejki_flash_inputs(&flash, axes, how);
}

static void cost_vjp(const void *problem, const void *args, ejk_cost *out) {
    ejk_flash_attention_vjp_kernel.cost(problem, args, out);
}

const ejk_kernel ejk_attention_vjp_kernel = {
    .op_id = "attention_vjp",
    .version = "0",
    .doc = "gradients of attention",
    .args = &ejk_attention_vjp_args_record,
    .config = &ejk_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "bwd_params",
    .problem_size = sizeof(ejki_flash_vjp_problem),
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .inputs = inputs_vjp,
    .input_options = ejki_flash_input_options,
    .input_option_count = 1,
    .candidate_cfgs = candidate_cfgs,
    .cost = cost_vjp,
    .forward = &ejk_attention_kernel,
    .algorithm = "flash_attention_vjp",
};

/* ---- Calls ------------------------------------------------------------------------------------------ */

EJKI_DEFINE_CALL(attention)

ejk_status ejk_attention_fwd(ejk_context *context, const ejk_attention_args *args) {
    if (args) EJKI_TRY(ejki_dense_check_residuals(&args->lse));
    return ejk_call(context, &ejk_attention_kernel, args);
}

EJKI_DEFINE_CALL(attention_vjp)

ejk_status ejk_attention_set_mask_info(ejk_attention_args *args, const ejk_mask_info *info) {
    EJKI_DENSE_SET_MASK_INFO(args, info);
}

ejk_status ejk_attention_vjp_set_mask_info(ejk_attention_vjp_args *args,
                                           const ejk_mask_info *info) {
    EJKI_DENSE_SET_MASK_INFO(args, info);
}

ejk_status ejk_attention_masked(ejk_context *context, const ejk_attention_args *args,
                                const ejk_mask_info *info) {
    if (!args) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "args is NULL");
    ejk_attention_args masked = *args;
    if (info) EJKI_TRY(ejk_attention_set_mask_info(&masked, info));
    return ejk_attention(context, &masked);
}
