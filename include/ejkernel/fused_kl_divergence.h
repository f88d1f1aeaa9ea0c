/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fused_kl_divergence.h
 * Divergence of a student's distribution over a vocabulary from a teacher's, from logits, as distillation has it.
 *
 *     s = softmax(student / temperature)      t = softmax(teacher / temperature)
 *     KL(p, q) = Σ_v p[v] · (log p[v] - log q[v])
 *     l[t]     = temperature² · KL(t, s)                                          direction "forward"
 *              = temperature² · KL(s, t)                                          "reverse"
 *              = temperature² · (beta · KL(t, m) + (1 - beta) · KL(s, m))         "jsd", m = beta · t + (1 - beta) · s
 *     loss     = Σ_t w[t] · l[t] / max(Σ_t w[t], 1e-8)    or without the division: reduction "sum"
 *     loss[t]  = w[t] · l[t]                              reduction "none"
 *
 * w[t] is `weights`, or 1, and 0 where attention_mask is false. A token of weight 0 counts nowhere: its logits are not
 * looked at, its lse and its gradients are 0. Distributions over no classes do not diverge.
 *
 * A logit of -inf is a class that cannot be. Where p is 0 a class adds 0, whatever q is; where q alone is 0, by a logit
 * of -inf, the divergence is +inf. "jsd" is never infinite. A token whose student or teacher has no class that can be
 * has no distribution; its loss is NaN, as it is with logits of NaN and +inf.
 *
 * Gradients are those of both distributions, the teacher's for whoever asks for them: nothing holds them back in any
 * direction, at any temperature. `teacher_entropy` is -Σ_v t[v] · log t[v], reduced like the loss, without the factor
 * temperature²: added to the forward divergence of temperature 1 it gives the cross entropy. No distribution is ever in
 * memory, and sums over the vocabulary and over tokens run in a fixed order: bits do not depend on threads.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_FUSED_KL_DIVERGENCE_H
#define EJKERNEL_FUSED_KL_DIVERGENCE_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_FUSED_KL_DIVERGENCE_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_fused_kl_divergence_config, EJK_FUSED_KL_DIVERGENCE_CONFIG);
extern EJK_API const ejk_record ejk_fused_kl_divergence_config_record;

/** Symbols: B batch, T tokens, V vocabulary. */
#define EJK_FUSED_KL_DIVERGENCE_INPUTS(F, R)                                                       \
    F(TENSOR, student, EJK_REQUIRED, "", "[B,T,V] or [T,V] float", "logits of the student")        \
    F(TENSOR, teacher, EJK_REQUIRED, "", "[B,T,V] or [T,V] student", "logits of the teacher")      \
    F(TENSOR, weights, EJK_OPTIONAL, "1", "[B,T] or [T] float", "weight of each token")            \
    F(TENSOR, attention_mask, EJK_OPTIONAL, "all", "[B,T] or [T] bool", "tokens that count")       \
    F(NAME, reduction, EJK_OPTIONAL, "mean", "", "mean, sum or none")                              \
    F(NAME, direction, EJK_OPTIONAL, "forward", "", "forward, reverse or jsd")                     \
    F(OPT_FLOAT, temperature, EJK_OPTIONAL, "1", "", "what logits are divided by; above 0")        \
    F(OPT_FLOAT, beta, EJK_OPTIONAL, "0.5", "", "share of the teacher in jsd; in (0,1)")           \
    EJK_CONFIG_OPTIONS(F, R, ejk_fused_kl_divergence_config)

#define EJK_FUSED_KL_DIVERGENCE_ARGS(F, R)                                                         \
    EJK_FUSED_KL_DIVERGENCE_INPUTS(F, R)                                                           \
    F(TENSOR, loss, EJK_REQUIRED_OUTPUT, "", "[] or [1] or [T] or [B,T] float",                    \
      "of the axes of tokens with reduction none; float32, or float64 of float64 inputs")          \
    F(TENSOR, teacher_entropy, EJK_OUTPUT, "not wanted", "[] or [1] or [T] or [B,T] loss",         \
      "entropy of the teacher, reduced like the loss")                                             \
    F(TENSOR, weight_sum, EJK_OUTPUT, "not wanted", "[] or [1] loss", "sum of the weights")        \
    F(TENSOR, student_lse, EJK_OUTPUT, "not wanted", "[B,T] or [T] loss",                          \
      "logarithm of the sum of exponentials of student / temperature")                             \
    F(TENSOR, teacher_lse, EJK_OUTPUT, "not wanted", "[B,T] or [T] loss",                          \
      "that of the teacher; with both, gradients of the student of forward divergences, and of "   \
      "the teacher of reverse ones, take one pass")

EJK_RECORD_STRUCT(ejk_fused_kl_divergence_args, EJK_FUSED_KL_DIVERGENCE_ARGS);
extern EJK_API const ejk_record ejk_fused_kl_divergence_args_record;

/** Gradients of the loss. Of the other results there are none. */
#define EJK_FUSED_KL_DIVERGENCE_VJP_ARGS(F, R)                                                     \
    EJK_FUSED_KL_DIVERGENCE_INPUTS(F, R)                                                           \
    F(TENSOR, d_loss, EJK_REQUIRED, "", "[] or [1] or [T] or [B,T] float",                         \
      "cotangent of loss, of its type and shape")                                                  \
    F(TENSOR, student_lse, EJK_OPTIONAL, "computed again", "[B,T] or [T] d_loss",                  \
      "what the call wrote")                                                                       \
    F(TENSOR, teacher_lse, EJK_OPTIONAL, "computed again", "[B,T] or [T] d_loss",                  \
      "what the call wrote")                                                                       \
    F(TENSOR, d_student, EJK_OUTPUT, "not wanted", "[B,T,V] or [T,V] student", "gradient")         \
    F(TENSOR, d_teacher, EJK_OUTPUT, "not wanted", "[B,T,V] or [T,V] student", "gradient")

EJK_RECORD_STRUCT(ejk_fused_kl_divergence_vjp_args, EJK_FUSED_KL_DIVERGENCE_VJP_ARGS);
extern EJK_API const ejk_record ejk_fused_kl_divergence_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_fused_kl_divergence_kernel;
extern EJK_API const ejk_kernel ejk_fused_kl_divergence_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_fused_kl_divergence(ejk_context *context,
                                                         const ejk_fused_kl_divergence_args *args);
EJK_API EJK_NODISCARD ejk_status
ejk_fused_kl_divergence_vjp(ejk_context *context, const ejk_fused_kl_divergence_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
