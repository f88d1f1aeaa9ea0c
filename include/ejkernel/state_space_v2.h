/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file state_space_v2.h
 * The scan of Mamba-2 (SSD): each head has a state of P x K numbers with one decay, then a gate and a norm.
 *
 *     δ_t = min(max(softplus(dt_t + dt_bias), dt_min), dt_max)            softplus and limits where they are asked for
 *     h_t = exp(a δ_t) · h_{t−1} + δ_t · x_t b_tᵀ                          [P,K], each head its own a, δ and x
 *     y_t = h_t c_t + d · x_t
 *
 *     out = y                                        without a gate
 *     out = y · silu(gate)                           with one
 *     out = norm(y) · weight · silu(gate)            use_gated_rmsnorm: norm_before_gate, as documented
 *     out = norm(y · silu(gate)) · weight            without norm_before_gate, as Mamba-2 has it
 *
 * where norm(u) = u / sqrt(mean of u² + rmsnorm_eps) over all H·P numbers of a token, or over `rmsnorm_group_size`
 * neighbours; without a gate silu(gate) is 1. Rates `a` are as they stand, negative for what fades; a factor of
 * exp(−∞) is 0. Groups: head h reads group h / (H/G) of b and c.
 *
 * A state is given by `initial_state` and `final_state`, an entry for each sequence, or by `state`, which is read and
 * updated in place; then `state_indices` may say which entry belongs to which sequence, as in a pool. Index -1: the
 * sequence begins at 0 and its state is not kept. Any other index that is not an entry, or is there twice, is an error
 * before anything is written; on a GPU, where nobody waits for them, an index outside counts as -1 and none may be
 * there twice. One token and `state` make the step of decoding. States are float32 (float64 if x is).
 *
 * Packed sequences: with cu_seqlens tensors have batch 1, and sequence n has the tokens cu_seqlens[n] to
 * cu_seqlens[n+1] − 1. Tokens of no sequence have out and gradients of 0 and are not read. An empty sequence leaves its
 * state as it is. With `reverse` time runs backwards in each sequence.
 *
 * Accuracy: the error against f64 is at most twice that of a plain evaluation token by token in f32 from inputs of the
 * call's types, plus 4 ulp of the type of the result, which is rounded once. No exponential is taken of a number that
 * the formula does not have. With the same implementation, results are bitwise equal for any number of threads and
 * any other sequences beside. As recurrent.h says, a state that is kept may change the last bits of out.
 *
 * Source: T. Dao, A. Gu, "Transformers are SSMs" (2024).
 *
 * @since 0.1
 */
#ifndef EJKERNEL_STATE_SPACE_V2_H
#define EJKERNEL_STATE_SPACE_V2_H

#include <ejkernel/recurrent.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Rows of all heads, which may lie one after the other or apart. */
#define EJK_STATE_SPACE_V2_ROWS "[B,T,H*P] or [B,T,H,P] "

/**
 * Symbols: B batch, T tokens, H heads, P numbers of x a head, K numbers of a state for each of them, G groups,
 * N sequences (B if not packed), S slots. Configuration: that of the recurrent family, whose kernels these are.
 */
