/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file numeric.h
 * Numeric helpers: stable reductions, division, chunks, comparison of tensors, random inputs, time and memory.
 *
 * Unless a function says otherwise, tensors may have any strides and element type. They must be on the CPU.
 * Results are written to the caller's tensors, whose elements must not overlap each other nor, unless a function
 * says otherwise, the inputs. Arithmetic is in f64 and rounded once to the element type of the result. An int64
 * beyond 2^53 is rounded when it is converted to f64.
 *
 * Axes may be negative: they then count from the end. `threads` may be NULL everywhere: the calling thread
 * works alone. Results are the same, bit for bit, for any number of threads.
 *
 * Statuses that every function with tensors may give, besides its own: those of ejk_tensor_check(),
 * UNAVAILABLE (memory of another device), INVALID_LAYOUT (elements of the result that overlap or interleave,
 * a result that overlaps an input), OUT_OF_MEMORY.
 *
 * Thread-safety: all functions may be called from any thread at once; no two may write the same memory.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_NUMERIC_H
#define EJKERNEL_NUMERIC_H

#include <ejkernel/device.h>
#include <ejkernel/record.h>
#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Sizes and shapes ----------------------------------------------------------------------------- */

/** `a / b` rounded up. Statuses: INVALID_ARGUMENT (b below 1, NULL). */
EJK_API EJK_NODISCARD ejk_status ejk_cdiv(int64_t a, int64_t b, int64_t *out);

/**
 * The least power of two that is at least `x`; 1 for 0.
 * Statuses: INVALID_ARGUMENT (negative, NULL), OVERFLOW (above 2^62).
 */
EJK_API EJK_NODISCARD ejk_status ejk_next_power_of_2(int64_t x, int64_t *out);

/** The head size that kernels pad to: the next power of two, at least 16. Statuses: as above. */
EJK_API EJK_NODISCARD ejk_status ejk_get_padded_headsize(int64_t head_dim, int64_t *out);

/**
 * Row-major strides in elements of a shape of `rank` axes: 12, 4, 1 for 2, 3, 4. All are zero if an axis is
 * empty, as documented; ejk_tensor_contiguous() counts an empty axis as one instead.
 * Statuses: INVALID_ARGUMENT (NULL), INVALID_SHAPE (rank out of 0 … #EJK_MAX_RANK, negative length),
 * OVERFLOW.
 */
EJK_API EJK_NODISCARD ejk_status ejk_strides_from_shape(const int64_t *shape, int32_t rank,
                                                        int64_t *strides_out);

/** Rows and columns of ejk_get_input_shapes(). */
#define EJK_INPUT_SHAPES     20
#define EJK_INPUT_SHAPE_AXES 6

/**
 * The shapes that attention is tried on: row n has max(1, 2^(16 − i)), 1, 2^i, 16, g and 128, with i from 8 to
 * 17, first for g = 1, then for g = 2: the tokens of batch and sequence together are 65536 as long as they can.
 * Statuses: INVALID_ARGUMENT (NULL).
 */
EJK_API EJK_NODISCARD ejk_status
ejk_get_input_shapes(int64_t shapes_out[EJK_INPUT_SHAPES][EJK_INPUT_SHAPE_AXES]);

/* ---- Chunks --------------------------------------------------------------------------------------- */

