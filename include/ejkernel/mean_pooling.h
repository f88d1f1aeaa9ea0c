/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mean_pooling.h
 * Means over tokens: of whole sequences, or of chunks of them.
 *
 *     out[b, …] = Σ_t x[b, t, …] / T                         without chunk_size
 *     out[b, j, …] = Σ_t x[b, t, …] / (number of t)          t from j·chunk_size to before (j+1)·chunk_size and T
 *
 * Packed sequences: with cu_seqlens, x has batch 1, or no batch axis, and sequence n has the tokens cu_seqlens[n] to
 * cu_seqlens[n+1] − 1. Whole sequences give out[n, …]. Chunks begin anew with each sequence: chunk j of sequence n is
 * row floor(cu_seqlens[n] / chunk_size) + n + j of ceil(T / chunk_size) + N − 1 rows, so that the place of a row
 * follows from the start of its sequence alone. A row that is no chunk is 0, as is the mean of no tokens.
 *
 * Sums are float32 (float64 in the reference), in a fixed order: bits do not depend on threads. Each result is
 * divided and rounded once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_MEAN_POOLING_H
#define EJKERNEL_MEAN_POOLING_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: the platform, and how memory is prefetched. */
#define EJK_MEAN_POOLING_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R) EJK_PREFETCH_PARAMS(F, R)

EJK_RECORD_STRUCT(ejk_mean_pooling_config, EJK_MEAN_POOLING_CONFIG);
extern EJK_API const ejk_record ejk_mean_pooling_config_record;

/** Up to four trailing axes. Symbols: B batch, T tokens, N sequences (B if they are not packed). */
#define EJK_MEAN_POOLING_TOKENS "[B,T,F,G,H,D] or [B,T,G,H,D] or [B,T,H,D] or [B,T,D] or [T,D] "
#define EJK_MEAN_POOLING_ROWS                                                                      \
    "[B,ceil(T/chunk_size)+N-B,F,G,H,D] or [B,ceil(T/chunk_size)+N-B,G,H,D] or "                   \
    "[B,ceil(T/chunk_size)+N-B,H,D] or [B,ceil(T/chunk_size)+N-B,D] or "                           \
    "[N,F,G,H,D] or [N,G,H,D] or [N,H,D] or [N,D] "

#define EJK_MEAN_POOLING_OPTIONS(F, R)                                                             \
    F(TENSOR, cu_seqlens, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to T",                 \
      "0 and the ends of N packed sequences, not decreasing")                                      \
    F(OPT_INT, chunk_size, EJK_OPTIONAL, "whole sequences", "tokens", "tokens of a mean")          \
    EJK_CONFIG_OPTIONS(F, R, ejk_mean_pooling_config)

#define EJK_MEAN_POOLING_ARGS(F, R)                                                                \
    F(TENSOR, x, EJK_REQUIRED, "", EJK_MEAN_POOLING_TOKENS "float", "tokens")                      \
    EJK_MEAN_POOLING_OPTIONS(F, R)                                                                 \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", EJK_MEAN_POOLING_ROWS "x", "means")

EJK_RECORD_STRUCT(ejk_mean_pooling_args, EJK_MEAN_POOLING_ARGS);
extern EJK_API const ejk_record ejk_mean_pooling_args_record;

/** Gradient: a token gets d_out of its mean, divided by the number of tokens there; 0 if it is in none. */
#define EJK_MEAN_POOLING_VJP_ARGS(F, R)                                                            \
    F(TENSOR, x, EJK_REQUIRED, "", EJK_MEAN_POOLING_TOKENS "float", "tokens, for their shape")     \
    EJK_MEAN_POOLING_OPTIONS(F, R)                                                                 \
    F(TENSOR, d_out, EJK_REQUIRED, "", EJK_MEAN_POOLING_ROWS "x", "cotangent of out")              \
    F(TENSOR, d_x, EJK_REQUIRED_OUTPUT, "", EJK_MEAN_POOLING_TOKENS "x", "gradient")

EJK_RECORD_STRUCT(ejk_mean_pooling_vjp_args, EJK_MEAN_POOLING_VJP_ARGS);
extern EJK_API const ejk_record ejk_mean_pooling_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_mean_pooling_kernel;
extern EJK_API const ejk_kernel ejk_mean_pooling_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_mean_pooling(ejk_context *context,
                                                  const ejk_mean_pooling_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_mean_pooling_vjp(ejk_context *context,
                                                      const ejk_mean_pooling_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
