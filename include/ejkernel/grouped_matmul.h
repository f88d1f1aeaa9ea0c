/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file grouped_matmul.h
 * Products of rows with the matrix of their group, as mixtures of experts need them.
 *
 *     out[i, :] = activation(lhs[i, :] · rhs[g] + rhs_bias[g]) + existing_out[i, :]       i one of the rows of group g
 *
 * Rows are dealt out in order: the first group_sizes[0] to group 0, and so on; negative sizes, and more rows than there
 * are, are errors before anything is written. rhs holds the groups group_offset to group_offset + E − 1 (all of them
 * unless group_offset is given). Rows of groups that it does not hold, and rows behind the last group, are those of
 * existing_out, or 0 without it. Matrices that no row needs are not read.
 * On a GPU nobody waits for these numbers: negative sizes count as 0, sizes end at the number of rows, and an index
 * that is out of range names a row of zeros (`lhs_indices`) or none (`out_indices`).
 *
 * rhs_scale [E,blocks,1,N]: element (k, n) of a matrix counts times the scale of block floor(k / ceil(K/blocks)).
 * rhs_bias [E,1,N] is added to the rows of its group. `lhs_indices` takes row i from lhs[lhs_indices[i]]; `out_indices`
 * adds row i, times out_weights[i], to row out_indices[i] of out, in the order of i: with both, and an activation of
 * gate and value (matmul.h), a layer of experts is two calls.
 *
 * Sums are as in matmul.h: float32, over the depth in its order. A row's bits do not depend on group_sizes, other rows
 * or threads.
 *
 * The documented operation has three versions: grouped_matmul, grouped_matmulv2, and grouped_matmulv3 with scales and
 * biases. Here all are one; each has its name.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_GROUPED_MATMUL_H
#define EJKERNEL_GROUPED_MATMUL_H

#include <ejkernel/matmul.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_GROUPED_MATMUL_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_grouped_matmul_config, EJK_GROUPED_MATMUL_CONFIG);
extern EJK_API const ejk_record ejk_grouped_matmul_config_record;

#define EJK_GROUPED_MATMUL_OPTIONS(F, R)                                                           \
    F(NAME, platform, EJK_OPTIONAL, "auto", "",                                                    \
      "implementation technology: auto, simd, reference, cuda; before that of cfg")                \
    R(ejk_grouped_matmul_config, cfg, ejk_grouped_matmul_config_record,                            \
      "explicit configuration, always honoured")

/**
 * Symbols: M rows in groups, L rows of lhs (M without lhs_indices), O rows of out (M without out_indices), K depth, N
 * columns of out, C of rhs (N, or 2 N with a gate), G groups, E groups that rhs holds, Q blocks of scales.
 */
