/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attention_merge.h
 * Combines attention over parts of the keys into attention over all: KV splits, shared prefixes, ring steps.
 *
 * Part n covers some of the keys, without sinks, with output o_n and l_n = lse_n. With sinks a_m:
 *
 *     lse = log(Σ_n exp(l_n) + Σ_m exp(a_m))      w_n = exp(l_n − lse)      out = Σ_n w_n o_n
 *
 * A part with l_n = −∞ saw no key and is ignored, whatever o_n contains. If a row has no other parts, out is 0
 * and lse −∞ (with sinks: log Σ exp(a_m)).
 *
 * The second form takes what normalize_output = false writes: an accumulator A_n relative to the row maximum
 * m_n, and the sum s_n of weights. Then o_n = A_n / s_n and l_n = m_n + log s_n, computed without the division.
 *
 * Results are bitwise equal for any number of threads and any position of a row, with the same implementation.
 * Exponentials and sums over parts are float32 (float64 in the reference); a weight below 2^-126 is 0.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_ATTENTION_MERGE_H
#define EJKERNEL_ATTENTION_MERGE_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_ATTENTION_MERGE_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_attention_merge_config, EJK_ATTENTION_MERGE_CONFIG);
extern EJK_API const ejk_record ejk_attention_merge_config_record;

/**
 * The parts. Symbols: N parts, B batch, T queries, Hq heads, Dv value dim, n sinks. Any strides with a
 * contiguous last axis.
 */
#define EJK_ATTENTION_MERGE_INPUTS(F, R)                                                           \
    F(TENSOR, partial_out, EJK_REQUIRED, "", "[N,B,T,Hq,Dv] float", "outputs of the parts")        \
    F(TENSOR, partial_lse, EJK_REQUIRED, "", "[N,B,Hq,T] float32",                                 \
      "their log-sum-exp, without sinks; -inf = saw nothing")                                      \
    F(TENSOR, softmax_aux, EJK_OPTIONAL, "none", "[n] or [Hq,n] or [Hkv,n] partial_out",           \
      "sinks: logits that join the denominator once")                                              \
    EJK_CONFIG_OPTIONS(F, R, ejk_attention_merge_config)

#define EJK_ATTENTION_MERGE_ARGS(F, R)                                                             \
    EJK_ATTENTION_MERGE_INPUTS(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,Hq,Dv] partial_out", "merged output")            \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[B,Hq,T] float32",                                  \
      "merged log-sum-exp, sinks included, natural log")

EJK_RECORD_STRUCT(ejk_attention_merge_args, EJK_ATTENTION_MERGE_ARGS);
extern EJK_API const ejk_record ejk_attention_merge_args_record;

/** The second form. */
#define EJK_ATTENTION_MERGE_ACCUMULATORS_ARGS(F, R)                                                \
    F(TENSOR, accumulator, EJK_REQUIRED, "", "[N,B,T,Hq,Dv] float32", "sums of the parts")         \
    F(TENSOR, row_max, EJK_REQUIRED, "", "[N,B,Hq,T] float32", "largest score of each row")        \
    F(TENSOR, row_sum, EJK_REQUIRED, "", "[N,B,Hq,T] float32", "sum of exp(score - row_max)")      \
    F(TENSOR, softmax_aux, EJK_OPTIONAL, "none", "[n] or [Hq,n] or [Hkv,n] float32",               \
      "sinks: logits that join the denominator once")                                              \
    EJK_CONFIG_OPTIONS(F, R, ejk_attention_merge_config)                                           \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,Hq,Dv] float", "merged output, of any type")     \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[B,Hq,T] float32",                                  \
      "merged log-sum-exp, sinks included, natural log")

EJK_RECORD_STRUCT(ejk_attention_merge_accumulators_args, EJK_ATTENTION_MERGE_ACCUMULATORS_ARGS);
extern EJK_API const ejk_record ejk_attention_merge_accumulators_args_record;

/** Gradients of the first form. One that is left out is not computed. */
#define EJK_ATTENTION_MERGE_VJP_ARGS(F, R)                                                         \
    EJK_ATTENTION_MERGE_INPUTS(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED, "", "[B,T,Hq,Dv] partial_out", "what the call wrote")             \
    F(TENSOR, lse, EJK_REQUIRED, "", "[B,Hq,T] float32", "what the call wrote")                    \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[B,T,Hq,Dv] partial_out", "cotangent of out")              \
    F(TENSOR, d_lse, EJK_OPTIONAL, "0", "[B,Hq,T] float32", "cotangent of lse")                    \
    F(TENSOR, d_partial_out, EJK_OUTPUT, "not computed", "[N,B,T,Hq,Dv] partial_out", "gradient")  \
    F(TENSOR, d_partial_lse, EJK_OUTPUT, "not computed", "[N,B,Hq,T] float32", "gradient")         \
    F(TENSOR, d_softmax_aux, EJK_OUTPUT, "not computed", "[n] or [Hq,n] or [Hkv,n] partial_out",   \
      "gradient, of the shape of softmax_aux")

EJK_RECORD_STRUCT(ejk_attention_merge_vjp_args, EJK_ATTENTION_MERGE_VJP_ARGS);
extern EJK_API const ejk_record ejk_attention_merge_vjp_args_record;

/** Descriptions of both forms and of the gradients. */
extern EJK_API const ejk_kernel ejk_attention_merge_kernel;
extern EJK_API const ejk_kernel ejk_attention_merge_accumulators_kernel;
extern EJK_API const ejk_kernel ejk_attention_merge_vjp_kernel;

/**
 * Merges the parts. Nothing is written if the call fails; only the first call of a shape allocates. The parts are
 * slices of one tensor; to merge parts of several tensors, call it repeatedly: merging is associative if the sinks
 * are added once. Statuses: those of ejk_plan_create() and ejk_plan_execute().
 */
EJK_API EJK_NODISCARD ejk_status ejk_attention_merge(ejk_context *context,
                                                     const ejk_attention_merge_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_attention_merge_accumulators(
    ejk_context *context, const ejk_attention_merge_accumulators_args *args);

/** The first form for a call whose gradients will be computed: `lse` is required. */
EJK_API EJK_NODISCARD ejk_status ejk_attention_merge_fwd(ejk_context *context,
                                                         const ejk_attention_merge_args *args);

/**
 * Gradients, deterministic. With δ = <d_out, out>:
 *
 *     d_o_n = w_n d_out      d_l_n = w_n (<d_out, o_n> − δ + d_lse)      d_a_m = Σ exp(a_m − lse) (d_lse − δ)
 *
 * the last over the rows that read sink m. Parts that count nothing have gradients of 0.
 */
EJK_API EJK_NODISCARD ejk_status ejk_attention_merge_vjp(ejk_context *context,
                                                         const ejk_attention_merge_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
