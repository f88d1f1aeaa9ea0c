/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file matmul.h
 * Matrix products with what usually follows them.
 *
 *     out[i, j] = activation(scale · Σ_k lhs[i, k] · rhs[k, j] + bias[j]) + residual[i, j]
 *
 * Activations: none, relu, silu, gelu (by erf), gelu_tanh, and those of a gate and a value, for which rhs and bias have
 * twice the columns of out: swiglu silu(g)·v, geglu gelu(g)·v, geglu_tanh, and swiglu_clamped, which is
 * g'·sigmoid(1.702 g')·(v' + 1) with g' = min(g, limit) and v' = min(max(v, −limit), limit). Gates are the first half
 * of the columns and values the second, or with `interleaved` gates have the even columns.
 *
 * With a batch axis lhs and out have a matrix for each entry, rhs has one as well or the same for all. Lengths may be
 * 0: without a depth the sums are 0. Matrices have any strides with a contiguous last axis; `transpose_rhs` takes
 * rhs as [N,K].
 *
 * Sums are float32 (float64 in the reference), over the depth in its order: bits of an element depend on its row of
 * lhs, its column of rhs and the kernel, not on threads or on what other rows there are. Products of bf16 by VDPBF16PS
 * have the bits of float32 ones, added in another order. Results are rounded once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_MATMUL_H
#define EJKERNEL_MATMUL_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_MATMUL_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_matmul_config, EJK_MATMUL_CONFIG);
extern EJK_API const ejk_record ejk_matmul_config_record;

/** Symbols: B batch, M rows, K depth, N columns of out, C columns of rhs (N, or 2 N with a gate). */
#define EJK_MATMUL_OPTIONS(F, R)                                                                   \
    F(DTYPE, preferred_element_type, EJK_OPTIONAL, "that of lhs", "", "element type of out")       \
    F(NAME, platform, EJK_OPTIONAL, "auto", "",                                                    \
      "implementation technology: auto, simd, reference, cuda; before that of cfg")                \
    R(ejk_matmul_config, cfg, ejk_matmul_config_record, "explicit configuration, always honoured")

/** What is done to sums. */
#define EJK_MATMUL_ACTIVATION(F)                                                                   \
    F(NAME, activation, EJK_OPTIONAL, "none", "",                                                  \
      "none, relu, silu, gelu, gelu_tanh, swiglu, geglu, geglu_tanh, swiglu_clamped")              \
    F(BOOL, interleaved, EJK_OPTIONAL, "false", "", "gates are the even columns of rhs")           \
    F(OPT_FLOAT, limit, EJK_OPTIONAL, "7", "", "of swiglu_clamped")

#define EJK_MATMUL_ARGS(F, R)                                                                      \
    F(TENSOR, lhs, EJK_REQUIRED, "", "[M,K] or [B,M,K] float", "left matrices")                    \
    F(TENSOR, rhs, EJK_REQUIRED, "", "[K,C] or [C,K] or [B,K,C] or [B,C,K] lhs",                   \
      "right matrices; [C,K] with transpose_rhs")                                                  \
    F(TENSOR, bias, EJK_OPTIONAL, "none", "[C] float", "added to every row before activation")     \
    F(TENSOR, residual, EJK_OPTIONAL, "none", "[M,N] or [B,M,N] float", "added last")              \
    F(BOOL, transpose_rhs, EJK_OPTIONAL, "false", "", "rhs is [C,K]")                              \
    F(OPT_FLOAT, scale, EJK_OPTIONAL, "1", "", "factor of the sums")                               \
    EJK_MATMUL_ACTIVATION(F)                                                                       \
    EJK_MATMUL_OPTIONS(F, R)                                                                       \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[M,N] or [B,M,N] float", "products")

EJK_RECORD_STRUCT(ejk_matmul_args, EJK_MATMUL_ARGS);
extern EJK_API const ejk_record ejk_matmul_args_record;

/**
 * Gradients of a call without activation; of one with an activation, d_out is the cotangent of the sums. That of the
 * residual is d_out itself. A gradient of rhs that all entries of a batch share is summed over them.
 */
#define EJK_MATMUL_VJP_ARGS(F, R)                                                                  \
    F(TENSOR, lhs, EJK_REQUIRED, "", "[M,K] or [B,M,K] float", "left matrices")                    \
    F(TENSOR, rhs, EJK_REQUIRED, "", "[K,N] or [N,K] or [B,K,N] or [B,N,K] lhs", "right matrices") \
    F(TENSOR, bias, EJK_OPTIONAL, "none", "[N] float", "only its shape and type count")            \
    F(BOOL, transpose_rhs, EJK_OPTIONAL, "false", "", "rhs is [N,K]")                              \
    F(OPT_FLOAT, scale, EJK_OPTIONAL, "1", "", "factor of the sums")                               \
    F(NAME, platform, EJK_OPTIONAL, "auto", "",                                                    \
      "implementation technology: auto, simd, reference, cuda; before that of cfg")                \
    R(ejk_matmul_config, cfg, ejk_matmul_config_record, "explicit configuration, always honoured") \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[M,N] or [B,M,N] lhs", "cotangent of out")                 \
    F(TENSOR, d_lhs, EJK_OUTPUT, "not wanted", "[M,K] or [B,M,K] lhs", "gradient of lhs")          \
    F(TENSOR, d_rhs, EJK_OUTPUT, "not wanted", "[K,N] or [N,K] or [B,K,N] or [B,N,K] lhs",         \
      "gradient of rhs, in its layout")                                                            \
    F(TENSOR, d_bias, EJK_OUTPUT, "not wanted", "[N] bias",                                        \
      "gradient of bias, which has to be given")

EJK_RECORD_STRUCT(ejk_matmul_vjp_args, EJK_MATMUL_VJP_ARGS);
extern EJK_API const ejk_record ejk_matmul_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_matmul_kernel;
extern EJK_API const ejk_kernel ejk_matmul_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_matmul(ejk_context *context, const ejk_matmul_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_matmul_vjp(ejk_context *context,
                                                const ejk_matmul_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
