/* SPDX-License-Identifier: Apache-2.0 */
/* Flash attention under a shorter list of arguments. */
#include <ejkernel/scaled_dot_product_attention.h>

#include "kernels/declare.h"
#include "operations/attention/shared/attention_symbols.h"
#include "base/base.h"
#include "operations/attention/flash/vjp_problem.h"
#include "operations/attention/dense/dense_steps.h"

#define EJK_RECORD_SELF ejk_scaled_dot_product_attention_config
EJK_RECORD_DEFINE(ejk_scaled_dot_product_attention_config_record,
                  ejk_scaled_dot_product_attention_config, EJK_SCALED_DOT_PRODUCT_ATTENTION_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_scaled_dot_product_attention_args
EJK_RECORD_DEFINE_WITH(ejk_scaled_dot_product_attention_args_record,
                       ejk_scaled_dot_product_attention_args, EJK_SCALED_DOT_PRODUCT_ATTENTION_ARGS,
                       "B=1!N,Hq,Hkv=Hq,T,S=T,D,Dv=D,N", EJKI_ATTENTION_TOKENS_FIRST);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_scaled_dot_product_attention_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_scaled_dot_product_attention_vjp_args_record,
                       ejk_scaled_dot_product_attention_vjp_args,
                       EJK_SCALED_DOT_PRODUCT_ATTENTION_VJP_ARGS, "B=1!N,Hq,Hkv=Hq,T,S=T,D,Dv=D,N",
                       EJKI_ATTENTION_TOKENS_FIRST);
#undef EJK_RECORD_SELF

#define FLASH_INPUTS(to, from)                                                                     \
    (EJKI_DENSE_SHARED(to, from), (to)->cum_seqlens_q = (from)->cum_seqlens_q,                     \
     (to)->cum_seqlens_k = (from)->cum_seqlens_k)

static ejk_flash_attention_args flash_args(const ejk_scaled_dot_product_attention_args *args) {
    ejk_flash_attention_args flash = {.causal = false};
    FLASH_INPUTS(&flash, args);
    return flash;
}

static ejk_flash_attention_vjp_args
flash_vjp(const ejk_scaled_dot_product_attention_vjp_args *args) {
    ejk_flash_attention_vjp_args flash = {.causal = false};
    FLASH_INPUTS(&flash, args);
    EJKI_DENSE_SHARED_VJP(&flash, args);
    return flash;
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_flash_attention_args flash = flash_args(args);
    return ejk_flash_attention_kernel.prepare(&flash, axes, problem);
}

static void bind(const void *args, void *problem) {
    const ejk_flash_attention_args flash = flash_args(args);
    ejk_flash_attention_kernel.bind(&flash, problem);
}

static ejk_status inputs(void *arguments, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_scaled_dot_product_attention_args *args = arguments;
    ejk_flash_attention_args flash = {.causal = false};
    FLASH_INPUTS(&flash, args);
    return ejki_flash_inputs(&flash, axes, how);
}

static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_flash_attention_vjp_args flash = flash_vjp(args);
    return ejk_flash_attention_vjp_kernel.prepare(&flash, axes, problem);
}

static void bind_vjp(const void *args, void *problem) {
    const ejk_flash_attention_vjp_args flash = flash_vjp(args);
    ejk_flash_attention_vjp_kernel.bind(&flash, problem);
}

static ejk_status inputs_vjp(void *arguments, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_scaled_dot_product_attention_vjp_args *args = arguments;
    ejk_flash_attention_args flash = {.causal = false};
    FLASH_INPUTS(&flash, args);
    return ejki_flash_inputs(&flash, axes, how);
}

static void cost_vjp(const void *problem, const void *args, ejk_cost *out) {
    ejk_flash_attention_vjp_kernel.cost(problem, args, out);
}

static void heuristic_cfg(const ejk_invocation *invocation, void *config) {
    ejk_scaled_dot_product_attention_config *own = config;
    ejki_dense_fwd_params(invocation, &own->fwd_params);
}

static ejk_status candidate_cfgs(const ejk_invocation *invocation, void *configs, int32_t capacity,
                                 int32_t *count) {
    return ejki_dense_candidates(
        invocation, configs, sizeof(ejk_scaled_dot_product_attention_config),
        offsetof(ejk_scaled_dot_product_attention_config, fwd_params),
        offsetof(ejk_scaled_dot_product_attention_config, bwd_params), capacity, count);
}

const ejk_kernel ejk_scaled_dot_product_attention_kernel = {
    .op_id = "scaled_dot_product_attention",
    .version = "0",
    .doc = "attention under the short list of arguments of other libraries",
    .args = &ejk_scaled_dot_product_attention_args_record,
    .config = &ejk_scaled_dot_product_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "fwd_params",
    .problem_size = sizeof(ejki_flash_problem),
    .prepare = prepare,
    .bind = bind,
    .validate = ejki_flash_validate,
    .inputs = inputs,
    .input_options = ejki_flash_input_options,
    .input_option_count = 1,
    .heuristic_cfg = heuristic_cfg,
    .cost = ejki_flash_cost,
    .candidate_cfgs = candidate_cfgs,
    .algorithm = "flash_attention",
};

const ejk_kernel ejk_scaled_dot_product_attention_vjp_kernel = {
    .op_id = "scaled_dot_product_attention_vjp",
    .version = "0",
    .doc = "gradients of scaled_dot_product_attention",
    .args = &ejk_scaled_dot_product_attention_vjp_args_record,
    .config = &ejk_scaled_dot_product_attention_config_record,
    .config_field = "cfg",
    .parameters_field = "bwd_params",
    .problem_size = sizeof(ejki_flash_vjp_problem),
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .validate = ejki_flash_validate,
    .inputs = inputs_vjp,
    .input_options = ejki_flash_input_options,
    .input_option_count = 1,
    .candidate_cfgs = candidate_cfgs,
    .cost = cost_vjp,
    .forward = &ejk_scaled_dot_product_attention_kernel,
    .algorithm = "flash_attention_vjp",
};

EJKI_DEFINE_CALL(scaled_dot_product_attention)

ejk_status ejk_scaled_dot_product_attention_fwd(ejk_context *context,
                                                const ejk_scaled_dot_product_attention_args *args) {
    if (args) EJKI_TRY(ejki_dense_check_residuals(&args->lse));
    return ejk_call(context, &ejk_scaled_dot_product_attention_kernel, args);
}

ejk_status
ejk_scaled_dot_product_attention_vjp(ejk_context *context,
                                     const ejk_scaled_dot_product_attention_vjp_args *args) {
    return ejk_call(context, &ejk_scaled_dot_product_attention_vjp_kernel, args);
}

ejk_status
ejk_scaled_dot_product_attention_set_mask_info(ejk_scaled_dot_product_attention_args *args,
                                               const ejk_mask_info *info) {
    EJKI_DENSE_SET_MASK_INFO(args, info);
}

ejk_status
ejk_scaled_dot_product_attention_vjp_set_mask_info(ejk_scaled_dot_product_attention_vjp_args *args,
                                                   const ejk_mask_info *info) {
    EJKI_DENSE_SET_MASK_INFO(args, info);
}

ejk_status
ejk_scaled_dot_product_attention_masked(ejk_context *context,
                                        const ejk_scaled_dot_product_attention_args *args,
                                        const ejk_mask_info *info) {
    if (!args) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "args is NULL");
    ejk_scaled_dot_product_attention_args masked = *args;
    if (info) EJKI_TRY(ejk_scaled_dot_product_attention_set_mask_info(&masked, info));
    return ejk_scaled_dot_product_attention(context, &masked);
}
