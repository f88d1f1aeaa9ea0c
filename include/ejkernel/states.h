/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file states.h
 * Saves and restores the tensors that a call updates in place.
 *
 * To run a call more than once with the same states and caches, as tuning, benchmarks and tests do, save them
 * before the first run and restore them before each of the others.
 *
 * Thread-safety: an object may be used by one thread at a time.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_STATES_H
#define EJKERNEL_STATES_H

#include <ejkernel/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Copies of tensors; private. */
typedef struct ejk_states ejk_states;

/**
 * Copies the elements of all tensors of a call that have the role #EJK_INOUT or #EJK_REQUIRED_INOUT, those
 * of nested records too, wherever they lie. `*out` is released with ejk_states_destroy(). Statuses:
 * INVALID_ARGUMENT (NULL; a tensor without data), those of ejk_tensor_check(), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_states_save(const ejk_record *record, const void *args,
                                                 ejk_states **out);

/** Writes them back to where they were. Nothing beside the elements is touched on the CPU. */
EJK_API EJK_NODISCARD ejk_status ejk_states_restore(const ejk_states *states);

/** Releases the copies. NULL is allowed. */
EJK_API void ejk_states_destroy(ejk_states *states);

#ifdef __cplusplus
}
#endif
#endif
