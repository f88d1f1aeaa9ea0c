/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file labels.h
 * Labels: names that identify calls in programs, profiles and logs.
 *
 * A label is `{prefix}{operation}@v{version}:{key}`, as
 * "ejkernel_ops#flash_attention@v0:393008f2d99bc9e8"; the key is that of ejk_call_key(). A program that
 * JAX lowered contains them in its debug information, where ejk_find_labels_in_lowered() finds them, so the
 * calls of a model can be tuned before it runs. A JSON stamp, `{prefix}:{…}`, contains the arguments themselves.
 *
 * Programs compiled by XLA have lost the labels: from StableHLO to HLO, it cuts the names of operations at the
 * "@". Search StableHLO with debug information (JAX: lowered.as_text(debug_info=True)), or write them to
 * attributes as well, which both kinds of text keep. ejk_labels_cut() counts labels that were cut.
 *
 * Thread-safety: all functions may be called from several threads at once; the names given to ejk_label() belong
 * to the calling thread.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_LABELS_H
#define EJKERNEL_LABELS_H

#include <ejkernel/identity.h>
#include <ejkernel/kernel.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What labels begin with where nothing else is asked for. */
#define EJK_LABEL_PREFIX "ejkernel_ops#"

/** What stamps begin with where nothing else is asked for; "#" or ":" follows. */
#define EJK_STAMP_PREFIX "ejkernel_ops"

/* ---- Texts ----------------------------------------------------------------------------------------- */

/**
 * The prefix in effect: `prefix` if given, else EJKERNEL_OPS_PREFIX of the environment if it is set and
 * not "", else #EJK_LABEL_PREFIX. The text is one of these three.
 */
EJK_API const char *ejk_label_prefix(const char *prefix);

/**
 * The text of a label. `op_id` is an operation with its version, as ejk_versioned_op_id() writes it, of
 * letters, digits and "_.@-"; `call_hash` 16 lower-case hex digits; `prefix` as in ejk_label_prefix().
 * What is written can be found and parsed again. `*out` is freed with ejk_free().
 * Statuses: INVALID_ARGUMENT (names what does not follow its form), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_label_ex(const char *op_id, const char *call_hash,
                                              const char *prefix, char **out);

/** The stamp of a call by its key: `{stamp_prefix}#{op}@v{version}:{key}`. NULL = #EJK_STAMP_PREFIX. */
EJK_API EJK_NODISCARD ejk_status ejk_hash_stamp(const ejk_kernel *kernel, const char *call_hash,
                                                const char *stamp_prefix, char **out);

/**
 * The stamp of a call by its arguments: `{stamp_prefix}:{"args":…,"cfg":…,"kwargs":…,"op_id":…}`, stable
 * JSON; args and kwargs as in ejk_call_spec(), cfg the whole configuration, which kernel->config
 * describes, or null. Not found by the default search: ask for it in #ejk_label_options.
 * Statuses: those of ejk_call_spec(), INVALID_ARGUMENT (a configuration the kernel has no record of).
 */
EJK_API EJK_NODISCARD ejk_status ejk_json_stamp(const ejk_kernel *kernel, const void *args,
                                                const void *config, const char *stamp_prefix,
                                                char **out);

/** A label taken apart. The pointers lead into the text that was parsed. */
typedef struct ejk_label_parts {
    const char *prefix;    /**< before the operation, as "ejkernel_ops#" */
    size_t prefix_length;  /**< bytes */
    const char *op_id;     /**< operation with version, as "flash_attention@v0" */
    size_t op_id_length;   /**< bytes */
    size_t name_length;    /**< bytes of op_id before the "@v" */
    const char *version;   /**< what follows the "@v" */
    size_t version_length; /**< bytes */
    char key[EJK_SHORT_HASH_SIZE];
} ejk_label_parts;

/**
 * Takes a label apart; nothing may stand before or behind it. `prefix` as in ejk_label_prefix().
 * Statuses: MALFORMED (says which part is not there), INVALID_ARGUMENT (NULL).
 */
EJK_API EJK_NODISCARD ejk_status ejk_parse_label(const char *text, const char *prefix,
                                                 ejk_label_parts *out);

