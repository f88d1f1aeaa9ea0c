/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mask_info.h
 * MaskInfo: an attention mask in several forms that are converted into each other on demand.
 *
 * A mask of B batches, H heads (1 = all heads share it), Q queries and K keys can be given, and read, as
 *
 * | form | tensor | meaning |
 * |---|---|---|
 * | attention mask | `[B,H,Q,K]` | not 0 = may attend |
 * | segment ids | int32 `[B,Q]` and `[B,K]` | attend iff equal and ≥ 0; below 0 = padding; 0 is a segment |
 * | positions | int32 `[B,Q]` and `[B,K]` | of tokens in their sequences; they hide nothing |
 *
 * @code
 * ejk_mask_info *packed = NULL, *causal = NULL;
 * status = ejk_mask_info_from_segments(&ids, NULL, false, NULL, &packed);
 * status = ejk_mask_info_apply_causal(packed, NULL, &causal);
 * status = ejk_flash_attention_masked(context, &args, causal);
 * ejk_mask_info_release(causal);
 * ejk_mask_info_release(packed);
 * @endcode
 *
 * A missing form is computed when it is first read, and then stored; it is computed once even if several threads
 * read it. Causal, window and chunk limits are stored as numbers beside the mask that they limit, so an object
 * needs O(Q + K) memory, not Q × K, until its attention mask is read.
 *
 * If an object has both an attention mask and segment ids, the attention mask decides what is hidden; the ids are
 * those that were given, or those that the last transform defines.
 *
 * Ownership: objects are reference-counted and immutable. Constructors and transforms return one reference to the
 * caller and copy their inputs. Tensors that are read are views that must not be written, valid as long as the
 * object. Every `out` is untouched on failure.
 *
 * Statuses of every call, besides those it names: INVALID_ARGUMENT (NULL; a size, number or index out of
 * range; nothing in the object from which to answer), INVALID_SHAPE, INVALID_DTYPE, OVERFLOW (a number
 * beyond int32 where int32 is kept; sizes), OUT_OF_MEMORY, UNAVAILABLE (a device other than the CPU).
 *
 * Thread-safety: every function may be called from any thread at once, on the same object too.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_MASK_INFO_H
#define EJKERNEL_MASK_INFO_H

#include <ejkernel/record.h>
#include <ejkernel/splash_mask.h>
#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A mask in all its forms. Never changes once made. */
typedef struct ejk_mask_info ejk_mask_info;

/* ---- Axis names ------------------------------------------------------------------------------------ */

/** The most names of one axis, and axes of a mesh. */
#define EJK_AXIS_NAMES_MAX 8

/** The mesh axes that one axis of a tensor is spread over. */
typedef struct ejk_axis_names {
    int32_t count; /**< 0 = the default of its place; −1 = none */
    char names[EJK_AXIS_NAMES_MAX][EJK_NAME_SIZE];
} ejk_axis_names;

/** Names of the axes of a mask; plain text that travels with the object. */
typedef struct ejk_mask_axes {
    ejk_axis_names batch_axis_name;    /**< default ("dp", "fsdp") */
    ejk_axis_names qheads_axis_name;   /**< default "tp" */
    ejk_axis_names kvheads_axis_name;  /**< default "tp"; kept, and used by nothing here */
    ejk_axis_names sequence_axis_name; /**< default "sp" */
} ejk_mask_axes;

/**
 * The axis of these names, parted by commas: "dp,fsdp"; "" = none. Statuses: INVALID_ARGUMENT (too many, too
 * long, an empty one).
 */
EJK_API EJK_NODISCARD ejk_status ejk_axis_names_of(const char *names, ejk_axis_names *out);

/* ---- Constructors ---------------------------------------------------------------------------------- */

/** Options of all constructors. NULL or all zeros = no positions, default names. */
typedef struct ejk_mask_info_options {
    ejk_tensor q_positions;  /**< int `[B,Q]`; unset = none given */
    ejk_tensor kv_positions; /**< int `[B,K]`; unset = none given */
    ejk_mask_axes axes;      /**< names, each by default as above */
} ejk_mask_info_options;

