/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rwkv7.h
 * RWKV-7: a decay of each key channel, and a rank-one change of the state.
 *
 *     S ← diag(e^w_t) · S + a_t (Sᵀ b_t)ᵀ + k_t v_tᵀ  with S on the right as it was;  out_t = scale · Sᵀ r_t
 *
 * Models of RWKV-7 pass softmax_scale = 1.
 *
 * recurrent.h says what heads, sequences, states and options are.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_RWKV7_H
#define EJKERNEL_RWKV7_H

#include <ejkernel/recurrent.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What is given, in the order of the documented call. */
#define EJK_RWKV7_INPUTS(F, R)                                                                     \
    F(TENSOR, r, EJK_REQUIRED, "", EJK_RECURRENT_QUERY "float", "receptances: queries")            \
    F(TENSOR, w, EJK_OPTIONAL, "0", EJK_RECURRENT_GATE "float",                                    \
      "log decays of key channels, or of a head; float32 or the type of r")                        \
    F(TENSOR, k, EJK_REQUIRED, "", EJK_RECURRENT_KEY "r", "keys")                                  \
    F(TENSOR, v, EJK_REQUIRED, "", EJK_RECURRENT_VALUE "r", "values")                              \
    F(TENSOR, a, EJK_REQUIRED, "", EJK_RECURRENT_PER_KEY "r", "what is written for it")            \
    F(TENSOR, b, EJK_REQUIRED, "", EJK_RECURRENT_PER_KEY "r", "what is read of the state")         \
    EJK_RECURRENT_START(F)                                                                         \
    EJK_RECURRENT_OPTIONS(F, R)

/** Arguments: the inputs, and what the call writes. */
#define EJK_RWKV7_ARGS(F, R)                                                                       \
    EJK_RWKV7_INPUTS(F, R)                                                                         \
    EJK_RECURRENT_RESULTS(F)

EJK_RECORD_STRUCT(ejk_rwkv7_args, EJK_RWKV7_ARGS);
extern EJK_API const ejk_record ejk_rwkv7_args_record;

/** Arguments of the gradients: the inputs, cotangents, and where the gradients go. */
#define EJK_RWKV7_VJP_ARGS(F, R)                                                                   \
    EJK_RWKV7_INPUTS(F, R)                                                                         \
    EJK_RECURRENT_COTANGENTS(F)                                                                    \
    F(TENSOR, d_r, EJK_OUTPUT, "not computed", EJK_RECURRENT_QUERY "r",                            \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_w, EJK_OUTPUT, "not computed", EJK_RECURRENT_GATE "w", "gradient")                 \
    F(TENSOR, d_k, EJK_OUTPUT, "not computed", EJK_RECURRENT_KEY "k",                              \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_v, EJK_OUTPUT, "not computed", EJK_RECURRENT_VALUE "v",                            \
      "gradient, summed over the heads that read it")                                              \
    F(TENSOR, d_a, EJK_OUTPUT, "not computed", EJK_RECURRENT_PER_KEY "a", "gradient")              \
    F(TENSOR, d_b, EJK_OUTPUT, "not computed", EJK_RECURRENT_PER_KEY "b", "gradient")

EJK_RECORD_STRUCT(ejk_rwkv7_vjp_args, EJK_RWKV7_VJP_ARGS);
extern EJK_API const ejk_record ejk_rwkv7_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_rwkv7_kernel;
extern EJK_API const ejk_kernel ejk_rwkv7_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_rwkv7(ejk_context *context, const ejk_rwkv7_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_rwkv7_vjp(ejk_context *context,
                                               const ejk_rwkv7_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
