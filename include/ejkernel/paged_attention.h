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
 * A prefix that all sequences share, as a system prompt, may be named by common_prefix_len: sequences of few rows then
 * look at its keys together, which reads them once, and results are those of calls without it, up to rounding. Tables
 * have to have the same pages for these keys. Calls with a window, alibi_slopes or qq_bias, and GPUs, do without.
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

/**
 * Configuration, one for the family: that of ragged_decode_attention has fwd_params alone in the documents, those of
 * page_attention and the ragged ones have the numbers. These are kept; what has an effect is fwd_params.
 */
#define EJK_PAGED_ATTENTION_CONFIG(F, R)                                                           \
    EJK_BASE_OPERATION_CONFIG(F, R)                                                                \
    F(OPT_INT, num_splits, EJK_OPTIONAL, "0", "", "of the documented record; no effect")           \
    F(OPT_INT, pages_per_compute_block, EJK_OPTIONAL, "unset", "pages",                            \
      "of the documented record; no effect")                                                       \
    F(OPT_INT, num_kv_pages_per_block, EJK_OPTIONAL, "unset", "pages",                             \
      "of the documented record; no effect")                                                       \
    F(OPT_INT, num_queries_per_block, EJK_OPTIONAL, "unset", "queries",                            \
      "of the documented record; no effect")                                                       \
    F(OPT_INT, chunk_prefill_size, EJK_OPTIONAL, "unset", "queries",                               \
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
    F(OPT_INT, common_prefix_len, EJK_OPTIONAL, "0", "keys",                                       \
      "that all sequences have in common, in the same pages")                                      \
    EJK_PAGED_ATTENTION_CHOICE(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[T,Hq,Dv] query", "result")                           \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[Hq,T] float32", "log-sum-exp of each row")         \
    EJK_PAGED_STATUS(F)

EJK_RECORD_STRUCT(ejk_unified_attention_args, EJK_UNIFIED_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_unified_attention_args_record;
extern EJK_API const ejk_kernel ejk_unified_attention_kernel;

/* ---- One query a sequence ---------------------------------------------------------------------------- */

/** page_attention: caches [pages,Hkv,page,D]. num_splits and the numbers after mask_value change nothing here. */
#define EJK_PAGE_ATTENTION_ARGS(F, R)                                                              \
    F(TENSOR, query, EJK_REQUIRED, "", "[N,Hq,D] float", "a query of each sequence")               \
    F(TENSOR, key_cache, EJK_REQUIRED, "", "[pages,Hkv,page,D] element", "keys")                   \
    F(TENSOR, value_cache, EJK_REQUIRED, "", "[pages,Hkv,page,Dv] key_cache", "values")            \
    F(TENSOR, context_lens, EJK_REQUIRED, "", "[N] int", "keys of each sequence")                  \
    F(TENSOR, block_tables, EJK_REQUIRED, "", "[N,max_pages] int",                                 \
      "pages of each sequence; what is behind ceil(context_len / page) is not looked at")          \
    EJK_PAGED_SCALES(F)                                                                            \
    F(OPT_FLOAT, attn_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")                \
    F(OPT_INT, max_context_len, EJK_OPTIONAL, "unset", "keys",                                     \
      "of the documented call; no effect")                                                         \
    F(OPT_INT, num_splits, EJK_OPTIONAL, "0", "", "of the documented call; no effect")             \
    F(OPT_FLOAT, mask_value, EJK_OPTIONAL, "-inf", "", "of the documented call; no effect")        \
    F(OPT_FLOAT, attn_logits_soft_cap, EJK_OPTIONAL, "none", "",                                   \
      "cap * tanh(score / cap), above 0")                                                          \
    F(OPT_INT, pages_per_compute_block, EJK_OPTIONAL, "unset", "pages",                            \
      "of the documented call; no effect")                                                         \
    F(NAME, megacore_mode, EJK_OPTIONAL, "unset", "", "of the documented call; no effect")         \
    F(OPT_BOOL, inline_seq_dim, EJK_OPTIONAL, "true", "", "of the documented call; no effect")     \
    F(OPT_INT, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                  \
      "keys that a row sees, its own among them; 0 or less: all")                                  \
    EJK_PAGED_ATTENTION_CHOICE(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[N,Hq,Dv] query", "result")                           \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[N,Hq] float32", "log-sum-exp of each row")         \
    EJK_PAGED_STATUS(F)

EJK_RECORD_STRUCT(ejk_page_attention_args, EJK_PAGE_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_page_attention_args_record;
extern EJK_API const ejk_kernel ejk_page_attention_kernel;

/** decode_attention: rows of a buffer; key t is row t mod page_size of page req_to_tokens[b, floor(t / page_size)]. */
#define EJK_DECODE_ATTENTION_ARGS(F, R)                                                            \
    F(TENSOR, query, EJK_REQUIRED, "", "[B,Hq,D] float", "a query of each sequence")               \
    F(TENSOR, key_buffer, EJK_REQUIRED, "", "[slots,Hkv,D] element", "keys")                       \
    F(TENSOR, value_buffer, EJK_REQUIRED, "", "[slots,Hkv,Dv] key_buffer", "values")               \
    F(TENSOR, req_to_tokens, EJK_REQUIRED, "", "[B,max_pages] int", "pages of each sequence")      \
    F(TENSOR, seq_lens, EJK_REQUIRED, "", "[B] int", "keys of each sequence")                      \
    F(TENSOR, k_scale, EJK_OPTIONAL, "1", "[1] or [Hkv] float32",                                  \
      "what an element of the keys is multiplied by")                                              \
    F(TENSOR, v_scale, EJK_OPTIONAL, "1", "[1] or [Hkv] float32", "the same of the values")        \
    F(OPT_INT, page_size, EJK_OPTIONAL, "1", "rows", "rows of a page")                             \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    F(OPT_INT, num_kv_splits, EJK_OPTIONAL, "unset", "", "of the documented call; no effect")      \
    EJK_PAGED_ATTENTION_CHOICE(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,Hq,Dv] query", "result")                           \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[B,Hq] float32", "log-sum-exp of each row")         \
    EJK_PAGED_STATUS(F)

EJK_RECORD_STRUCT(ejk_decode_attention_args, EJK_DECODE_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_decode_attention_args_record;
extern EJK_API const ejk_kernel ejk_decode_attention_kernel;

/**
 * ragged_decode_attention: keys [B,S,Hkv,D] without pages, of which sequence b has sequence_start[b] to
 * sequence_end[b] − 1; its query stands at the last of them. sliding_window (l, r): keys from l before it on.
 */
#define EJK_RAGGED_DECODE_ATTENTION_ARGS(F, R)                                                     \
    F(TENSOR, query, EJK_REQUIRED, "", "[B,Hq,D] or [B,1,Hq,D] float", "a query of each sequence") \
    F(TENSOR, key, EJK_REQUIRED, "", "[B,S,Hkv,D] element", "keys")                                \
    F(TENSOR, value, EJK_REQUIRED, "", "[B,S,Hkv,Dv] key", "values")                               \
    F(TENSOR, sequence_start, EJK_REQUIRED, "", "[B] int", "first key of each sequence")           \
    F(TENSOR, sequence_end, EJK_REQUIRED, "", "[B] int", "the one behind its last")                \
    F(TENSOR, softmax_aux, EJK_OPTIONAL, "none", "[n] or [Hq,n] or [Hkv,n] float",                 \
      "sinks: logits that join the denominator only")                                              \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(WINDOW, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                   \
      "left,right: keys visible to each side of the last, inclusive")                              \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    EJK_PAGED_ATTENTION_CHOICE(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,Hq,Dv] or [B,1,Hq,Dv] query", "result")            \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[B,Hq] float32", "log-sum-exp of each row")         \
    EJK_PAGED_STATUS(F)

EJK_RECORD_STRUCT(ejk_ragged_decode_attention_args, EJK_RAGGED_DECODE_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_ragged_decode_attention_args_record;
extern EJK_API const ejk_kernel ejk_ragged_decode_attention_kernel;

/* ---- One chunk of one sequence ----------------------------------------------------------------------- */

/** prefill_page_attention: caches [Hkv,pages,page,D]; query i stands at context_len[0] − T + i. */
#define EJK_PREFILL_PAGE_ATTENTION_ARGS(F, R)                                                      \
    F(TENSOR, query, EJK_REQUIRED, "", "[T,Hq,D] float", "the chunk's queries")                    \
    F(TENSOR, key_cache, EJK_REQUIRED, "", "[Hkv,pages,page,D] element", "keys")                   \
    F(TENSOR, value_cache, EJK_REQUIRED, "", "[Hkv,pages,page,Dv] key_cache", "values")            \
    F(TENSOR, context_len, EJK_REQUIRED, "", "[1] int", "keys, those of the chunk among them")     \
    F(TENSOR, page_indices, EJK_REQUIRED, "", "[max_pages] int", "pages of the sequence")          \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(OPT_INT, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                  \
      "keys that a row sees, its own among them; 0 or less: all")                                  \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    F(OPT_FLOAT, mask_value, EJK_OPTIONAL, "-inf", "", "of the documented call; no effect")        \
    EJK_PAGED_ATTENTION_CHOICE(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[T,Hq,Dv] query", "result")                           \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[Hq,T] float32", "log-sum-exp of each row")         \
    EJK_PAGED_STATUS(F)

EJK_RECORD_STRUCT(ejk_prefill_page_attention_args, EJK_PREFILL_PAGE_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_prefill_page_attention_args_record;
extern EJK_API const ejk_kernel ejk_prefill_page_attention_kernel;

/* ---- Packed queries ---------------------------------------------------------------------------------- */

/** ragged_page_attention: K of head h at 2h of the pages' heads, V at 2h + 1; the first num_seqs sequences count. */
#define EJK_RAGGED_PAGE_ATTENTION_ARGS(F, R)                                                       \
    F(TENSOR, queries, EJK_REQUIRED, "", "[T,Hq,D] float", "queries, packed")                      \
    F(TENSOR, kv_pages, EJK_REQUIRED, "", "[pages,page,2*Hkv,D] element", "keys and values")       \
    F(TENSOR, context_lens, EJK_REQUIRED, "", "[N] int", "keys of each sequence")                  \
    F(TENSOR, block_tables, EJK_REQUIRED, "", "[N,max_pages] int", "pages of each sequence")       \
    F(TENSOR, query_start_loc, EJK_REQUIRED, "", "[N+1] int",                                      \
      "0 and the ends of the sequences' rows, not decreasing")                                     \
    F(TENSOR, num_seqs, EJK_OPTIONAL, "N", "[1] int", "sequences that count")                      \
    F(TENSOR, softmax_aux, EJK_OPTIONAL, "none", "[n] or [Hq,n] or [Hkv,n] float",                 \
      "sinks: logits that join the denominator only")                                              \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    F(DTYPE, compute_dtype, EJK_OPTIONAL, "float32", "", "of the documented call; no effect")      \
    F(OPT_BOOL, optimized, EJK_OPTIONAL, "false", "", "of the documented call; no effect")         \
    F(OPT_INT, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                  \
      "keys that a row sees, its own among them; 0 or less: all")                                  \
    F(OPT_FLOAT, mask_value, EJK_OPTIONAL, "-inf", "", "of the documented call; no effect")        \
    F(OPT_INT, vmem_limit_bytes, EJK_OPTIONAL, "unset", "", "of the documented call; no effect")   \
    EJK_PAGED_ATTENTION_CHOICE(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[T,Hq,D] queries", "result")                          \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[Hq,T] float32", "log-sum-exp of each row")         \
    EJK_PAGED_STATUS(F)

EJK_RECORD_STRUCT(ejk_ragged_page_attention_args, EJK_RAGGED_PAGE_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_ragged_page_attention_args_record;
extern EJK_API const ejk_kernel ejk_ragged_page_attention_kernel;

/**
 * ragged_page_attention_v3: writes keys and values to positions kv_len − q_len + r, then attends. K of head h lies in
 * head slot 2h, V in slot 2h + 1; slot s is [s / pack, s mod pack] of the cache, of whose lanes the first D count.
 * Sequences [0, distribution[2]) count. Values are stored as value / k_scale or v_scale, rounded to nearest even and
 * saturated; queries are rounded to the cache's type after division by q_scale, if it is given.
 */
#define EJK_RAGGED_PAGE_ATTENTION_V3_ARGS(F, R)                                                    \
    F(TENSOR, queries, EJK_REQUIRED, "", "[T,Hq,D] float", "queries, packed")                      \
    F(TENSOR, keys, EJK_REQUIRED, "", "[T,Hkv,D] queries", "new keys")                             \
    F(TENSOR, values, EJK_REQUIRED, "", "[T,Hkv,D] queries", "new values")                         \
    F(TENSOR, kv_cache, EJK_REQUIRED_INOUT, "", "[pages,page,X,pack,lanes] element",               \
      "keys and values")                                                                           \
    F(TENSOR, kv_lens, EJK_REQUIRED, "", "[N] int", "keys of each sequence, new ones among them")  \
    F(TENSOR, block_tables, EJK_REQUIRED, "", "[N*max_pages] int",                                 \
      "pages, one sequence after the other")                                                       \
    F(TENSOR, query_start_loc, EJK_REQUIRED, "", "[N+1] int",                                      \
      "0 and the ends of the sequences' rows, not decreasing")                                     \
    F(TENSOR, distribution, EJK_REQUIRED, "", "[3] int", "i, j, k: k sequences count")             \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(OPT_INT, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                  \
      "keys that a row sees, its own among them; 0 or less: all")                                  \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    F(OPT_FLOAT, q_scale, EJK_OPTIONAL, "queries as they are", "", "scale of rounded queries")     \
    F(OPT_FLOAT, k_scale, EJK_OPTIONAL, "1", "", "what an element of the keys is multiplied by")   \
    F(OPT_FLOAT, v_scale, EJK_OPTIONAL, "1", "", "the same of the values")                         \
    F(OPT_INT, vmem_limit_bytes, EJK_OPTIONAL, "unset", "", "of the documented call; no effect")   \
    F(OPT_INT, chunk_prefill_size, EJK_OPTIONAL, "unset", "", "of the documented call; no effect") \
    EJK_PAGED_ATTENTION_CHOICE(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[T,Hq,D] queries", "result")                          \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[Hq,T] float32", "log-sum-exp of each row")         \
    EJK_PAGED_STATUS(F)

EJK_RECORD_STRUCT(ejk_ragged_page_attention_v3_args, EJK_RAGGED_PAGE_ATTENTION_V3_ARGS);
extern EJK_API const ejk_record ejk_ragged_page_attention_v3_args_record;
extern EJK_API const ejk_kernel ejk_ragged_page_attention_v3_kernel;

/** chunked_prefill_paged_decode: writes keys and values as v3 does, then attends as unified_attention does. */
#define EJK_CHUNKED_PREFILL_PAGED_DECODE_ARGS(F, R)                                                \
    F(TENSOR, queries, EJK_REQUIRED, "", "[T,Hq,D] float", "queries, packed")                      \
    F(TENSOR, keys, EJK_REQUIRED, "", "[T,Hkv,D] queries", "new keys")                             \
    F(TENSOR, values, EJK_REQUIRED, "", "[T,Hkv,Dv] queries", "new values")                        \
    F(TENSOR, key_cache, EJK_REQUIRED_INOUT, "", "[pages,page,Hkv,D] element", "keys")             \
    F(TENSOR, value_cache, EJK_REQUIRED_INOUT, "", "[pages,page,Hkv,Dv] key_cache", "values")      \
    F(TENSOR, kv_lens, EJK_REQUIRED, "", "[N] int", "keys of each sequence, new ones among them")  \
    F(TENSOR, block_tables, EJK_REQUIRED, "", "[N,max_pages] int", "pages of each sequence")       \
    F(TENSOR, query_start_loc, EJK_REQUIRED, "", "[N+1] int",                                      \
      "0 and the ends of the sequences' rows, not decreasing")                                     \
    F(TENSOR, alibi_slopes, EJK_OPTIONAL, "none", "[Hq] float32", "slope of each head's bias")     \
    F(TENSOR, softmax_aux, EJK_OPTIONAL, "none", "[n] or [Hq,n] or [Hkv,n] float",                 \
      "sinks: logits that join the denominator only")                                              \
    F(TENSOR, k_scale, EJK_OPTIONAL, "1", "[1] or [Hkv] float32",                                  \
      "what an element of the keys is multiplied by")                                              \
    F(TENSOR, v_scale, EJK_OPTIONAL, "1", "[1] or [Hkv] float32", "the same of the values")        \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(OPT_BOOL, causal, EJK_OPTIONAL, "true", "", "false is refused, as documented")               \
    F(OPT_INT, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                  \
      "keys that a row sees, its own among them; 0 or less: all")                                  \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    F(OPT_INT, seq_threshold_3d, EJK_OPTIONAL, "unset", "", "of the documented call; no effect")   \
    F(OPT_INT, num_par_softmax_segments, EJK_OPTIONAL, "unset", "",                                \
      "of the documented call; no effect")                                                         \
    EJK_PAGED_ATTENTION_CHOICE(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[T,Hq,Dv] queries", "result")                         \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[Hq,T] float32", "log-sum-exp of each row")         \
    EJK_PAGED_STATUS(F)

EJK_RECORD_STRUCT(ejk_chunked_prefill_paged_decode_args, EJK_CHUNKED_PREFILL_PAGED_DECODE_ARGS);
extern EJK_API const ejk_record ejk_chunked_prefill_paged_decode_args_record;
extern EJK_API const ejk_kernel ejk_chunked_prefill_paged_decode_kernel;

/**
 * multi_latent_ragged_page_attention: latents of R elements and rope parts of P in one cache row, written first, then
 * attended to with absorbed weights: score = softmax_scale·(<queries_nope, latent> + <queries_pe, rope>), values are
 * the latents. A cache row has the rope part behind the latent, or, in rows of other than R + P lanes, behind the
 * latent rounded up to 128. softmax_scale unset is 1/sqrt(R + P), as documented; models that were trained with heads
 * of Dn + P elements want 1/sqrt(Dn + P).
 */
#define EJK_MULTI_LATENT_RAGGED_PAGE_ATTENTION_ARGS(F, R)                                          \
    F(TENSOR, queries_nope, EJK_REQUIRED, "", "[T,Hq,R] float", "queries times w_kc, packed")      \
    F(TENSOR, queries_pe, EJK_REQUIRED, "", "[T,Hq,P] queries_nope", "rope parts of the queries")  \
    F(TENSOR, keys_values, EJK_REQUIRED, "", "[T,R] queries_nope", "new latents")                  \
    F(TENSOR, keys_pe, EJK_REQUIRED, "", "[T,P] queries_nope", "new rope parts")                   \
    F(TENSOR, kv_cache, EJK_REQUIRED_INOUT, "",                                                    \
      "[pages,page,lanes] or [pages,rows,pack,lanes] element",                                     \
      "latents and rope parts; a page has rows·pack rows in the second form")                      \
    F(TENSOR, kv_lens, EJK_REQUIRED, "", "[N] int", "keys of each sequence, new ones among them")  \
    F(TENSOR, block_tables, EJK_REQUIRED, "", "[N*max_pages] int",                                 \
      "pages, one sequence after the other")                                                       \
    F(TENSOR, query_start_loc, EJK_REQUIRED, "", "[N+1] int",                                      \
      "0 and the ends of the sequences' rows, not decreasing")                                     \
    F(TENSOR, distribution, EJK_REQUIRED, "", "[3] int", "i, j, k: k sequences count")             \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(R+P)", "", "factor of the scores")           \
    F(OPT_INT, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                  \
      "keys that a row sees, its own among them; 0 or less: all")                                  \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    F(OPT_FLOAT, q_scale, EJK_OPTIONAL, "queries as they are", "", "scale of rounded queries")     \
    F(OPT_FLOAT, k_scale, EJK_OPTIONAL, "1", "", "what an element of the cache is multiplied by")  \
    F(OPT_FLOAT, v_scale, EJK_OPTIONAL, "k_scale", "", "the same; another value is refused")       \
    EJK_PAGED_ATTENTION_CHOICE(F, R)                                                               \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[T,Hq,R] queries_nope",                               \
      "result, to be multiplied by w_vc")                                                          \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[Hq,T] float32", "log-sum-exp of each row")         \
    EJK_PAGED_STATUS(F)

EJK_RECORD_STRUCT(ejk_multi_latent_ragged_page_attention_args,
                  EJK_MULTI_LATENT_RAGGED_PAGE_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_multi_latent_ragged_page_attention_args_record;
extern EJK_API const ejk_kernel ejk_multi_latent_ragged_page_attention_kernel;

/* ---- Calls ------------------------------------------------------------------------------------------- */

/** Nothing is written if a call fails. Statuses: those of ejk_plan_create() and ejk_plan_execute(). */
EJK_API EJK_NODISCARD ejk_status ejk_unified_attention(ejk_context *context,
                                                       const ejk_unified_attention_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_page_attention(ejk_context *context,
                                                    const ejk_page_attention_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_decode_attention(ejk_context *context,
                                                      const ejk_decode_attention_args *args);
EJK_API EJK_NODISCARD ejk_status
ejk_ragged_decode_attention(ejk_context *context, const ejk_ragged_decode_attention_args *args);
EJK_API EJK_NODISCARD ejk_status
ejk_prefill_page_attention(ejk_context *context, const ejk_prefill_page_attention_args *args);
EJK_API EJK_NODISCARD ejk_status
ejk_ragged_page_attention(ejk_context *context, const ejk_ragged_page_attention_args *args);
EJK_API EJK_NODISCARD ejk_status
ejk_ragged_page_attention_v3(ejk_context *context, const ejk_ragged_page_attention_v3_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_chunked_prefill_paged_decode(
    ejk_context *context, const ejk_chunked_prefill_paged_decode_args *args);
EJK_API EJK_NODISCARD ejk_status ejk_multi_latent_ragged_page_attention(
    ejk_context *context, const ejk_multi_latent_ragged_page_attention_args *args);

#ifdef __cplusplus
}
#endif
#endif