/**
 * From segment ids, int `[B,Q]` and `[B,K]`; `kv_ids` NULL means the same as `q_ids`.
 *
 * With `is_attn_mask` both say instead which tokens are valid, in any element type: whatever is not zero.
 * Their ids are 0 where valid and −1 where not.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_from_segments(const ejk_tensor *q_ids,
                                                             const ejk_tensor *kv_ids,
                                                             bool is_attn_mask,
                                                             const ejk_mask_info_options *options,
                                                             ejk_mask_info **out);

/**
 * From a mask of any element type, not zero = true: `[B,Q,K]` for all heads, or `[B,H,Q,K]`.
 *
 * A mask `[B,S]` is one of tokens, whose whole numbers say their segment: 0 is padding, and n is segment
 * n − 1, so that true and false are one segment and padding. Other ranks are INVALID_SHAPE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_from_attention_mask(
    const ejk_tensor *mask, const ejk_mask_info_options *options, ejk_mask_info **out);

/**
 * `[batch_size,1,q_len,kv_len]`, each element true with probability 1 − sparsity; kv_len unset = q_len,
 * sparsity unset = 0.5, from 0 (all true) to 1 (all false). The numbers are JAX's bernoulli under `seed`.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_from_random(int64_t batch_size, int64_t q_len,
                                                           ejk_opt_int kv_len,
                                                           ejk_opt_float sparsity, uint64_t seed,
                                                           const ejk_mask_info_options *options,
                                                           ejk_mask_info **out);

/** What ejk_mask_info_dynamic_init() chooses from. Unset members are left out. */
typedef struct ejk_mask_info_source {
    const ejk_mask_info *mask_info; /**< answered as it is, with one more reference */
    ejk_tensor
        attention_mask; /**< `[B,S]`, `[B,Q,K]`, `[B,H,Q,K]`; true where 1, for bool where not 0 */
    ejk_tensor input_ids;     /**< `[B,S]`: all tokens valid */
    ejk_tensor inputs_embeds; /**< `[B,S,D]`: all tokens valid */
} ejk_mask_info_source;

/**
 * From the first of the members, in their order, that is there; none is INVALID_ARGUMENT. Only shapes of the
 * last two are read.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_dynamic_init(const ejk_mask_info_source *source,
                                                            const ejk_mask_info_options *options,
                                                            ejk_mask_info **out);

/**
 * From a splash mask: `[Q,K]` for all heads, or one per head; every one of `batch_size` batches has it. The
 * elements are read, so that a mask of structure needs room for B × H × Q × K bytes here.
 */
EJK_API EJK_NODISCARD ejk_status
ejk_mask_info_from_splash_mask(const ejk_splash_mask *mask, int64_t batch_size,
                               const ejk_mask_info_options *options, ejk_mask_info **out);

/** The stored forms of an object as plain data: its tree. An unset tensor is a form that is not stored. */
typedef struct ejk_mask_info_fields {
    ejk_tensor attention_mask; /**< `[B,H,Q,K]` */
    ejk_tensor q_segment_ids;  /**< int `[B,Q]` */
    ejk_tensor kv_segment_ids; /**< int `[B,K]`; unset beside q_segment_ids = the same */
    ejk_tensor q_positions;    /**< int `[B,Q]` */
    ejk_tensor kv_positions;   /**< int `[B,K]` */
    ejk_mask_axes axes;
} ejk_mask_info_fields;

/** An object of these fields, or of none: what ejk_mask_info_tree_flatten() took apart. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_tree_unflatten(const ejk_mask_info_fields *fields,
                                                              ejk_mask_info **out);

/** What is stored: given, or the result of a transform; not what was only read. Views of the object. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_tree_flatten(const ejk_mask_info *info,
                                                            ejk_mask_info_fields *out);

/** A copy with the fields that are set here in place of its own; none can be taken away. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_replace(const ejk_mask_info *info,
                                                       const ejk_mask_info_fields *fields,
                                                       ejk_mask_info **out);

/** One more reference, which is answered. NULL gives NULL. */
EJK_API ejk_mask_info *ejk_mask_info_retain(const ejk_mask_info *info);

