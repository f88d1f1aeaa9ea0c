/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file native_sparse_attention.h
 * Native sparse attention: each token attends to means of blocks, to the blocks that score best, and to a window.
 *
 *     out[t] = g_cmp[t] · compressed[t] + g_slc[t] · selected[t] + g_swa[t] · window[t]
 *
 * Blocks have block_size tokens and begin anew with each sequence; block c is complete for token t (counted from the
 * beginning of its sequence) if c < floor((t+1)/block_size), and t itself is in block floor(t/block_size).
 *
 *     compressed   softmax over the complete blocks of softmax_scale·<q, mean of k>, times the means of v
 *     selected     softmax over the tokens u <= t of the chosen blocks
 *     window       softmax over the window_size tokens up to t
 *
 * With g_cmp blocks are chosen: that of the token itself, and those before it whose weights in the compressed branch,
 * added up over the query heads of a key head in the order of heads in float32, are the largest; of equal ones the
 * first. A NaN is the smallest. They are block_counts in all, or fewer where there are fewer, and block_indices are not
 * looked at. Without g_cmp they are the first block_counts entries of block_indices: -1 is none, blocks behind the
 * token are none, and a block that is named twice counts once. A block that does not exist in a sequence of T tokens is
 * an error on a CPU, and none on a GPU. token_block_counts has such a number for each token, of which block_counts is
 * the largest.
 *
 * Gates are numbers of a token and a query head; g_slc and g_swa are 1 where they are not given. Without window_size
 * there is no window. A branch that sees nothing is 0. block_size changes results, so it is an argument, which tuning
 * leaves alone. Query head h belongs to key head h / (Hq/Hkv). Tokens of no sequence are 0.
 *
 * Scores, weights and sums are float32; bits do not depend on threads, nor a sequence's on others. There is no memory
 * of T x T: a tile of tokens has its scores, and each token the list of its blocks.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_NATIVE_SPARSE_ATTENTION_H
#define EJKERNEL_NATIVE_SPARSE_ATTENTION_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: nothing to choose but the platform. */
#define EJK_NATIVE_SPARSE_ATTENTION_CONFIG(F, R) EJK_BASE_OPERATION_CONFIG(F, R)

EJK_RECORD_STRUCT(ejk_native_sparse_attention_config, EJK_NATIVE_SPARSE_ATTENTION_CONFIG);
extern EJK_API const ejk_record ejk_native_sparse_attention_config_record;

/** Symbols: B batch, T tokens, Hq query heads, Hkv heads of keys and values, D and Dv of a head, S slots. */
#define EJK_NATIVE_SPARSE_ATTENTION_INPUTS(F, R)                                                   \
    F(TENSOR, query, EJK_REQUIRED, "", "[B,T,Hq,D] float", "queries")                              \
    F(TENSOR, key, EJK_REQUIRED, "", "[B,T,Hkv,D] query", "keys")                                  \
    F(TENSOR, value, EJK_REQUIRED, "", "[B,T,Hkv,Dv] query", "values")                             \
    F(TENSOR, g_cmp, EJK_OPTIONAL, "no compressed branch", "[B,T,Hq] float",                       \
      "gates of the compressed branch, by which blocks are chosen")                                \
    F(TENSOR, g_slc, EJK_OPTIONAL, "1", "[B,T,Hq] float", "gates of the selected branch")          \
    F(TENSOR, block_indices, EJK_OPTIONAL, "chosen with g_cmp", "[B,T,Hkv,S] int",                 \
      "blocks of each token, counted from the start of its sequence; -1: none")                    \
    F(OPT_INT, block_counts, EJK_OPTIONAL, "16", "blocks", "most blocks of a token")               \
    F(TENSOR, cu_seqlens, EJK_OPTIONAL, "none", "[N+1] int ascending from 0 to T",                 \
      "0 and the ends of N packed sequences; B is 1")                                              \
    F(OPT_INT, block_size, EJK_OPTIONAL, "64", "tokens", "tokens of a block")                      \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(OPT_INT, window_size, EJK_OPTIONAL, "no window", "tokens",                                   \
      "tokens of the window, its own and those before it")                                         \
    F(TENSOR, g_swa, EJK_OPTIONAL, "1", "[B,T,Hq] float", "gates of the window")                   \
    F(TENSOR, token_block_counts, EJK_OPTIONAL, "block_counts", "[B,T,Hkv] int",                   \
      "blocks of each token, from 0 to block_counts")                                              \
    EJK_CONFIG_OPTIONS(F, R, ejk_native_sparse_attention_config)

#define EJK_NATIVE_SPARSE_ATTENTION_ARGS(F, R)                                                     \
    EJK_NATIVE_SPARSE_ATTENTION_INPUTS(F, R)                                                       \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,Hq,Dv] query", "result")                         \
    F(TENSOR, selected, EJK_OUTPUT, "not written", "[B,T,Hkv,K] int",                              \
      "blocks that each token attended to, ascending, and -1 behind them; K is block_counts, or "  \
      "the number of slots or of blocks where that is less")

EJK_RECORD_STRUCT(ejk_native_sparse_attention_args, EJK_NATIVE_SPARSE_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_native_sparse_attention_args_record;

/**
 * Gradients of queries, keys, values and gates; the selection has none. Softmax is computed once more. With `selected`,
 * what the call wrote, blocks are not chosen once more. Gradients of keys and values add up over tokens in their
 * order, so that bits do not depend on threads. A gradient that is left out is not written.
 */
#define EJK_NATIVE_SPARSE_ATTENTION_VJP_ARGS(F, R)                                                 \
    EJK_NATIVE_SPARSE_ATTENTION_INPUTS(F, R)                                                       \
    F(TENSOR, selected, EJK_OPTIONAL, "chosen again", "[B,T,Hkv,K] int", "what the call wrote")    \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[B,T,Hq,Dv] query", "cotangent of out")                    \
    F(TENSOR, d_query, EJK_OUTPUT, "not computed", "[B,T,Hq,D] query", "gradient")                 \
    F(TENSOR, d_key, EJK_OUTPUT, "not computed", "[B,T,Hkv,D] query", "gradient")                  \
    F(TENSOR, d_value, EJK_OUTPUT, "not computed", "[B,T,Hkv,Dv] query", "gradient")               \
    F(TENSOR, d_g_cmp, EJK_OUTPUT, "not computed", "[B,T,Hq] g_cmp", "gradient")                   \
    F(TENSOR, d_g_slc, EJK_OUTPUT, "not computed", "[B,T,Hq] g_slc", "gradient")                   \
    F(TENSOR, d_g_swa, EJK_OUTPUT, "not computed", "[B,T,Hq] g_swa", "gradient")

EJK_RECORD_STRUCT(ejk_native_sparse_attention_vjp_args, EJK_NATIVE_SPARSE_ATTENTION_VJP_ARGS);
extern EJK_API const ejk_record ejk_native_sparse_attention_vjp_args_record;

/** Descriptions of the operation and of its gradient. */
extern EJK_API const ejk_kernel ejk_native_sparse_attention_kernel;
extern EJK_API const ejk_kernel ejk_native_sparse_attention_vjp_kernel;

/** Nothing is written if the call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status
ejk_native_sparse_attention(ejk_context *context, const ejk_native_sparse_attention_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_native_sparse_attention_vjp(
    ejk_context *context, const ejk_native_sparse_attention_vjp_args *args);

#ifdef __cplusplus
}
#endif
#endif
