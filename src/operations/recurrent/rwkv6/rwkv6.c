/* SPDX-License-Identifier: Apache-2.0 */
/* RWKV-6. */
#include <ejkernel/rwkv6.h>

#include "operations/recurrent/shared/recurrent.h"

#define EJK_RECORD_SELF ejk_rwkv6_args
EJK_RECORD_DEFINE_WITH(ejk_rwkv6_args_record, ejk_rwkv6_args, EJK_RWKV6_ARGS,
                       REC_SYMBOLS REC_GATES REC_POOL, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_rwkv6_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_rwkv6_vjp_args_record, ejk_rwkv6_vjp_args, EJK_RWKV6_VJP_ARGS,
                       REC_SYMBOLS REC_GATES, NULL);
#undef EJK_RECORD_SELF

/* Tensors of `a`, each told by WITH: given, or wanted as a gradient. */
#define TENSORS(WITH, a)                                                                           \
    WITH(a, REC_QUERY, r), WITH(a, REC_KEY, k), WITH(a, REC_VALUE, v), WITH(a, REC_G, w),          \
        WITH(a, REC_BONUS, u)

static rec_call forward_of(const ejk_rwkv6_args *a) {
    return (rec_call){REC_FORWARD(a), TENSORS(REC_GIVEN, a), .read = REC_BEFORE};
}
static rec_call gradient_of(const ejk_rwkv6_vjp_args *a) {
    return (rec_call){REC_BACKWARD(a), TENSORS(REC_GIVEN, a), TENSORS(REC_WANTED, a),
                      .read = REC_BEFORE};
}

REC_HOOKS(forward, ejk_rwkv6_args)
REC_HOOKS(gradient, ejk_rwkv6_vjp_args)

const ejk_kernel ejk_rwkv6_kernel = {
    .op_id = "rwkv6",
    .doc = "RWKV-6: decays of key channels, and a bonus for the token itself",
    .args = &ejk_rwkv6_args_record,
    .algorithm = "recurrent_attention",
    REC_KERNEL(forward),
};

const ejk_kernel ejk_rwkv6_vjp_kernel = {
    .op_id = "rwkv6_vjp",
    .doc = "gradients of rwkv6",
    .args = &ejk_rwkv6_vjp_args_record,
    .forward = &ejk_rwkv6_kernel,
    .algorithm = "recurrent_attention_vjp",
    REC_KERNEL(gradient),
};

ejk_status ejk_rwkv6(ejk_context *context, const ejk_rwkv6_args *args) {
    return ejk_call(context, &ejk_rwkv6_kernel, args);
}

ejk_status ejk_rwkv6_vjp(ejk_context *context, const ejk_rwkv6_vjp_args *args) {
    return ejk_call(context, &ejk_rwkv6_vjp_kernel, args);
}