/** Gives a reference back; the last one frees. NULL is allowed. */
EJK_API void ejk_mask_info_release(ejk_mask_info *info);

/* ---- Reading --------------------------------------------------------------------------------------- */

/** The attention mask `[B,H,Q,K]` in the object's element type: bool, unless it was made another. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_attention_mask(const ejk_mask_info *info,
                                                              ejk_tensor *out);

/** The same in any element type, as 0 and 1; each type is computed once. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_get_or_compute_attention_mask(
    const ejk_mask_info *info, ejk_dtype dtype, ejk_tensor *out);

/**
 * Ids of the queries, and of the keys: those stored; else computed from the attention mask, 0 for rows
 * (columns) that hold a true, −1 for others. Where there are several heads, it counts what all of them allow.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_q_segment_ids(const ejk_mask_info *info,
                                                             ejk_tensor *out);
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_kv_segment_ids(const ejk_mask_info *info,
                                                              ejk_tensor *out);

/** Both; with `per_head` as `[B,H,Q]` and `[B,H,K]`, head for head. Stored ids are the same for every head. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_get_or_compute_segment_ids(const ejk_mask_info *info,
                                                                          bool per_head,
                                                                          ejk_tensor *q_out,
                                                                          ejk_tensor *kv_out);

/**
 * Both positions: those given; else 0, 1, 2 … along each row of ids, from 0 again when the id changes and
 * after padding; padding is −1 for queries, INT32_MAX for keys.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_get_or_compute_positions(const ejk_mask_info *info,
                                                                        ejk_tensor *q_out,
                                                                        ejk_tensor *kv_out);

/** Positions as they were given; an unset tensor if they were not. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_q_positions(const ejk_mask_info *info,
                                                           ejk_tensor *out);
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_kv_positions(const ejk_mask_info *info,
                                                            ejk_tensor *out);

/** int32, shape of the query ids: 0 where the id is padding, else 1. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_q_attention_mask(const ejk_mask_info *info,
                                                                ejk_tensor *out);

/** int32, shape of the query ids: valid queries up to here, less one, and at least 0. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_q_position_ids(const ejk_mask_info *info,
                                                              ejk_tensor *out);

/**
 * What the segment ids alone say, in any element type: valid queries `[B,Q]`, valid keys `[B,K]`, and who
 * shares a segment, `[B,1,Q,K]`. Causal, window and other limits are not in it. Each `out` may be NULL.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_get_qkv_masks(const ejk_mask_info *info,
                                                             ejk_dtype dtype,
                                                             ejk_tensor *q_mask_out,
                                                             ejk_tensor *kv_mask_out,
                                                             ejk_tensor *mask_out);

/** `[B,H,Q,K]` of a floating type: 0 where the mask is true, elsewhere the type's lowest finite value. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_create_bias(const ejk_mask_info *info,
                                                           ejk_dtype dtype, ejk_tensor *out);

/** The same in float32. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_bias(const ejk_mask_info *info, ejk_tensor *out);

/** Lengths B, Q and K; {B, Q, K}. −1 where nothing says. */
EJK_API int64_t ejk_mask_info_batch_size(const ejk_mask_info *info);
EJK_API int64_t ejk_mask_info_q_len(const ejk_mask_info *info);
EJK_API int64_t ejk_mask_info_kv_len(const ejk_mask_info *info);
EJK_API void ejk_mask_info_shape(const ejk_mask_info *info, int64_t shape[3]);

/** Heads H: 1 where all share one mask; −1 where nothing says. */
EJK_API int64_t ejk_mask_info_heads(const ejk_mask_info *info);

/** True if stored ids of queries and keys are equal, or, without ids, if Q = K. False of nothing. */
EJK_API bool ejk_mask_info_is_self_attention(const ejk_mask_info *info);

