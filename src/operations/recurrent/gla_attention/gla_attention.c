/* SPDX-License-Identifier: Apache-2.0 */
/* Gated linear attention. */
#include <ejkernel/gla_attention.h>

#include "operations/recurrent/shared/recurrent.h"

#define EJK_RECORD_SELF ejk_gla_attention_args
EJK_RECORD_DEFINE_WITH(ejk_gla_attention_args_record, ejk_gla_attention_args,
                       EJK_GLA_ATTENTION_ARGS, REC_SYMBOLS REC_GATES REC_POOL, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_gla_attention_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_gla_attention_vjp_args_record, ejk_gla_attention_vjp_args,
                       EJK_GLA_ATTENTION_VJP_ARGS, REC_SYMBOLS REC_GATES, NULL);
#undef EJK_RECORD_SELF

/* Tensors of `a`, each told by WITH: given, or wanted as a gradient. */
#define TENSORS(WITH, a)                                                                           \
    WITH(a, REC_QUERY, query), WITH(a, REC_KEY, key), WITH(a, REC_VALUE, value),                   \
        WITH(a, REC_G, g), WITH(a, REC_GAMMA, g_gamma)

static rec_call forward_of(const ejk_gla_attention_args *a) {
    return (rec_call){REC_FORWARD(a), TENSORS(REC_GIVEN, a)};
}
static rec_call gradient_of(const ejk_gla_attention_vjp_args *a) {
    return (rec_call){REC_BACKWARD(a), TENSORS(REC_GIVEN, a), TENSORS(REC_WANTED, a)};
}

REC_HOOKS(forward, ejk_gla_attention_args)
REC_HOOKS(gradient, ejk_gla_attention_vjp_args)

const ejk_kernel ejk_gla_attention_kernel = {
    .op_id = "gla_attention",
    .doc = "linear attention with a decay of each head or key channel",
    .args = &ejk_gla_attention_args_record,
    .algorithm = "recurrent_attention",
    REC_KERNEL(forward),
};

const ejk_kernel ejk_gla_attention_vjp_kernel = {
    .op_id = "gla_attention_vjp",
    .doc = "gradients of gla_attention",
    .args = &ejk_gla_attention_vjp_args_record,
    .forward = &ejk_gla_attention_kernel,
    .algorithm = "recurrent_attention_vjp",
    REC_KERNEL(gradient),
};

ejk_status ejk_gla_attention(ejk_context *context, const ejk_gla_attention_args *args) {
    return ejk_call(context, &ejk_gla_attention_kernel, args);
}

ejk_status ejk_gla_attention_vjp(ejk_context *context, const ejk_gla_attention_vjp_args *args) {
    return ejk_call(context, &ejk_gla_attention_vjp_kernel, args);
}
