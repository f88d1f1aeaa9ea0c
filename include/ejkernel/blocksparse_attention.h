/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file blocksparse_attention.h
 * Attention over the blocks of a mask that are not empty. Heads come before tokens, [B,H,T,D].
 *
 * Scores, softmax, sinks, lse and rows without visible keys are as in flash_attention.h. Key j is visible to
 * query i iff the MaskInfo, attention_mask, causal, sliding_window, chunk_size and segment ids all allow it.
 * causal, sliding_window and chunk_size compare j with i + causal_offset, by default S − T; chunk_size hides keys
 * in other chunks and after the query. If q_positions or kv_positions are given, they replace i and j here, in any
 * order, and causal_offset is 0 by default; positions beyond ±2^61 count as ±2^61. The MaskInfo, attention_mask
 * and segment ids always use the indices.
 *
 * A MaskInfo (splash_mask.h) cuts the scores into blocks and says of each whether it is empty, partial or
 * full. Empty blocks are skipped: they cost one test each, and their contents, NaN included, affect no result.
 * Masks are applied in partial blocks only. The arguments take a MaskInfo as the tensors that it consists of:
 *
 * @code
 * ejk_blocksparse_mask_info info = {0};
 * status = ejk_blocksparse_mask_info_create(mask, NULL, &info);          // from an ejk_splash_mask
 * status = ejk_blocksparse_attention_set_mask_info(&args, &info);        // fwd_block_mask, …
 * status = ejk_blocksparse_attention(context, &args);
 * ejk_blocksparse_mask_info_close(&info);
 * @endcode
 *
 * Without one, the blocks follow from causal, sliding_window and chunk_size.
 *
 * The entries of these tensors are not trusted: a call checks all that it uses before it writes anything, and
 * fails with INVALID_ARGUMENT and the entry's position if a state is not 0, 1 or 2, an index is out of range, or
 * the block indices of a row (for dkv, of a column) are not ascending.
 *
 * On a GPU, the arrays of a MaskInfo are in its memory like all tensors of a call
 * (ejk_blocksparse_mask_info_to_device()) and are read anew by each execution: a small kernel runs first and
 * writes 4 bytes of workspace for each block of scores. Errors cannot be reported, since an execution does not
 * wait: a block with an invalid state or index counts as empty, of two entries for the same block one is used,
 * and the MaskInfos of gradients are not compared.
 *
 * Accuracy and reproducibility are those of flash_attention.h.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_BLOCKSPARSE_ATTENTION_H
#define EJKERNEL_BLOCKSPARSE_ATTENTION_H

#include <ejkernel/context.h>
#include <ejkernel/mask_info.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>
#include <ejkernel/splash_mask.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Configuration: how to compute, never what. The blocks of the mask are no part of it. */
#define EJK_BLOCKSPARSE_ATTENTION_CONFIG(F, R)                                                     \
    EJK_BASE_OPERATION_CONFIG(F, R)                                                                \
    R(ejk_fwd_params, fwd_params, ejk_fwd_params_record, "parameters of the forward pass")         \
    R(ejk_bwd_params, bwd_params, ejk_bwd_params_record, "parameters of the backward pass")

EJK_RECORD_STRUCT(ejk_blocksparse_attention_config, EJK_BLOCKSPARSE_ATTENTION_CONFIG);
extern EJK_API const ejk_record ejk_blocksparse_attention_config_record;

/**
 * The arrays of a MaskInfo whose fields begin with `which`: grids [planes, rows, columns] and partial blocks.
 * Query head h reads plane h / (Hq / planes). All grids or none are given; mask_next and partial_mask_blocks
 * may be left out if no block is partial, or if mask_function replaces them.
 */
#define EJK_BLOCKSPARSE_GRIDS(F, which, grid, blocks)                                              \
    F(TENSOR, which##_data_next, EJK_OPTIONAL, "none", grid " index",                              \
      "the block that a cell stands for: of keys, for dkv of queries")                             \
    F(TENSOR, which##_mask_next, EJK_OPTIONAL, "none", grid " index",                              \
      "where a partial block's elements lie in partial_mask_blocks")                               \
    F(TENSOR, which##_block_mask, EJK_OPTIONAL, "none", grid " index",                             \
      "state of a cell's block: 0 empty, 1 partial, 2 full")                                       \
    F(TENSOR, which##_partial_mask_blocks, EJK_OPTIONAL, "none", blocks " bool",                   \
      "elements of partial blocks, true where a query may attend")

