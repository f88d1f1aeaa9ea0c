/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file flash_attention.h
 * Exact attention in memory linear in the sequence lengths, with online softmax.
 *
 * With G = Hq / Hkv, query head h reads key and value head h / G. For query i of S keys:
 *
 *     z_ij = softmax_scale · <query_i, key_j>
 *     z_ij = logits_soft_cap · tanh(z_ij / logits_soft_cap)          if a cap is set
 *     z_ij = z_ij + bias_ij                                          if a bias is given
 *     p_ij = exp(z_ij) / (Σ_visible j exp(z_ij) + Σ_n exp(softmax_aux_n))   for visible j, else 0
 *     out_i = Σ_j p_ij value_j,      lse_i = log of that denominator
 *
 * Key j is visible to query i iff attention_mask, causal, sliding_window and segment ids all allow it:
 * causal: j ≤ i + offset; window: i + offset − left ≤ j ≤ i + offset + right; offset is causal_offset,
 * by default S − T, so that the last query sees the last key; segments: both ids equal and ≥ 0.
 *
 * A score of −∞ hides its key as a mask does: by a bias of −∞, whatever query and key are, or because scale ·
 * query · key is −∞. A query that sees no key gets output 0 and lse −∞ (with sinks: lse = log Σ exp(sink)), never
 * NaN. Values at hidden keys, NaN included, never affect a result or a gradient. NaN and infinities at visible
 * keys propagate as in IEEE arithmetic, except that those in the value of a key whose weight underflows to 0 may
 * reach the output or not.
 *
 * Packed sequences: with cum_seqlens_q and cum_seqlens_k, sequence n has the queries cum_seqlens_q[n] to
 * cum_seqlens_q[n+1] − 1 and the keys likewise, and attends to no others. The default offset and the dropout
 * pattern use its own lengths and positions. Two layouts: tokens of all sequences one after the other, query
 * [T,Hq,D] and lse [Hq,T], without bias, mask and segment ids; or sequence n at the start of batch entry n, query
 * [B,T,Hq,D] with N = B. Rows outside all sequences get output 0 and lse −∞. Lengths that decrease or end beyond
 * the tensors are INVALID_ARGUMENT when the call is executed, before anything is written.
 *
 * Accuracy: the error against f64 is at most twice that of a plain evaluation in the type of query with sums in
 * f32, plus 4 ulp of that type. With the same implementation and parameters, results are bitwise equal for any
 * number of threads, any other batch entries and any position of a row.
 *
 * Source of the formulas: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax" (2018);
 * T. Dao et al., "FlashAttention" (2022).
 *
 * @since 0.1
 */
#ifndef EJKERNEL_FLASH_ATTENTION_H
#define EJKERNEL_FLASH_ATTENTION_H

#include <ejkernel/context.h>
#include <ejkernel/mask_info.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: how to compute, never what. */
#define EJK_FLASH_ATTENTION_CONFIG(F, R)                                                           \
    EJK_BASE_OPERATION_CONFIG(F, R)                                                                \
    R(ejk_fwd_params, fwd_params, ejk_fwd_params_record, "parameters of the forward pass")         \
    R(ejk_bwd_params, bwd_params, ejk_bwd_params_record, "parameters of the backward pass")

EJK_RECORD_STRUCT(ejk_flash_attention_config, EJK_FLASH_ATTENTION_CONFIG);
extern EJK_API const ejk_record ejk_flash_attention_config_record;

/**
 * What is attended to, and how. Symbols: B batch, T queries, S keys, Hq and Hkv heads, D head dim of query
 * and key, Dv of value, n sinks. Any strides with a contiguous last axis. Zero-initialised members are left
 * out.
 */
