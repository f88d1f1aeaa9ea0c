/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file scaled_matmul.h
 * Products of matrices of eight bits with scales of blocks.
 *
 *     out[i, j] = activation(Σ_b lhs_scale[i, b] · rhs_scale[j/128, b] · Σ_k lhs[i, k] · rhs[j, k] + bias[j])
 *                 + residual[i, j]
 *
 * with b over blocks of 128 of the depth and k over the elements of block b. So lhs, as activations are rounded, has a
 * scale for 128 elements of a row, and rhs, as weights are kept, one for 128 x 128 elements. Elements are E4M3. A NaN
 * among them makes NaN of what it is part of. Activations are those of matmul.h without a gate.
 *
 * Sums are float32 (float64 in the reference). On sm_90 products of a block are summed up on tensor cores, which add
 * those of eight bits with fewer bits than float32 has; so results of float32 are left to another kernel there.
 * Results are rounded once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_SCALED_MATMUL_H
#define EJKERNEL_SCALED_MATMUL_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_SCALED_MATMUL_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_scaled_matmul_config, EJK_SCALED_MATMUL_CONFIG);
extern EJK_API const ejk_record ejk_scaled_matmul_config_record;

/** Symbols: M rows, K depth, N columns. Scales come first: their type is that of the arithmetic. */
#define EJK_SCALED_MATMUL_ARGS(F, R)                                                               \
    F(TENSOR, lhs_scale, EJK_REQUIRED, "", "[M,ceil(K/128)] float32", "of 128 elements of a row")  \
    F(TENSOR, rhs_scale, EJK_REQUIRED, "", "[ceil(N/128),ceil(K/128)] float32",                    \
      "of 128 x 128 elements")                                                                     \
    F(TENSOR, lhs, EJK_REQUIRED, "", "[M,K] float8_e4m3fn", "left matrix")                         \
    F(TENSOR, rhs, EJK_REQUIRED, "", "[N,K] float8_e4m3fn", "right matrix, transposed")            \
    F(TENSOR, bias, EJK_OPTIONAL, "none", "[N] float", "added to every row before activation")     \
    F(TENSOR, residual, EJK_OPTIONAL, "none", "[M,N] float", "added last")                         \
    F(NAME, activation, EJK_OPTIONAL, "none", "", "none, relu, silu, gelu, gelu_tanh")             \
    F(DTYPE, preferred_element_type, EJK_OPTIONAL, "bfloat16", "", "element type of out")          \
    EJK_CONFIG_OPTIONS(F, R, ejk_scaled_matmul_config)                                             \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[M,N] float", "products")

EJK_RECORD_STRUCT(ejk_scaled_matmul_args, EJK_SCALED_MATMUL_ARGS);
extern EJK_API const ejk_record ejk_scaled_matmul_args_record;

/** Description of the operation. */
extern EJK_API const ejk_kernel ejk_scaled_matmul_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_scaled_matmul(ejk_context *context,
                                                   const ejk_scaled_matmul_args *args);

#ifdef __cplusplus
}
#endif
#endif
