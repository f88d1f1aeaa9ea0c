/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attention.h
 * Dense attention that can also return its weights.
 *
 * Scores, visibility (a bias of −∞ hides a key), sinks, fully masked rows and NaN are as in
 * flash_attention.h, with the same implementations: `out` and `lse` have the same bits as flash_attention's.
 * `weights`, if requested, are the p_ij of flash_attention.h after dropout, [B,Hq,T,S]. They are computed in
 * a second step, in the precision of the implementation (float32; float64 in the reference), and rounded once
 * to the type of query. Hidden keys and fully masked rows have weights of 0. Without sinks and dropout, the
 * weights of any other row sum to 1.
 *
 * Dropout is applied only if `deterministic` is false. `dropout_seed` takes the place of the random key of the
 * documented signature.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_ATTENTION_H
#define EJKERNEL_ATTENTION_H

#include <ejkernel/flash_attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Configuration. The numbers of the documented record are kept, with their defaults, for keys and documents;
 * they have no effect, as there. What has is in the parameters.
 */
#define EJK_ATTENTION_CONFIG(F, R)                                                                 \
    EJK_BASE_OPERATION_CONFIG(F, R)                                                                \
    F(OPT_INT, block_q, EJK_OPTIONAL, "128", "rows", "of the documented record; no effect")        \
    F(OPT_INT, block_k, EJK_OPTIONAL, "128", "keys", "of the documented record; no effect")        \
    F(OPT_INT, num_warps, EJK_OPTIONAL, "4", "", "of the documented record; no effect")            \
    F(OPT_INT, num_stages, EJK_OPTIONAL, "2", "", "of the documented record; no effect")           \
    R(ejk_fwd_params, fwd_params, ejk_fwd_params_record, "parameters of the forward pass")         \
    R(ejk_bwd_params, bwd_params, ejk_bwd_params_record, "parameters of the backward pass")

EJK_RECORD_STRUCT(ejk_attention_config, EJK_ATTENTION_CONFIG);
extern EJK_API const ejk_record ejk_attention_config_record;

/** What is attended to, and how. Symbols as in flash_attention.h. */
#define EJK_ATTENTION_INPUTS(F, R)                                                                 \
    F(TENSOR, query, EJK_REQUIRED, "", "[B,T,Hq,D] float", "queries")                              \
    F(TENSOR, key, EJK_REQUIRED, "", "[B,S,Hkv,D] query", "keys")                                  \
    F(TENSOR, value, EJK_REQUIRED, "", "[B,S,Hkv,Dv] query", "values")                             \
    F(TENSOR, bias, EJK_OPTIONAL, "none", "[B|1,Hq|1,T|1,S] query",                                \
      "added to the scores after the soft cap, natural-log units")                                 \
    F(OPT_INT, dropout_seed, EJK_OPTIONAL, "0", "", "seed of the dropout")                         \
    F(TENSOR, softmax_aux, EJK_OPTIONAL, "none", "[n] or [Hq,n] or [Hkv,n] query",                 \
      "sinks: logits that join the denominator only")                                              \
    F(TENSOR, attention_mask, EJK_OPTIONAL, "none", "[B|1,Hq|Hkv|1,T|1,S] bool",                   \
      "true where a query may attend")                                                             \
    F(OPT_BOOL, deterministic, EJK_OPTIONAL, "true", "", "false: dropout_prob counts")             \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    F(DTYPE, dtype, EJK_OPTIONAL, "that of query", "",                                             \
      "type of out and weights; only that of query in this version")                               \
    F(DTYPE, softmax_dtype, EJK_OPTIONAL, "float32", "", "type of the scores; only float32")       \
    F(FLOAT, dropout_prob, EJK_OPTIONAL, "0", "",                                                  \
      "part of the weights that is dropped, 0 ≤ p < 1; the others times 1/(1−p)")                  \
    F(BOOL, causal, EJK_OPTIONAL, "false", "", "hide keys after the query's own position")         \
    F(WINDOW, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                   \
      "left,right: keys visible to each side, inclusive; one number = both")                       \
    F(OPT_INT, causal_offset, EJK_OPTIONAL, "S - T", "keys",                                       \
      "key position of query 0, for causal and window")                                            \
    F(TENSOR, q_segment_ids, EJK_OPTIONAL, "none", "[B,T] int",                                    \
      "segment of each query, below 0 = padding; given with kv_segment_ids")                       \
    F(TENSOR, kv_segment_ids, EJK_OPTIONAL, "none", "[B,S] int",                                   \
      "segment of each key, below 0 = padding")                                                    \
    EJK_CONFIG_OPTIONS(F, R, ejk_attention_config)

