/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file splash_mask.h
 * Masks as objects, and the MaskInfo that splash (block-sparse) attention reads.
 *
 * A mask of shape [Q, K] says for each query row and key column whether the query may see the key. Structured
 * masks (causal, window, chunks) are stored as their parameters, whatever their size; only numpy masks store
 * elements. A multi-head mask is a list of masks, one per head, and the argument of ejk_process_mask():
 *
 * @code
 * ejk_splash_mask *causal = NULL, *heads = NULL;
 * int64_t shape[2] = {1048576, 1048576};
 * status = ejk_causal_mask_create(shape, 0, NULL, &causal);
 * const ejk_splash_mask *list[1] = {causal};
 * status = ejk_multi_head_mask_create(list, 1, &heads);
 * ejk_process_mask_args args = {.mask = heads, .block_shape = {512, 512}};
 * ejk_splash_mask_info info = {0};
 * status = ejk_process_mask(&args, &info);
 * @endcode
 *
 * A mask is computable if its values are given by a predicate of the row's logical position and the column:
 * causal, local, chunked and function masks are. The position of row t is q_sequence[t], by default t; columns are
 * never permuted.
 *
 * Ownership: masks are reference-counted. A constructor returns one reference to the caller, retains the masks
 * that it is given, and copies arrays unless it says otherwise. ejk_splash_mask_release() releases a reference.
 * Errors: besides status and sentence, ejk_splash_last_reason() says which rule was violated.
 *
 * Thread-safety: masks and results are immutable, and may be read, retained and released by several threads at
 * once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_SPLASH_MASK_H
#define EJKERNEL_SPLASH_MASK_H

#include <ejkernel/device.h>
#include <ejkernel/record.h>
#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Reasons --------------------------------------------------------------------------------------- */

/** Which rule a failing call of this header broke: name, number (pinned), the word of JSON answers. */
#define EJK_SPLASH_REASON_LIST(X)                                                                  \
    X(NONE, 0, "")                                                                                 \
    X(INVALID_REQUEST, 1, "invalid_request")                                                       \
    X(ARRAY_NOT_2D, 2, "array_not_2d")                                                             \
    X(ARRAY_NOT_BOOL, 3, "array_not_bool")                                                         \
    X(CHUNK_SIZE, 4, "chunk_size")                                                                 \
    X(SHARD_COUNT, 5, "shard_count")                                                               \
    X(SHAPE_MISMATCH, 6, "shape_mismatch")                                                         \
    X(NO_MASKS, 7, "no_masks")                                                                     \
    X(NESTED_MULTI_HEAD, 8, "nested_multi_head")                                                   \
    X(INVALID_ARGUMENT, 9, "invalid_argument")                                                     \
    X(MASK_NOT_3D, 10, "mask_not_3d")                                                              \
    X(MASK_NOT_BOOL, 11, "mask_not_bool")                                                          \
    X(Q_BLOCK_SIZE, 12, "q_block_size")                                                            \
    X(KV_BLOCK_SIZE, 13, "kv_block_size")                                                          \
    X(Q_SEQ_SHARDS, 14, "q_seq_shards")                                                            \
    X(Q_BLOCK_SIZE_PER_SHARD, 15, "q_block_size_per_shard")                                        \
    X(HEAD_SHARDS, 16, "head_shards")                                                              \
    X(EMPTY_ROW, 17, "empty_row")

/** A rule of masks and of the calls on them. */
typedef enum ejk_splash_reason {
#define EJK_SPLASH_REASON_ENUM(name, number, text) EJK_SPLASH_REASON_##name = number,
    EJK_SPLASH_REASON_LIST(EJK_SPLASH_REASON_ENUM)
#undef EJK_SPLASH_REASON_ENUM
} ejk_splash_reason;

/**
 * The rule that this thread's last failing call of this header violated. Lengths that are too large and failed
 * allocations give #EJK_SPLASH_REASON_INVALID_ARGUMENT. Only valid directly after such a call.
 */
EJK_API ejk_splash_reason ejk_splash_last_reason(void);

/** The word of a reason, as "head_shards"; "" for none. Static text. */
EJK_API const char *ejk_splash_reason_name(ejk_splash_reason reason);

/* ---- Masks ----------------------------------------------------------------------------------------- */

/** A mask. Never changes once made. */
typedef struct ejk_splash_mask ejk_splash_mask;

