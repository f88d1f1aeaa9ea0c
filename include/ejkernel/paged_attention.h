/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file paged_attention.h
 * Attention over keys and values that lie in pages, for any mixture of sequences that prefill and decode.
 *
 * All operations of this header are one, under the names, shapes and returns that they are documented with. Sequence
 * n has the rows query_start_loc[n] to query_start_loc[n+1] − 1 of the packed queries, q_len of them, and kv_lens[n]
 * keys, its own among them. Key t lies at row t mod page of page block_tables[n, floor(t / page)] of the caches. Row r
 * stands at position p = kv_len − q_len + r and sees the keys t ≤ p:
 *
 *     z_t   = cap·tanh(softmax_scale·<q, k_t> / cap) + alibi_slopes[h]·(t − context) + qq_bias[r, t − context]
 *     out   = Σ_t exp(z_t)·v_t / (Σ_t exp(z_t) + Σ_i exp(sink_i))
 *     lse   = log(Σ_t exp(z_t) + Σ_i exp(sink_i))
 *
 * with context = kv_len − q_len; qq_bias counts for t ≥ context, a −∞ in it hides a key, so that it can be a tree of
 * speculated tokens. sliding_window = w: w keys with the row's own; pages before all windows of a sequence are not
 * looked at. Query head h reads head floor(h·Hkv / Hq) of the caches. Rows that see no key, and rows of a position
 * below 0 (more queries than keys), give 0 and −∞, with sinks 0 and log Σ exp(sink); rows of no sequence give 0 and −∞.
 *
 * Caches are views [pages,page,Hkv,D] of any strides with a contiguous last axis, so that pages may lie head by head.
 * Their elements may be smaller than those of the queries: float32, bfloat16, float16, int8 or either float8, each
 * standing for element · scale, with k_scale and v_scale for the whole cache [1], a head [Hkv], or a row of a head
 * [pages,page,Hkv]. What lies beyond kv_len, or in pages of nobody, is never read into a result, NaN included.
 *
 * Tables are data, and wrong ones do not read foreign memory. On a CPU an entry, length or start that is outside fails
 * the call before anything is written; entries that are not needed may have any value. On a GPU nobody waits for data:
 * a sequence with a wrong entry gives 0 and −∞, and `status`, if it is given, is set to 1.
 *
 * Sums and scores are float32. The bits of a sequence do not depend on the others in the batch, on page numbers, or on
 * the number of threads.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_PAGED_ATTENTION_H
#define EJKERNEL_PAGED_ATTENTION_H

#include <ejkernel/context.h>
#include <ejkernel/params.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration. num_splits and the rest of the documented numbers are kept; what has an effect is fwd_params. */
#define EJK_PAGED_ATTENTION_CONFIG(F, R)                                                           \
    EJK_BASE_OPERATION_CONFIG(F, R)                                                                \
    F(OPT_INT, num_splits, EJK_OPTIONAL, "0", "", "of the documented record; no effect")           \
    F(OPT_INT, pages_per_compute_block, EJK_OPTIONAL, "unset", "pages",                            \
      "of the documented record; no effect")                                                       \
    F(OPT_INT, num_kv_pages_per_block, EJK_OPTIONAL, "unset", "pages",                             \
      "of the documented record; no effect")                                                       \
    F(OPT_INT, num_queries_per_block, EJK_OPTIONAL, "unset", "queries",                            \
      "of the documented record; no effect")                                                       \
    F(OPT_INT, num_warps, EJK_OPTIONAL, "4", "", "of the documented record; no effect")            \
    F(OPT_INT, num_stages, EJK_OPTIONAL, "1", "", "of the documented record; no effect")           \
    R(ejk_fwd_params, fwd_params, ejk_fwd_params_record, "parameters of the forward pass")

EJK_RECORD_STRUCT(ejk_paged_attention_config, EJK_PAGED_ATTENTION_CONFIG);
extern EJK_API const ejk_record ejk_paged_attention_config_record;

