/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/execution/gradients.h"

#include "base/base.h"
#include "ops/core/request.h"

#include <stdlib.h>
#include <string.h>

/* ---- Which belongs to which ------------------------------------------------------------------------- */

/* A kernel with hooks for its backward pass, or for what leads to it, knows what it does. */
static bool has_own_hooks(const ejk_kernel *kernel) {
    static const char *const methods[] = {"vjp", "custom_vjp", "fwd_with_residuals"};
    for (int32_t i = 0; i < kernel->hook_count; i++)
        for (size_t k = 0; k < sizeof methods / sizeof *methods; k++)
            if (strncmp(kernel->hooks[i].name, methods[k], strlen(methods[k])) == 0) return true;
    return false;
}

const ejk_kernel *ejki_gradient_kernel(const ejk_context *context, const ejk_kernel *kernel) {
    if (has_own_hooks(kernel)) return NULL;
    const ejk_kernel *each;
    for (int32_t i = 0; (each = ejk_context_kernel(context, i)) != NULL; i++)
        if (each->forward == kernel) return each;
    return NULL;
}

/* A field of the record itself, not of one within it. */
static const ejk_field *find(const ejk_record *record, const char *name) {
    for (int32_t i = 0; i < record->count; i++)
        if (strcmp(record->fields[i].name, name) == 0) return &record->fields[i];
    return NULL;
}

static ejk_tensor *tensor_at(const ejk_field *field, const void *args) {
    return (ejk_tensor *)(void *)((char *)args + field->offset);
}

bool ejki_is_derivative(const ejk_field *field, const char *name) {
    return field->kind == EJK_FIELD_TENSOR && strncmp(field->name, "d_", 2) == 0 &&
           strcmp(field->name + 2, name) == 0;
}

/* A result of the call that its gradients read: the field of the call, or NULL. */
static const ejk_field *result_of(const ejk_field *field, const ejk_kernel *kernel) {
    if (field->kind != EJK_FIELD_TENSOR || ejk_field_is_output(field)) return NULL;
    const ejk_field *result = find(kernel->args, field->name);
    return result && result->kind == EJK_FIELD_TENSOR && !ejk_field_is_input(result) ? result
                                                                                     : NULL;
}

/* One that they cannot do without. */
static const ejk_field *needed(const ejk_field *field, const ejk_kernel *kernel) {
    return ejk_field_is_required(field) ? result_of(field, kernel) : NULL;
}

ejk_status ejki_gradient_check_results(const ejk_kernel *gradient, const ejk_kernel *kernel,
                                       const void *args) {
    for (int32_t i = 0; i < gradient->args->count; i++) {
        const ejk_field *result = needed(&gradient->args->fields[i], kernel);
        if (result && tensor_at(result, args)->dtype == EJK_DTYPE_UNSET)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s is not given, expected it: %.64s needs it", result->name,
                             gradient->op_id);
    }
    return EJK_OK;
}

ejk_status ejki_gradient_args(const ejk_kernel *gradient, const ejk_kernel *kernel,
                              const void *args, void **out) {
    char *copy = calloc(1, gradient->args->size + 1);
    if (!copy) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for arguments of gradients");
    for (int32_t i = 0; i < gradient->args->count; i++) {
        const ejk_field *field = &gradient->args->fields[i];
        const ejk_field *same = find(kernel->args, field->name);
        if (same && same->kind == field->kind && same->record == field->record)
            memcpy(copy + field->offset, (const char *)args + same->offset, ejk_field_size(field));
    }
    *out = copy;
    return EJK_OK;
}

/* ---- For measuring ---------------------------------------------------------------------------------- */

/* Results that the call leaves out and the gradients need, in the shapes that their units say. */
static ejk_status add_results(ejki_gradients *g, const ejk_kernel *gradient,
                              const ejk_kernel *kernel) {
    void *args = g->forward.args;
    ejk_axes axes = {.count = 0};
    g->results = calloc((size_t)gradient->args->count + 1, sizeof *g->results);
    if (!g->results) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for results");
    EJKI_TRY(ejk_record_bind_axes(kernel->args, args, &axes));
    for (int32_t i = 0; i < gradient->args->count; i++) {
        const ejk_field *result = needed(&gradient->args->fields[i], kernel);
        int64_t shape[EJK_MAX_RANK];
        int32_t rank;
        ejk_dtype dtype;
        if (!result || tensor_at(result, args)->dtype != EJK_DTYPE_UNSET) continue;
        EJKI_TRY(ejk_field_shape(result, &axes, &rank, shape));
        EJKI_TRY(ejk_field_dtype(kernel->args, result, args, EJK_DTYPE_F32, &dtype));
        ejk_owned_tensor *own = &g->results[g->result_count];
        EJKI_TRY(ejki_tensor_create_at(g->forward.place, dtype, rank, shape, own));
        g->result_count++;
        *tensor_at(result, args) = own->tensor;
    }
    return EJK_OK;
}