/**
 * Cuts one axis into chunks: an axis of n becomes two, of ceil(n / chunk_size) and chunk_size; what is
 * missing in the last chunk is `pad_value` (documented default 0), converted as ejk_tensor_copy() does.
 * 0 … 9 by chunks of 4 gives [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 0]]. `out` has that shape and the
 * element type of `array`. A `chunk_size` beyond n gives one chunk, n of 0 gives none.
 * Statuses: INVALID_ARGUMENT (chunk_size below 1, axis), INVALID_SHAPE (rank 0 or #EJK_MAX_RANK, shape of
 * `out`), INVALID_DTYPE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_chunk_array(const ejk_tensor *array, int64_t chunk_size,
                                                 int32_t axis, double pad_value,
                                                 ejk_threads *threads, const ejk_tensor *out);

/**
 * Joins what ejk_chunk_array() cut: the axes of chunks and of what is in them become one, of which the
 * first `original_length` elements are kept. `axis` is the same number that was given there, so a negative
 * one counts from the end of `out`. `original_length` is at most what the chunks hold.
 * Statuses: INVALID_ARGUMENT (axis, original_length), INVALID_SHAPE (rank of `chunks` below 2, shape of
 * `out`), INVALID_DTYPE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_unchunk_array(const ejk_tensor *chunks,
                                                   int64_t original_length, int32_t axis,
                                                   ejk_threads *threads, const ejk_tensor *out);

/* ---- Stable arithmetic ---------------------------------------------------------------------------- */

/**
 * log(sum(exp(x))) over `axis_count` axes, without overflow: 1002.4076059644444 for 1000, 1001, 1002.
 * No axes at all (NULL or a count of 0) means all of them. `out` has the axes that remain, and with
 * `keepdims` those reduced too, one long; its element type is floating. It may overlap `x`.
 *
 * −∞ contributes nothing: the result is −∞ if all elements are, or if there are none. +∞ gives +∞. A NaN gives NaN.
 * Statuses: INVALID_ARGUMENT (axis out of range or given twice, axis_count), INVALID_SHAPE,
 * INVALID_DTYPE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_log_sum_exp(const ejk_tensor *x, const int32_t *axes,
                                                 int32_t axis_count, bool keepdims,
                                                 ejk_threads *threads, const ejk_tensor *out);

/** How ejk_safe_divide() divides. Zero-initialised = the defaults. */
typedef struct ejk_safe_divide_options {
    ejk_opt_float min_denominator; /**< least magnitude of a denominator, finite, above 0; 1e-10 */
    /** The document's rule, max(denominator, min_denominator): a negative one becomes the minimum, and its
     * sign is lost. */
    bool documented;
    ejk_threads *threads;
} ejk_safe_divide_options;

/**
 * numerator / denominator, where a denominator nearer to zero than the minimum counts as the minimum, with
 * its own sign (that of −0 is negative). NaN stays NaN. The inputs are spread over the shape of `out` as
 * NumPy does: an axis that lacks or is one long repeats. `out` is floating, and may be one of the inputs
 * itself (same memory, same view), but not overlap them otherwise. NULL `options`: the defaults.
 * Statuses: INVALID_ARGUMENT (options), INVALID_SHAPE, INVALID_DTYPE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_safe_divide(const ejk_tensor *numerator,
                                                 const ejk_tensor *denominator,
                                                 const ejk_safe_divide_options *options,
                                                 const ejk_tensor *out);

/* ---- Comparison ----------------------------------------------------------------------------------- */

/** What counts as close. Zero-initialised = the defaults. */
typedef struct ejk_allclose_options {
    ejk_opt_float rtol;     /**< tolerance relative to `expected`, ≥ 0; 1e-5 */
    ejk_opt_float atol;     /**< absolute tolerance, ≥ 0; 1e-8 */
    ejk_opt_bool equal_nan; /**< NaN equals NaN; true */
    ejk_threads *threads;
} ejk_allclose_options;

/**
 * What a comparison found. Positions are indices, one number per axis, all −1 for "none"; the first in
 * row-major order where several are as good.
 */