/** Classes of masks: name, number (pinned), `type` in JSON; function and logical_not are not in JSON. */
#define EJK_SPLASH_MASK_LIST(X)                                                                    \
    X(FULL, 1, "full")                                                                             \
    X(CAUSAL, 2, "causal")                                                                         \
    X(LOCAL, 3, "local")                                                                           \
    X(CHUNKED_CAUSAL, 4, "chunked_causal")                                                         \
    X(NUMPY, 5, "dense")                                                                           \
    X(FUNCTION, 6, "function")                                                                     \
    X(LOGICAL_AND, 7, "logical_and")                                                               \
    X(LOGICAL_OR, 8, "logical_or")                                                                 \
    X(LOGICAL_NOT, 9, "logical_not")                                                               \
    X(MULTI_HEAD, 10, "multi_head")

/** The class of a mask. */
typedef enum ejk_splash_mask_kind {
#define EJK_SPLASH_MASK_ENUM(name, number, text) EJK_SPLASH_MASK_##name = number,
    EJK_SPLASH_MASK_LIST(EJK_SPLASH_MASK_ENUM)
#undef EJK_SPLASH_MASK_ENUM
} ejk_splash_mask_kind;

/** Options of computable masks. NULL or all zeros = default. */
typedef struct ejk_computable_mask_options {
    ejk_opt_int shard_count;   /**< its square has to divide Q, else it has no effect; unset = 1 */
    const int32_t *q_sequence; /**< positions of the rows, copied; NULL = 0, 1, …, Q − 1 */
    int64_t q_sequence_length; /**< has to be Q if q_sequence is given */
} ejk_computable_mask_options;

/** A predicate: may the query at position `q` see column `kv`? Called by several threads at once. */
typedef bool (*ejk_splash_mask_fn)(void *user, int64_t q, int64_t kv);

/**
 * All ones. `shape` is {Q, K}, here and below, each at least 1.
 * Statuses: INVALID_ARGUMENT (NULL, a length below 1), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_full_mask_create(const int64_t *shape, ejk_splash_mask **out);

/**
 * Position q sees column c if q + offset >= c.
 * Statuses: as above, and INVALID_ARGUMENT (shard_count, q_sequence_length).
 */
EJK_API EJK_NODISCARD ejk_status ejk_causal_mask_create(const int64_t *shape, int64_t offset,
                                                        const ejk_computable_mask_options *options,
                                                        ejk_splash_mask **out);

/**
 * Position q sees the columns q + offset − left to q + offset + right; an unset side has no limit, and
 * sides may be negative. Statuses: as above.
 */
EJK_API EJK_NODISCARD ejk_status ejk_local_mask_create(const int64_t *shape, ejk_window window_size,
                                                       int64_t offset,
                                                       const ejk_computable_mask_options *options,
                                                       ejk_splash_mask **out);

/**
 * Position q sees the columns of its own chunk of `chunk_size` up to q itself.
 * Statuses: as above, INVALID_ARGUMENT (chunk_size below 1).
 */
EJK_API EJK_NODISCARD ejk_status
ejk_chunked_causal_mask_create(const int64_t *shape, int64_t chunk_size,
                               const ejk_computable_mask_options *options, ejk_splash_mask **out);

/**
 * A mask given by a predicate. `user` and what it points to belong to the caller and must not change while the mask
 * exists. Two such masks are equal if function, user, shape and q_sequence are equal.
 * Statuses: as above, INVALID_ARGUMENT (no function).
 */
EJK_API EJK_NODISCARD ejk_status
ejk_function_mask_create(const int64_t *shape, ejk_splash_mask_fn function, void *user,
                         const ejk_computable_mask_options *options, ejk_splash_mask **out);

/**
 * The elements of a two-dimensional bool tensor, of any strides; they are copied.
 * Statuses: those of ejk_tensor_check(), INVALID_SHAPE (not 2-D), INVALID_DTYPE (not bool),
 * INVALID_ARGUMENT (an empty axis), UNAVAILABLE (a device other than the CPU), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_numpy_mask_create(const ejk_tensor *array,
                                                       ejk_splash_mask **out);

/**
 * The same without the copy: the elements are the caller's, and have to stay as they are until the mask's
 * last reference is gone. Rows have to be contiguous (else INVALID_LAYOUT).
 */
EJK_API EJK_NODISCARD ejk_status ejk_numpy_mask_borrow(const ejk_tensor *array,
                                                       ejk_splash_mask **out);