/** Element type of ejk_mask_info_attention_mask(), and the names of the axes, defaults filled in. */
EJK_API ejk_dtype ejk_mask_info_dtype(const ejk_mask_info *info);
EJK_API void ejk_mask_info_axes(const ejk_mask_info *info, ejk_mask_axes *out);

/**
 * One line: shapes of what is stored, and whether it is self-attention, as
 * "MaskInfo(q_segment_ids=(2, 8), kv_segment_ids=(2, 8), self_attn=true)". Free it with ejk_free().
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_text(const ejk_mask_info *info, char **out);

/* ---- Copies with a form stored --------------------------------------------------------------------- */

/** A copy that stores its attention mask in this element type; the same object if it already does. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_materialize_attention_mask(const ejk_mask_info *info,
                                                                          ejk_dtype dtype,
                                                                          ejk_mask_info **out);

/**
 * A copy that stores segment ids: its own, else the groups of equal rows and of equal columns of the
 * attention mask, numbered from 0 in order of first occurrence, −1 for those without a true (see
 * ejk_mask_to_segment_ids()); with `per_head` as `[B,H,Q]` and `[B,H,K]`. The attention mask still is
 * what hides.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_materialize_segment_ids(const ejk_mask_info *info,
                                                                       bool per_head,
                                                                       ejk_mask_info **out);

/** A copy whose attention mask reads in this element type. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_to_dtype(const ejk_mask_info *info, ejk_dtype dtype,
                                                        ejk_mask_info **out);

/* ---- Transforms ------------------------------------------------------------------------------------
 *
 * Each returns a new object whose mask is the old one with a further limit. Ids and positions are kept unless the
 * function says otherwise; if rows or columns are removed, so are their ids and positions. `offset` is int, one
 * number `[1]` or one per batch `[B]`; NULL means 0. Rows and columns count from 0, also when Q ≠ K: offset 0 aligns
 * the top-left corner, K − Q is the default of attention calls. INVALID_ARGUMENT if Q and K are not known.
 */

/** Only columns k ≤ q + offset. */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_apply_causal(const ejk_mask_info *info,
                                                            const ejk_tensor *offset,
                                                            ejk_mask_info **out);

/** How rows and columns are cut out by a window. */
typedef enum ejk_mask_window_mode {
    EJK_MASK_WINDOW_ALL = 0,     /**< nothing is cut out */
    EJK_MASK_WINDOW_DECODE = 1,  /**< row `index` alone, and the columns around it */
    EJK_MASK_WINDOW_PREFILL = 2, /**< all rows, and the last columns */
} ejk_mask_window_mode;

/** A window. Zero-initialised: all rows and columns, no offset. */
typedef struct ejk_mask_window_options {
    ejk_window window;         /**< columns to each side, ≥ 0; an unset side has no limit */
    const ejk_tensor *offset;  /**< as above */
    ejk_mask_window_mode mode; /**< decode and prefill need both sides */
    const ejk_tensor *index;   /**< int `[1]` or `[B]`, 0 … Q − 1; decode needs it */
} ejk_mask_window_options;

/**
 * Only columns from q + offset − left to q + offset + right. Decode and prefill keep
 * width = min(left + right + 1, K) of the columns: decode from index + offset − left, moved until they lie
 * within the mask, with row `index` alone; prefill the last ones, with all rows.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_apply_sliding_window(
    const ejk_mask_info *info, const ejk_mask_window_options *options, ejk_mask_info **out);

/**
 * Only columns k ≤ q + offset of the same chunk, q / chunk_size = k / chunk_size. Ids become the number of
 * the chunk, from 1, and −1 for padding. Also INVALID_ARGUMENT: a chunk_size below 1.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_apply_chunked(const ejk_mask_info *info,
                                                             int64_t chunk_size,
                                                             const ejk_tensor *offset,
                                                             ejk_mask_info **out);

/** How types of tokens join a mask. */
typedef enum ejk_mask_combine {
    EJK_MASK_UNION = 0,     /**< visible by the mask, or of the same type */
    EJK_MASK_INTERSECT = 1, /**< visible by the mask, and of the same type */
    EJK_MASK_REPLACE = 2,   /**< of the same type */
} ejk_mask_combine;

