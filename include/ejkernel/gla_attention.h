/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gla_attention.h
 * Gated linear attention: a decay of each head or of each key channel.
 *
 *     S ← diag(e^g_t) · e^g_gamma · S;  S ← S + key_t value_tᵀ;  out_t = scale · Sᵀ query_t
 *
 * recurrent.h says what heads, sequences, states and options are.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_GLA_ATTENTION_H
#define EJKERNEL_GLA_ATTENTION_H

#include <ejkernel/recurrent.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What is given, in the order of the documented call. */
#define EJK_GLA_ATTENTION_INPUTS(F, R)                                                             \
    F(TENSOR, query, EJK_REQUIRED, "", EJK_RECURRENT_QUERY "float", "queries")                     \
    F(TENSOR, key, EJK_REQUIRED, "", EJK_RECURRENT_KEY "query", "keys")                            \
    F(TENSOR, value, EJK_REQUIRED, "", EJK_RECURRENT_VALUE "query", "values")                      \
    F(TENSOR, g, EJK_OPTIONAL, "0", EJK_RECURRENT_GATE "float",                                    \
      "log decays of a head, or of each key channel; float32 or the type of query")                \
    F(TENSOR, g_gamma, EJK_OPTIONAL, "0", EJK_RECURRENT_GAMMA "float",                             \
      "log decay of every token, of each head or sequence and head")                               \
    EJK_RECURRENT_START(F)                                                                         \
    EJK_RECURRENT_OPTIONS(F, R)

/** Arguments: the inputs, and what the call writes. */
#define EJK_GLA_ATTENTION_ARGS(F, R)                                                               \
    EJK_GLA_ATTENTION_INPUTS(F, R)                                                                 \
    EJK_RECURRENT_RESULTS(F)

EJK_RECORD_STRUCT(ejk_gla_attention_args, EJK_GLA_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_gla_attention_args_record;

/** Arguments of the gradients: the inputs, cotangents, and where the gradients go. */
#define EJK_GLA_ATTENTION_VJP_ARGS(F, R)                                                           \
    EJK_GLA_ATTENTION_INPUTS(F, R)                                                                 \
    EJK_RECURRENT_COTANGENTS(F)                                                                    \
    F(TENSOR, d_query, EJK_OUTPUT, "not computed", EJK_RECURRENT_QUERY "query",                    \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_key, EJK_OUTPUT, "not computed", EJK_RECURRENT_KEY "key",                          \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_value, EJK_OUTPUT, "not computed", EJK_RECURRENT_VALUE "value",                    \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_g, EJK_OUTPUT, "not computed", EJK_RECURRENT_GATE "g", "gradient")                 \
    F(TENSOR, d_g_gamma, EJK_OUTPUT, "not computed", EJK_RECURRENT_GAMMA "g_gamma",                \
      "gradient, summed over tokens")

EJK_RECORD_STRUCT(ejk_gla_attention_vjp_args, EJK_GLA_ATTENTION_VJP_ARGS);
extern EJK_API const ejk_record ejk_gla_attention_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_gla_attention_kernel;
extern EJK_API const ejk_kernel ejk_gla_attention_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_gla_attention(ejk_context *context,
                                                   const ejk_gla_attention_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_gla_attention_vjp(ejk_context *context,
                                                       const ejk_gla_attention_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
