/* SPDX-License-Identifier: Apache-2.0 */
/* RWKV-7 with its rank-one change by normalised key and rate. */
#include <ejkernel/rwkv7_mul.h>

#include "operations/recurrent/shared/recurrent.h"

#define EJK_RECORD_SELF ejk_rwkv7_mul_args
EJK_RECORD_DEFINE_WITH(ejk_rwkv7_mul_args_record, ejk_rwkv7_mul_args, EJK_RWKV7_MUL_ARGS,
                       REC_SYMBOLS REC_GATES REC_POOL, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_rwkv7_mul_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_rwkv7_mul_vjp_args_record, ejk_rwkv7_mul_vjp_args,
                       EJK_RWKV7_MUL_VJP_ARGS, REC_SYMBOLS REC_GATES, NULL);
#undef EJK_RECORD_SELF

/* Tensors of `a`, each told by WITH: given, or wanted as a gradient. */
#define TENSORS(WITH, a)                                                                           \
    WITH(a, REC_QUERY, r), WITH(a, REC_G, w), WITH(a, REC_KEY, k), WITH(a, REC_VALUE, v),          \
        WITH(a, REC_B, kk), WITH(a, REC_A, a)

static rec_call forward_of(const ejk_rwkv7_mul_args *a) {
    return (rec_call){REC_FORWARD(a), TENSORS(REC_GIVEN, a), .update = REC_RANK_ONE,
                      .multiply = true};
}
static rec_call gradient_of(const ejk_rwkv7_mul_vjp_args *a) {
    return (rec_call){REC_BACKWARD(a), TENSORS(REC_GIVEN, a), TENSORS(REC_WANTED, a),
                      .update = REC_RANK_ONE, .multiply = true};
}

REC_HOOKS(forward, ejk_rwkv7_mul_args)
REC_HOOKS(gradient, ejk_rwkv7_mul_vjp_args)

const ejk_kernel ejk_rwkv7_mul_kernel = {
    .op_id = "rwkv7_mul",
    .doc = "RWKV-7 with its rank-one change by normalised key and rate",
    .args = &ejk_rwkv7_mul_args_record,
    .algorithm = "recurrent_attention",
    REC_KERNEL(forward),
};

const ejk_kernel ejk_rwkv7_mul_vjp_kernel = {
    .op_id = "rwkv7_mul_vjp",
    .doc = "gradients of rwkv7_mul",
    .args = &ejk_rwkv7_mul_vjp_args_record,
    .forward = &ejk_rwkv7_mul_kernel,
    .algorithm = "recurrent_attention_vjp",
    REC_KERNEL(gradient),
};

ejk_status ejk_rwkv7_mul(ejk_context *context, const ejk_rwkv7_mul_args *args) {
    return ejk_call(context, &ejk_rwkv7_mul_kernel, args);
}

ejk_status ejk_rwkv7_mul_vjp(ejk_context *context, const ejk_rwkv7_mul_vjp_args *args) {
    return ejk_call(context, &ejk_rwkv7_mul_vjp_kernel, args);
}
