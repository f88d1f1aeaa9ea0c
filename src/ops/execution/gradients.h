/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that compute another one's gradients (ejk_kernel.forward), reached through that one: what a vjp hook
 * is for other kernels. Arguments belong together by their names: `d_x` is the cotangent of a result x, or the
 * gradient of an input x.
 */
#ifndef EJKI_OPS_EXECUTION_GRADIENTS_H
#define EJKI_OPS_EXECUTION_GRADIENTS_H

#include <ejkernel/executor.h>

#include "ops/core/context.h"
#include "ops/execution/operands.h"

/* The operation of a kernel's gradients; NULL if there is none here, or if it has hooks of its own for that. */
const ejk_kernel *ejki_gradient_kernel(const ejk_context *context, const ejk_kernel *kernel);

/* Arguments of the gradients, freed with free(): what `args` of `kernel` say of fields of the same name. */
ejk_status ejki_gradient_args(const ejk_kernel *gradient, const ejk_kernel *kernel,
                              const void *args, void **out);

/* True of an element type that gradients are taken of. */
static inline bool ejki_has_gradient(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F64 || dtype == EJK_DTYPE_F32 || dtype == EJK_DTYPE_F16 ||
           dtype == EJK_DTYPE_BF16;
}

/* True of a field `d_x`, for x = `name`. */
bool ejki_is_derivative(const ejk_field *field, const char *name);

/* Results that the gradients need have to be given. */
ejk_status ejki_gradient_check_results(const ejk_kernel *gradient, const ejk_kernel *kernel,
                                       const void *args);

/* The gradients of a call, to be measured. */
typedef struct ejki_gradients {
    void *args; /* of the gradients' operation; cotangents and gradients without memory */
    ejki_operands_copy forward; /* the call, with memory */
    ejk_owned_tensor *results;  /* those that it leaves out and the gradients need */
    int32_t result_count;
} ejki_gradients;

/*
 * Runs the call once, on random numbers where `args` have no data, and wants the gradients of all its inputs.
 * Closed by the caller also after a failure.
 */
ejk_status ejki_gradients_open(ejki_gradients *g, ejk_context *context, const ejk_kernel *gradient,
                               const ejk_kernel *kernel, const void *args);
void ejki_gradients_close(ejki_gradients *g);

/*
 * Results of the forward call that a call of its gradients was given without data: computed from the inputs of
 * `own`, a copy of `args` with memory. Nothing to do for other operations.
 */
ejk_status ejki_gradients_fill_results(ejk_context *context, const ejk_kernel *gradient,
                                       const void *args, const ejki_operands_copy *own);

/* Tuning options for that: those of the call's backward pass as of a forward one. */
ejk_autotune_options ejki_gradient_options(const ejk_autotune_options *options);

#endif