#define EJK_STATE_SPACE_V2_INPUTS(F, R)                                                            \
    F(TENSOR, x, EJK_REQUIRED, "", "[B,T,H,P] float", "what enters the states")                    \
    F(TENSOR, a, EJK_REQUIRED, "", "[H] float", "rates of decay; float32 or the type of x")        \
    F(TENSOR, b, EJK_REQUIRED, "", "[B,T,G,K] x", "what x enters by")                              \
    F(TENSOR, c, EJK_REQUIRED, "", "[B,T,G,K] x", "what is read by")                               \
    F(TENSOR, d, EJK_OPTIONAL, "0", "[H] float",                                                   \
      "what x passes by the state; float32 or the type of x")                                      \
    F(TENSOR, dt, EJK_REQUIRED, "", "[B,T,H] float", "step sizes; float32 or the type of x")       \
    F(TENSOR, gate, EJK_OPTIONAL, "none", EJK_STATE_SPACE_V2_ROWS "x", "argument of silu")         \
    F(TENSOR, dt_bias, EJK_OPTIONAL, "0", "[H] float", "added to dt; float32 or the type of x")    \
    F(TENSOR, initial_state, EJK_OPTIONAL, "0", "[N,H,P,K] float", "states before each sequence")  \
    F(TENSOR, rmsnorm_weight, EJK_OPTIONAL, "1", "[H*P] float",                                    \
      "factors of what is normed; float32 or the type of x")                                       \
    F(TENSOR, cu_seqlens, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to T",                 \
      "0 and the ends of N packed sequences, not decreasing")                                      \
    F(OPT_INT, n_groups, EJK_OPTIONAL, "those of b", "", "G once more, as a check")                \
    F(BOOL, use_gated_rmsnorm, EJK_OPTIONAL, "false", "", "norm what is read, with the gate")      \
    F(OPT_FLOAT, rmsnorm_eps, EJK_OPTIONAL, "1e-5", "", "added to means of squares; at least 0")   \
    F(OPT_BOOL, norm_before_gate, EJK_OPTIONAL, "true", "",                                        \
      "gate what is normed, or norm what is gated")                                                \
    F(OPT_INT, rmsnorm_group_size, EJK_OPTIONAL, "H*P", "numbers", "of one mean; divides H*P")     \
    F(BOOL, dt_softplus, EJK_OPTIONAL, "false", "", "take softplus of dt + dt_bias")               \
    F(OPT_FLOAT, dt_min, EJK_OPTIONAL, "none", "", "least step size")                              \
    F(OPT_FLOAT, dt_max, EJK_OPTIONAL, "none", "", "largest step size")                            \
    F(BOOL, reverse, EJK_OPTIONAL, "false", "", "time runs backwards in each sequence")            \
    F(NAME, platform, EJK_OPTIONAL, "auto", "",                                                    \
      "implementation technology: auto, simd, reference, cuda; before that of cfg")                \
    R(ejk_recurrent_config, cfg, ejk_recurrent_config_record,                                      \
      "explicit configuration, always honoured")

#define EJK_STATE_SPACE_V2_ARGS(F, R)                                                              \
    EJK_STATE_SPACE_V2_INPUTS(F, R)                                                                \
    F(TENSOR, state_indices, EJK_OPTIONAL, "entry n", "[N] int in [-1,S)",                         \
      "entry of state of each sequence; -1: none")                                                 \
    F(TENSOR, state, EJK_INOUT, "none", "[S,H,P,K] float",                                         \
      "states, read and updated in place; in place of the other two")                              \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", EJK_STATE_SPACE_V2_ROWS "x", "result")                 \
    F(TENSOR, final_state, EJK_OUTPUT, "not written", "[N,H,P,K] float",                           \
      "states after each sequence")

EJK_RECORD_STRUCT(ejk_state_space_v2_args, EJK_STATE_SPACE_V2_ARGS);
extern EJK_API const ejk_record ejk_state_space_v2_args_record;

/** Gradients; one that is left out is not computed. That of a limit is 0 outside the limits and 1 on them. */
#define EJK_STATE_SPACE_V2_VJP_ARGS(F, R)                                                          \
    EJK_STATE_SPACE_V2_INPUTS(F, R)                                                                \
    F(TENSOR, d_out, EJK_REQUIRED, "", EJK_STATE_SPACE_V2_ROWS "x", "cotangent of out")            \
    F(TENSOR, d_final_state, EJK_OPTIONAL, "0", "[N,H,P,K] float", "cotangent of final_state")     \
    F(TENSOR, d_x, EJK_OUTPUT, "not computed", "[B,T,H,P] x", "gradient")                          \
    F(TENSOR, d_a, EJK_OUTPUT, "not computed", "[H] a", "gradient")                                \
    F(TENSOR, d_b, EJK_OUTPUT, "not computed", "[B,T,G,K] x", "gradient")                          \
    F(TENSOR, d_c, EJK_OUTPUT, "not computed", "[B,T,G,K] x", "gradient")                          \
    F(TENSOR, d_d, EJK_OUTPUT, "not computed", "[H] d", "gradient")                                \
    F(TENSOR, d_dt, EJK_OUTPUT, "not computed", "[B,T,H] dt", "gradient")                          \
    F(TENSOR, d_gate, EJK_OUTPUT, "not computed", EJK_STATE_SPACE_V2_ROWS "x", "gradient")         \
    F(TENSOR, d_dt_bias, EJK_OUTPUT, "not computed", "[H] dt_bias", "gradient")                    \
    F(TENSOR, d_initial_state, EJK_OUTPUT, "not computed", "[N,H,P,K] float",                      \
      "gradient; float32 or the type of initial_state")                                            \
    F(TENSOR, d_rmsnorm_weight, EJK_OUTPUT, "not computed", "[H*P] rmsnorm_weight", "gradient")

EJK_RECORD_STRUCT(ejk_state_space_v2_vjp_args, EJK_STATE_SPACE_V2_VJP_ARGS);
extern EJK_API const ejk_record ejk_state_space_v2_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_state_space_v2_kernel;
extern EJK_API const ejk_kernel ejk_state_space_v2_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_state_space_v2(ejk_context *context,
                                                    const ejk_state_space_v2_args *args);
/** Memory: states at every 64th token or more often, never one of each token. */
EJK_API EJK_NODISCARD ejk_status ejk_state_space_v2_vjp(ejk_context *context,
                                                        const ejk_state_space_v2_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