#define EJK_FLASH_ATTENTION_INPUTS(F, R)                                                           \
    F(TENSOR, query, EJK_REQUIRED, "", "[B,T,Hq,D] or [T,Hq,D] float", "queries")                  \
    F(TENSOR, key, EJK_REQUIRED, "", "[B,S,Hkv,D] or [S,Hkv,D] query", "keys")                     \
    F(TENSOR, value, EJK_REQUIRED, "", "[B,S,Hkv,Dv] or [S,Hkv,Dv] query", "values")               \
    F(TENSOR, bias, EJK_OPTIONAL, "none", "[B|1,Hq|1,T|1,S] query",                                \
      "added to the scores after the soft cap, natural-log units")                                 \
    F(TENSOR, cum_seqlens_q, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to B*T by T",       \
      "0 and the ends of N packed sequences of queries, not decreasing; given with cum_seqlens_k") \
    F(TENSOR, cum_seqlens_k, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to B*S by S",       \
      "0 and the ends of their keys")                                                              \
    F(TENSOR, softmax_aux, EJK_OPTIONAL, "none", "[n] or [Hq,n] or [Hkv,n] query",                 \
      "sinks: logits that join the denominator only")                                              \
    F(TENSOR, attention_mask, EJK_OPTIONAL, "none", "[B|1,Hq|Hkv|1,T|1,S] bool",                   \
      "true where a query may attend")                                                             \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(FLOAT, dropout_prob, EJK_OPTIONAL, "0", "",                                                  \
      "part of the weights that is dropped, 0 ≤ p < 1; the others times 1/(1−p)")                  \
    F(OPT_INT, dropout_seed, EJK_OPTIONAL, "0", "", "seed of the dropout")                         \
    F(BOOL, causal, EJK_OPTIONAL, "false", "", "hide keys after the query's own position")         \
    F(OPT_INT, causal_offset, EJK_OPTIONAL, "S - T", "keys",                                       \
      "key position of query 0, for causal and window")                                            \
    F(WINDOW, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                   \
      "left,right: keys visible to each side, inclusive; one number = both")                       \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    F(OPT_BOOL, normalize_output, EJK_OPTIONAL, "true", "",                                        \
      "false: out is the float32 accumulator beside row_max and row_sum")                          \
    F(NAME, precision, EJK_OPTIONAL, "default", "",                                                \
      "default, high or highest: all accumulate in float32")                                       \
    F(DTYPE, logits_dtype, EJK_OPTIONAL, "float32", "", "type of the scores; only float32")        \
    F(TENSOR, q_segment_ids, EJK_OPTIONAL, "none", "[B,T] int",                                    \
      "segment of each query, below 0 = padding; given with kv_segment_ids")                       \
    F(TENSOR, kv_segment_ids, EJK_OPTIONAL, "none", "[B,S] int",                                   \
      "segment of each key, below 0 = padding")                                                    \
    EJK_CONFIG_OPTIONS(F, R, ejk_flash_attention_config)

/** Arguments: the inputs, and what the call writes. */
#define EJK_FLASH_ATTENTION_ARGS(F, R)                                                             \
    EJK_FLASH_ATTENTION_INPUTS(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,Hq,Dv] or [T,Hq,Dv] float",                      \
      "attention output, in the type of query (float32 if not normalised)")                        \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[B,Hq,T] or [Hq,T] float32",                        \
      "log-sum-exp of each row, sinks included, natural log")                                      \
    F(TENSOR, row_max, EJK_OUTPUT, "not written", "[B,Hq,T] or [Hq,T] float32",                    \
      "largest visible score of each row; with normalize_output = false")                          \
    F(TENSOR, row_sum, EJK_OUTPUT, "not written", "[B,Hq,T] or [Hq,T] float32",                    \
      "sum of exp(score - row_max), of row_max as it is written; with normalize_output = false")

