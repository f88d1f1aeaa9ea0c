/* SPDX-License-Identifier: Apache-2.0 */
/* Forward passes that keep residuals, and gradients: by hooks of the kernel, or by the operation of its gradients. */
#include "ops/execution/executor.h"

#include "base/base.h"
#include "ops/execution/gradients.h"

#include <stdlib.h>
#include <string.h>

/* The operation of the gradients; NULL also if there is nothing to look at. */
static const ejk_kernel *gradient_of(const ejk_executor *executor, const ejk_kernel *kernel) {
    return executor && kernel ? ejki_gradient_kernel(executor->context, kernel) : NULL;
}

ejk_status ejk_executor_fwd(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                            void *residuals, const ejk_call_options *options) {
    const ejk_kernel *gradient = gradient_of(executor, kernel);
    if (gradient && args) {
        EJKI_TRY(ejki_gradient_check_results(gradient, kernel, args));
        return ejk_executor_call(executor, kernel, args, options);
    }
    if (kernel && kernel->residuals && !residuals)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "residuals is NULL, expected a %s for what %.64s keeps",
                         kernel->residuals->name, kernel->op_id);
    ejk_plan *plan;
    EJKI_TRY(ejki_executor_plan(executor, kernel, args, options, "fwd_with_residuals", &plan));
    const ejk_status status =
        ejki_plan_call_hook(plan, args, (ejk_hook_call){.residuals = residuals});
    ejk_plan_destroy(plan);
    return status;
}

/* True of a tensor that a call gives, as an output or as an input. */
static const ejk_tensor *given(const ejk_field *field, const void *args, bool output) {
    if (field->kind != EJK_FIELD_TENSOR) return NULL;
    if (ejk_field_is_input(field) == output) return NULL; /* what is updated counts as given */
    const ejk_tensor *tensor = (const ejk_tensor *)((const char *)args + field->offset);
    return tensor->dtype == EJK_DTYPE_UNSET ? NULL : tensor;
}

/* Cotangents, or gradients: as many as the call gives tensors of that kind, and of their shapes. */
static ejk_status check_list(const ejk_kernel *kernel, const void *args, const char *what,
                             const ejk_tensor *list, int32_t count, bool output, bool may_lack) {
    int32_t n = 0;
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        const ejk_tensor *expected = given(field, args, output);
        if (!expected) continue;
        const ejk_tensor *own = n < count ? &list[n] : NULL;
        n++;
        if (!own || (may_lack && own->dtype == EJK_DTYPE_UNSET)) continue;
        EJKI_TRY(ejk_tensor_check(own, what));
        if (own->rank != expected->rank ||
            memcmp(own->shape, expected->shape, (size_t)own->rank * sizeof *own->shape) != 0)
            return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                             "%s %d has another shape than %s, expected the same", what, (int)n - 1,
                             field->name);
    }
    if (n != count || (count > 0 && !list))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s count is %d, expected %d: one for each %s tensor of the call", what,
                         (int)count, (int)n, output ? "output" : "input");
    return EJK_OK;
}

static ejk_status check_lists(const ejk_kernel *kernel, const void *args, const ejk_vjp_call *vjp,
                              bool cotangents_may_lack) {
    EJKI_TRY(check_list(kernel, args, "cotangent", vjp->cotangents, vjp->cotangent_count, true,
                        cotangents_may_lack));
    return check_list(kernel, args, "gradient", vjp->gradients, vjp->gradient_count, false, true);
}

/* Puts those of a list that are there where the gradients' operation has them, as `d_` and the tensor's name. */
static ejk_status place(const ejk_kernel *gradient, const ejk_kernel *kernel, const void *args,
                        const ejk_tensor *list, bool output, void *to) {
    for (int32_t i = 0, n = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i], *own = NULL;
        if (!given(field, args, output)) continue;
        const ejk_tensor *tensor = &list[n++];
        if (tensor->dtype == EJK_DTYPE_UNSET) continue;
        for (int32_t k = 0; k < gradient->args->count && !own; k++)
            if (ejki_is_derivative(&gradient->args->fields[k], field->name))
                own = &gradient->args->fields[k];
        if (!own)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s %d is given, but %.64s has no d_%s, expected a zeroed one",
                             output ? "cotangent" : "gradient", (int)n - 1, gradient->op_id,
                             field->name);
        memcpy((char *)to + own->offset, tensor, sizeof *tensor);
    }
    return EJK_OK;
}

static ejk_status call_gradients(ejk_executor *executor, const ejk_kernel *gradient,
                                 const ejk_kernel *kernel, const void *args,
                                 const ejk_vjp_call *vjp, const ejk_call_options *options) {
    void *own;
    EJKI_TRY(ejki_gradient_check_results(gradient, kernel, args));
    EJKI_TRY(check_lists(kernel, args, vjp, true));
    if (options && options->cfg && gradient->config != kernel->config)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "cfg is given, but %.64s has another configuration", gradient->op_id);
    EJKI_TRY(ejki_gradient_args(gradient, kernel, args, &own));
    ejk_status status = place(gradient, kernel, args, vjp->cotangents, true, own);
    if (status == EJK_OK) status = place(gradient, kernel, args, vjp->gradients, false, own);
    if (status == EJK_OK) status = ejk_executor_call(executor, gradient, own, options);
    free(own);
    return status;
}

ejk_status ejk_executor_vjp(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                            const ejk_vjp_call *vjp, const ejk_call_options *options) {
    if (!kernel || !args || !vjp)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !kernel ? "kernel"
                         : !args ? "args"
                                 : "vjp");
    const ejk_kernel *gradient = gradient_of(executor, kernel);
    if (gradient) return call_gradients(executor, gradient, kernel, args, vjp, options);
    ejk_plan *plan;
    EJKI_TRY(ejki_executor_plan(executor, kernel, args, options, "vjp", &plan));
    ejk_status status = check_lists(kernel, args, vjp, false);
    if (status == EJK_OK)
        status = ejki_plan_call_hook(plan, args,
                                     (ejk_hook_call){.residuals = vjp->residuals,
                                                     .cotangents = vjp->cotangents,
                                                     .cotangent_count = vjp->cotangent_count,
                                                     .gradients = vjp->gradients,
                                                     .gradient_count = vjp->gradient_count});
    ejk_plan_destroy(plan);
    return status;
}
