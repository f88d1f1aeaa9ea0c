/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fused_cross_entropy.h
 * Cross entropy over a vocabulary, from logits or from what they are products of, which are never all in memory.
 *
 *     x[t, v] = logits[t, v]   or   Σ_h hidden[t, h] · lm_head_weight[h, v] + lm_head_bias[v]
 *     z       = cap · tanh(x / cap)                                    with logit_softcap, else x
 *     lse[t]  = log Σ_v exp(z[t, v])
 *     l[t]    = lse[t] · Σ_v q[v] - Σ_v q[v] · z[t, v] + Σ_v q[v] · log q[v] + z_loss · lse[t]²
 *     loss    = Σ_t w[t] · l[t] / max(Σ_t w[t], 1e-8)                  or without the division: reduction "sum"
 *
 * q is 1 for the target and 0 for all others; with label_smoothing a, 1 - a and a / (V - 1), so that the loss can
 * reach 0 (of one class nothing is smoothed); soft_targets are q as they are, without the term Σ q log q. w[t] is
 * `weights`, or 1, and 0 where attention_mask is false or the target is ignore_index. With soft_targets, targets may be
 * left out; where they are given, they say which tokens are ignored, and what counts as accurate.
 *
 * A token of weight 0 counts nowhere: neither its logits nor its hidden state are looked at, lse is 0 there and so are
 * its gradients. A logit of -inf is a class that cannot be: its probability is 0, and its loss, where q is not 0,
 * infinite. A token all of whose logits are -inf has no distribution; its loss is NaN.
 *
 * `accuracy` is the weighted part of tokens whose largest logit, of equal ones the first, is that of the target, or of
 * the largest soft target; a token whose lse is NaN is not right. `z_loss_out` is what z_loss adds to the loss. It is
 * reduced like the loss, but accuracy is a mean always.
 *
 * Hidden form: blocks of tokens and of the vocabulary are multiplied, and their logits, float32, folded into lse at
 * once; gradients multiply them again. What gradients are products of is in the type of hidden, sums are float32.
 * Tokens of weight 0 are not multiplied on a CPU.
 *
 * Sums over the vocabulary and over tokens run in a fixed order: bits do not depend on threads.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_FUSED_CROSS_ENTROPY_H
#define EJKERNEL_FUSED_CROSS_ENTROPY_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_FUSED_CROSS_ENTROPY_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_fused_cross_entropy_config, EJK_FUSED_CROSS_ENTROPY_CONFIG);
extern EJK_API const ejk_record ejk_fused_cross_entropy_config_record;

/** Symbols: B batch, T tokens, V vocabulary, H width of hidden. Logits or both of hidden and lm_head_weight. */
#define EJK_FUSED_CROSS_ENTROPY_INPUTS(F, R)                                                       \
    F(TENSOR, logits, EJK_OPTIONAL, "products of hidden", "[B,T,V] or [T,V] float", "logits")      \
    F(TENSOR, targets, EJK_OPTIONAL, "soft_targets", "[B,T] or [T] int",                           \
      "class of each token, in [0,V), or ignore_index")                                            \
    F(TENSOR, weights, EJK_OPTIONAL, "1", "[B,T] or [T] float", "weight of each token")            \
    F(TENSOR, hidden, EJK_OPTIONAL, "logits", "[B,T,H] or [T,H] float", "rows of the products")    \
    F(TENSOR, lm_head_weight, EJK_OPTIONAL, "logits", "[H,V] hidden", "their matrix")              \
    F(TENSOR, lm_head_bias, EJK_OPTIONAL, "none", "[V] float", "added to the products")            \
    F(TENSOR, attention_mask, EJK_OPTIONAL, "all", "[B,T] or [T] bool", "tokens that count")       \
    F(TENSOR, soft_targets, EJK_OPTIONAL, "targets", "[B,T,V] or [T,V] float",                     \
      "a distribution for each token")                                                             \
    F(OPT_FLOAT, logit_softcap, EJK_OPTIONAL, "none", "", "bounds logits, by tanh; above 0")       \
    F(OPT_INT, chunk_size, EJK_OPTIONAL, "4096 classes, 1024 tokens", "",                          \
      "of a block of logits, in the hidden form; 0: as unset")                                     \
    F(NAME, chunk_strategy, EJK_OPTIONAL, "vocab", "",                                             \
      "what chunk_size counts: vocab, classes; token, tokens; block, both")                        \
    F(OPT_INT, ignore_index, EJK_OPTIONAL, "-100", "", "target of tokens that do not count")       \
    F(OPT_FLOAT, label_smoothing, EJK_OPTIONAL, "0", "", "in [0,1): what other classes get")       \
    F(OPT_FLOAT, z_loss, EJK_OPTIONAL, "0", "", "factor of lse² in the loss")                      \
    F(NAME, reduction, EJK_OPTIONAL, "mean", "", "mean or sum")                                    \
    EJK_CONFIG_OPTIONS(F, R, ejk_fused_cross_entropy_config)

