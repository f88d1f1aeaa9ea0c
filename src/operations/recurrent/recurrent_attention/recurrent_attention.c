/* SPDX-License-Identifier: Apache-2.0 */
/* Linear attention by recurrence, with gates of every kind. */
#include <ejkernel/recurrent_attention.h>

#include "operations/recurrent/shared/recurrent.h"

#define EJK_RECORD_SELF ejk_recurrent_attention_args
EJK_RECORD_DEFINE_WITH(ejk_recurrent_attention_args_record, ejk_recurrent_attention_args,
                       EJK_RECURRENT_ATTENTION_ARGS, REC_SYMBOLS REC_GATES REC_POOL, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_recurrent_attention_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_recurrent_attention_vjp_args_record, ejk_recurrent_attention_vjp_args,
                       EJK_RECURRENT_ATTENTION_VJP_ARGS, REC_SYMBOLS REC_GATES, NULL);
#undef EJK_RECORD_SELF

/* Tensors of `a`, each told by WITH: given, or wanted as a gradient. */
#define TENSORS(WITH, a)                                                                           \
    WITH(a, REC_QUERY, query), WITH(a, REC_KEY, key), WITH(a, REC_VALUE, value),                   \
        WITH(a, REC_G, g), WITH(a, REC_GAMMA, g_gamma), WITH(a, REC_GK, gk), WITH(a, REC_GV, gv)

static rec_call forward_of(const ejk_recurrent_attention_args *a) {
    return (rec_call){REC_FORWARD(a), TENSORS(REC_GIVEN, a)};
}
static rec_call gradient_of(const ejk_recurrent_attention_vjp_args *a) {
    return (rec_call){REC_BACKWARD(a), TENSORS(REC_GIVEN, a), TENSORS(REC_WANTED, a)};
}

REC_HOOKS(forward, ejk_recurrent_attention_args)
REC_HOOKS(gradient, ejk_recurrent_attention_vjp_args)

const ejk_kernel ejk_recurrent_attention_kernel = {
    .op_id = "recurrent_attention",
    .doc = "linear attention by recurrence, with gates of every kind",
    .args = &ejk_recurrent_attention_args_record,
    REC_KERNEL(forward),
};

const ejk_kernel ejk_recurrent_attention_vjp_kernel = {
    .op_id = "recurrent_attention_vjp",
    .doc = "gradients of recurrent_attention",
    .args = &ejk_recurrent_attention_vjp_args_record,
    .forward = &ejk_recurrent_attention_kernel,
    REC_KERNEL(gradient),
};

ejk_status ejk_recurrent_attention(ejk_context *context, const ejk_recurrent_attention_args *args) {
    return ejk_call(context, &ejk_recurrent_attention_kernel, args);
}

ejk_status ejk_recurrent_attention_vjp(ejk_context *context,
                                       const ejk_recurrent_attention_vjp_args *args) {
    return ejk_call(context, &ejk_recurrent_attention_vjp_kernel, args);
}
