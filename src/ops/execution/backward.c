/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/execution/backward.h"

#include <ejkernel/plan.h>

#include "base/base.h"
#include "ops/core/request.h"
#include "ops/execution/gradients.h"
#include "ops/execution/operands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ejk_status add(ejki_backward *b, ejk_dtype dtype, int32_t rank, const int64_t *shape,
                      ejk_tensor *out) {
    ejk_owned_tensor *owned = &b->memory[b->memory_count];
    EJKI_TRY(ejk_owned_tensor_create(dtype, rank, shape, owned));
    b->memory_count++;
    *out = owned->tensor;
    return EJK_OK;
}

/* Cotangents need not be random, only neither zero nor all alike: cos(i) is in [-1, 1]. */
static ejk_status fill(const ejk_tensor *tensor) {
    const int64_t count = ejk_tensor_count(tensor);
    ejk_owned_tensor numbers;
    EJKI_TRY(ejk_owned_tensor_create(EJK_DTYPE_F32, tensor->rank, tensor->shape, &numbers));
    float *at = numbers.tensor.data;
    for (int64_t i = 0; i < count; i++) at[i] = cosf((float)(i % 4096));
    const ejk_status status = ejk_tensor_copy(&numbers.tensor, tensor);
    ejk_owned_tensor_close(&numbers);
    return status;
}

/* Residuals of the shapes that their units say, filled by the forward hook. */
static ejk_status open_residuals(ejki_backward *b, ejk_context *context, const ejk_kernel *kernel,
                                 const void *args) {
    const ejk_record *record = kernel->residuals;
    const ejk_dtype number = b->cotangent_count ? b->cotangents[0].dtype : EJK_DTYPE_F32;
    ejk_axes axes = {.count = 0};
    b->residuals = calloc(1, record->size + 1);
    if (!b->residuals) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for residuals");
    EJKI_TRY(ejk_record_bind_axes(kernel->args, args, &axes));
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        int64_t shape[EJK_MAX_RANK];
        int32_t rank;
        ejk_dtype dtype;
        if (field->kind != EJK_FIELD_TENSOR) continue;
        EJKI_TRY(ejk_field_shape(field, &axes, &rank, shape));
        EJKI_TRY(ejk_field_dtype(record, field, b->residuals, number, &dtype));
        EJKI_TRY(add(b, dtype, rank, shape,
                     (ejk_tensor *)(void *)((char *)b->residuals + field->offset)));
    }
    ejk_plan *plan;
    EJKI_TRY(ejki_plan_request_create(
        &(ejki_plan_request){
            .context = context, .kernel = kernel, .args = args, .hook = "fwd_with_residuals"},
        &plan));
    const ejk_status status =
        ejki_plan_call_hook(plan, args, (ejk_hook_call){.residuals = b->residuals});
    ejk_plan_destroy(plan);
    return status;
}

ejk_status ejki_backward_open(ejki_backward *b, ejk_context *context, const ejk_kernel *kernel,
                              const void *args) {
    const size_t fields = (size_t)kernel->args->count + 1;
    const size_t kept = kernel->residuals ? (size_t)kernel->residuals->count : 0;
    b->cotangents = calloc(fields, sizeof *b->cotangents);
    b->gradients = calloc(fields, sizeof *b->gradients);
    b->memory = calloc(2 * fields + kept, sizeof *b->memory);
    if (!b->cotangents || !b->gradients || !b->memory)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for gradients");
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        if (field->kind != EJK_FIELD_TENSOR) continue;
        const ejk_tensor *own =
            (const ejk_tensor *)(const void *)((const char *)args + field->offset);
        if (own->dtype == EJK_DTYPE_UNSET) continue;
        if (!ejk_field_is_input(field)) {
            ejk_tensor *cotangent = &b->cotangents[b->cotangent_count++];
            EJKI_TRY(add(b, own->dtype, own->rank, own->shape, cotangent));
            EJKI_TRY(fill(cotangent));
        } else if (ejki_has_gradient(own->dtype)) {
            EJKI_TRY(add(b, own->dtype, own->rank, own->shape, &b->gradients[b->gradient_count++]));
        } else {
            b->gradient_count++; /* an index or a mask has no gradient */
        }
    }
    return kernel->residuals ? open_residuals(b, context, kernel, args) : EJK_OK;
}

void ejki_backward_close(ejki_backward *b) {
    for (int32_t i = 0; i < b->memory_count; i++) ejk_owned_tensor_close(&b->memory[i]);
    free(b->memory);
    free(b->cotangents);
    free(b->gradients);
    free(b->residuals);
    *b = (ejki_backward){0};
}

ejk_hook_call ejki_backward_call(const ejki_backward *b) {
    return (ejk_hook_call){.residuals = b->residuals,
                           .cotangents = b->cotangents,
                           .cotangent_count = b->cotangent_count,
                           .gradients = b->gradients,
                           .gradient_count = b->gradient_count};
}

void ejki_backward_poison(const ejki_backward *b) {
    for (int32_t i = 0; i < b->gradient_count; i++) {
        const ejk_tensor *tensor = &b->gradients[i];
        if (tensor->dtype != EJK_DTYPE_UNSET)
            memset(tensor->data, 0xff,
                   (size_t)ejk_tensor_count(tensor) * ejk_dtype_size(tensor->dtype));
    }
}
