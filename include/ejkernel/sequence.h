/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sequence.h
 * Packed sequences: their lengths and positions, cumulative sums over time, segment ids and masks.
 *
 * Sequences packed one after the other are described by `cu_seqlens`, int32 or int64 `[N+1]`: sequence n has the
 * tokens cu_seqlens[n] to cu_seqlens[n+1] − 1. The values start at 0 and never decrease; empty sequences are
 * allowed and keep their index. Anything else is INVALID_ARGUMENT, with the index and the values.
 *
 * Results are written to tensors of the caller, which must have the right shapes. Inputs and results may have any
 * strides and axes of length zero. Unless a function says otherwise, results that are indices are int32 or int64;
 * a mask may have any element type, and nonzero elements are true. Masks that are written contain 0 and 1. A value
 * that the result's type cannot represent is OVERFLOW.
 *
 * Statuses of every call, besides those it names: those of ejk_tensor_check(), INVALID_SHAPE (a rank or an
 * axis that does not fit), INVALID_DTYPE, INVALID_LAYOUT (a result whose elements overlap or interleave, or
 * whose memory meets another argument's), OUT_OF_MEMORY, UNAVAILABLE (a device other than the CPU). A call that
 * fails has written nothing.
 *
 * Calls that take `threads` spread large work over them; NULL means the calling thread alone. Results are the
 * same, bit for bit, for any number of threads. Calls without that argument write one number for each sequence.
 *
 * Thread-safety: every function may be called from several threads at once, with results that do not overlap.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_SEQUENCE_H
#define EJKERNEL_SEQUENCE_H

#include <ejkernel/device.h>
#include <ejkernel/record.h>
#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Lengths and positions ------------------------------------------------------------------------ */

/** Lengths `[N]` of the sequences of `cu_seqlens`: [0, 5, 12, 18] gives [5, 7, 6]. */
EJK_API EJK_NODISCARD ejk_status ejk_prepare_lens(const ejk_tensor *cu_seqlens,
                                                  const ejk_tensor *lens_out);

/** How many are true in each row of a mask `[B,S]`, as `[B]`; they need not lie at the row's start. */
EJK_API EJK_NODISCARD ejk_status ejk_prepare_lens_from_mask(ejk_threads *threads,
                                                            const ejk_tensor *mask,
                                                            const ejk_tensor *lens_out);

/** The same as cumulative lengths `[B+1]` with a leading 0; int32 or int64 as the result's type says. */
EJK_API EJK_NODISCARD ejk_status ejk_prepare_cu_seqlens_from_mask(ejk_threads *threads,
                                                                  const ejk_tensor *mask,
                                                                  const ejk_tensor *cu_seqlens_out);

/** For each of the cu_seqlens[N] tokens, its position in its sequence, from 0. */
EJK_API EJK_NODISCARD ejk_status ejk_prepare_position_ids(ejk_threads *threads,
                                                          const ejk_tensor *cu_seqlens,
                                                          const ejk_tensor *positions_out);

/** For each of the cu_seqlens[N] tokens, the number of its sequence, from 0; empty sequences count. */
EJK_API EJK_NODISCARD ejk_status ejk_prepare_sequence_ids(ejk_threads *threads,
                                                          const ejk_tensor *cu_seqlens,
                                                          const ejk_tensor *sequences_out);

/** Both as rows (sequence, position): `[tokens,2]`. */
EJK_API EJK_NODISCARD ejk_status ejk_prepare_token_indices(ejk_threads *threads,
                                                           const ejk_tensor *cu_seqlens,
                                                           const ejk_tensor *indices_out);

/**
 * How many chunks the sequences have when each is cut into chunks of `chunk_size` tokens, the last one of a
 * sequence shorter: the rows of ejk_prepare_chunk_indices(). Also INVALID_ARGUMENT for a chunk_size below 1.
 */
EJK_API EJK_NODISCARD ejk_status ejk_prepare_chunk_count(const ejk_tensor *cu_seqlens,
                                                         int64_t chunk_size, int64_t *count_out);

/** Rows (sequence, chunk in it) of these chunks: `[chunks,2]`. */
EJK_API EJK_NODISCARD ejk_status ejk_prepare_chunk_indices(ejk_threads *threads,
                                                           const ejk_tensor *cu_seqlens,
                                                           int64_t chunk_size,
                                                           const ejk_tensor *indices_out);

/** Number of chunks before each sequence, and of all at the end: `[N+1]`. */
EJK_API EJK_NODISCARD ejk_status ejk_prepare_chunk_offsets(const ejk_tensor *cu_seqlens,
                                                           int64_t chunk_size,
                                                           const ejk_tensor *offsets_out);

/* ---- Cumulative sums ------------------------------------------------------------------------------ */

/** How to sum over time. Zero-initialised: forwards, unscaled, `[B,T,H]`, no packed sequences. */
typedef struct ejk_cumsum_options {
    bool reverse;    /**< sums from each step to the end of its stretch, not from its start */
    bool head_first; /**< the axes are `[B,H,T]` or `[B,H,T,S]` */
    ejk_opt_float softmax_scale; /**< multiplies the sums; unset = 1. Floating types only */
    const ejk_tensor
        *cu_seqlens; /**< sums restart at each sequence, and B has to be 1; NULL = none */
} ejk_cumsum_options;

/**
 * Running sums over time that restart every `chunk_size` steps, and at each sequence, from where the chunks
 * are counted. `input` is `[B,T,H]` or `[B,T,H,S]`, `sums_out` has its shape; NULL options = all zeros.
 *
 * Floating inputs have floating sums, accumulated in time order in f32, or in f64 if either tensor is f64, and
 * rounded once. Integers (bool counts 0 and 1) have integer sums, taken in int64, that stop at the ends of
 * int64 and of the result's type. Steps beyond the last sequence belong to none, and are 0.
 *
 * chunk_size is any number from 1, not just a power of two. Also INVALID_ARGUMENT: chunk_size below 1,
 * softmax_scale for integers, cu_seqlens that ends beyond T.
 */
EJK_API EJK_NODISCARD ejk_status ejk_chunk_local_cumsum(ejk_threads *threads,
                                                        const ejk_tensor *input, int64_t chunk_size,
                                                        const ejk_cumsum_options *options,
                                                        const ejk_tensor *sums_out);

/** The same without chunks: sums restart at sequences only. */
EJK_API EJK_NODISCARD ejk_status ejk_chunk_global_cumsum(ejk_threads *threads,
                                                         const ejk_tensor *input,
                                                         const ejk_cumsum_options *options,
                                                         const ejk_tensor *sums_out);

/* ---- Segment ids and masks ------------------------------------------------------------------------ */

/**
 * The attention mask of segment ids: mask[b,i,j] is true iff q_ids[b,i] == kv_ids[b,j] ≥ `first_id`.
 * `q_ids` is `[B,Q]`, `kv_ids` `[B,K]` or NULL for the same as q_ids; int32 or int64. `mask_out` is `[B,Q,K]`,
 * or `[B,1,Q,K]` to broadcast over heads.
 *
 * `first_id` is the least id of a real segment: 1 as documented (ids ≤ 0 are padding), 0 as the rest of the
 * library has it (ids < 0 are). Anything else is INVALID_ARGUMENT.
 *
 * `q_mask_out` `[B,Q]` and `kv_mask_out` `[B,K]` receive which positions are no padding; each may be NULL.
 */
EJK_API EJK_NODISCARD ejk_status ejk_segment_ids_to_mask(
    ejk_threads *threads, const ejk_tensor *q_ids, const ejk_tensor *kv_ids, int64_t first_id,
    const ejk_tensor *q_mask_out, const ejk_tensor *kv_mask_out, const ejk_tensor *mask_out);

/**
 * Numbers the distinct rows of a mask, and its distinct columns: equal rows get one q id, equal columns one kv
 * id, each in order of first occurrence from `first_id` (1 as documented, or 0); rows and columns without a
 * true get −1. The two numberings know nothing of each other: equal ids do not mean "may attend".
 *
 * | mask | q_ids_out | kv_ids_out |
 * |---|---|---|
 * | `[Q,K]` | `[Q]` | `[K]` |
 * | `[B,Q,K]` | `[B,Q]` | `[B,K]` |
 * | `[B,H,Q,K]`, per_head | `[B,H,Q]` | `[B,H,K]` |
 * | `[B,H,Q,K]`, not per_head | `[B,Q]` | `[B,K]`, of what all heads agree on |
 *
 * Time is linear in the mask's size. Memory: for each matrix at work, at most one a thread, a quarter of its
 * elements in bytes, and some numbers for each row and column.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_to_segment_ids(ejk_threads *threads,
                                                         const ejk_tensor *mask, bool per_head,
                                                         int64_t first_id,
                                                         const ejk_tensor *q_ids_out,
                                                         const ejk_tensor *kv_ids_out);

/* ---- The type of gradients ------------------------------------------------------------------------ */

/** An identity whose gradient has a type of its own. Plain data. */
typedef struct ejk_identity_convert {
    ejk_dtype dtype; /**< of the gradient that goes back */
} ejk_identity_convert;

/** Makes one. Statuses: INVALID_DTYPE (not a floating type), INVALID_ARGUMENT (NULL). */
EJK_API EJK_NODISCARD ejk_status ejk_identity_dtype_convert(ejk_dtype dtype,
                                                            ejk_identity_convert *out);

/** Forward: `*out` is the view `x` itself, value and type unchanged. */
EJK_API EJK_NODISCARD ejk_status ejk_identity_convert_forward(const ejk_identity_convert *convert,
                                                              const ejk_tensor *x, ejk_tensor *out);

/** Backward: the floating `gradient` in the type of `convert`, which `gradient_out` must have. */
EJK_API EJK_NODISCARD ejk_status ejk_identity_convert_backward(ejk_threads *threads,
                                                               const ejk_identity_convert *convert,
                                                               const ejk_tensor *gradient,
                                                               const ejk_tensor *gradient_out);

#ifdef __cplusplus
}
#endif
#endif
