/* SPDX-License-Identifier: Apache-2.0 */
/* Kimi delta attention. */
#include <ejkernel/kda_attention.h>

#include "operations/recurrent/shared/delta.h"

#define EJK_RECORD_SELF ejk_kda_attention_args
EJK_RECORD_DEFINE_WITH(ejk_kda_attention_args_record, ejk_kda_attention_args,
                       EJK_KDA_ATTENTION_ARGS, REC_SYMBOLS REC_GATES REC_POOL REC_ROWS, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_kda_attention_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_kda_attention_vjp_args_record, ejk_kda_attention_vjp_args,
                       EJK_KDA_ATTENTION_VJP_ARGS, REC_SYMBOLS REC_GATES REC_ROWS, NULL);
#undef EJK_RECORD_SELF

static rec_call forward_of(const ejk_kda_attention_args *a) {
    return REC_DELTA_FORWARD(a, REC_KEPT(a));
}
static rec_call gradient_of(const ejk_kda_attention_vjp_args *a) {
    return REC_DELTA_BACKWARD(a, REC_KEPT(a));
}

REC_HOOKS(forward, ejk_kda_attention_args)
REC_HOOKS(gradient, ejk_kda_attention_vjp_args)

const ejk_kernel ejk_kda_attention_kernel = {
    .op_id = "kda_attention",
    .doc = "delta rule with a decay of each key channel",
    .args = &ejk_kda_attention_args_record,
    .algorithm = "recurrent_attention",
    REC_KERNEL(forward),
};

const ejk_kernel ejk_kda_attention_vjp_kernel = {
    .op_id = "kda_attention_vjp",
    .doc = "gradients of kda_attention",
    .args = &ejk_kda_attention_vjp_args_record,
    .forward = &ejk_kda_attention_kernel,
    .algorithm = "recurrent_attention_vjp",
    REC_KERNEL(gradient),
};

ejk_status ejk_kda_attention(ejk_context *context, const ejk_kda_attention_args *args) {
    return ejk_call(context, &ejk_kda_attention_kernel, args);
}

ejk_status ejk_kda_attention_vjp(ejk_context *context, const ejk_kda_attention_vjp_args *args) {
    return ejk_call(context, &ejk_kda_attention_vjp_kernel, args);
}
