/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handler of XLA's foreign function interface, for all operations: operands and results are the call's, the
 * attribute "call" is its text. Failures are XLA's errors with the library's sentence.
 */
#ifndef EJKI_BINDINGS_JAX_HANDLER_H
#define EJKI_BINDINGS_JAX_HANDLER_H

#include <ejkernel/status.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include "xla/ffi/api/c_api.h"
#pragma GCC diagnostic pop

EJK_API XLA_FFI_Error *ejk_jax_call(XLA_FFI_CallFrame *frame);

#endif
