/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file recording.h
 * Recordings of a program's calls with their shapes and values, to be tuned later, here or on another machine.
 *
 * A recording is a list of problem texts (problem.h), one for each distinct call. Calls are the same if device,
 * versioned operation and call key are the same; the last of them is kept. Tensors are recorded by shape, class of
 * strides and element type, without their data. A file has one text per line and can be read on any machine.
 *
 * Thread-safety: a recording may be added to and read from any thread at once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_RECORDING_H
#define EJKERNEL_RECORDING_H

#include <ejkernel/context.h>
#include <ejkernel/kernel.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ejk_recording ejk_recording;

/** An empty one. OUT_OF_MEMORY. */
EJK_API EJK_NODISCARD ejk_status ejk_recording_create(ejk_recording **out);
/** NULL is allowed. */
EJK_API void ejk_recording_destroy(ejk_recording *recording);
/** Forgets all calls. */
EJK_API void ejk_recording_clear(ejk_recording *recording);
/** How many different calls it holds. */
EJK_API int64_t ejk_recording_count(ejk_recording *recording);

/**
 * Adds a call. `args` need no data. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, those of ejk_call_key() and
 * ejk_problem_to_text() (a call that the text cannot express).
 */
EJK_API EJK_NODISCARD ejk_status ejk_record_invocation(ejk_recording *recording,
                                                       const ejk_kernel *kernel, const void *args);

/** A recorded call. Texts belong to the recording and live as long as it is not changed. */
typedef struct ejk_recorded_invocation {
    const char *device;   /**< fingerprint of the device it was recorded on */
    const char *op_id_v;  /**< "flash_attention@v0" */
    const char *call_key; /**< identity.h */
    const char *problem;  /**< problem.h */
} ejk_recorded_invocation;

/**
 * Calls `visit` for each call recorded on a device (NULL = any), in the order of first recording, until it returns a
 * status other than OK, which is then returned. `visit` must not change the recording.
 */
EJK_API EJK_NODISCARD ejk_status ejk_get_invocations(
    ejk_recording *recording, const char *device,
    ejk_status (*visit)(void *user, const ejk_recorded_invocation *invocation), void *user);

/** Writes it to a file, one problem per line. Statuses: IO, OUT_OF_MEMORY, INVALID_ARGUMENT. */
EJK_API EJK_NODISCARD ejk_status ejk_recording_save(ejk_recording *recording, const char *path);

/**
 * Adds the calls of a file; the context knows the operations. They count as recorded on this device.
 * Statuses: IO, MALFORMED (with the line), UNKNOWN_NAME (an operation), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_recording_load(ejk_recording *recording, ejk_context *context,
                                                    const char *path);

#ifdef __cplusplus
}
#endif
#endif