/** Where type 0 means that a token shares none. */
typedef enum ejk_mask_zero_policy {
    EJK_MASK_ZERO_Q = 0,
    EJK_MASK_ZERO_KV = 1,
    EJK_MASK_ZERO_BOTH = 2,
    EJK_MASK_ZERO_NONE = 3, /**< 0 is a type like others */
} ejk_mask_zero_policy;

/** Types of tokens. Zero-initialised: union, zeros of queries share nothing. */
typedef struct ejk_mask_token_types {
    ejk_tensor q_types;  /**< int `[B,Q]`, or `[1,Q]` for all batches */
    ejk_tensor kv_types; /**< int `[B,K]`; unset = the same as q_types */
    ejk_mask_combine combine;
    ejk_mask_zero_policy zero_policy;
    ejk_opt_bool update_segment_ids; /**< ids become the types, 0 as −1; unset = yes unless union */
} ejk_mask_token_types;

/**
 * Joins the mask with "same type". A causal mask and types 0 0 1 1 0 under union let tokens of type 1 see
 * each other both ways. Types of several batches spread a mask of one batch over them.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_apply_token_type_ids(
    const ejk_mask_info *info, const ejk_mask_token_types *types, ejk_mask_info **out);

/**
 * The mask of the last q_len queries over a cache that holds `lengths[b]` keys: columns from lengths[b] on
 * are off; rows are those from clip(lengths[b] − q_len, 0, Q − q_len); with `sliding_window` only the
 * min(sliding_window, K) columns from clip(lengths[b] − that, 0, K − that) remain. `lengths` is int `[B]`,
 * 0 … K. Ids of keys beyond the length stay as they were. INVALID_ARGUMENT: q_len outside 0 … Q.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_apply_kv_lengths(const ejk_mask_info *info,
                                                                const ejk_tensor *lengths,
                                                                int64_t q_len,
                                                                ejk_opt_int sliding_window,
                                                                ejk_mask_info **out);

/** Writes the mask of ejk_mask_info_apply_chunked() alone to `mask_out`, `[Q,K]` of any element type. */
EJK_API EJK_NODISCARD ejk_status ejk_create_chunked_attention_mask(int64_t chunk_size,
                                                                   int64_t offset,
                                                                   const ejk_tensor *mask_out);

/* ---- Into calls and other forms -------------------------------------------------------------------- */

/** Arguments of attention calls that together hide what an object hides. Tensors are views of it. */
typedef struct ejk_mask_info_args {
    ejk_tensor attention_mask; /**< bool `[B,1|H,Q,K]`, or unset */
    ejk_tensor q_segment_ids;  /**< int32 `[B,Q]`, or unset */
    ejk_tensor kv_segment_ids; /**< int32 `[B,K]`, or unset */
    bool causal;               /**< with causal_offset set */
    ejk_opt_int causal_offset;
    ejk_window sliding_window;
} ejk_mask_info_args;

/**
 * The cheapest such arguments: ids or the given mask, with limits as numbers where every batch has the
 * same, else the attention mask with all in it. `numbers` false leaves causal and window unset in any
 * case, for calls that have their own.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_attention_args(const ejk_mask_info *info,
                                                              bool numbers,
                                                              ejk_mask_info_args *out);

/**
 * A view of an object, as ejk_mask_info_attention_args() and the readers of this header give them, becomes one of a
 * copy on a GPU, for calls with tensors there. The object keeps it as long as it lives, one for each device: the first
 * time it is allocated and copied, which waits; later it is found. An unset tensor stays unset. The
 * ejk_…_set_mask_info() of the operations do this themselves if `query` is on a GPU.
 * Statuses: INVALID_ARGUMENT (NULL, a device that is not there), those of ejk_device_tensor_create() and
 * ejk_device_copy(). The tensor is untouched on failure.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_on_device(const ejk_mask_info *info, int32_t device,
                                                         ejk_tensor *view);

/**
 * One batch as a multi-head splash mask of `heads` heads, which has to be H if that is not 1. Limits over
 * tokens that all share a segment stay structure (full, causal, local, chunked masks); anything else becomes
 * a numpy mask of the elements. Also INVALID_ARGUMENT for Q or K of 0, which splash masks do not have.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_to_splash_mask(const ejk_mask_info *info,
                                                              int64_t batch, int64_t heads,
                                                              ejk_splash_mask **out);

/**
 * ejk_segment_ids_to_mask() as this header has it, 0 a segment: `mask_out` `[B,1,Q,K]` (or `[B,Q,K]`),
 * `q_mask_out` `[B,Q]` and `kv_mask_out` `[B,K]` of any element types. `kv_ids` NULL = q_ids.
 */