/* A tensor that lies as this one does, unless elements of that share their place. */
static ejk_tensor alike(const ejk_tensor *tensor) {
    ejk_tensor copy = *tensor;
    copy.data = NULL;
    for (int32_t i = 0; i < tensor->rank; i++)
        if (tensor->strides[i] == 0 && tensor->shape[i] > 1)
            copy = ejk_tensor_contiguous(NULL, tensor->dtype, tensor->rank, tensor->shape);
    copy.device_type = tensor->device_type;
    copy.device_index = tensor->device_index;
    return copy;
}

/* Cotangents that are required, and the gradients of everything that has one. */
static void declare_derivatives(const ejk_kernel *gradient, const ejk_kernel *kernel, void *args) {
    for (int32_t i = 0; i < gradient->args->count; i++) {
        const ejk_field *field = &gradient->args->fields[i];
        const ejk_field *of =
            strncmp(field->name, "d_", 2) == 0 ? find(gradient->args, field->name + 2) : NULL;
        if (!of || !ejki_is_derivative(field, of->name)) continue;
        if (of->kind != EJK_FIELD_TENSOR || !ejki_has_gradient(tensor_at(of, args)->dtype))
            continue;
        const ejk_field *there = find(kernel->args, of->name);
        const bool required = ejk_field_is_required(field) && !ejk_field_is_output(field);
        if (required || (!ejk_field_is_input(field) && there && ejk_field_is_input(there)))
            *tensor_at(field, args) = alike(tensor_at(of, args));
    }
}

static ejk_status run_forward(ejk_context *base, const ejk_kernel *kernel, const void *args) {
    ejk_context *context;
    EJKI_TRY(ejki_context_derive(base, NULL, &context));
    const ejk_status status = ejk_call(context, kernel, args);
    ejk_context_destroy(context);
    return status;
}

ejk_status ejki_gradients_open(ejki_gradients *g, ejk_context *context, const ejk_kernel *gradient,
                               const ejk_kernel *kernel, const void *args) {
    *g = (ejki_gradients){.args = NULL};
    EJKI_TRY(ejki_operands_copy_create(kernel, args, &g->forward));
    EJKI_TRY(add_results(g, gradient, kernel));
    EJKI_TRY(run_forward(context, kernel, g->forward.args));
    EJKI_TRY(ejki_operands_restore(&g->forward));
    EJKI_TRY(ejki_gradient_args(gradient, kernel, g->forward.args, &g->args));
    declare_derivatives(gradient, kernel, g->args);
    return EJK_OK;
}

void ejki_gradients_close(ejki_gradients *g) {
    if (g->forward.record) ejki_operands_copy_release(&g->forward);
    for (int32_t i = 0; i < g->result_count; i++) ejk_owned_tensor_close(&g->results[i]);
    free(g->results);
    free(g->args);
    *g = (ejki_gradients){.args = NULL};
}

/* A result of the forward call that has memory in `own`, but had no data in `args`; NULL if this is none. */
static ejk_tensor *lacking(const ejk_kernel *gradient, int32_t index, const void *args,
                           const ejki_operands_copy *own) {
    const ejk_field *field = &gradient->args->fields[index];
    if (!result_of(field, gradient->forward) || tensor_at(field, args)->data) return NULL;
    ejk_tensor *tensor = tensor_at(field, own->args);
    return tensor->dtype == EJK_DTYPE_UNSET ? NULL : tensor;
}

static ejk_status take_results(const ejk_kernel *gradient, const void *args, const void *results,
                               const ejki_operands_copy *own) {
    for (int32_t i = 0; i < gradient->args->count; i++) {
        const ejk_tensor *tensor = lacking(gradient, i, args, own);
        if (!tensor) continue;
        const ejk_field *result = find(gradient->forward->args, gradient->args->fields[i].name);
        EJKI_TRY(ejki_tensor_move(tensor_at(result, results), tensor));
    }
    return EJK_OK;
}

ejk_status ejki_gradients_fill_results(ejk_context *context, const ejk_kernel *gradient,
                                       const void *args, const ejki_operands_copy *own) {
    const ejk_kernel *forward = gradient->forward;
    bool lacks = false;
    for (int32_t i = 0; forward && i < gradient->args->count; i++)
        lacks |= lacking(gradient, i, args, own) != NULL;
    if (!lacks) return EJK_OK;
    void *inputs;
    ejki_operands_copy call;
    EJKI_TRY(ejki_gradient_args(forward, gradient, own->args, &inputs));
    ejk_status status = ejki_operands_copy_create(forward, inputs, &call);
    if (status == EJK_OK) status = run_forward(context, forward, call.args);
    if (status == EJK_OK) status = take_results(gradient, args, call.args, own);
    ejki_operands_copy_release(&call);
    free(inputs);
    return status;
}

ejk_autotune_options ejki_gradient_options(const ejk_autotune_options *options) {
    ejk_autotune_options own = *options;
    own.pass = EJK_TUNE_FORWARD;
    return own;
}