/** Fields that end the arguments of each operation. */
#define EJK_PAGED_ATTENTION_CHOICE(F, R)                                                           \
    F(NAME, platform, EJK_OPTIONAL, "auto", "",                                                    \
      "implementation technology: auto, simd, reference, cuda; before that of cfg")                \
    R(ejk_paged_attention_config, cfg, ejk_paged_attention_config_record,                          \
      "explicit configuration, always honoured")
#define EJK_PAGED_STATUS(F)                                                                        \
    F(TENSOR, status, EJK_OUTPUT, "not written", "[1] int32",                                      \
      "0; on a GPU 1 if a table, length or start was wrong")

/** Scales of caches whose elements are not the values themselves. */
#define EJK_PAGED_SCALES(F)                                                                        \
    F(TENSOR, k_scale, EJK_OPTIONAL, "1", "[1] or [Hkv] or [pages,page,Hkv] float32",              \
      "what an element of the keys is multiplied by")                                              \
    F(TENSOR, v_scale, EJK_OPTIONAL, "1", "[1] or [Hkv] or [pages,page,Hkv] float32",              \
      "the same of the values")

/** unified_attention. Symbols: T tokens, N sequences. Pages are in block_tables, or in kv_indptr and kv_indices. */
#define EJK_UNIFIED_ATTENTION_ARGS(F, R)                                                           \
    F(TENSOR, query, EJK_REQUIRED, "", "[T,Hq,D] float", "queries, packed")                        \
    F(TENSOR, key_cache, EJK_REQUIRED, "", "[pages,page,Hkv,D] element", "keys")                   \
    F(TENSOR, value_cache, EJK_REQUIRED, "", "[pages,page,Hkv,Dv] key_cache", "values")            \
    F(TENSOR, kv_lens, EJK_REQUIRED, "", "[N] int", "keys of each sequence")                       \
    F(TENSOR, block_tables, EJK_OPTIONAL, "kv_indices", "[N,max_pages] int",                       \
      "pages of each sequence; what is behind ceil(kv_len / page) is not looked at")               \
    F(TENSOR, query_start_loc, EJK_REQUIRED, "", "[N+1] int",                                      \
      "0 and the ends of the sequences' rows, not decreasing")                                     \
    F(TENSOR, kv_indptr, EJK_OPTIONAL, "block_tables", "[N+1] int",                                \
      "0 and the ends of the sequences' entries in kv_indices")                                    \
    F(TENSOR, kv_indices, EJK_OPTIONAL, "block_tables", "[entries] int",                           \
      "pages, one sequence after the other")                                                       \
    F(TENSOR, alibi_slopes, EJK_OPTIONAL, "none", "[Hq] float32", "slope of each head's bias")     \
    F(TENSOR, qq_bias, EJK_OPTIONAL, "none", "[Q,Q] float32",                                      \
      "bias between the new tokens of a sequence; Q at least its q_len")                           \
    F(TENSOR, softmax_aux, EJK_OPTIONAL, "none", "[n] or [Hq,n] or [Hkv,n] float",                 \
      "sinks: logits that join the denominator only")                                              \
    EJK_PAGED_SCALES(F)                                                                            \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(OPT_BOOL, causal, EJK_OPTIONAL, "true", "", "false is refused, as documented")               \
    F(OPT_INT, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                  \
      "keys that a row sees, its own among them; 0 or less: all")                                  \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    F(OPT_INT, seq_threshold_3d, EJK_OPTIONAL, "unset", "", "of the documented call; no effect")   \
    EJK_PAGED_ATTENTION_CHOICE(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[T,Hq,Dv] query", "result")                           \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[Hq,T] float32", "log-sum-exp of each row")         \
    EJK_PAGED_STATUS(F)

EJK_RECORD_STRUCT(ejk_unified_attention_args, EJK_UNIFIED_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_unified_attention_args_record;
extern EJK_API const ejk_kernel ejk_unified_attention_kernel;

/** Nothing is written if a call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_unified_attention(ejk_context *context,
                                                       const ejk_unified_attention_args *args);

#ifdef __cplusplus
}
#endif
#endif