EJK_RECORD_STRUCT(ejk_flash_attention_args, EJK_FLASH_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_flash_attention_args_record;

/**
 * Arguments of the gradients: the inputs of the call, what it wrote, the cotangents of that, and where the
 * gradients go. A gradient that is left out is not computed; one of a broadcast axis is the sum over it.
 */
#define EJK_FLASH_ATTENTION_VJP_ARGS(F, R)                                                         \
    EJK_FLASH_ATTENTION_INPUTS(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED, "", "[B,T,Hq,Dv] or [T,Hq,Dv] query", "what the call wrote")      \
    F(TENSOR, lse, EJK_REQUIRED, "", "[B,Hq,T] or [Hq,T] float32", "what the call wrote")          \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[B,T,Hq,Dv] or [T,Hq,Dv] query", "cotangent of out")       \
    F(TENSOR, d_lse, EJK_OPTIONAL, "0", "[B,Hq,T] or [Hq,T] float32", "cotangent of lse")          \
    F(OPT_BOOL, deterministic, EJK_OPTIONAL, "true", "",                                           \
      "false: a GPU may add in any order, so that bits differ from run to run")                    \
    F(TENSOR, d_query, EJK_OUTPUT, "not computed", "[B,T,Hq,D] or [T,Hq,D] query", "gradient")     \
    F(TENSOR, d_key, EJK_OUTPUT, "not computed", "[B,S,Hkv,D] or [S,Hkv,D] query",                 \
      "gradient, summed over the heads of a group")                                                \
    F(TENSOR, d_value, EJK_OUTPUT, "not computed", "[B,S,Hkv,Dv] or [S,Hkv,Dv] query",             \
      "gradient, summed over the heads of a group")                                                \
    F(TENSOR, d_bias, EJK_OUTPUT, "not computed", "[B|1,Hq|1,T|1,S] query",                        \
      "gradient, of the shape of bias")                                                            \
    F(TENSOR, d_softmax_aux, EJK_OUTPUT, "not computed", "[n] or [Hq,n] or [Hkv,n] query",         \
      "gradient, of the shape of softmax_aux")

EJK_RECORD_STRUCT(ejk_flash_attention_vjp_args, EJK_FLASH_ATTENTION_VJP_ARGS);
extern EJK_API const ejk_record ejk_flash_attention_vjp_args_record;

/** The operation's description. */
extern EJK_API const ejk_kernel ejk_flash_attention_kernel;
/** That of its gradients, an operation of its own: "flash_attention_vjp", with cfg.bwd_params. */
extern EJK_API const ejk_kernel ejk_flash_attention_vjp_kernel;

/**
 * Computes. Results go to `out` and, where given, `lse`, `row_max`, `row_sum`; nothing is written if the
 * call fails. Allocates only the first time a shape is met; see plan.h for calls that never do.
 * Statuses: those of ejk_plan_create() and ejk_plan_execute().
 */
EJK_API EJK_NODISCARD ejk_status ejk_flash_attention(ejk_context *context,
                                                     const ejk_flash_attention_args *args);

/**
 * The same for a call whose gradients will be computed: `lse` is required, and normalize_output may not
 * be false. `out` and `lse` are all that the gradients need besides the inputs.
 */
EJK_API EJK_NODISCARD ejk_status ejk_flash_attention_fwd(ejk_context *context,
                                                         const ejk_flash_attention_args *args);

/**
 * Gradients: Σ cotangents · outputs, derived by each wanted input. Formulas as in A. Griewank, A. Walther,
 * "Evaluating Derivatives" (2008), applied to the ones above; T. Dao et al. for recomputing the weights from
 * lse. Bitwise the same from run to run and for any number of threads, unless `deterministic` is false. Extra
 * memory: a tile for each thread, [B,Hq,T] floats, and at most one float32 copy of a gradient; never [T,S].
 * Gradients of rows that see no key, of keys that no row sees, and of tokens of no sequence are exactly 0.
 */
EJK_API EJK_NODISCARD ejk_status ejk_flash_attention_vjp(ejk_context *context,
                                                         const ejk_flash_attention_vjp_args *args);

/**
 * Sets the mask arguments from a MaskInfo: attention_mask or both segment ids and, where possible, causal,
 * causal_offset and sliding_window. The tensors are views: keep `info` until the last call with these arguments. A
 * causal or sliding_window that is set already is kept and applies in addition.
 *
 * Statuses: INVALID_ARGUMENT (NULL; attention_mask, q_segment_ids or kv_segment_ids is set already; `info` has no
 * mask), OUT_OF_MEMORY. Arguments are untouched on failure.
 */
EJK_API EJK_NODISCARD ejk_status ejk_flash_attention_set_mask_info(ejk_flash_attention_args *args,
                                                                   const ejk_mask_info *info);

/** The same for the arguments of the gradients. */
EJK_API EJK_NODISCARD ejk_status ejk_flash_attention_vjp_set_mask_info(
    ejk_flash_attention_vjp_args *args, const ejk_mask_info *info);

/**
 * The call with a MaskInfo in place of masks: both of the above on a copy of the arguments. `info` NULL
 * hides nothing. Statuses: those of both.
 */
EJK_API EJK_NODISCARD ejk_status ejk_flash_attention_masked(ejk_context *context,
                                                            const ejk_flash_attention_args *args,
                                                            const ejk_mask_info *info);

#ifdef __cplusplus
}
#endif
#endif
