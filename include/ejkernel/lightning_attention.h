/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lightning_attention.h
 * Linear attention with a decay of each head that follows from the layer.
 *
 *     S ← e^γ · S;  S ← S + key_t value_tᵀ;  out_t = scale · Sᵀ query_t
 *     γ of head h of H = −(8 / H) · (1 − layer_idx / num_layers) · h
 *
 * Head 0 never decays, nor does any where layer_idx = num_layers.
 *
 * recurrent.h says what heads, sequences, states and options are.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_LIGHTNING_ATTENTION_H
#define EJKERNEL_LIGHTNING_ATTENTION_H

#include <ejkernel/recurrent.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What is given, in the order of the documented call. */
#define EJK_LIGHTNING_ATTENTION_INPUTS(F, R)                                                       \
    F(TENSOR, query, EJK_REQUIRED, "", EJK_RECURRENT_QUERY "float", "queries")                     \
    F(TENSOR, key, EJK_REQUIRED, "", EJK_RECURRENT_KEY "query", "keys")                            \
    F(TENSOR, value, EJK_REQUIRED, "", EJK_RECURRENT_VALUE "query", "values")                      \
    EJK_RECURRENT_START(F)                                                                         \
    F(INT, layer_idx, EJK_OPTIONAL, "0", "", "which layer, from 0 to num_layers")                  \
    F(INT, num_layers, EJK_OPTIONAL, "none: an error", "", "layers of the model, at least 1")      \
    EJK_RECURRENT_OPTIONS(F, R)

/** Arguments: the inputs, and what the call writes. */
#define EJK_LIGHTNING_ATTENTION_ARGS(F, R)                                                         \
    EJK_LIGHTNING_ATTENTION_INPUTS(F, R)                                                           \
    EJK_RECURRENT_RESULTS(F)

EJK_RECORD_STRUCT(ejk_lightning_attention_args, EJK_LIGHTNING_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_lightning_attention_args_record;

/** Arguments of the gradients: the inputs, cotangents, and where the gradients go. */
#define EJK_LIGHTNING_ATTENTION_VJP_ARGS(F, R)                                                     \
    EJK_LIGHTNING_ATTENTION_INPUTS(F, R)                                                           \
    EJK_RECURRENT_COTANGENTS(F)                                                                    \
    F(TENSOR, d_query, EJK_OUTPUT, "not computed", EJK_RECURRENT_QUERY "query",                    \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_key, EJK_OUTPUT, "not computed", EJK_RECURRENT_KEY "key",                          \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_value, EJK_OUTPUT, "not computed", EJK_RECURRENT_VALUE "value",                    \
      "gradient, summed over the heads that read it")

EJK_RECORD_STRUCT(ejk_lightning_attention_vjp_args, EJK_LIGHTNING_ATTENTION_VJP_ARGS);
extern EJK_API const ejk_record ejk_lightning_attention_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_lightning_attention_kernel;
extern EJK_API const ejk_kernel ejk_lightning_attention_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_lightning_attention(ejk_context *context,
                                                         const ejk_lightning_attention_args *args);
EJK_API EJK_NODISCARD ejk_status
ejk_lightning_attention_vjp(ejk_context *context, const ejk_lightning_attention_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