/**
 * The elements of another mask, as a numpy mask. Statuses: INVALID_SHAPE (a multi-head mask), OVERFLOW,
 * OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_numpy_mask_of(const ejk_splash_mask *mask,
                                                   ejk_splash_mask **out);

/**
 * Where both are 1. Statuses: INVALID_ARGUMENT (NULL), INVALID_SHAPE (shapes differ), OVERFLOW (nested too
 * deep), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_logical_and_create(const ejk_splash_mask *left,
                                                        const ejk_splash_mask *right,
                                                        ejk_splash_mask **out);

/** Where either is 1. Statuses as above. */
EJK_API EJK_NODISCARD ejk_status ejk_logical_or_create(const ejk_splash_mask *left,
                                                       const ejk_splash_mask *right,
                                                       ejk_splash_mask **out);

/** Where the mask is 0. Statuses as above, INVALID_SHAPE for a multi-head mask. */
EJK_API EJK_NODISCARD ejk_status ejk_logical_not_create(const ejk_splash_mask *mask,
                                                        ejk_splash_mask **out);

/**
 * One mask per head, all of one shape; the same mask may come many times.
 * Statuses: INVALID_ARGUMENT (none, NULL, a multi-head mask inside), INVALID_SHAPE (shapes differ).
 */
EJK_API EJK_NODISCARD ejk_status ejk_multi_head_mask_create(const ejk_splash_mask *const *masks,
                                                            int64_t count, ejk_splash_mask **out);

/** One more reference, which is answered. NULL gives NULL. */
EJK_API ejk_splash_mask *ejk_splash_mask_retain(const ejk_splash_mask *mask);

/** Gives a reference back; the last one frees. NULL is allowed. */
EJK_API void ejk_splash_mask_release(ejk_splash_mask *mask);

/** The class of a mask. */
EJK_API ejk_splash_mask_kind ejk_splash_mask_kind_of(const ejk_splash_mask *mask);

/** Name of a class as in JSON; "unknown" for none. Static text. */
EJK_API const char *ejk_splash_mask_kind_name(ejk_splash_mask_kind kind);

/** Axes: 2, or 3 for a multi-head mask; their lengths go to `shape` ({Q, K} or {H, Q, K}). */
EJK_API int32_t ejk_splash_mask_shape(const ejk_splash_mask *mask, int64_t shape[3]);

/** True for causal, local, chunked causal and function masks. */
EJK_API bool ejk_splash_mask_computable(const ejk_splash_mask *mask);

/** The mask of one head of a multi-head mask, borrowed; NULL out of range or for another mask. */
EJK_API const ejk_splash_mask *ejk_splash_mask_head(const ejk_splash_mask *mask, int64_t head);

/** The predicate of a computable mask at position `q` and column `kv`; false for other masks. */
EJK_API bool ejk_splash_mask_call(const ejk_splash_mask *mask, int64_t q, int64_t kv);

/**
 * What a causal, local or chunked mask says as numbers: position q sees the columns from q - left to
 * q + right, each side unlimited if unset, and, where *chunk_size is not 0, none before the chunk of that
 * length that q is in. Numbers beyond int64 are cut to it. False for other masks; then nothing is written.
 */
EJK_API bool ejk_splash_mask_interval(const ejk_splash_mask *mask, ejk_window *interval,
                                      int64_t *chunk_size);

/**
 * True if both are of one class and of equal parts: full, shape; causal, shape, offset and q_sequence;
 * local, these and the window; chunked, shape, chunk_size and q_sequence; numpy, shape and elements;
 * logical ones, their parts in order. shard_count does not count.
 */
EJK_API bool ejk_splash_mask_equal(const ejk_splash_mask *a, const ejk_splash_mask *b);

/** Equal masks have equal hashes. Computed when asked: linear in what the mask holds. */
EJK_API uint64_t ejk_splash_mask_hash(const ejk_splash_mask *mask);

/**
 * Reads a rectangle: per axis from `start` up to, without, `stop`, into a bool tensor of that shape with
 * contiguous rows. Nothing else of the mask is evaluated.
 * Statuses: INVALID_ARGUMENT (a slice outside the mask), INVALID_SHAPE, INVALID_DTYPE, INVALID_LAYOUT,
 * UNAVAILABLE (memory of another device).
 */
EJK_API EJK_NODISCARD ejk_status ejk_splash_mask_read(const ejk_splash_mask *mask,
                                                      const int64_t *start, const int64_t *stop,
                                                      const ejk_tensor *out);

/**
 * Whether each query row sees a column; attention over a row that sees none is 0. The process functions
 * do not ask for it. Statuses: INVALID_ARGUMENT (the sentence names the row; or a multi-head mask).
 */
EJK_API EJK_NODISCARD ejk_status ejk_splash_mask_check(const ejk_splash_mask *mask);

