/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lowered.h
 * Finds, from the labels of a lowered program, the known configurations of its calls and the calls to tune.
 *
 *     ejk_labels *labels;
 *     ejk_label_configs *known;
 *     ejk_find_labels_in_lowered("model.mlir", NULL, &labels);
 *     ejk_labels_to_configs(labels, chain, &known);
 *
 * A label contains an operation with its version and a call key, but neither the device (the current one is
 * assumed), nor the memory layout of the tensors, nor the number of threads. If a call has several
 * configurations that differ in these, the one without restrictions comes first, then the one for the most
 * threads, then the oldest. Labels that ejk_parse_label() refuses, and JSON stamps, are skipped. A kernel with its
 * own key_builder is found if its calls were labelled with that key.
 *
 * Thread-safety: every function may be called from any thread at once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_LOWERED_H
#define EJKERNEL_LOWERED_H

#include <ejkernel/executor.h>
#include <ejkernel/labels.h>
#include <ejkernel/recording.h>
#include <ejkernel/selector.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A label of a program, and what is known for it. Texts belong to the list. */
typedef struct ejk_label_config {
    const char *label;    /**< "ejkernel_ops#flash_attention@v0:393008f2d99bc9e8" */
    const char *op_id;    /**< of it: "flash_attention@v0" */
    const char *call_key; /**< of it */
    const char *config;   /**< of the forward pass, as JSON; NULL = none is known */
    ejk_choice_step step; /**< MEMORY or PERSISTENT: where it was; meaningless without one */
} ejk_label_config;

/** All of them, in the order of the program, repetitions included. Constant. */
typedef struct ejk_label_configs {
    const ejk_label_config *configs;
    int64_t count;
} ejk_label_configs;

/**
 * The configurations that a chain knows for labels: from its memory, else from its persistent cache. Nothing
 * is chosen, measured or copied from one to the other. Freed with ejk_label_configs_destroy().
 * Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, IO (the persistent cache stays locked).
 */
EJK_API EJK_NODISCARD ejk_status ejk_labels_to_configs(const ejk_labels *labels,
                                                       ejk_config_selector_chain *chain,
                                                       ejk_label_configs **out);

/**
 * The same for the labels of a file, as ejk_find_labels_in_lowered() reads it. NULL options = default.
 * Statuses: also those of that function.
 */
EJK_API EJK_NODISCARD ejk_status ejk_labels_to_configs_ex(const char *path,
                                                          const ejk_label_options *options,
                                                          ejk_config_selector_chain *chain,
                                                          ejk_label_configs **out);

/** NULL is allowed. */
EJK_API void ejk_label_configs_destroy(ejk_label_configs *configs);

/** How ejk_autotune_lowered() works. Zero means default everywhere. */
typedef struct ejk_lowered_options {
    ejk_label_options labels;             /**< which labels to search for */
    ejk_recording *recording;             /**< NULL = the executor's */
    const ejk_autotune_options *autotune; /**< NULL = defaults */
    /** Called for every call that was tuned; may be NULL, as may the next. */
    void (*told)(void *user, const ejk_tuned_call *call);
    /**
     * Called with the reason for every recorded call that could not be tuned here (`what` is its problem) and every
     * label without a recorded call (`what` is its text).
     */
    void (*skipped)(void *user, const char *what, const char *sentence);
    void *user; /**< first argument of both */
} ejk_lowered_options;

/**
 * Tunes those recorded calls whose labels occur in a lowered program, given as a file, in the way of
 * ejk_autotune_recorded(): the executor's selector stores the choices. A label needs a recorded call, because the
 * key alone does not describe the call. A call is tuned once, however often its label occurs. NULL options =
 * defaults; `out` may be NULL, else ejk_autotuning_result_destroy() frees it. Statuses: those of
 * ejk_find_labels_in_lowered() and ejk_autotune_recorded(), UNAVAILABLE (no recording).
 */
EJK_API EJK_NODISCARD ejk_status ejk_autotune_lowered(ejk_executor *executor, const char *path,
                                                      const ejk_lowered_options *options,
                                                      ejk_autotuning_result **out);

#ifdef __cplusplus
}
#endif
#endif
