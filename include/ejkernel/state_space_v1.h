/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file state_space_v1.h
 * The selective scan of Mamba: each channel e has a state of K numbers, each with a decay of its own.
 *
 *     δ_t = min(max(softplus(dt_t + dt_bias), dt_min), dt_max)            softplus and limits where they are asked for
 *     h_t[k] = exp(a[e, k] δ_t) · h_{t−1}[k] + δ_t · x_t · b_t[k]
 *     y_t = Σ_k h_t[k] · c_t[k] + d[e] · x_t            out_t = y_t · silu(gate_t), or y_t without a gate
 *
 * x is `hidden_states`. `a` holds decays as they stand, negative for what fades; a factor of exp(−∞) is 0. Groups: with
 * b and c of [B,T,G,K], channel e reads group e / (E/G).
 *
 * A state is given by `initial_state` and `final_state`, an entry for each sequence, or by `state`, which is read and
 * updated in place; then `state_indices` may say which entry belongs to which sequence, as in a pool. Index -1: the
 * sequence begins at 0 and its state is not kept. Any other index that is not an entry, or is there twice, is an error
 * before anything is written. One token and `state` make the step of decoding. States are float32 (float64 if x is).
 *
 * Packed sequences: with cu_seqlens tensors have batch 1, and sequence n has the tokens cu_seqlens[n] to
 * cu_seqlens[n+1] − 1. Tokens of no sequence have out 0 and are not read. An empty sequence leaves its state as it is.
 *
 * Sums and states are float32 (float64 in the reference), in a fixed order: bits do not depend on threads.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_STATE_SPACE_V1_H
#define EJKERNEL_STATE_SPACE_V1_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_STATE_SPACE_V1_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_state_space_v1_config, EJK_STATE_SPACE_V1_CONFIG);
extern EJK_API const ejk_record ejk_state_space_v1_config_record;

/** Symbols: B batch, T tokens, E channels, K numbers of a state, G groups, N sequences (B if not packed), S slots. */
#define EJK_STATE_SPACE_V1_INPUTS(F, R)                                                            \
    F(TENSOR, hidden_states, EJK_REQUIRED, "", "[B,T,E] float", "x")                               \
    F(TENSOR, a, EJK_REQUIRED, "", "[E,K] float", "decays, of any floating type")                  \
    F(TENSOR, b, EJK_REQUIRED, "", "[B,T,G,K] or [B,T,K] hidden_states", "what x enters by")       \
    F(TENSOR, c, EJK_REQUIRED, "", "[B,T,G,K] or [B,T,K] hidden_states", "what is read by")        \
    F(TENSOR, d, EJK_OPTIONAL, "0", "[E] float", "what x passes by, of any floating type")         \
    F(TENSOR, dt, EJK_REQUIRED, "", "[B,T,E] hidden_states", "step sizes")                         \
    F(TENSOR, gate, EJK_OPTIONAL, "none", "[B,T,E] hidden_states", "argument of silu")             \
    F(TENSOR, dt_bias, EJK_OPTIONAL, "0", "[E] float", "added to dt, of any floating type")        \
    F(TENSOR, initial_state, EJK_OPTIONAL, "0", "[N,E,K] float", "states before each sequence")    \
    F(TENSOR, cu_seqlens, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to T",                 \
      "0 and the ends of N packed sequences, not decreasing")                                      \
    F(BOOL, dt_softplus, EJK_OPTIONAL, "false", "", "take softplus of dt + dt_bias")               \
    F(OPT_FLOAT, dt_min, EJK_OPTIONAL, "none", "", "least step size")                              \
    F(OPT_FLOAT, dt_max, EJK_OPTIONAL, "none", "", "largest step size")                            \
    EJK_CONFIG_OPTIONS(F, R, ejk_state_space_v1_config)

#define EJK_STATE_SPACE_V1_ARGS(F, R)                                                              \
    EJK_STATE_SPACE_V1_INPUTS(F, R)                                                                \
    F(TENSOR, state_indices, EJK_OPTIONAL, "entry n", "[N] int in [-1,S)",                         \
      "entry of state of each sequence; -1: none")                                                 \
    F(TENSOR, state, EJK_INOUT, "none", "[S,E,K] float",                                           \
      "states, read and updated in place; in place of the other two")                              \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,E] hidden_states", "result")                     \
    F(TENSOR, final_state, EJK_OUTPUT, "not written", "[N,E,K] float", "states after each sequence")

EJK_RECORD_STRUCT(ejk_state_space_v1_args, EJK_STATE_SPACE_V1_ARGS);
extern EJK_API const ejk_record ejk_state_space_v1_args_record;

/** Gradients; one that is left out is not computed. That of a limit is 0 outside the limits and 1 on them. */
#define EJK_STATE_SPACE_V1_VJP_ARGS(F, R)                                                          \
    EJK_STATE_SPACE_V1_INPUTS(F, R)                                                                \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[B,T,E] hidden_states", "cotangent of out")                \
    F(TENSOR, d_final_state, EJK_OPTIONAL, "0", "[N,E,K] float", "cotangent of final_state")       \
    F(TENSOR, d_hidden_states, EJK_OUTPUT, "not computed", "[B,T,E] hidden_states", "gradient")    \
    F(TENSOR, d_a, EJK_OUTPUT, "not computed", "[E,K] a", "gradient")                              \
    F(TENSOR, d_b, EJK_OUTPUT, "not computed", "[B,T,G,K] or [B,T,K] hidden_states", "gradient")   \
    F(TENSOR, d_c, EJK_OUTPUT, "not computed", "[B,T,G,K] or [B,T,K] hidden_states", "gradient")   \
    F(TENSOR, d_d, EJK_OUTPUT, "not computed", "[E] d", "gradient")                                \
    F(TENSOR, d_dt, EJK_OUTPUT, "not computed", "[B,T,E] hidden_states", "gradient")               \
    F(TENSOR, d_gate, EJK_OUTPUT, "not computed", "[B,T,E] hidden_states", "gradient")             \
    F(TENSOR, d_dt_bias, EJK_OUTPUT, "not computed", "[E] dt_bias", "gradient")                    \
    F(TENSOR, d_initial_state, EJK_OUTPUT, "not computed", "[N,E,K] initial_state", "gradient")

EJK_RECORD_STRUCT(ejk_state_space_v1_vjp_args, EJK_STATE_SPACE_V1_VJP_ARGS);
extern EJK_API const ejk_record ejk_state_space_v1_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_state_space_v1_kernel;
extern EJK_API const ejk_kernel ejk_state_space_v1_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_state_space_v1(ejk_context *context,
                                                    const ejk_state_space_v1_args *args);
/** Memory: states at every 32nd token, and two float32 copies of b and c for each 128 channels. */
EJK_API EJK_NODISCARD ejk_status ejk_state_space_v1_vjp(ejk_context *context,
                                                        const ejk_state_space_v1_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
