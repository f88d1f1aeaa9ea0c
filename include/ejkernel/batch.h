/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file batch.h
 * One call for each element of a batch, with a configuration chosen once for all of them.
 *
 * Every mapped tensor has one axis more than the operation expects: the batch axis, of the same length in all
 * of them. Call i takes index i of that axis from each mapped tensor, inputs and results alike. Tensors that are
 * not mapped are passed whole to every call; these can only be inputs.
 *
 * Thread-safety: as for ejk_executor_call().
 *
 * @since 0.1
 */
#ifndef EJKERNEL_BATCH_H
#define EJKERNEL_BATCH_H

#include <ejkernel/executor.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The batch axis of one tensor field. */
typedef struct ejk_batch_axis {
    const char *field; /**< its name in the arguments' record */
    int32_t axis;      /**< of the batched tensor; negative counts from the end */
    bool whole;        /**< true: not mapped */
} ejk_batch_axis;

/** Batch axes of the fields named; all others have axis 0. NULL = 0 for all. */
typedef struct ejk_batch_axes {
    const ejk_batch_axis *fields;
    int32_t count;
} ejk_batch_axes;

/**
 * Calls a kernel for each element of a batch, one after the other, each on all threads.
 * Statuses: those of a call (its sentence says which element, if one fails); UNKNOWN_NAME (a field that is
 * no tensor of the arguments), INVALID_SHAPE (an axis out of range, lengths that differ, nothing mapped),
 * INVALID_ARGUMENT (a result that is not mapped).
 */
EJK_API EJK_NODISCARD ejk_status ejk_vmap_with_config(ejk_executor *executor,
                                                      const ejk_kernel *kernel, const void *args,
                                                      const ejk_batch_axes *in_axes,
                                                      const ejk_call_options *options);

/**
 * The same with elements side by side: each device of the executor's context takes its share of the batch.
 * Devices are cores here: as many as the context has threads, each computing its elements on one thread.
 * Statuses: as above.
 */
EJK_API EJK_NODISCARD ejk_status ejk_pmap_with_config(ejk_executor *executor,
                                                      const ejk_kernel *kernel, const void *args,
                                                      const ejk_batch_axes *in_axes,
                                                      const ejk_call_options *options);

#ifdef __cplusplus
}
#endif
#endif
