/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file scaled_dot_product_attention.h
 * Attention under the short list of arguments that the dense functions of other libraries have: no soft cap,
 * no sinks, no dropout.
 *
 * Everything else is as in flash_attention.h, and so are the implementations: `out` and `lse` have the same
 * bits as flash_attention's. In particular causal aligns the last query with the last key (causal_offset = 0
 * aligns the first), a window counts alone, and cum_seqlens are cumulative lengths [N+1].
 *
 * @since 0.1
 */
#ifndef EJKERNEL_SCALED_DOT_PRODUCT_ATTENTION_H
#define EJKERNEL_SCALED_DOT_PRODUCT_ATTENTION_H

#include <ejkernel/flash_attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: the documented record has nothing of its own, the parameters are those of flash_attention. */
#define EJK_SCALED_DOT_PRODUCT_ATTENTION_CONFIG(F, R)                                              \
    EJK_BASE_OPERATION_CONFIG(F, R)                                                                \
    R(ejk_fwd_params, fwd_params, ejk_fwd_params_record, "parameters of the forward pass")         \
    R(ejk_bwd_params, bwd_params, ejk_bwd_params_record, "parameters of the backward pass")

EJK_RECORD_STRUCT(ejk_scaled_dot_product_attention_config, EJK_SCALED_DOT_PRODUCT_ATTENTION_CONFIG);
extern EJK_API const ejk_record ejk_scaled_dot_product_attention_config_record;

/** What is attended to, and how. Symbols as in flash_attention.h. */
#define EJK_SCALED_DOT_PRODUCT_ATTENTION_INPUTS(F, R)                                              \
    F(TENSOR, query, EJK_REQUIRED, "", "[B,T,Hq,D] or [T,Hq,D] float", "queries")                  \
    F(TENSOR, key, EJK_REQUIRED, "", "[B,S,Hkv,D] or [S,Hkv,D] query", "keys")                     \
    F(TENSOR, value, EJK_REQUIRED, "", "[B,S,Hkv,Dv] or [S,Hkv,Dv] query", "values")               \
    F(TENSOR, bias, EJK_OPTIONAL, "none", "[B|1,Hq|1,T|1,S] query",                                \
      "added to the scaled scores, natural-log units")                                             \
    F(TENSOR, cum_seqlens_q, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to B*T by T",       \
      "0 and the ends of N packed sequences of queries, not decreasing; given with cum_seqlens_k") \
    F(TENSOR, cum_seqlens_k, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to B*S by S",       \
      "0 and the ends of their keys")                                                              \
    F(TENSOR, attention_mask, EJK_OPTIONAL, "none", "[B|1,Hq|Hkv|1,T|1,S] bool",                   \
      "true where a query may attend")                                                             \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(BOOL, causal, EJK_OPTIONAL, "false", "", "hide keys after the query's own position")         \
    F(WINDOW, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                   \
      "left,right: keys visible to each side, inclusive; one number = both")                       \
    F(NAME, platform, EJK_OPTIONAL, "auto", "",                                                    \
      "implementation technology: auto, simd, reference, cuda; before that of cfg")                \
    F(OPT_INT, causal_offset, EJK_OPTIONAL, "S - T", "keys",                                       \
      "key position of query 0, for causal and window")                                            \
    F(TENSOR, q_segment_ids, EJK_OPTIONAL, "none", "[B,T] int",                                    \
      "segment of each query, below 0 = padding; given with kv_segment_ids")                       \
    F(TENSOR, kv_segment_ids, EJK_OPTIONAL, "none", "[B,S] int",                                   \
      "segment of each key, below 0 = padding")                                                    \
    R(ejk_scaled_dot_product_attention_config, cfg,                                                \
      ejk_scaled_dot_product_attention_config_record, "explicit configuration, always honoured")

/** Arguments: the inputs, and what the call writes. */
#define EJK_SCALED_DOT_PRODUCT_ATTENTION_ARGS(F, R)                                                \
    EJK_SCALED_DOT_PRODUCT_ATTENTION_INPUTS(F, R)                                                  \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,Hq,Dv] or [T,Hq,Dv] query", "attention output")  \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[B,Hq,T] or [Hq,T] float32",                        \
      "log-sum-exp of each row, natural log")