/** What is attended to, and how; symbols as in flash_attention.h. */
#define EJK_BLOCKSPARSE_ATTENTION_INPUTS(F, R)                                                     \
    F(TENSOR, query, EJK_REQUIRED, "", "[B,Hq,T,D] float", "queries")                              \
    F(TENSOR, key, EJK_REQUIRED, "", "[B,Hkv,S,D] query", "keys")                                  \
    F(TENSOR, value, EJK_REQUIRED, "", "[B,Hkv,S,Dv] query", "values")                             \
    F(TENSOR, softmax_aux, EJK_OPTIONAL, "none", "[n] or [Hq,n] or [Hkv,n] query",                 \
      "sinks: logits that join the denominator only")                                              \
    F(TENSOR, bias, EJK_OPTIONAL, "none", "[B|1,Hq|1,T|1,S] query",                                \
      "added to the scores after the soft cap, natural-log units")                                 \
    F(TENSOR, attention_mask, EJK_OPTIONAL, "none", "[B|1,Hq|Hkv|1,T|1,S] bool",                   \
      "true where a query may attend; costs all its elements, unlike a MaskInfo")                  \
    F(TENSOR, q_segment_ids, EJK_OPTIONAL, "none", "[B,T] int",                                    \
      "segment of each query, below 0 = padding; given with kv_segment_ids")                       \
    F(TENSOR, kv_segment_ids, EJK_OPTIONAL, "none", "[B,S] int",                                   \
      "segment of each key, below 0 = padding")                                                    \
    F(TENSOR, q_positions, EJK_OPTIONAL, "0, 1, ..., T-1", "[B,T] int",                            \
      "position of each query, for causal, sliding_window and chunk_size")                         \
    F(TENSOR, kv_positions, EJK_OPTIONAL, "0, 1, ..., S-1", "[B,S] int",                           \
      "position of each key, of the type of q_positions")                                          \
    F(NAME, sequence_parallelism_mesh_axis_name, EJK_OPTIONAL, "none", "",                         \
      "axis of a mesh that queries are spread over; not in this version")                          \
    F(OPT_FLOAT, logits_soft_cap, EJK_OPTIONAL, "none", "", "cap * tanh(score / cap), above 0")    \
    F(OPT_FLOAT, softmax_scale, EJK_OPTIONAL, "1/sqrt(D)", "", "factor of the scores")             \
    F(WINDOW, sliding_window, EJK_OPTIONAL, "unlimited", "keys",                                   \
      "left,right: keys visible to each side, inclusive; one number = both")                       \
    F(OPT_INT, chunk_size, EJK_OPTIONAL, "none", "keys",                                           \
      "hide keys of other chunks of this length, and those after the query")                       \
    F(BOOL, causal, EJK_OPTIONAL, "false", "", "hide keys after the query's own position")         \
    F(OPT_INT, causal_offset, EJK_OPTIONAL, "S - T, 0 with positions", "keys",                     \
      "added to the position of a query, for causal, window and chunks")                           \
    F(OPT_BOOL, fused_backward, EJK_OPTIONAL, "true", "",                                          \
      "of the documented signature; no effect: all gradients take one pass")                       \
    EJK_BLOCKSPARSE_GRIDS(F, fwd, "[Pf,Rf,Cf]", "[Nf,Qf,Kf]")                                      \
    F(OPT_INT, fwd_kv_blocksize, EJK_OPTIONAL, "that of fwd_partial_mask_blocks", "keys",          \
      "keys of a block of fwd; its queries are T / rows")                                          \
    F(NAME, mask_function, EJK_OPTIONAL, "none", "",                                               \
      "interval: partial and full blocks alike hide by positions, not by elements")                \
    F(TENSOR, q_sequence, EJK_OPTIONAL, "0, 1, ..., T-1", "[T] int32",                             \
      "positions q of the queries, for mask_function")                                             \
    F(WINDOW, mask_interval, EJK_OPTIONAL, "unlimited", "keys",                                    \
      "mask_function interval: position q sees q - left to q + right; may be negative")            \
    F(INT, mask_chunk_size, EJK_OPTIONAL, "0", "keys",                                             \
      "mask_function interval: and nothing before the chunk that q is in; 0 = no chunks")          \
    EJK_CONFIG_OPTIONS(F, R, ejk_blocksparse_attention_config)

/** Arguments: the inputs, and what the call writes. */
#define EJK_BLOCKSPARSE_ATTENTION_ARGS(F, R)                                                       \
    EJK_BLOCKSPARSE_ATTENTION_INPUTS(F, R)                                                         \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,Hq,T,Dv] query", "attention output")               \
    F(TENSOR, lse, EJK_OUTPUT, "not written", "[B,Hq,T] float32",                                  \
      "log-sum-exp of each row, sinks included, natural log")

EJK_RECORD_STRUCT(ejk_blocksparse_attention_args, EJK_BLOCKSPARSE_ATTENTION_ARGS);
extern EJK_API const ejk_record ejk_blocksparse_attention_args_record;

