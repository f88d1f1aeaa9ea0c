/* SPDX-License-Identifier: Apache-2.0 */
/* Linear attention whose decays follow from the layer. */
#include <ejkernel/lightning_attention.h>

#include "base/base.h"
#include "operations/recurrent/shared/recurrent.h"

#define EJK_RECORD_SELF ejk_lightning_attention_args
EJK_RECORD_DEFINE_WITH(ejk_lightning_attention_args_record, ejk_lightning_attention_args,
                       EJK_LIGHTNING_ATTENTION_ARGS, REC_SYMBOLS REC_POOL, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_lightning_attention_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_lightning_attention_vjp_args_record, ejk_lightning_attention_vjp_args,
                       EJK_LIGHTNING_ATTENTION_VJP_ARGS, REC_SYMBOLS, NULL);
#undef EJK_RECORD_SELF

/* Of head 1; the others are multiples of it. What is no layer is found by `check`. */
static double slope_of(const ejk_tensor *query, const ejk_tensor *key, const ejk_tensor *value,
                       int64_t layer, int64_t layers) {
    const ejk_tensor *all[] = {query, key, value};
    int64_t heads = 1;
    for (int i = 0; i < 3; i++)
        if (all[i]->rank > 1 && all[i]->shape[all[i]->rank - 2] > heads)
            heads = all[i]->shape[all[i]->rank - 2];
    return layers > 0 ? -8.0 / (double)heads * (1 - (double)layer / (double)layers) : 0;
}

/* Tensors of `a`, each told by WITH: given, or wanted as a gradient. */
#define TENSORS(WITH, a) WITH(a, REC_QUERY, query), WITH(a, REC_KEY, key), WITH(a, REC_VALUE, value)

static rec_call forward_of(const ejk_lightning_attention_args *a) {
    return (rec_call){REC_FORWARD(a), TENSORS(REC_GIVEN, a),
                      .slope =
                          slope_of(&a->query, &a->key, &a->value, a->layer_idx, a->num_layers)};
}
static rec_call gradient_of(const ejk_lightning_attention_vjp_args *a) {
    return (rec_call){REC_BACKWARD(a), TENSORS(REC_GIVEN, a), TENSORS(REC_WANTED, a),
                      .slope =
                          slope_of(&a->query, &a->key, &a->value, a->layer_idx, a->num_layers)};
}

REC_HOOKS(forward, ejk_lightning_attention_args)
REC_HOOKS(gradient, ejk_lightning_attention_vjp_args)

static ejk_status check_layers(int64_t layer, int64_t layers) {
    if (layers < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "num_layers is %lld, expected at least 1",
                         (long long)layers);
    if (layer >= 0 && layer <= layers) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "layer_idx is %lld, expected 0 to %lld",
                     (long long)layer, (long long)layers);
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_lightning_attention_args *a = args;
    EJKI_TRY(check_layers(a->layer_idx, a->num_layers));
    return forward_prepare(args, axes, problem);
}
static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    const ejk_lightning_attention_vjp_args *a = args;
    EJKI_TRY(check_layers(a->layer_idx, a->num_layers));
    return gradient_prepare(args, axes, problem);
}

const ejk_kernel ejk_lightning_attention_kernel = {
    .op_id = "lightning_attention",
    .doc = "linear attention with decays that follow from the layer",
    .args = &ejk_lightning_attention_args_record,
    .algorithm = "recurrent_attention",
    REC_KERNEL_WITH(forward, prepare),
};

const ejk_kernel ejk_lightning_attention_vjp_kernel = {
    .op_id = "lightning_attention_vjp",
    .doc = "gradients of lightning_attention",
    .args = &ejk_lightning_attention_vjp_args_record,
    .forward = &ejk_lightning_attention_kernel,
    .algorithm = "recurrent_attention_vjp",
    REC_KERNEL_WITH(gradient, prepare_vjp),
};

ejk_status ejk_lightning_attention(ejk_context *context, const ejk_lightning_attention_args *args) {
    return ejk_call(context, &ejk_lightning_attention_kernel, args);
}

ejk_status ejk_lightning_attention_vjp(ejk_context *context,
                                       const ejk_lightning_attention_vjp_args *args) {
    return ejk_call(context, &ejk_lightning_attention_vjp_kernel, args);
}