/**
 * The elements of a causal mask without the mask: `out` is a bool tensor [Q, K] with contiguous rows, whose
 * element (t, c) becomes t + offset >= c. NULL `threads` = the calling thread alone.
 * Statuses: INVALID_ARGUMENT (NULL, an empty axis), INVALID_SHAPE (not two axes), INVALID_DTYPE,
 * INVALID_LAYOUT, UNAVAILABLE (memory of another device).
 */
EJK_API EJK_NODISCARD ejk_status ejk_make_causal_mask(int64_t offset, ejk_threads *threads,
                                                      const ejk_tensor *out);

/** The same as ejk_local_mask_create() has it. */
EJK_API EJK_NODISCARD ejk_status ejk_make_local_attention_mask(ejk_window window_size,
                                                               int64_t offset, ejk_threads *threads,
                                                               const ejk_tensor *out);

/** The same as ejk_chunked_causal_mask_create() has it: INVALID_ARGUMENT for a chunk_size below 1, too. */
EJK_API EJK_NODISCARD ejk_status ejk_make_chunk_attention_mask(int64_t chunk_size,
                                                               ejk_threads *threads,
                                                               const ejk_tensor *out);

/* ---- MaskInfo -------------------------------------------------------------------------------------- */

/**
 * What splash attention reads. A block of `bq` rows and `bkv` columns is empty (0), partial (1) or full
 * (2). The three grids have one shape: [planes, rows, columns]; planes is the number of heads, or of head
 * shards if each shard's heads share one mask. An absent array is an unset tensor. The arrays are
 * contiguous and must not be written.
 *
 * Entries of data_next count where block_mask is not 0, those of mask_next where it is 1; the others say
 * what to fetch next.
 */
typedef struct ejk_splash_mask_info {
    ejk_tensor
        data_next; /**< int8/16/32: block column to load; for dkv block row within its shard */
    ejk_tensor mask_next;  /**< int8/16/32: index in partial_mask_blocks; may be absent */
    ejk_tensor block_mask; /**< int8 (int32 unless narrowed): 0, 1 or 2 */
    /** bool [P,bq,bkv], for dkv [P,bkv,bq]; dynamic [H,NQ,NK,bq,bkv], for dkv the last two exchanged */
    ejk_tensor partial_mask_blocks;
    ejk_tensor q_sequence; /**< int32 [Q]: positions of the rows, if mask_function is given */
    bool is_dynamic_mask;  /**< made by a dynamic function */
    const ejk_splash_mask *mask_function; /**< the mask whose predicate replaces blocks, or NULL */
    void *owner;                          /**< private */
} ejk_splash_mask_info;

/** Arguments of ejk_process_mask() and ejk_process_mask_dkv(). */
typedef struct ejk_process_mask_args {
    const ejk_splash_mask *mask;     /**< multi-head */
    int64_t block_shape[2];          /**< {bq, bkv}, in this order for dkv, too */
    ejk_opt_bool is_dkv;             /**< unset = as the function's name says */
    ejk_opt_bool downcast_smem_data; /**< grids as narrow as their values allow; unset = yes */
    ejk_opt_int head_shards;         /**< unset = 1 */
    ejk_opt_int q_seq_shards;        /**< unset = 1 */
    ejk_opt_bool shrink_grid; /**< leaves out what no row (for dkv, column) needs; unset = yes */
    ejk_threads *threads;     /**< NULL = the calling thread alone */
    int64_t max_bytes;        /**< OVERFLOW if more were needed, see below; 0 = no limit */
} ejk_process_mask_args;

/**
 * Processes a mask for the forward kernel and for dq. Masks with structure cost their blocks, not their
 * elements; only the contents of partial blocks are evaluated, and these only if they are part of the
 * result: if all heads share one computable mask, mask_function and q_sequence stand in their place.
 *
 * Legal, too: a shard without a visible block, which shrinks to filler zeros beside at least one column;
 * no partial block in any of several shards; rows that see nothing.
 *
 * `max_bytes` limits what the blocks take in all arrays of the call together, every other array, and, 16 to a byte,
 * the elements that are evaluated to tell whether a block of a logical or function mask is partial; rows count as 256
 * at least. The call refuses before it makes or evaluates as much.
 *
 * `*out` is overwritten, and closed by ejk_splash_mask_info_close().
 * Statuses: INVALID_SHAPE (mask not multi-head), INVALID_ARGUMENT (a number below 1; bq does not divide Q;
 * bkv not K; q_seq_shards not Q; bq not Q / q_seq_shards; head_shards not H; in this order), OVERFLOW (an
 * array's size, or an index, does not fit; a computable mask with Q above 2^31), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_process_mask(const ejk_process_mask_args *args,
                                                  ejk_splash_mask_info *out);

/** The same for the dk/dv kernel: rows shrink, blocks are transposed, data_next counts rows of a shard. */
EJK_API EJK_NODISCARD ejk_status ejk_process_mask_dkv(const ejk_process_mask_args *args,
                                                      ejk_splash_mask_info *out);

