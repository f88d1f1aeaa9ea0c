/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rwkv6.h
 * RWKV-6: a decay of each key channel, and a bonus for the token itself.
 *
 *     out_t = scale · (S + diag(u) k_t v_tᵀ)ᵀ r_t;  S ← diag(e^w_t) · S + k_t v_tᵀ
 *
 * u is [H,Dk]. Models of RWKV-6 pass softmax_scale = 1.
 *
 * recurrent.h says what heads, sequences, states and options are.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_RWKV6_H
#define EJKERNEL_RWKV6_H

#include <ejkernel/recurrent.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What is given, in the order of the documented call. */
#define EJK_RWKV6_INPUTS(F, R)                                                                     \
    F(TENSOR, r, EJK_REQUIRED, "", EJK_RECURRENT_QUERY "float", "receptances: queries")            \
    F(TENSOR, k, EJK_REQUIRED, "", EJK_RECURRENT_KEY "r", "keys")                                  \
    F(TENSOR, v, EJK_REQUIRED, "", EJK_RECURRENT_VALUE "r", "values")                              \
    F(TENSOR, w, EJK_OPTIONAL, "0", EJK_RECURRENT_GATE "float",                                    \
      "log decays of key channels, or of a head; float32 or the type of r")                        \
    F(TENSOR, u, EJK_OPTIONAL, "0", "[H,Dk] float", "bonus; float32 or the type of r")             \
    EJK_RECURRENT_START(F)                                                                         \
    EJK_RECURRENT_OPTIONS(F, R)

/** Arguments: the inputs, and what the call writes. */
#define EJK_RWKV6_ARGS(F, R)                                                                       \
    EJK_RWKV6_INPUTS(F, R)                                                                         \
    EJK_RECURRENT_RESULTS(F)

EJK_RECORD_STRUCT(ejk_rwkv6_args, EJK_RWKV6_ARGS);
extern EJK_API const ejk_record ejk_rwkv6_args_record;

/** Arguments of the gradients: the inputs, cotangents, and where the gradients go. */
#define EJK_RWKV6_VJP_ARGS(F, R)                                                                   \
    EJK_RWKV6_INPUTS(F, R)                                                                         \
    EJK_RECURRENT_COTANGENTS(F)                                                                    \
    F(TENSOR, d_r, EJK_OUTPUT, "not computed", EJK_RECURRENT_QUERY "r",                            \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_k, EJK_OUTPUT, "not computed", EJK_RECURRENT_KEY "k",                              \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_v, EJK_OUTPUT, "not computed", EJK_RECURRENT_VALUE "v",                            \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_w, EJK_OUTPUT, "not computed", EJK_RECURRENT_GATE "w", "gradient")                 \
    F(TENSOR, d_u, EJK_OUTPUT, "not computed", "[H,Dk] u", "gradient, summed over tokens")

EJK_RECORD_STRUCT(ejk_rwkv6_vjp_args, EJK_RWKV6_VJP_ARGS);
extern EJK_API const ejk_record ejk_rwkv6_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_rwkv6_kernel;
extern EJK_API const ejk_kernel ejk_rwkv6_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_rwkv6(ejk_context *context, const ejk_rwkv6_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_rwkv6_vjp(ejk_context *context,
                                               const ejk_rwkv6_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
