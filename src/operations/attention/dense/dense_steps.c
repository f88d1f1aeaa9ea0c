/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/attention/dense/dense_steps.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

/* The same call, seen by a kernel of flash attention: problem and implementation are what it takes. */
static ejk_invocation as(const ejk_kernel *kernel, const ejk_invocation *invocation) {
    ejk_invocation inner = *invocation;
    inner.kernel = kernel;
    inner.override_cfg = NULL;
    return inner;
}

void ejki_dense_fwd_params(const ejk_invocation *invocation, ejk_fwd_params *out) {
    const ejk_invocation inner = as(&ejk_flash_attention_kernel, invocation);
    ejk_flash_attention_config config = {.platform = ""};
    ejki_flash_heuristic_cfg(&inner, &config);
    *out = config.fwd_params;
}

ejk_status ejki_dense_candidates(const ejk_invocation *invocation, void *configs, size_t size,
                                 size_t fwd_params, size_t bwd_params, int32_t capacity,
                                 int32_t *count) {
    const ejk_kernel *flash =
        invocation->kernel->forward ? &ejk_flash_attention_vjp_kernel : &ejk_flash_attention_kernel;
    const ejk_invocation inner = as(flash, invocation);
    ejk_flash_attention_config *list = calloc((size_t)ejki_max(capacity, 1), sizeof *list);
    if (!list) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for configurations");
    const ejk_status status = flash->candidate_cfgs(&inner, list, capacity, count);
    for (int32_t i = 0; status == EJK_OK && i < *count; i++) {
        char *own = (char *)configs + (size_t)i * size;
        memcpy(own + fwd_params, &list[i].fwd_params, sizeof list[i].fwd_params);
        memcpy(own + bwd_params, &list[i].bwd_params, sizeof list[i].bwd_params);
    }
    free(list);
    return status;
}

ejk_status ejki_dense_check_residuals(const ejk_tensor *lse) {
    if (ejk_tensor_present(lse)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "lse is not given, expected it: the gradients need it");
}