typedef struct ejk_allclose_report {
    int64_t count;               /**< elements compared */
    int64_t mismatches;          /**< those that are not close */
    int64_t nan_mismatches;      /**< of them: NaN on one side only, or on both without equal_nan */
    int64_t infinite_mismatches; /**< of them: ∞ on either side, NaN on none */
    int64_t actual_nans, expected_nans;
    int64_t actual_infinities, expected_infinities;
    bool dtypes_differ; /**< reported, no mismatch by itself */
    ejk_dtype actual_dtype, expected_dtype;
    /** The worst mismatch: the largest difference, NaN before ∞ before finite. Without a mismatch, the largest
     * difference above 0. */
    int64_t worst[EJK_MAX_RANK];
    double worst_actual, worst_expected; /**< the two values there; 0 if there is none */
    double worst_difference; /**< |actual − expected| there, NaN or ∞ too; 0 if there is none */
    int64_t first_mismatch[EJK_MAX_RANK];
    int64_t first_nan[EJK_MAX_RANK];      /**< of nan_mismatches */
    int64_t first_infinite[EJK_MAX_RANK]; /**< of infinite_mismatches */
} ejk_allclose_report;

/**
 * Compares element by element: close is |actual − expected| ≤ atol + rtol·|expected|; an infinity is close
 * to itself only. Integers are compared exactly, beyond 2^53 too. Element types may differ. Answers MISMATCH
 * if an element is not close; the sentence has the count, the worst index with both values, and where NaN
 * and ∞ are. NULL `options`: the defaults.
 *
 * `report` may be NULL. It is written on success and, other than elsewhere, on MISMATCH.
 * Statuses: MISMATCH, INVALID_ARGUMENT (options), INVALID_SHAPE (the shapes differ).
 */
EJK_API EJK_NODISCARD ejk_status ejk_assert_allclose(const ejk_tensor *actual,
                                                     const ejk_tensor *expected,
                                                     const ejk_allclose_options *options,
                                                     ejk_allclose_report *report);

/** Largest |reference − value|, NaN if one is; 0 without elements. Statuses: INVALID_SHAPE. */
EJK_API EJK_NODISCARD ejk_status ejk_get_abs_err(const ejk_tensor *reference,
                                                 const ejk_tensor *value, ejk_threads *threads,
                                                 double *out);

/**
 * Root of the mean square of the difference, over that of the reference plus 1e-8; 0 without elements.
 * Statuses: INVALID_SHAPE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_get_err_ratio(const ejk_tensor *reference,
                                                   const ejk_tensor *value, ejk_threads *threads,
                                                   double *out);

/** How ejk_assert_close() judges. Zero-initialised = the defaults. */
typedef struct ejk_assert_close_options {
    bool warning;           /**< never a mismatch, only a warning */
    ejk_opt_float err_atol; /**< an absolute error up to this always passes, ≥ 0; 1e-6 */
    ejk_threads *threads;
} ejk_assert_close_options;

/** What ejk_assert_close() found. */
typedef struct ejk_assert_close_report {
    double abs_err;   /**< ejk_get_abs_err() */
    double err_ratio; /**< ejk_get_err_ratio() */
    bool warned;      /**< err_ratio is above `ratio`, but let pass */
} ejk_assert_close_report;

/**
 * The test of whole tensors by their error ratio: passes if the absolute error is at most err_atol; else,
 * with `warning`, or an error ratio below 0.01, or an absolute error of at most 0.3, passes too and warns if
 * the ratio is above `ratio`; else the error ratio has to be below `ratio`. `prefix` stands before the
 * sentence and may be NULL. `report` may be NULL; it is written on success and on MISMATCH.
 * Statuses: MISMATCH, INVALID_ARGUMENT (ratio negative or NaN, options), INVALID_SHAPE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_assert_close(const char *prefix, const ejk_tensor *reference,
                                                  const ejk_tensor *value, double ratio,
                                                  const ejk_assert_close_options *options,
                                                  ejk_assert_close_report *report);

/* ---- Random numbers ------------------------------------------------------------------------------- */

/**
 * A key of the generator, Threefry-2x32 with 20 rounds (J. Salmon et al., 2011), used as JAX does with
 * `jax_threefry_partitionable`: element i of a tensor comes from the block with the counter i, so that every
 * element is found by itself.
 */