/**
 * Arguments of the gradients: the inputs of the call, the MaskInfos of the backward pass, what the call wrote,
 * the cotangents of that, and where the gradients go. dq and dkv may be left out, and have blocks of other
 * sizes than fwd; gradients are computed by the blocks of dq where it is given, else by those of fwd. All have to
 * say the same mask, that of the call, but for what causal, a window, chunks or mask_function hide anyway: else
 * the call fails with INVALID_ARGUMENT and names a query and a key before anything is written.
 */
#define EJK_BLOCKSPARSE_ATTENTION_VJP_ARGS(F, R)                                                   \
    EJK_BLOCKSPARSE_ATTENTION_INPUTS(F, R)                                                         \
    EJK_BLOCKSPARSE_GRIDS(F, dq, "[Pq,Rq,Cq]", "[Nq,Qq,Kq]")                                       \
    F(OPT_INT, dq_kv_blocksize, EJK_OPTIONAL, "that of dq_partial_mask_blocks", "keys",            \
      "keys of a block of dq; its queries are T / rows")                                           \
    EJK_BLOCKSPARSE_GRIDS(F, dkv, "[Pk,Rk,Ck]", "[Nk,Kk,Qk]")                                      \
    F(OPT_INT, dkv_q_blocksize, EJK_OPTIONAL, "that of dkv_partial_mask_blocks", "queries",        \
      "queries of a block of dkv; its keys are S / columns")                                       \
    F(TENSOR, out, EJK_REQUIRED, "", "[B,Hq,T,Dv] query", "what the call wrote")                   \
    F(TENSOR, lse, EJK_REQUIRED, "", "[B,Hq,T] float32", "what the call wrote")                    \
    F(TENSOR, d_out, EJK_REQUIRED, "", "[B,Hq,T,Dv] query", "cotangent of out")                    \
    F(TENSOR, d_lse, EJK_OPTIONAL, "0", "[B,Hq,T] float32", "cotangent of lse")                    \
    F(TENSOR, d_query, EJK_OUTPUT, "not computed", "[B,Hq,T,D] query", "gradient")                 \
    F(TENSOR, d_key, EJK_OUTPUT, "not computed", "[B,Hkv,S,D] query",                              \
      "gradient, summed over the heads of a group")                                                \
    F(TENSOR, d_value, EJK_OUTPUT, "not computed", "[B,Hkv,S,Dv] query",                           \
      "gradient, summed over the heads of a group")                                                \
    F(TENSOR, d_softmax_aux, EJK_OUTPUT, "not computed", "[n] or [Hq,n] or [Hkv,n] query",         \
      "gradient, of the shape of softmax_aux")                                                     \
    F(TENSOR, d_bias, EJK_OUTPUT, "not computed", "[B|1,Hq|1,T|1,S] query",                        \
      "gradient, of the shape of bias")

EJK_RECORD_STRUCT(ejk_blocksparse_attention_vjp_args, EJK_BLOCKSPARSE_ATTENTION_VJP_ARGS);
extern EJK_API const ejk_record ejk_blocksparse_attention_vjp_args_record;

/** The operation's description. */
extern EJK_API const ejk_kernel ejk_blocksparse_attention_kernel;
/** That of its gradients: "blocksparse_attention_vjp", with cfg.bwd_params. */
extern EJK_API const ejk_kernel ejk_blocksparse_attention_vjp_kernel;

/**
 * Computes. Results go to `out` and, where given, `lse`; nothing is written if the call fails. Statuses:
 * those of ejk_plan_create() and ejk_plan_execute(), INVALID_ARGUMENT (an entry of the MaskInfo, see above).
 */
EJK_API EJK_NODISCARD ejk_status
ejk_blocksparse_attention(ejk_context *context, const ejk_blocksparse_attention_args *args);

/** The same for a call whose gradients will be computed: `lse` is required. */
EJK_API EJK_NODISCARD ejk_status
ejk_blocksparse_attention_fwd(ejk_context *context, const ejk_blocksparse_attention_args *args);

/**
 * Gradients, as ejk_flash_attention_vjp() has them: exactly 0 for rows that see no key and keys that no row
 * sees, bitwise the same for any number of threads. Statuses: those of ejk_blocksparse_attention(), and
 * INVALID_ARGUMENT for MaskInfos that differ.
 */
EJK_API EJK_NODISCARD ejk_status
ejk_blocksparse_attention_vjp(ejk_context *context, const ejk_blocksparse_attention_vjp_args *args);

/* ---- MaskInfos --------------------------------------------------------------------------------------- */