/** Arguments of ejk_process_dynamic_mask() and ejk_process_dynamic_mask_dkv(). */
typedef struct ejk_process_dynamic_mask_args {
    ejk_tensor mask;                 /**< bool [H,Q,K], any strides; read during the call only */
    int64_t block_shape[2];          /**< {bq, bkv}, in this order for dkv, too */
    ejk_opt_bool is_dkv;             /**< unset = as the function's name says */
    ejk_opt_bool downcast_smem_data; /**< unset = yes */
    ejk_opt_int head_shards;         /**< unset = 1 */
    ejk_opt_int q_seq_shards;        /**< unset = 1 */
    ejk_opt_bool shrink_grid;        /**< accepted and without effect */
    ejk_threads *threads;            /**< NULL = the calling thread alone */
    int64_t max_bytes;               /**< OVERFLOW if an array needed more; 0 = no limit */
} ejk_process_dynamic_mask_args;

/**
 * Processes elements that only the run knows: every block is kept in partial_mask_blocks, one plane per
 * head, nothing shrinks, and mask_next counts within a shard's part of the blocks.
 * Statuses: INVALID_SHAPE (mask without three axes), INVALID_DTYPE (not bool), those of
 * ejk_tensor_check() and of ejk_process_mask(), UNAVAILABLE (a device other than the CPU).
 */
EJK_API EJK_NODISCARD ejk_status ejk_process_dynamic_mask(const ejk_process_dynamic_mask_args *args,
                                                          ejk_splash_mask_info *out);

/** The same for the dk/dv kernel. */
EJK_API EJK_NODISCARD ejk_status
ejk_process_dynamic_mask_dkv(const ejk_process_dynamic_mask_args *args, ejk_splash_mask_info *out);

/** Frees the arrays and zeroes the struct. A zeroed struct is allowed. */
EJK_API void ejk_splash_mask_info_close(ejk_splash_mask_info *info);

/* ---- JSON ------------------------------------------------------------------------------------------ */

/** Takes a piece of a text that is being written; false refuses it and ends the writing. */
typedef bool (*ejk_splash_write_fn)(void *user, const char *bytes, size_t count);

/** How requests are answered. NULL or all zeros = default. */
typedef struct ejk_splash_answer_options {
    ejk_threads *threads; /**< NULL = the calling thread alone */
    int64_t max_bytes;    /**< an error answer if more were needed; 0 = no limit */
} ejk_splash_answer_options;

/**
 * A mask from JSON, as `{"type": "causal", "shape": [16, 16], "offset": 2}`. The text may hold anything.
 * Statuses: MALFORMED (the form, with reason #EJK_SPLASH_REASON_INVALID_REQUEST), OVERFLOW (a dense mask `of`
 * another one with more bytes than half of the machine's memory), those of the constructors.
 */
EJK_API EJK_NODISCARD ejk_status ejk_splash_mask_from_json(const char *text, size_t length,
                                                           ejk_splash_mask **out);

/**
 * A mask to JSON that reads back as an equal mask; shard_count is left out. Statuses: INVALID_ARGUMENT
 * (NULL, a function or logical_not mask, which JSON has no words for), IO (`write` refused).
 */
EJK_API EJK_NODISCARD ejk_status ejk_splash_mask_to_json(const ejk_splash_mask *mask,
                                                         ejk_splash_write_fn write, void *user);

/**
 * A MaskInfo to JSON, arrays as nested lists or as base64. Written piece by piece, so that no text is
 * ever held whole. Statuses as above.
 */
EJK_API EJK_NODISCARD ejk_status ejk_splash_mask_info_to_json(const ejk_splash_mask_info *info,
                                                              bool base64,
                                                              ejk_splash_write_fn write,
                                                              void *user);

/**
 * Answers one request, text in, text out: a call of a process function, or mask_dense, mask_equal or
 * mask_check. A request at fault, even one that is not JSON, is answered, too:
 * `{"error": {"reason": …, "message": …}}`, and *is_result is false then.
 * Statuses: INVALID_ARGUMENT (NULL), IO (`write` refused).
 */
EJK_API EJK_NODISCARD ejk_status ejk_splash_answer(const char *request, size_t length,
                                                   const ejk_splash_answer_options *options,
                                                   ejk_splash_write_fn write, void *user,
                                                   bool *is_result);

#ifdef __cplusplus
}
#endif
#endif
