/* SPDX-License-Identifier: Apache-2.0 */
/* Forward passes that keep residuals, and gradients, by hooks of the kernel. */
#include "ops/execution/executor.h"

#include "base/base.h"

#include <string.h>

ejk_status ejk_executor_fwd(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                            void *residuals, const ejk_call_options *options) {
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
    if ((field->role == EJK_OUTPUT || field->role == EJK_REQUIRED_OUTPUT) != output) return NULL;
    const ejk_tensor *tensor = (const ejk_tensor *)((const char *)args + field->offset);
    return tensor->dtype == EJK_DTYPE_UNSET ? NULL : tensor;
}

/* Cotangents, or gradients: as many as the call gives tensors of that kind, and of their shapes. */
static ejk_status check_list(const ejk_kernel *kernel, const void *args, const char *what,
                             const ejk_tensor *list, int32_t count, bool output) {
    int32_t n = 0;
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        const ejk_tensor *expected = given(field, args, output);
        if (!expected) continue;
        const ejk_tensor *own = n < count ? &list[n] : NULL;
        n++;
        if (!own || (!output && own->dtype == EJK_DTYPE_UNSET)) continue;
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

ejk_status ejk_executor_vjp(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                            const ejk_vjp_call *vjp, const ejk_call_options *options) {
    if (!kernel || !args || !vjp)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !kernel ? "kernel"
                         : !args ? "args"
                                 : "vjp");
    ejk_plan *plan;
    EJKI_TRY(ejki_executor_plan(executor, kernel, args, options, "vjp", &plan));
    ejk_status status =
        check_list(kernel, args, "cotangent", vjp->cotangents, vjp->cotangent_count, true);
    if (status == EJK_OK)
        status = check_list(kernel, args, "gradient", vjp->gradients, vjp->gradient_count, false);
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
