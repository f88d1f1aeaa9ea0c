/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file kda_attention.h
 * Kimi delta attention: the delta rule with a decay of each key channel.
 *
 *     S ← diag(e^decay_t) · S;  S ← S + key_t (beta_t (value_t − Sᵀ key_t))ᵀ;  out_t = scale · Sᵀ query_t
 *
 * Raw gates: with A_log, the gate is −exp(A_log) · softplus(decay + dt_bias); with use_beta_sigmoid, beta is
 * sigmoid(beta). Gradients are then those of the raw numbers.
 *
 * A decay [B,T,H] is the gated delta rule with a scale, as the documented kernel_delta_attention has it.
 *
 * recurrent.h says what heads, sequences, states and options are.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_KDA_ATTENTION_H
#define EJKERNEL_KDA_ATTENTION_H

#include <ejkernel/recurrent.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What is given, in the order of the documented call. */
#define EJK_KDA_ATTENTION_INPUTS(F, R)                                                             \
    F(TENSOR, query, EJK_REQUIRED, "", EJK_RECURRENT_QUERY "float", "queries")                     \
    F(TENSOR, key, EJK_REQUIRED, "", EJK_RECURRENT_KEY "query", "keys")                            \
    F(TENSOR, value, EJK_REQUIRED, "", EJK_RECURRENT_VALUE "query", "values")                      \
    F(TENSOR, beta, EJK_OPTIONAL, "1", EJK_RECURRENT_PER_HEAD "float",                             \
      "how much of the error is corrected")                                                        \
    F(TENSOR, decay, EJK_OPTIONAL, "0", EJK_RECURRENT_GATE "float",                                \
      "log decays of a head, or of each key channel; float32 or the type of query")                \
    EJK_RECURRENT_START(F)                                                                         \
    F(TENSOR, A_log, EJK_OPTIONAL, "none", "[H] float",                                            \
      "decay is raw: the gate is -exp(A_log) * softplus(decay + dt_bias)")                         \
    F(TENSOR, dt_bias, EJK_OPTIONAL, "0", EJK_RECURRENT_BIAS "float",                              \
      "added to raw decays: a number for each head, or each key channel")                          \
    F(OPT_BOOL, use_qk_l2norm, EJK_OPTIONAL, "true", "",                                           \
      "query and key times 1/sqrt(sum of squares + 1e-6)")                                         \
    F(BOOL, use_beta_sigmoid, EJK_OPTIONAL, "false", "", "beta is sigmoid(beta)")                  \
    EJK_RECURRENT_OPTIONS(F, R)

/** Arguments: the inputs, and what the call writes. */
#define EJK_KDA_ATTENTION_ARGS(F, R)                                                               \
    EJK_KDA_ATTENTION_INPUTS(F, R)                                                                 \
    EJK_RECURRENT_RESULTS(F)                                                                       \
    EJK_RECURRENT_KEPT_RESULTS(F)

EJK_RECORD_STRUCT(ejk_kda_attention_args, EJK_KDA_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_kda_attention_args_record;

/** Arguments of the gradients: the inputs, cotangents, and where the gradients go. */
#define EJK_KDA_ATTENTION_VJP_ARGS(F, R)                                                           \
    EJK_KDA_ATTENTION_INPUTS(F, R)                                                                 \
    EJK_RECURRENT_KEPT_INPUTS(F)                                                                   \
    EJK_RECURRENT_COTANGENTS(F)                                                                    \
    F(TENSOR, d_query, EJK_OUTPUT, "not computed", EJK_RECURRENT_QUERY "query",                    \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_key, EJK_OUTPUT, "not computed", EJK_RECURRENT_KEY "key",                          \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_value, EJK_OUTPUT, "not computed", EJK_RECURRENT_VALUE "value",                    \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_beta, EJK_OUTPUT, "not computed", EJK_RECURRENT_PER_HEAD "beta", "gradient")       \
    F(TENSOR, d_decay, EJK_OUTPUT, "not computed", EJK_RECURRENT_GATE "decay", "gradient")         \
    F(TENSOR, d_A_log, EJK_OUTPUT, "not computed", "[H] A_log", "gradient, summed over tokens")    \
    F(TENSOR, d_dt_bias, EJK_OUTPUT, "not computed", EJK_RECURRENT_BIAS "dt_bias",                 \
      "gradient, summed over tokens")

EJK_RECORD_STRUCT(ejk_kda_attention_vjp_args, EJK_KDA_ATTENTION_VJP_ARGS);
extern EJK_API const ejk_record ejk_kda_attention_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_kda_attention_kernel;
extern EJK_API const ejk_kernel ejk_kda_attention_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_kda_attention(ejk_context *context,
                                                   const ejk_kda_attention_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_kda_attention_vjp(ejk_context *context,
                                                       const ejk_kda_attention_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
