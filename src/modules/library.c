/* SPDX-License-Identifier: Apache-2.0 */
/* The context as the public knows it: the empty one, with the library's own parts put in. */
#include "ops/core/context.h"

#include <ejkernel/ejkernel.h>

#include "base/base.h"

static const ejk_kernel *const kernels[] = {
#define EJKI_MODULE(name) &ejk_##name##_kernel,
#include "modules/modules.inc"
#undef EJKI_MODULE
};

static ejk_status fill(ejk_context *context) {
    EJKI_TRY(ejk_registry_add_builtin(ejk_context_registry(context)));
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        EJKI_TRY(ejk_context_add_kernel(context, kernels[i]));
    return EJK_OK;
}

ejk_status ejk_context_create(const ejk_context_options *options, ejk_context **out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    ejk_context *context;
    EJKI_TRY(ejki_context_create(options, &context));
    ejk_status status = fill(context);
    if (status == EJK_OK)
        *out = context;
    else
        ejk_context_destroy(context);
    return status;
}
