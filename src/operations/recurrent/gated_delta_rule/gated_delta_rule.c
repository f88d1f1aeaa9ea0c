/* SPDX-License-Identifier: Apache-2.0 */
/* The gated delta rule. */
#include <ejkernel/gated_delta_rule.h>

#include "operations/recurrent/shared/delta.h"

#define EJK_RECORD_SELF ejk_gated_delta_rule_args
EJK_RECORD_DEFINE_WITH(ejk_gated_delta_rule_args_record, ejk_gated_delta_rule_args,
                       EJK_GATED_DELTA_RULE_ARGS, REC_SYMBOLS REC_GATES REC_POOL REC_ROWS, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_gated_delta_rule_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_gated_delta_rule_vjp_args_record, ejk_gated_delta_rule_vjp_args,
                       EJK_GATED_DELTA_RULE_VJP_ARGS, REC_SYMBOLS REC_GATES REC_ROWS, NULL);
#undef EJK_RECORD_SELF

static rec_call forward_of(const ejk_gated_delta_rule_args *a) {
    return REC_DELTA_FORWARD(a, REC_KEPT(a));
}
static rec_call gradient_of(const ejk_gated_delta_rule_vjp_args *a) {
    return REC_DELTA_BACKWARD(a, REC_KEPT(a));
}

REC_HOOKS(forward, ejk_gated_delta_rule_args)
REC_HOOKS(gradient, ejk_gated_delta_rule_vjp_args)

const ejk_kernel ejk_gated_delta_rule_kernel = {
    .op_id = "gated_delta_rule",
    .doc = "gated delta rule: a state that corrects what it says about a key",
    .args = &ejk_gated_delta_rule_args_record,
    .algorithm = "recurrent_attention",
    REC_KERNEL(forward),
};

const ejk_kernel ejk_gated_delta_rule_vjp_kernel = {
    .op_id = "gated_delta_rule_vjp",
    .doc = "gradients of gated_delta_rule",
    .args = &ejk_gated_delta_rule_vjp_args_record,
    .forward = &ejk_gated_delta_rule_kernel,
    .algorithm = "recurrent_attention_vjp",
    REC_KERNEL(gradient),
};

ejk_status ejk_gated_delta_rule(ejk_context *context, const ejk_gated_delta_rule_args *args) {
    return ejk_call(context, &ejk_gated_delta_rule_kernel, args);
}

ejk_status ejk_gated_delta_rule_vjp(ejk_context *context,
                                    const ejk_gated_delta_rule_vjp_args *args) {
    return ejk_call(context, &ejk_gated_delta_rule_vjp_kernel, args);
}