typedef struct ejk_random_key {
    uint32_t words[2];
} ejk_random_key;

/** The key of a seed: its high and its low 32 bits. */
EJK_API ejk_random_key ejk_prng_key(uint64_t seed);

/** `count` keys from one. Statuses: INVALID_ARGUMENT (negative count, NULL). */
EJK_API EJK_NODISCARD ejk_status ejk_prng_split(ejk_random_key key, int64_t count,
                                                ejk_random_key *keys_out);

/**
 * Fills a floating tensor with numbers of the standard normal distribution, times `scale`: √2·erfinv(u)
 * in f32, within 4 units in the last place of JAX. Other element types are rounded from f32.
 * Statuses: INVALID_DTYPE, INVALID_ARGUMENT (scale not finite).
 */
EJK_API EJK_NODISCARD ejk_status ejk_random_normal(ejk_random_key key, double scale,
                                                   ejk_threads *threads, const ejk_tensor *out);

/**
 * Fills a floating tensor with numbers of [low, high), evenly, in f32: 23 random bits after the point. A
 * number may round up to `high`. Other element types are rounded from f32.
 * Statuses: INVALID_DTYPE, INVALID_ARGUMENT (bounds, or their difference, not finite in f32; low above high).
 */
EJK_API EJK_NODISCARD ejk_status ejk_random_uniform(ejk_random_key key, double low, double high,
                                                    ejk_threads *threads, const ejk_tensor *out);

/** What ejk_generate_attention_inputs() makes. Zero-initialised = the defaults. */
typedef struct ejk_attention_inputs_options {
    ejk_opt_int batch_size; /**< 2 */
    ejk_opt_int seq_len;    /**< 128 */
    ejk_opt_int num_heads;  /**< 8 */
    ejk_opt_int head_dim;   /**< 64 */
    ejk_dtype dtype;        /**< a floating type; unset = f32 */
    bool has_key;           /**< `key` is given */
    ejk_random_key key;     /**< else that of the seed 0 */
    ejk_threads *threads;
} ejk_attention_inputs_options;

/** Tensors of [B, T, H, D]. Release with ejk_attention_inputs_close(). */
typedef struct ejk_attention_inputs {
    ejk_owned_tensor query, key, value;
} ejk_attention_inputs;

/**
 * Random inputs of an attention call: 0.02 × standard normal, from three keys split from one; the same
 * numbers as the document's listing gives on JAX, within 4 units in the last place. NULL: the defaults.
 * Statuses: INVALID_SHAPE, INVALID_DTYPE, OVERFLOW, INVALID_ARGUMENT (NULL).
 */
EJK_API EJK_NODISCARD ejk_status ejk_generate_attention_inputs(
    const ejk_attention_inputs_options *options, ejk_attention_inputs *out);

/** Releases the three tensors and zeroes the struct. A zeroed struct is allowed. */
EJK_API void ejk_attention_inputs_close(ejk_attention_inputs *inputs);

/**
 * Fills a bool tensor of any shape and strides: each element is true with the probability 1 − `sparsity`,
 * element i by the 32 bits of the counter i. The document's numbers are those of NumPy's older generator,
 * which this does not repeat.
 * Statuses: those of ejk_tensor_check(), INVALID_DTYPE, INVALID_ARGUMENT (sparsity not of 0 to 1).
 */
EJK_API EJK_NODISCARD ejk_status ejk_make_random_mask(ejk_random_key key, double sparsity,
                                                      ejk_threads *threads, const ejk_tensor *out);

