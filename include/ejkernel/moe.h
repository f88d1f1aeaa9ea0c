/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file moe.h
 * A layer of experts, from what its router has chosen.
 *
 *     out[t] = Σ_a expert_weight[t, a] · (activation(hidden[t] · w_gate_up[e]) · w_down[e]),  e = expert_index[t, a]
 *
 * Tokens are sorted by expert, so that each expert's matrices are read once; experts that no token has chosen are not
 * read. The activation is swiglu unless another is named, as in matmul.h: with a gate w_gate_up has twice the columns
 * that w_down has rows. Both matrices may be transposed. What lies between the two products is in the type of hidden.
 *
 * With `gate_up_scales` and `down_scales` both matrices are codes of one format, or, without scales and with
 * `transpose`, what prepack made of such (quantized_matmul.h, which says what their products are). `activation_bits` of
 * 8 rounds the rows of both products.
 *
 * Sums are as in matmul.h; those of a token's experts are float32, in the order of the experts, and rounded once. A
 * token's bits do not depend on other tokens or threads.
 *
 * Numbers out of range are an error on the CPU. A GPU does not look at them before: an expert that there is none of
 * adds nothing to its token.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_MOE_H
#define EJKERNEL_MOE_H

#include <ejkernel/quantized_matmul.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_MOE_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_moe_config, EJK_MOE_CONFIG);
extern EJK_API const ejk_record ejk_moe_config_record;

/** Symbols: T tokens, A experts of a token, E experts, D width, I rows of w_down, C columns of w_gate_up (B). */
#define EJK_MOE_ARGS(F, R)                                                                         \
    F(TENSOR, hidden, EJK_REQUIRED, "", "[T,D] float", "tokens")                                   \
    F(TENSOR, expert_index, EJK_REQUIRED, "", "[T,A] int in [0,E)", "experts of each token")       \
    F(TENSOR, expert_weight, EJK_REQUIRED, "", "[T,A] float", "their weights")                     \
    F(TENSOR, w_gate_up, EJK_REQUIRED, "", "[E,D,C] or [E,C,D] or [E,R,W] weights",                \
      "first matrices, as hidden, or codes; [E,C,D] with transpose")                               \
    F(TENSOR, w_down, EJK_REQUIRED, "", "[E,I,D] or [E,D,I] or [E,P,V] weights",                   \
      "second matrices, likewise; [E,D,I] with transpose")                                         \
    F(TENSOR, gate_up_bias, EJK_OPTIONAL, "none", "[E,B] float", "added before activation")        \
    F(TENSOR, down_bias, EJK_OPTIONAL, "none", "[E,D] float", "added to second products")          \
    F(TENSOR, gate_up_scales, EJK_OPTIONAL, "none", "[E,R,S] scales", "w_gate_up is codes")        \
    F(TENSOR, gate_up_zeros, EJK_OPTIONAL, "2^(bits-1)", "[E,R,S] zeros", "of affine groups")      \
    F(TENSOR, down_scales, EJK_OPTIONAL, "none", "[E,P,Q] scales", "w_down is codes")              \
    F(TENSOR, down_zeros, EJK_OPTIONAL, "2^(bits-1)", "[E,P,Q] zeros", "of affine groups")         \
    F(TENSOR, gate_up_tensor_scale, EJK_OPTIONAL, "1", "[] or [1] float32", "of all, nv modes")    \
    F(TENSOR, down_tensor_scale, EJK_OPTIONAL, "1", "[] or [1] float32", "of all, nv modes")       \
    EJK_QUANTIZATION(F)                                                                            \
    F(OPT_INT, activation_bits, EJK_OPTIONAL, "as hidden has them", "bits", "8: rounded rows")     \
    F(BOOL, transpose, EJK_OPTIONAL, "false", "", "matrices are [out, in]")                        \
    F(NAME, activation, EJK_OPTIONAL, "swiglu", "", "as in matmul")                                \
    F(BOOL, interleaved, EJK_OPTIONAL, "false", "", "gates are the even columns")                  \
    F(OPT_FLOAT, limit, EJK_OPTIONAL, "7", "", "of swiglu_clamped")                                \
    F(NAME, platform, EJK_OPTIONAL, "auto", "",                                                    \
      "implementation technology: auto, simd, reference, cuda; before that of cfg")                \
    R(ejk_moe_config, cfg, ejk_moe_config_record, "explicit configuration, always honoured")       \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[T,D] hidden", "sums over the experts of a token")

EJK_RECORD_STRUCT(ejk_moe_args, EJK_MOE_ARGS);
extern EJK_API const ejk_record ejk_moe_args_record;

/** The operation's description. */
extern EJK_API const ejk_kernel ejk_moe_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_moe(ejk_context *context, const ejk_moe_args *args);

#ifdef __cplusplus
}
#endif
#endif