/** Arguments: the inputs, and what the call writes. */
#define EJK_ATTENTION_ARGS(F, R)                                                                   \
    EJK_ATTENTION_INPUTS(F, R)                                                                     \
    F(OPT_BOOL, return_weights, EJK_OPTIONAL, "as weights is given", "",                           \
      "true: weights has to be given; false: it is not written")                                   \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,Hq,Dv] query", "attention output")               \
    F(TENSOR, weights, EJK_OUTPUT, "not computed", "[B,Hq,T,S] query",                             \
      "weights of each row, after dropout")                                                        \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[B,Hq,T] float32",                                  \
      "log-sum-exp of each row, sinks included, natural log")

EJK_RECORD_STRUCT(ejk_attention_args, EJK_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_attention_args_record;

/** Arguments of the gradients: see ejk_flash_attention_vjp_args. */
#define EJK_ATTENTION_VJP_ARGS(F, R)                                                               \
    EJK_ATTENTION_INPUTS(F, R)                                                                     \
    F(TENSOR, out, EJK_REQUIRED, "", "[B,T,Hq,Dv] query", "what the call wrote")                   \
    F(TENSOR, lse, EJK_REQUIRED, "", "[B,Hq,T] float32", "what the call wrote")                    \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[B,T,Hq,Dv] query", "cotangent of out")                    \
    F(TENSOR, d_lse, EJK_OPTIONAL, "0", "[B,Hq,T] float32", "cotangent of lse")                    \
    F(TENSOR, d_weights, EJK_OPTIONAL, "0", "[B,Hq,T,S] query",                                    \
      "cotangent of weights; not in this version")                                                 \
    F(TENSOR, d_query, EJK_OUTPUT, "not computed", "[B,T,Hq,D] query", "gradient")                 \
    F(TENSOR, d_key, EJK_OUTPUT, "not computed", "[B,S,Hkv,D] query",                              \
      "gradient, summed over the heads of a group")                                                \
    F(TENSOR, d_value, EJK_OUTPUT, "not computed", "[B,S,Hkv,Dv] query",                           \
      "gradient, summed over the heads of a group")                                                \
    F(TENSOR, d_bias, EJK_OUTPUT, "not computed", "[B|1,Hq|1,T|1,S] query",                        \
      "gradient, of the shape of bias")                                                            \
    F(TENSOR, d_softmax_aux, EJK_OUTPUT, "not computed", "[n] or [Hq,n] or [Hkv,n] query",         \
      "gradient, of the shape of softmax_aux")

EJK_RECORD_STRUCT(ejk_attention_vjp_args, EJK_ATTENTION_VJP_ARGS);
extern EJK_API const ejk_record ejk_attention_vjp_args_record;

/** The operation's description, and that of its gradients. */
extern EJK_API const ejk_kernel ejk_attention_kernel;
extern EJK_API const ejk_kernel ejk_attention_vjp_kernel;

/**
 * Computes. Nothing is written if the call fails. Allocates only the first time a shape is met.
 * Statuses: those of ejk_plan_create() and ejk_plan_execute(); UNAVAILABLE: dtype or softmax_dtype of another
 * type than above; INVALID_ARGUMENT: return_weights is true, and weights is not given.
 */
EJK_API EJK_NODISCARD ejk_status ejk_attention(ejk_context *context,
                                               const ejk_attention_args *args);

/** The same for a call whose gradients will be computed: `lse` is required. */
EJK_API EJK_NODISCARD ejk_status ejk_attention_fwd(ejk_context *context,
                                                   const ejk_attention_args *args);

/**
 * Gradients, by the implementations of flash_attention_vjp. Gradients through the weights are not supported: with
 * `d_weights`, the call returns UNAVAILABLE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_attention_vjp(ejk_context *context,
                                                   const ejk_attention_vjp_args *args);

/** As ejk_flash_attention_set_mask_info() and its kin. */
EJK_API EJK_NODISCARD ejk_status ejk_attention_set_mask_info(ejk_attention_args *args,
                                                             const ejk_mask_info *info);
EJK_API EJK_NODISCARD ejk_status ejk_attention_vjp_set_mask_info(ejk_attention_vjp_args *args,
                                                                 const ejk_mask_info *info);
EJK_API EJK_NODISCARD ejk_status ejk_attention_masked(ejk_context *context,
                                                      const ejk_attention_args *args,
                                                      const ejk_mask_info *info);

#ifdef __cplusplus
}
#endif
#endif
