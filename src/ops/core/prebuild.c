/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels compiled before they are needed: a plan is made for a GPU that need not be there, and thrown away. */
#include "ops/core/core.h"

#include "device/cuda.h"
#include "record/tensors.h"

#include <stdlib.h>
#include <string.h>

static void move_tensors(const ejk_record *record, void *args) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        ejk_tensor *tensor = ejki_walk_tensor(&w, args);
        if (!tensor) continue;
        tensor->device_type = EJK_DEVICE_CUDA;
        tensor->device_index = 0;
    }
}

ejk_status ejk_plan_prebuild(ejk_context *context, const ejk_kernel *kernel, const void *args,
                             const char *architecture, ejk_prebuilt *out) {
    if (!context || !kernel || !args || !architecture || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !context        ? "context"
                         : !kernel       ? "kernel"
                         : !args         ? "args"
                         : !architecture ? "architecture"
                                         : "out");
    EJKI_TRY(ejki_kernel_check(kernel));
    ejki_cuda_target target;
    void *moved = malloc(kernel->args->size + 1);
    if (!moved) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a call's arguments");
    memcpy(moved, args, kernel->args->size);
    move_tensors(kernel->args, moved);
    ejk_status status = ejki_cuda_target_begin(&target, architecture);
    if (status == EJK_OK) {
        ejk_plan *plan = NULL;
        status = ejki_plan_make(
            &(ejki_plan_request){.context = context, .kernel = kernel, .args = moved}, &plan);
        ejki_cuda_target_end();
        ejk_plan_destroy(plan);
        out->compiled += target.built;
        out->found += target.found;
    }
    free(moved);
    return status;
}
