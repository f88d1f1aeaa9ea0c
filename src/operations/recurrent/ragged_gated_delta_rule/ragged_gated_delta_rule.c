/* SPDX-License-Identifier: Apache-2.0 */
/* The gated delta rule over packed sequences and a pool of states. */
#include <ejkernel/ragged_gated_delta_rule.h>

#include "base/base.h"
#include "operations/recurrent/shared/delta.h"

#define EJK_RECORD_SELF ejk_ragged_gated_delta_rule_args
EJK_RECORD_DEFINE_WITH(ejk_ragged_gated_delta_rule_args_record, ejk_ragged_gated_delta_rule_args,
                       EJK_RAGGED_GATED_DELTA_RULE_ARGS, REC_SYMBOLS REC_GATES REC_POOL, NULL);
#undef EJK_RECORD_SELF

static rec_call forward_of(const ejk_ragged_gated_delta_rule_args *a) {
    return REC_DELTA_FORWARD(a, );
}

REC_HOOKS(forward, ejk_ragged_gated_delta_rule_args)

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_ragged_gated_delta_rule_args *a = args;
    if (!ejk_tensor_present(&a->state) || !ejk_tensor_present(&a->cu_seqlens))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is missing",
                         ejk_tensor_present(&a->state) ? "cu_seqlens" : "state");
    return forward_prepare(args, axes, problem);
}

const ejk_kernel ejk_ragged_gated_delta_rule_kernel = {
    .op_id = "ragged_gated_delta_rule",
    .doc = "gated delta rule over packed sequences and a pool of states",
    .args = &ejk_ragged_gated_delta_rule_args_record,
    .algorithm = "recurrent_attention",
    REC_KERNEL_WITH(forward, prepare),
};

ejk_status ejk_ragged_gated_delta_rule(ejk_context *context,
                                       const ejk_ragged_gated_delta_rule_args *args) {
    return ejk_call(context, &ejk_ragged_gated_delta_rule_kernel, args);
}
