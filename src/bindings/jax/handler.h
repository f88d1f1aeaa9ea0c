/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handlers of XLA's foreign function interface, for all operations: operands and results are the call's, the
 * attribute "call" is its text. Failures are XLA's errors with the library's sentence. On a GPU a call enqueues its
 * work on XLA's stream, with workspace of XLA's allocator, and does not wait. XLA does not record such calls into
 * graphs of its own, where this memory would be somebody else's when they run.
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

#endif