/** What ejk_make_dummy_rpa_inputs() makes. Zero-initialised = the defaults. */
typedef struct ejk_rpa_inputs_options {
    ejk_opt_int num_seqs;      /**< 4 */
    ejk_opt_int pages_per_seq; /**< 3 */
    ejk_opt_int page_size;     /**< 16 keys; a multiple of the elements of kv_dtype in 32 bits */
    ejk_opt_int num_q_heads;   /**< 8 */
    ejk_opt_int num_kv_heads;  /**< 2 */
    ejk_opt_int head_dim;      /**< 80 */
    ejk_opt_int kv_len_max;    /**< most keys of a sequence; unset, or more = what its pages hold */
    ejk_dtype kv_dtype;        /**< f32, bf16 or f16; unset = f32 */
    ejk_dtype q_dtype;         /**< the same; unset = kv_dtype */
    bool has_distribution;     /**< `decode_prefill_mixed` is given */
    int32_t decode_prefill_mixed[3]; /**< else 0, 0, num_seqs */
    bool has_key;                    /**< `key` is given */
    ejk_random_key key;              /**< else that of the seed 0 */
    ejk_threads *threads;
} ejk_rpa_inputs_options;

/** Arguments of ragged paged attention. Release with ejk_rpa_inputs_close(). */
typedef struct ejk_rpa_inputs {
    ejk_owned_tensor queries;  /**< [tokens, num_q_heads, head_dim] */
    ejk_owned_tensor keys;     /**< [tokens, num_kv_heads, head_dim] */
    ejk_owned_tensor values;   /**< as keys */
    ejk_owned_tensor kv_cache; /**< [pages, page_size, ⌈2·num_kv_heads / n⌉, n, D], see below */
    ejk_owned_tensor kv_lens;  /**< int32 [num_seqs]: keys of each */
    ejk_owned_tensor block_tables;    /**< int32 [pages]: those of each sequence in turn */
    ejk_owned_tensor query_start_loc; /**< int32 [num_seqs + 1]: where the tokens of each begin */
    ejk_owned_tensor distribution; /**< int32 [3]: ends of decoding, prefilling, mixed sequences */
} ejk_rpa_inputs;

/**
 * Random inputs for ragged paged attention: standard normal numbers; each sequence with 1 to kv_len_max keys
 * and 1 query up to as many as keys, decoding ones with 1; pages = num_seqs · pages_per_seq, numbered in
 * order. In the cache n is the elements of kv_dtype in 32 bits, and D is head_dim rounded up to 128, with
 * zeros behind head_dim. NULL: the defaults. On failure *out is as it was.
 * Statuses: INVALID_ARGUMENT (a number out of range, page_size not a multiple of n, a distribution that does
 * not rise from 0 on to num_seqs, NULL), INVALID_DTYPE, OVERFLOW (pages or tokens beyond int32, or bytes
 * beyond int64), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_make_dummy_rpa_inputs(const ejk_rpa_inputs_options *options,
                                                           ejk_rpa_inputs *out);

/** Releases the tensors and zeroes the struct. A zeroed struct is allowed. */
EJK_API void ejk_rpa_inputs_close(ejk_rpa_inputs *inputs);

/**
 * Random blocks of keys for sparse attention, as int32 `[B, Tq, H, S]`: the queries of block number n (of
 * `block_size`, a divisor of Tq) see S different blocks among 0 … n, or all of them and −1 in the other
 * places; ascending, so that −1 comes first, and the same for all queries of a block. Which blocks: the
 * first S of a Fisher-Yates shuffle with this generator under `key` (document: seed 42), one block of
 * counters per (B, query block, H).
 * Statuses: INVALID_SHAPE (rank, Tq), INVALID_DTYPE, INVALID_ARGUMENT (block_size below 1).
 */
EJK_API EJK_NODISCARD ejk_status ejk_generate_block_indices(ejk_random_key key, int64_t block_size,
                                                            ejk_threads *threads,
                                                            const ejk_tensor *out);

/* ---- Launch parameters ---------------------------------------------------------------------------- */

