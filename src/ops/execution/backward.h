/* SPDX-License-Identifier: Apache-2.0 */
/* What a vjp hook is called with when it is measured: random cotangents, room for gradients, residuals. */
#ifndef EJKI_OPS_EXECUTION_BACKWARD_H
#define EJKI_OPS_EXECUTION_BACKWARD_H

#include <ejkernel/hooks.h>
#include <ejkernel/kernel.h>

#include "ops/core/context.h"

typedef struct ejki_backward {
    ejk_tensor *cotangents, *gradients; /* views of `memory` */
    int32_t cotangent_count, gradient_count;
    void *residuals;
    ejk_owned_tensor *memory;
    int32_t memory_count;
} ejki_backward;

/* `args` have data. Runs the forward hook once if the kernel keeps residuals. Closed by the caller also after a
 * failure. */
ejk_status ejki_backward_open(ejki_backward *b, ejk_context *context, const ejk_kernel *kernel,
                              const void *args);
void ejki_backward_close(ejki_backward *b);

ejk_hook_call ejki_backward_call(const ejki_backward *b);
/* Fills the gradients with what no hook writes. */
void ejki_backward_poison(const ejki_backward *b);

#endif
