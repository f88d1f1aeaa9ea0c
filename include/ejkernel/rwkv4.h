/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rwkv4.h
 * The time mixing of RWKV-4: a weighted mean of values in each channel, whose weights fade.
 *
 *     out_t = (Σ_{s<t} e^{k_s − (t−1−s) e^w} v_s + e^{u + k_t} v_t) / (the same sums without v)
 *
 * w and u are [C]: a decay of e^−e^w a step, and a bonus for the token itself. The state of a channel is three numbers
 * (α, β, ε): the sums, both divided by e^ε, so that no sum overflows whatever the keys are:
 *
 *     τ = max(u + k_t, ε),       out_t = (e^{ε−τ} α + e^{u+k_t−τ} v_t) / (e^{ε−τ} β + e^{u+k_t−τ})
 *     ε' = max(ε − e^w, k_t),    α' = e^{ε−e^w−ε'} α + e^{k_t−ε'} v_t,    β' = e^{ε−e^w−ε'} β + e^{k_t−ε'}
 *
 * Without a state before it a sequence begins at (0, 0, −1e30). A key of −∞ hides its token, whose value is then not
 * used; where nothing is visible, out is 0. ε is not kept below −3.4e38, the least float32.
 *
 * The state is given by `initial_state` and `final_state`, an entry of [3,C] for each sequence, or by `state`, which is
 * read and updated in place; then `state_indices` may say which entry belongs to which sequence, as in a pool. Index
 * -1: the sequence begins anew and its state is not kept. Any other index that is not an entry, or is there twice, is
 * an error before anything is written. One token and `state` make the step of decoding. States are float32 (float64 if
 * k is).
 *
 * Packed sequences: with cu_seqlens tensors have batch 1, and sequence n has the tokens cu_seqlens[n] to
 * cu_seqlens[n+1] − 1. Tokens of no sequence have out 0 and are not read. An empty sequence leaves its state as it is.
 * With reverse, time runs backwards in each sequence.
 *
 * Sums are float32 (float64 in the reference), in a fixed order: bits do not depend on threads.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_RWKV4_H
#define EJKERNEL_RWKV4_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_RWKV4_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_rwkv4_config, EJK_RWKV4_CONFIG);
extern EJK_API const ejk_record ejk_rwkv4_config_record;

/** Symbols: B batch, T tokens, C channels, N sequences (B if not packed), S slots. */
#define EJK_RWKV4_INPUTS(F, R)                                                                     \
    F(TENSOR, w, EJK_REQUIRED, "", "[C] float", "logarithm of the decay rate, of any type")        \
    F(TENSOR, u, EJK_REQUIRED, "", "[C] float", "bonus of the token itself, of any type")          \
    F(TENSOR, k, EJK_REQUIRED, "", "[B,T,C] float", "keys: logarithms of weights")                 \
    F(TENSOR, v, EJK_REQUIRED, "", "[B,T,C] k", "values")                                          \
    F(TENSOR, initial_state, EJK_OPTIONAL, "0, 0, -1e30", "[N,3,C] float",                         \
      "states before each sequence")                                                               \
    F(TENSOR, cu_seqlens, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to T",                 \
      "0 and the ends of N packed sequences, not decreasing")                                      \
    F(BOOL, reverse, EJK_OPTIONAL, "false", "", "time runs backwards in each sequence")            \
    EJK_CONFIG_OPTIONS(F, R, ejk_rwkv4_config)

#define EJK_RWKV4_ARGS(F, R)                                                                       \
    EJK_RWKV4_INPUTS(F, R)                                                                         \
    F(TENSOR, state_indices, EJK_OPTIONAL, "entry n", "[N] int in [-1,S)",                         \
      "entry of state of each sequence; -1: none")                                                 \
    F(TENSOR, state, EJK_INOUT, "none", "[S,3,C] float",                                           \
      "states, read and updated in place; in place of the other two")                              \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,C] k", "result")                                 \
    F(TENSOR, final_state, EJK_OUTPUT, "not written", "[N,3,C] float", "states after each sequence")

EJK_RECORD_STRUCT(ejk_rwkv4_args, EJK_RWKV4_ARGS);
extern EJK_API const ejk_record ejk_rwkv4_args_record;

/** Gradients; one that is left out is not computed. Where ε − e^w equals a key, the maximum's slope is the key's. */
#define EJK_RWKV4_VJP_ARGS(F, R)                                                                   \
    EJK_RWKV4_INPUTS(F, R)                                                                         \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[B,T,C] k", "cotangent of out")                            \
    F(TENSOR, d_final_state, EJK_OPTIONAL, "0", "[N,3,C] float", "cotangent of final_state")       \
    F(TENSOR, d_w, EJK_OUTPUT, "not computed", "[C] w", "gradient")                                \
    F(TENSOR, d_u, EJK_OUTPUT, "not computed", "[C] u", "gradient")                                \
    F(TENSOR, d_k, EJK_OUTPUT, "not computed", "[B,T,C] k", "gradient")                            \
    F(TENSOR, d_v, EJK_OUTPUT, "not computed", "[B,T,C] k", "gradient")                            \
    F(TENSOR, d_initial_state, EJK_OUTPUT, "not computed", "[N,3,C] initial_state", "gradient")

EJK_RECORD_STRUCT(ejk_rwkv4_vjp_args, EJK_RWKV4_VJP_ARGS);
extern EJK_API const ejk_record ejk_rwkv4_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_rwkv4_kernel;
extern EJK_API const ejk_kernel ejk_rwkv4_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_rwkv4(ejk_context *context, const ejk_rwkv4_args *args);
/** Memory: the states at every 32nd token of a sequence. */
EJK_API EJK_NODISCARD ejk_status ejk_rwkv4_vjp(ejk_context *context,
                                               const ejk_rwkv4_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