/* ---- Finding --------------------------------------------------------------------------------------- */

/** Which labels are looked for. Zero means default everywhere. */
typedef struct ejk_label_options {
    const char *const *prefixes; /**< of labels; NULL = #EJK_LABEL_PREFIX alone */
    int32_t prefix_count;        /**< how many; at most 16 */
    bool json_stamps;            /**< JSON stamps too */
    const char *stamp_prefix;    /**< of JSON stamps; NULL = #EJK_STAMP_PREFIX */
} ejk_label_options;

/** One that was found. */
typedef struct ejk_label_match {
    const char
        *text; /**< the label or stamp, closed by a zero; a stamp without the program's escapes */
    size_t offset;        /**< where it starts in the program, in bytes */
    size_t length;        /**< its bytes there */
    bool json;            /**< a JSON stamp */
    size_t prefix_length; /**< bytes of `text` that are the prefix it was found by */
} ejk_label_match;

/** What was found, in the order of the program, repetitions included. */
typedef struct ejk_labels ejk_labels;

/**
 * Labels in a program's text: the prefix, one or more of letters, digits and "_.@-", a ":", and 16
 * lower-case hex digits. One without "@v" is found, too, but ejk_parse_label() refuses it. The text may
 * hold any bytes; the time is linear in its length.
 * Statuses: INVALID_ARGUMENT (NULL with a length, no out), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_extract_labels_from_hlo_text(const char *text, size_t length,
                                                                  ejk_labels **out);

/**
 * The same with options; NULL = default. If several prefixes fit at one place, the first of them counts.
 * A JSON stamp must lie within one string of the program, with the string's escapes; one that does not end there
 * is skipped, without a search for another stamp inside it.
 * Statuses: as above, INVALID_ARGUMENT (more than 16 prefixes, one that is NULL or "").
 */
EJK_API EJK_NODISCARD ejk_status ejk_extract_labels_from_hlo_text_ex(
    const char *text, size_t length, const ejk_label_options *options, ejk_labels **out);

/**
 * The labels of a file that holds HLO or StableHLO as text. Options as above.
 * Statuses: IO (names the file), and those above.
 */
EJK_API EJK_NODISCARD ejk_status ejk_find_labels_in_lowered(const char *path,
                                                            const ejk_label_options *options,
                                                            ejk_labels **out);

/** How many were found; 0 for NULL. */
EJK_API int64_t ejk_labels_count(const ejk_labels *labels);

/** One of them, valid until the list is freed; NULL out of range. */
EJK_API const ejk_label_match *ejk_labels_get(const ejk_labels *labels, int64_t index);

/** Places with a label's prefix, but without the rest of one: what XLA cut. */
EJK_API int64_t ejk_labels_cut(const ejk_labels *labels);

/** Frees a list. NULL is allowed. */
EJK_API void ejk_labels_free(ejk_labels *labels);

/* ---- Named regions --------------------------------------------------------------------------------- */

/** The most regions of one thread that are open at once. */
#define EJK_MAX_LABELS 16

/**
 * Runs a function as a region of that name and returns its status, as the Python decorator of the same name does.
 * Regions that the function left open are closed.
 * Statuses: those of ejk_label_begin(), INVALID_ARGUMENT (no function); and any of the function's.
 */
EJK_API EJK_NODISCARD ejk_status ejk_label(const char *name, ejk_status (*function)(void *user),
                                           void *user);

/**
 * Opens a region of the calling thread: until its end, ejk_label_current() returns that name. The name
 * is copied. Statuses: INVALID_ARGUMENT (NULL, "", #EJK_NAME_SIZE bytes or more), OVERFLOW
 * (#EJK_MAX_LABELS regions are open).
 */
EJK_API EJK_NODISCARD ejk_status ejk_label_begin(const char *name);

/** Closes the innermost region of the calling thread; without one, nothing happens. */
EJK_API void ejk_label_end(void);

/** The name of the innermost region of the calling thread; NULL outside. Valid until its end. */
EJK_API const char *ejk_label_current(void);

#ifdef __cplusplus
}
#endif
#endif