/**
 * Warps for a GPU kernel with tiles of q_block × kv_block: 2, 4 or 8 by operations per byte moved (8 above
 * 10, 4 above 5), at most 4 for tiles below 1024 elements, at least 8 above 16384. The document says "4, 8 or
 * 16" but its rule gives these. `dtype` unset is f16.
 * Statuses: INVALID_ARGUMENT (sizes below 1, NULL), INVALID_DTYPE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_select_num_warps(int64_t q_block, int64_t kv_block,
                                                      int64_t head_dim, ejk_dtype dtype,
                                                      int32_t *out);

/**
 * Pipeline stages for a GPU kernel that takes `smem_bytes` of shared memory: 3 if more than twice as much
 * is left of ejk_get_shared_memory_limit(NULL), 2 if more than as much is, else 1.
 * Statuses: INVALID_ARGUMENT (negative, NULL).
 */
EJK_API EJK_NODISCARD ejk_status ejk_select_num_stages(int64_t smem_bytes, int32_t *out);

/**
 * Shared memory that a block of a GPU may take, in bytes: `EJKERNEL_TRITON_SMEM_LIMIT` in the environment if
 * it is a number of at least 1; else by the device's name: 164 KiB if "A100" is in it, 96 KiB with "V100", 64
 * KiB with "T4"; else 48 KiB. NULL: no device is known.
 */
EJK_API int64_t ejk_get_shared_memory_limit(const char *device_name);

/**
 * Shared memory of a tile: (q_block + 2·kv_block)·head_dim elements, and 8 bytes per query with softmax
 * statistics, rounded up to 128. `dtype` unset is f16.
 * Statuses: INVALID_ARGUMENT (negative sizes, NULL), INVALID_DTYPE, OVERFLOW.
 */
EJK_API EJK_NODISCARD ejk_status ejk_estimate_shared_memory_bytes(int64_t q_block, int64_t kv_block,
                                                                  int64_t head_dim, ejk_dtype dtype,
                                                                  bool softmax_stats, int64_t *out);

/**
 * Block and warps for rows of n elements: the next power of two, and 4 warps, 8 from 2048, 16 from 8192, 32
 * from 32768. Statuses: INVALID_ARGUMENT (n negative or needing a block above 65536, NULL).
 */
EJK_API EJK_NODISCARD ejk_status ejk_calculate_blocksize_and_wraps(int64_t n,
                                                                   int64_t *block_size_out,
                                                                   int32_t *num_warps_out);

/* ---- Time and memory ------------------------------------------------------------------------------ */

/** Where a timer's text goes. The text ends with the call. */
typedef void (*ejk_timer_sink_fn)(void *user, const char *text);

/** A measured scope. Plain data; starts with ejk_timer_start() and ends with ejk_timer_stop(). */
typedef struct ejk_timer {
    const char *name; /**< borrowed until the stop; NULL = "Operation" */
    ejk_timer_sink_fn sink;
    void *user;
    double started_s; /**< ejk_now() at the start */
    bool running;
} ejk_timer;

/** Starts a timer. When it stops, `sink` is called with the text and `user`; NULL = no call. */
EJK_API ejk_timer ejk_timer_start(const char *name, ejk_timer_sink_fn sink, void *user);

/**
 * Stops a timer and gives the seconds since its start. The sink gets "{name} took {seconds:.3f} seconds", as
 * "Flash Attention took 0.123 seconds" (a name is cut after 400 bytes). Call it on the way of an error too.
 * 0, and no text, for NULL or a timer that is not running.
 */
EJK_API double ejk_timer_stop(ejk_timer *timer);

/** Memory in bytes. */
typedef struct ejk_memory_usage {
    int64_t allocated; /**< what this process has in memory (its resident set) */
    int64_t reserved;  /**< 0 on a CPU */
    int64_t limit;     /**< memory of the machine */
} ejk_memory_usage;

/** Memory of this process and machine now. Statuses: IO (the system does not tell), INVALID_ARGUMENT. */
EJK_API EJK_NODISCARD ejk_status ejk_get_memory_usage(ejk_memory_usage *out);

#ifdef __cplusplus
}
#endif
#endif