EJK_API EJK_NODISCARD ejk_status ejk_segment_ids_to_qkv_masks(const ejk_tensor *q_ids,
                                                              const ejk_tensor *kv_ids,
                                                              const ejk_tensor *q_mask_out,
                                                              const ejk_tensor *kv_mask_out,
                                                              const ejk_tensor *mask_out);

/* ---- Shardings ------------------------------------------------------------------------------------- */

/** A mesh of devices: named axes and their lengths. */
typedef struct ejk_mesh {
    int32_t count;
    char names[EJK_AXIS_NAMES_MAX][EJK_NAME_SIZE];
    int64_t sizes[EJK_AXIS_NAMES_MAX]; /**< each ≥ 1 */
} ejk_mesh;

/** How the axes of one tensor are spread over a mesh. */
typedef struct ejk_partition {
    bool present;                      /**< false: there is no such tensor */
    int32_t rank;                      /**< 0 = on every device whole */
    ejk_axis_names axes[EJK_MAX_RANK]; /**< count −1 = not spread */
} ejk_partition;

/** The same of all stored forms. */
typedef struct ejk_mask_sharding {
    ejk_partition attention_mask, q_segment_ids, kv_segment_ids, q_positions, kv_positions;
} ejk_mask_sharding;

/**
 * How the stored forms are partitioned over a mesh: the mask as (batch, qheads, sequence, sequence), the others as
 * (batch, sequence), where sequence is partitioned only if `sequence_parallel`. Each goes through
 * ejk_get_corrected_partition(). INVALID_ARGUMENT if the mesh lacks a name that is configured for batch, heads or
 * (if `sequence_parallel`) sequence.
 */
EJK_API EJK_NODISCARD ejk_status ejk_mask_info_get_shardings(const ejk_mask_info *info,
                                                             bool sequence_parallel,
                                                             const ejk_mesh *mesh,
                                                             ejk_mask_sharding *out);

/** All forms absent. */
EJK_API ejk_mask_sharding ejk_mask_info_get_empty_sharding(void);

/**
 * Corrects a wanted partition: `wish` is cut or extended to `rank`; an axis is not partitioned if it names an axis
 * that the mesh lacks, or if the product of sizes does not divide its length; if none is left, rank is 0.
 */
EJK_API EJK_NODISCARD ejk_status ejk_get_corrected_partition(const int64_t *shape, int32_t rank,
                                                             const ejk_partition *wish,
                                                             const ejk_mesh *mesh,
                                                             ejk_partition *out);

/* ---- Trace ----------------------------------------------------------------------------------------- */

/** Receives a line, as "[MaskInfo Debug] Calling MaskInfo.apply_causal()"; the text ends with the call. */
typedef void (*ejk_mask_info_trace_fn)(void *user, const char *line);

/**
 * Debug mode of the calling thread: every call here is reported to `trace` before it starts, reads as
 * "[MaskInfo Debug] Property access: q_len". NULL turns it off, as it is at first. The library itself
 * never prints. Calls that the trace itself makes are not reported.
 */
EJK_API void ejk_mask_info_set_debug_mode(ejk_mask_info_trace_fn trace, void *user);

/** Whether the calling thread's debug mode is on. */
EJK_API bool ejk_mask_info_get_debug_mode(void);

#ifdef __cplusplus
}
#endif
#endif
