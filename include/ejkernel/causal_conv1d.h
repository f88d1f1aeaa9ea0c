/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file causal_conv1d.h
 * A short convolution over time, each channel by itself, as models with a recurrent state have it before the state.
 *
 *     out[b, t, c] = act(bias[c] + Σ_i weight[c, i] · x[b, t − W + 1 + i, c])         i from 0 to W − 1
 *
 * What lies before a sequence is its initial state, W − 1 tokens of each channel, the oldest first, or 0. The final
 * state is the last W − 1 of initial state and tokens: of a sequence shorter than that, a part of the initial one.
 *
 * A state is given by `initial_state` and `final_state`, an entry for each sequence, or by `conv_state`, which is read
 * and updated in place; then `state_indices` may say which entry belongs to which sequence, as in a pool. Index -1: the
 * sequence begins at 0 and its state is not kept. Any other index that is not an entry, or is there twice, is an error
 * before anything is written. One token and `conv_state` make the step of decoding.
 *
 * Packed sequences: with cu_seqlens x has batch 1, and sequence n has the tokens cu_seqlens[n] to cu_seqlens[n+1] − 1.
 * Tokens of no sequence have out 0 and are not read. An empty sequence leaves its state as it is.
 *
 * Sums are float32 (float64 in the reference), in the order of i: bits do not depend on threads. Each result is rounded
 * once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_CAUSAL_CONV1D_H
#define EJKERNEL_CAUSAL_CONV1D_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: the platform, and how memory is prefetched. */
#define EJK_CAUSAL_CONV1D_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R) EJK_PREFETCH_PARAMS(F, R)

EJK_RECORD_STRUCT(ejk_causal_conv1d_config, EJK_CAUSAL_CONV1D_CONFIG);
extern EJK_API const ejk_record ejk_causal_conv1d_config_record;

/** Symbols: B batch, T tokens, C channels, W taps (at most 64), N sequences (B if not packed), S slots of a pool. */
#define EJK_CAUSAL_CONV1D_INPUTS(F, R)                                                             \
    F(TENSOR, x, EJK_REQUIRED, "", "[B,T,C] float", "tokens")                                      \
    F(TENSOR, weight, EJK_REQUIRED, "", "[C,W] x", "taps of each channel, the latest last")        \
    F(TENSOR, bias, EJK_OPTIONAL, "0", "[C] x", "added to the sums")                               \
    F(TENSOR, initial_state, EJK_OPTIONAL, "0", "[N,C,W-1] x", "what lies before each sequence")   \
    F(TENSOR, cu_seqlens, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to T",                 \
      "0 and the ends of N packed sequences, not decreasing")                                      \
    F(NAME, activation, EJK_OPTIONAL, "none", "", "none or silu")                                  \
    EJK_CONFIG_OPTIONS(F, R, ejk_causal_conv1d_config)

#define EJK_CAUSAL_CONV1D_ARGS(F, R)                                                               \
    EJK_CAUSAL_CONV1D_INPUTS(F, R)                                                                 \
    F(TENSOR, state_indices, EJK_OPTIONAL, "entry n", "[N] int in [-1,S)",                         \
      "entry of conv_state of each sequence; -1: none")                                            \
    F(TENSOR, conv_state, EJK_INOUT, "none", "[S,C,W-1] x",                                        \
      "states, read and updated in place; in place of the other two")                              \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,C] x", "result")                                 \
    F(TENSOR, final_state, EJK_OUTPUT, "not written", "[N,C,W-1] x",                               \
      "what the next call begins with")

EJK_RECORD_STRUCT(ejk_causal_conv1d_args, EJK_CAUSAL_CONV1D_ARGS);
extern EJK_API const ejk_record ejk_causal_conv1d_args_record;

/** Gradients; one that is left out is not computed. */
#define EJK_CAUSAL_CONV1D_VJP_ARGS(F, R)                                                           \
    EJK_CAUSAL_CONV1D_INPUTS(F, R)                                                                 \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[B,T,C] x", "cotangent of out")                            \
    F(TENSOR, d_final_state, EJK_OPTIONAL, "0", "[N,C,W-1] x", "cotangent of final_state")         \
    F(TENSOR, d_x, EJK_OUTPUT, "not computed", "[B,T,C] x", "gradient")                            \
    F(TENSOR, d_weight, EJK_OUTPUT, "not computed", "[C,W] x", "gradient")                         \
    F(TENSOR, d_bias, EJK_OUTPUT, "not computed", "[C] x", "gradient")                             \
    F(TENSOR, d_initial_state, EJK_OUTPUT, "not computed", "[N,C,W-1] x", "gradient")

EJK_RECORD_STRUCT(ejk_causal_conv1d_vjp_args, EJK_CAUSAL_CONV1D_VJP_ARGS);
extern EJK_API const ejk_record ejk_causal_conv1d_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_causal_conv1d_kernel;
extern EJK_API const ejk_kernel ejk_causal_conv1d_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_causal_conv1d(ejk_context *context,
                                                   const ejk_causal_conv1d_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_causal_conv1d_vjp(ejk_context *context,
                                                       const ejk_causal_conv1d_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