EJK_RECORD_STRUCT(ejk_scaled_dot_product_attention_args, EJK_SCALED_DOT_PRODUCT_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_scaled_dot_product_attention_args_record;

/** Arguments of the gradients: see ejk_flash_attention_vjp_args. */
#define EJK_SCALED_DOT_PRODUCT_ATTENTION_VJP_ARGS(F, R)                                            \
    EJK_SCALED_DOT_PRODUCT_ATTENTION_INPUTS(F, R)                                                  \
    F(TENSOR, out, EJK_REQUIRED, "", "[B,T,Hq,Dv] or [T,Hq,Dv] query", "what the call wrote")      \
    F(TENSOR, lse, EJK_REQUIRED, "", "[B,Hq,T] or [Hq,T] float32", "what the call wrote")          \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[B,T,Hq,Dv] or [T,Hq,Dv] query", "cotangent of out")       \
    F(TENSOR, d_lse, EJK_OPTIONAL, "0", "[B,Hq,T] or [Hq,T] float32", "cotangent of lse")          \
    F(TENSOR, d_query, EJK_OUTPUT, "not computed", "[B,T,Hq,D] or [T,Hq,D] query", "gradient")     \
    F(TENSOR, d_key, EJK_OUTPUT, "not computed", "[B,S,Hkv,D] or [S,Hkv,D] query",                 \
      "gradient, summed over the heads of a group")                                                \
    F(TENSOR, d_value, EJK_OUTPUT, "not computed", "[B,S,Hkv,Dv] or [S,Hkv,Dv] query",             \
      "gradient, summed over the heads of a group")                                                \
    F(TENSOR, d_bias, EJK_OUTPUT, "not computed", "[B|1,Hq|1,T|1,S] query",                        \
      "gradient, of the shape of bias")

EJK_RECORD_STRUCT(ejk_scaled_dot_product_attention_vjp_args,
                  EJK_SCALED_DOT_PRODUCT_ATTENTION_VJP_ARGS);
extern EJK_API const ejk_record ejk_scaled_dot_product_attention_vjp_args_record;

/** The operation's description, and that of its gradients. */
extern EJK_API const ejk_kernel ejk_scaled_dot_product_attention_kernel;
extern EJK_API const ejk_kernel ejk_scaled_dot_product_attention_vjp_kernel;

/** Computes. Statuses: those of ejk_flash_attention(). Nothing is written if the call fails. */
EJK_API EJK_NODISCARD ejk_status ejk_scaled_dot_product_attention(
    ejk_context *context, const ejk_scaled_dot_product_attention_args *args);

/** The same for a call whose gradients will be computed: `lse` is required. */
EJK_API EJK_NODISCARD ejk_status ejk_scaled_dot_product_attention_fwd(
    ejk_context *context, const ejk_scaled_dot_product_attention_args *args);

/** Gradients, by the implementations of flash_attention_vjp. */
EJK_API EJK_NODISCARD ejk_status ejk_scaled_dot_product_attention_vjp(
    ejk_context *context, const ejk_scaled_dot_product_attention_vjp_args *args);

/** As ejk_flash_attention_set_mask_info() and its kin. */
EJK_API EJK_NODISCARD ejk_status ejk_scaled_dot_product_attention_set_mask_info(
    ejk_scaled_dot_product_attention_args *args, const ejk_mask_info *info);
EJK_API EJK_NODISCARD ejk_status ejk_scaled_dot_product_attention_vjp_set_mask_info(
    ejk_scaled_dot_product_attention_vjp_args *args, const ejk_mask_info *info);
EJK_API EJK_NODISCARD ejk_status ejk_scaled_dot_product_attention_masked(
    ejk_context *context, const ejk_scaled_dot_product_attention_args *args,
    const ejk_mask_info *info);

#ifdef __cplusplus
}
#endif
#endif