#define EJK_FUSED_CROSS_ENTROPY_ARGS(F, R)                                                         \
    EJK_FUSED_CROSS_ENTROPY_INPUTS(F, R)                                                           \
    F(TENSOR, loss, EJK_REQUIRED_OUTPUT, "", "[] or [1] float",                                    \
      "float32, or float64 of float64 inputs, as are all results")                                 \
    F(TENSOR, z_loss_out, EJK_OUTPUT, "not wanted", "[] or [1] loss", "part of z_loss in it")      \
    F(TENSOR, weight_sum, EJK_OUTPUT, "not wanted", "[] or [1] loss", "sum of the weights")        \
    F(TENSOR, accuracy, EJK_OUTPUT, "not wanted", "[] or [1] loss", "part of right tokens")        \
    F(TENSOR, lse, EJK_OUTPUT, "not wanted", "[B,T] or [T] loss",                                  \
      "logarithm of the sum of exponentials, which saves gradients a product")

EJK_RECORD_STRUCT(ejk_fused_cross_entropy_args, EJK_FUSED_CROSS_ENTROPY_ARGS);
extern EJK_API const ejk_record ejk_fused_cross_entropy_args_record;

/** Gradients of the loss. Of the other results there are none. */
#define EJK_FUSED_CROSS_ENTROPY_VJP_ARGS(F, R)                                                     \
    EJK_FUSED_CROSS_ENTROPY_INPUTS(F, R)                                                           \
    F(TENSOR, d_loss, EJK_REQUIRED, "", "[] or [1] float", "cotangent of loss, of its type")       \
    F(TENSOR, lse, EJK_OPTIONAL, "computed again", "[B,T] or [T] d_loss", "what the call wrote")   \
    F(TENSOR, d_logits, EJK_OUTPUT, "not wanted", "[B,T,V] or [T,V] logits", "gradient")           \
    F(TENSOR, d_hidden, EJK_OUTPUT, "not wanted", "[B,T,H] or [T,H] hidden", "gradient")           \
    F(TENSOR, d_lm_head_weight, EJK_OUTPUT, "not wanted", "[H,V] hidden", "gradient")              \
    F(TENSOR, d_lm_head_bias, EJK_OUTPUT, "not wanted", "[V] lm_head_bias", "gradient")

EJK_RECORD_STRUCT(ejk_fused_cross_entropy_vjp_args, EJK_FUSED_CROSS_ENTROPY_VJP_ARGS);
extern EJK_API const ejk_record ejk_fused_cross_entropy_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_fused_cross_entropy_kernel;
extern EJK_API const ejk_kernel ejk_fused_cross_entropy_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_fused_cross_entropy(ejk_context *context,
                                                         const ejk_fused_cross_entropy_args *args);
EJK_API EJK_NODISCARD ejk_status
ejk_fused_cross_entropy_vjp(ejk_context *context, const ejk_fused_cross_entropy_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
