/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gated_rms_norm.h
 * Root-mean-square norm with a gate, as layers with a recurrent state end.
 *
 *     norm(u)_d = u_d / sqrt(mean over d's group of u² + eps)
 *     out = norm(x) · weight · act(gate)          with norm_before_gate, as gated delta nets have it
 *     out = norm(x · act(gate)) · weight          without, as Mamba-2 has it
 *
 * A group is `group_size` neighbouring components of the last axis, or all of it. act is silu, z / (1 + e^−z), or
 * sigmoid, 1 / (1 + e^−z). Without a gate act is 1: the plain norm.
 *
 * Sums are float32 (float64 in the reference), in a fixed order: bits do not depend on threads. Each result is rounded
 * once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_GATED_RMS_NORM_H
#define EJKERNEL_GATED_RMS_NORM_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: the platform, and how memory is prefetched. */
#define EJK_GATED_RMS_NORM_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R) EJK_PREFETCH_PARAMS(F, R)

EJK_RECORD_STRUCT(ejk_gated_rms_norm_config, EJK_GATED_RMS_NORM_CONFIG);
extern EJK_API const ejk_record ejk_gated_rms_norm_config_record;

#define EJK_GATED_RMS_NORM_ROWS "[B,T,H,D] or [B,T,D] or [T,D] "

#define EJK_GATED_RMS_NORM_INPUTS(F, R)                                                            \
    F(TENSOR, x, EJK_REQUIRED, "", EJK_GATED_RMS_NORM_ROWS "float", "rows")                        \
    F(TENSOR, gate, EJK_OPTIONAL, "none", EJK_GATED_RMS_NORM_ROWS "x", "argument of act")          \
    F(TENSOR, weight, EJK_OPTIONAL, "1", "[D] x", "factor of each component")                      \
    F(OPT_INT, group_size, EJK_OPTIONAL, "the last axis", "components", "of one mean; divides D")  \
    F(OPT_BOOL, norm_before_gate, EJK_OPTIONAL, "true", "",                                        \
      "gate what is normed, or norm what is gated")                                                \
    F(NAME, activation, EJK_OPTIONAL, "silu", "", "silu or sigmoid")                               \
    F(OPT_FLOAT, eps, EJK_OPTIONAL, "1e-5", "", "added to means of squares; at least 0")           \
    EJK_CONFIG_OPTIONS(F, R, ejk_gated_rms_norm_config)

#define EJK_GATED_RMS_NORM_ARGS(F, R)                                                              \
    EJK_GATED_RMS_NORM_INPUTS(F, R)                                                                \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", EJK_GATED_RMS_NORM_ROWS "x", "result")

EJK_RECORD_STRUCT(ejk_gated_rms_norm_args, EJK_GATED_RMS_NORM_ARGS);
extern EJK_API const ejk_record ejk_gated_rms_norm_args_record;

/** Gradients; one that is left out is not computed. */
#define EJK_GATED_RMS_NORM_VJP_ARGS(F, R)                                                          \
    EJK_GATED_RMS_NORM_INPUTS(F, R)                                                                \
    F(TENSOR, d_out, EJK_REQUIRED, "", EJK_GATED_RMS_NORM_ROWS "x", "cotangent of out")            \
    F(TENSOR, d_x, EJK_OUTPUT, "not computed", EJK_GATED_RMS_NORM_ROWS "x", "gradient")            \
    F(TENSOR, d_gate, EJK_OUTPUT, "not computed", EJK_GATED_RMS_NORM_ROWS "x", "gradient")         \
    F(TENSOR, d_weight, EJK_OUTPUT, "not computed", "[D] x", "gradient")

EJK_RECORD_STRUCT(ejk_gated_rms_norm_vjp_args, EJK_GATED_RMS_NORM_VJP_ARGS);
extern EJK_API const ejk_record ejk_gated_rms_norm_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_gated_rms_norm_kernel;
extern EJK_API const ejk_kernel ejk_gated_rms_norm_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_gated_rms_norm(ejk_context *context,
                                                    const ejk_gated_rms_norm_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_gated_rms_norm_vjp(ejk_context *context,
                                                        const ejk_gated_rms_norm_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