#define EJK_GROUPED_MATMUL_ARGS(F, R)                                                              \
    F(TENSOR, lhs, EJK_REQUIRED, "", "[L,K] float", "rows")                                        \
    F(TENSOR, rhs, EJK_REQUIRED, "", "[E,K,C] or [E,C,K] lhs",                                     \
      "a matrix for each group; [E,C,K] with transpose_rhs")                                       \
    F(TENSOR, group_sizes, EJK_REQUIRED, "", "[G] int sum <= M", "rows of each group")             \
    F(TENSOR, group_offset, EJK_OPTIONAL, "0", "[] or [1] int in [0,G-E]",                         \
      "the first group that rhs holds")                                                            \
    F(TENSOR, existing_out, EJK_OPTIONAL, "none", "[O,N] float", "added last")                     \
    F(DTYPE, preferred_element_type, EJK_OPTIONAL, "that of lhs", "", "element type of out")       \
    F(BOOL, transpose_rhs, EJK_OPTIONAL, "false", "", "rhs is [E,C,K]")                            \
    F(TENSOR, rhs_scale, EJK_OPTIONAL, "none", "[E,Q,1,C] float", "factors of blocks of rhs")      \
    F(TENSOR, rhs_bias, EJK_OPTIONAL, "none", "[E,1,C] float",                                     \
      "added to the rows of a group before activation")                                            \
    F(TENSOR, lhs_indices, EJK_OPTIONAL, "none", "[M] int in [0,L)", "which row of lhs a row is")  \
    F(TENSOR, out_indices, EJK_OPTIONAL, "none", "[M] int in [0,O)",                               \
      "which row of out it adds to")                                                               \
    F(TENSOR, out_weights, EJK_OPTIONAL, "1", "[M] float", "factors of rows; with out_indices")    \
    EJK_MATMUL_ACTIVATION(F)                                                                       \
    EJK_GROUPED_MATMUL_OPTIONS(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[O,N] float", "products")

EJK_RECORD_STRUCT(ejk_grouped_matmul_args, EJK_GROUPED_MATMUL_ARGS);
extern EJK_API const ejk_record ejk_grouped_matmul_args_record;

/**
 * Gradients of a call without indices and activation. d_rhs of a group without rows is 0. That of existing_out is d_out
 * itself, in the type asked for.
 */
#define EJK_GROUPED_MATMUL_VJP_ARGS(F, R)                                                          \
    F(TENSOR, lhs, EJK_REQUIRED, "", "[M,K] float", "rows")                                        \
    F(TENSOR, rhs, EJK_REQUIRED, "", "[E,K,N] or [E,N,K] lhs", "a matrix for each group")          \
    F(TENSOR, group_sizes, EJK_REQUIRED, "", "[G] int sum <= M", "rows of each group")             \
    F(TENSOR, group_offset, EJK_OPTIONAL, "0", "[] or [1] int in [0,G-E]",                         \
      "the first group that rhs holds")                                                            \
    F(TENSOR, existing_out, EJK_OPTIONAL, "none", "[M,N] float", "only shape and type count")      \
    F(BOOL, transpose_rhs, EJK_OPTIONAL, "false", "", "rhs is [E,N,K]")                            \
    F(TENSOR, rhs_scale, EJK_OPTIONAL, "none", "[E,Q,1,N] float", "factors of blocks of rhs")      \
    F(TENSOR, rhs_bias, EJK_OPTIONAL, "none", "[E,1,N] float", "only shape and type count")        \
    EJK_GROUPED_MATMUL_OPTIONS(F, R)                                                               \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[M,N] lhs", "cotangent of out")                            \
    F(TENSOR, d_lhs, EJK_OUTPUT, "not wanted", "[M,K] lhs", "gradient of lhs")                     \
    F(TENSOR, d_rhs, EJK_OUTPUT, "not wanted", "[E,K,N] or [E,N,K] lhs",                           \
      "gradient of rhs, in its layout")                                                            \
    F(TENSOR, d_existing_out, EJK_OUTPUT, "not wanted", "[M,N] existing_out",                      \
      "gradient of existing_out, which has to be given")                                           \
    F(TENSOR, d_rhs_scale, EJK_OUTPUT, "not wanted", "[E,Q,1,N] rhs_scale",                        \
      "gradient of rhs_scale")                                                                     \
    F(TENSOR, d_rhs_bias, EJK_OUTPUT, "not wanted", "[E,1,N] rhs_bias",                            \
      "gradient of rhs_bias, which has to be given")

EJK_RECORD_STRUCT(ejk_grouped_matmul_vjp_args, EJK_GROUPED_MATMUL_VJP_ARGS);
extern EJK_API const ejk_record ejk_grouped_matmul_vjp_args_record;

/**
 * out[g] = lhs[rows of g]ᵀ · rhs[rows of g]: the product of the gradient of a group's matrix. lhs [M,K] and rhs [M,N]
 * are rows of groups as above, out [E,K,N]; groups without rows are 0.
 */
#define EJK_TGMM_ARGS(F, R)                                                                        \
    F(TENSOR, lhs, EJK_REQUIRED, "", "[M,K] float", "rows")                                        \
    F(TENSOR, rhs, EJK_REQUIRED, "", "[M,N] lhs", "rows")                                          \
    F(TENSOR, group_sizes, EJK_REQUIRED, "", "[G] int sum <= M", "rows of each group")             \
    F(TENSOR, group_offset, EJK_OPTIONAL, "0", "[] or [1] int in [0,G-E]",                         \
      "the first group that out has")                                                              \
    F(TENSOR, existing_out, EJK_OPTIONAL, "none", "[E,K,N] float", "added last")                   \
    F(DTYPE, preferred_element_type, EJK_OPTIONAL, "that of lhs", "", "element type of out")       \
    EJK_GROUPED_MATMUL_OPTIONS(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[E,K,N] float", "products")

EJK_RECORD_STRUCT(ejk_tgmm_args, EJK_TGMM_ARGS);
extern EJK_API const ejk_record ejk_tgmm_args_record;

/** Descriptions of the operations. */
extern EJK_API const ejk_kernel ejk_grouped_matmul_kernel;
extern EJK_API const ejk_kernel ejk_grouped_matmulv2_kernel;
extern EJK_API const ejk_kernel ejk_grouped_matmulv3_kernel;
extern EJK_API const ejk_kernel ejk_grouped_matmul_vjp_kernel;
extern EJK_API const ejk_kernel ejk_tgmm_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_grouped_matmul(ejk_context *context,
                                                    const ejk_grouped_matmul_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_grouped_matmulv2(ejk_context *context,
                                                      const ejk_grouped_matmul_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_grouped_matmulv3(ejk_context *context,
                                                      const ejk_grouped_matmul_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_grouped_matmul_vjp(ejk_context *context,
                                                        const ejk_grouped_matmul_vjp_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_tgmm(ejk_context *context, const ejk_tgmm_args *args);

#ifdef __cplusplus
}
#endif
#endif
