/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file params.h
 * Tuning parameters of the forward and the backward pass, and the configuration that all kernels once shared.
 *
 * They change the speed of an implementation, never its result beyond rounding. All three are records
 * (record.h): use ejk_record_equal(), ejk_record_hash() and so on with the descriptions below. This header has
 * what records do not provide.
 *
 * Thread-safety: every function may be called from any thread at once; the structs are plain data.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_PARAMS_H
#define EJKERNEL_PARAMS_H

#include <ejkernel/record.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How memory that is soon read is prefetched. Unset = chosen by the library. */
#define EJK_PREFETCH_PARAMS(F, R)                                                                  \
    F(OPT_INT, prefetch_hint, EJK_OPTIONAL, "unset", "", "cache that memory is prefetched into")   \
    F(OPT_INT, prefetch_bytes, EJK_OPTIONAL, "unset", "bytes", "prefetch distance")

/** Parameters of a forward pass. Unset = chosen by the library. */
#define EJK_FWD_PARAMS(F, R)                                                                       \
    F(OPT_INT, blocksize_m, EJK_OPTIONAL, "unset", "rows", "block of the output's rows")           \
    F(OPT_INT, blocksize_k, EJK_OPTIONAL, "unset", "", "block of the reduction")                   \
    F(OPT_INT, blocksize_n, EJK_OPTIONAL, "unset", "columns", "block of the output's columns")     \
    F(OPT_INT, q_blocksize, EJK_OPTIONAL, "unset", "queries", "block of query rows")               \
    F(OPT_INT, kv_blocksize, EJK_OPTIONAL, "unset", "keys", "block of keys and values")            \
    F(OPT_INT, blocksize_heads, EJK_OPTIONAL, "unset", "heads", "block of heads")                  \
    F(OPT_INT, blocksize_keys, EJK_OPTIONAL, "unset", "keys", "block of keys in decoding")         \
    F(OPT_INT, num_key_splits, EJK_OPTIONAL, "unset", "", "parts the keys are split into")         \
    F(OPT_INT, num_warps, EJK_OPTIONAL, "unset", "warps", "warps of a GPU block")                  \
    F(OPT_INT, num_stages, EJK_OPTIONAL, "unset", "", "stages of a GPU pipeline")                  \
    EJK_PREFETCH_PARAMS(F, R)

/** Parameters of a backward pass. */
#define EJK_BWD_PARAMS(F, R)                                                                       \
    F(OPT_INT, blocksize_m, EJK_OPTIONAL, "unset", "rows", "block of the output's rows")           \
    F(OPT_INT, blocksize_k, EJK_OPTIONAL, "unset", "", "block of the reduction")                   \
    F(OPT_INT, blocksize_n, EJK_OPTIONAL, "unset", "columns", "block of the output's columns")     \
    F(OPT_INT, q_blocksize, EJK_OPTIONAL, "unset", "queries", "block of query rows")               \
    F(OPT_INT, kv_blocksize, EJK_OPTIONAL, "unset", "keys", "block of keys and values")            \
    F(OPT_INT, num_warps, EJK_OPTIONAL, "unset", "warps", "warps of a GPU block")                  \
    F(OPT_INT, num_stages, EJK_OPTIONAL, "unset", "", "stages of a GPU pipeline")

EJK_RECORD_STRUCT(ejk_fwd_params, EJK_FWD_PARAMS);
EJK_RECORD_STRUCT(ejk_bwd_params, EJK_BWD_PARAMS);
extern EJK_API const ejk_record ejk_fwd_params_record;
extern EJK_API const ejk_record ejk_bwd_params_record;

/**
 * The fields that are set, zero included, as a JSON object in the order of the fields:
 * {"q_blocksize":128,"num_warps":4}; "{}" for none or NULL. Freed with ejk_free(). Statuses:
 * INVALID_ARGUMENT (`out` NULL), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_fwd_params_to_dict(const ejk_fwd_params *params, char **out);

/**
 * Each field is that of `override` if set there, else that of `base`: an unset field never erases. Either
 * may be NULL, as if nothing were set.
 */
EJK_API ejk_fwd_params ejk_fwd_params_merge(const ejk_fwd_params *base,
                                            const ejk_fwd_params *override);

/**
 * Parameters of a backward pass that follow from those of the forward one: q_blocksize and kv_blocksize
 * times `scale`, truncated towards zero; num_warps and num_stages as they are; nothing else. A block size
 * that is unset or 0 counts as 128, so that 129 and 0 both give 64 at one half. NULL `fwd` = nothing set;
 * unset `scale` = 0.5. Statuses: INVALID_ARGUMENT (`scale` negative or not finite, `out` NULL), OVERFLOW
 * (a product does not fit 64 bits).
 */
EJK_API EJK_NODISCARD ejk_status ejk_bwd_params_from_fwd_params(const ejk_fwd_params *fwd,
                                                                ejk_opt_float scale,
                                                                ejk_bwd_params *out);

/** The configuration that all kernels shared before each had its own. */
#define EJK_KERNEL_CONFIG(F, R)                                                                    \
    F(OPT_INT, block_q, EJK_OPTIONAL, "128", "queries", "block of query rows")                     \
    F(OPT_INT, block_k, EJK_OPTIONAL, "128", "keys", "block of keys and values")                   \
    F(OPT_INT, block_d, EJK_OPTIONAL, "64", "", "block of the head dimension")                     \
    F(OPT_INT, num_warps, EJK_OPTIONAL, "4", "warps", "warps of a GPU block")                      \
    F(OPT_INT, num_stages, EJK_OPTIONAL, "2", "", "stages of a GPU pipeline")                      \
    F(NAME, platform, EJK_OPTIONAL, "auto", "", "implementation technology")                       \
    F(NAME, backend, EJK_OPTIONAL, "any", "", "kind of hardware; with platform xla always any")    \
    F(NAME, algorithm, EJK_OPTIONAL, "unset", "", "variant, where there are several")              \
    F(INT, priority, EJK_OPTIONAL, "0", "", "the higher is preferred where several match")

EJK_RECORD_STRUCT(ejk_kernel_config, EJK_KERNEL_CONFIG);
extern EJK_API const ejk_record ejk_kernel_config_record;

/** Every field at its default, all but `algorithm` set: 128, 128, 64, 4, 2, "auto", "any", "", 0. */
EJK_API ejk_kernel_config ejk_kernel_config_default(void);

/**
 * Checks a configuration and completes it: fields that are not set get their defaults, names are written
 * as the registry has them, platform xla forces backend any. NULL `config` = nothing set; `out` may be
 * `config`. Statuses: INVALID_ARGUMENT (a size, num_warps or num_stages below 1, a text without end, NULL
 * `out`), UNKNOWN_NAME (platform, backend; the sentence lists those that exist).
 */
EJK_API EJK_NODISCARD ejk_status ejk_kernel_config_normalise(const ejk_kernel_config *config,
                                                             ejk_kernel_config *out);

#ifdef __cplusplus
}
#endif
#endif
