/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handlers of XLA's foreign function interface, for all operations: operands and results are the call's, the
 * attribute "call" is its text. Failures are XLA's errors with the library's sentence. On a GPU a call enqueues its
 * work on XLA's stream and does not wait. There are two handlers: one has workspace of XLA's allocator, which would be
 * somebody else's when a graph of XLA's own runs again. The other has one more result, bytes, whose memory is the
 * program's while it runs, and says to XLA that its calls may be recorded into command buffers.
 */
#ifndef EJKI_BINDINGS_JAX_HANDLER_H
#define EJKI_BINDINGS_JAX_HANDLER_H

#include <ejkernel/status.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include "xla/ffi/api/c_api.h"
#pragma GCC diagnostic pop

EJK_API XLA_FFI_Error *ejk_jax_call(XLA_FFI_CallFrame *frame);
EJK_API XLA_FFI_Error *ejk_jax_call_on_gpu(XLA_FFI_CallFrame *frame);
EJK_API XLA_FFI_Error *ejk_jax_recorded_call_on_gpu(XLA_FFI_CallFrame *frame);

/*
 * How many bytes that result has to have for a call of these operands and results, whose memory is not looked at; 0 if
 * none are needed. Makes the call's plan, and hands over its description (ejk_plan_describe()): a program that says the
 * choice in its call has enough for ever. Statuses: those of ejki_run_call().
 */
EJK_API ejk_status ejk_jax_workspace(const char *text, const ejk_tensor *tensors, int32_t count,
                                     int64_t *out, char **description);

#endif