/**
 * The MaskInfos of a call and of its gradients. Fill it from ejk_process_mask() and its kin yourself, with
 * the block shapes that these were given, or have ejk_blocksparse_mask_info_create() do it. `dq` and `dkv`
 * are left zeroed where fwd is to serve. Static MaskInfos may have any head_shards, dynamic ones 1; all have
 * q_seq_shards 1.
 */
typedef struct ejk_blocksparse_mask_info {
    ejk_splash_mask_info fwd, dq, dkv;
    int64_t fwd_block_shape[2], dq_block_shape[2], dkv_block_shape[2]; /**< {bq, bkv} each */
    void *owner; /**< private: of arrays on a GPU; NULL in what you fill yourself */
} ejk_blocksparse_mask_info;

/** How a mask is processed. NULL or all zeros = default. */
typedef struct ejk_blocksparse_mask_options {
    int64_t block_shape[2];   /**< {bq, bkv}; 0 = the largest divisor of the length up to 128 */
    bool forward_only;        /**< leave dq and dkv out */
    ejk_opt_bool shrink_grid; /**< as in ejk_process_mask_args */
    ejk_threads *threads;     /**< NULL = the calling thread alone */
    int64_t max_bytes;        /**< OVERFLOW if an array needed more; 0 = no limit */
} ejk_blocksparse_mask_options;

/**
 * Processes a mask: a multi-head one with a mask per query head, or a two-dimensional one for all heads.
 * `*out` is overwritten, and closed by ejk_blocksparse_mask_info_close(); the mask has to live as long.
 * Statuses: those of ejk_process_mask().
 */
EJK_API EJK_NODISCARD ejk_status ejk_blocksparse_mask_info_create(
    const ejk_splash_mask *mask, const ejk_blocksparse_mask_options *options,
    ejk_blocksparse_mask_info *out);

/** Frees what it holds and zeroes the struct. A zeroed struct is allowed. */
EJK_API void ejk_blocksparse_mask_info_close(ejk_blocksparse_mask_info *info);

/**
 * The same with copies of its arrays on a GPU, for calls with tensors there. Allocates and waits, so it is not for
 * every call; `*out` is overwritten, and closed by ejk_blocksparse_mask_info_close() after the last work with it was
 * enqueued. Statuses: INVALID_ARGUMENT (NULL), OUT_OF_MEMORY, those of ejk_device_tensor_create() and
 * ejk_device_copy(); `*out` is untouched on failure.
 */
EJK_API EJK_NODISCARD ejk_status ejk_blocksparse_mask_info_to_device(
    const ejk_blocksparse_mask_info *info, int32_t device, ejk_blocksparse_mask_info *out);

/**
 * Writes a MaskInfo into arguments, as views: keep it until the last call with them. Statuses:
 * INVALID_ARGUMENT (NULL; a MaskInfo is there already; a block shape below 1; a predicate of the user's own,
 * which is no tensor: ejk_blocksparse_mask_info_create() turns such masks into elements), OVERFLOW. Arguments
 * are untouched on failure.
 */
EJK_API EJK_NODISCARD ejk_status ejk_blocksparse_attention_set_mask_info(
    ejk_blocksparse_attention_args *args, const ejk_blocksparse_mask_info *info);
EJK_API EJK_NODISCARD ejk_status ejk_blocksparse_attention_vjp_set_mask_info(
    ejk_blocksparse_attention_vjp_args *args, const ejk_blocksparse_mask_info *info);

/**
 * Writes the library-wide MaskInfo of mask_info.h into arguments: attention_mask or both segment ids say what `info`
 * says, its limits included, and q_positions and kv_positions are those that it was given, for the causal,
 * sliding_window and chunk_size of the call. Views: keep it until the last call with them. Statuses:
 * INVALID_ARGUMENT (NULL; attention_mask, segment ids or positions are there already; nothing in info says
 * what to hide), OUT_OF_MEMORY. Arguments are untouched on failure.
 */
EJK_API EJK_NODISCARD ejk_status ejk_blocksparse_attention_set_masks(
    ejk_blocksparse_attention_args *args, const ejk_mask_info *info);
EJK_API EJK_NODISCARD ejk_status ejk_blocksparse_attention_vjp_set_masks(
    ejk_blocksparse_attention_vjp_args *args, const ejk_mask_info *info);

/**
 * The call with a mask in place of a MaskInfo, which is derived and dropped again: for calls that are made
 * once. `mask` NULL hides nothing. With tensors on a GPU it allocates there, and waits. Statuses: those of
 * the functions above.
 */
EJK_API EJK_NODISCARD ejk_status ejk_blocksparse_attention_masked(
    ejk_context *context, const ejk_blocksparse_attention_args *args, const ejk_splash_mask *mask);

#ifdef __cplusplus
}
#endif
#endif
