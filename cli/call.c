/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int call_command(const op_command *command, int count, char **words, const option *own,
                 const void *wish) {
    const bool help = options_ask_help(count, words), named = count > 0 && words[0][0] != '-';
    if (help && !named) return command->help(NULL, own);
    if (!named) {
        report_error("%s needs an operation first, as `ejk %s OPERATION --help`", command->name,
                     command->name);
        return FAILED;
    }
    ejk_context *catalogue;
    const ejk_kernel *kernel;
    int status = FAILED;
    if (!open_catalogue(&catalogue)) return FAILED;
    if (succeeded(ejk_context_find_kernel(catalogue, words[0], &kernel)))
        status = help ? command->help(kernel, own)
                      : command->run(kernel, count - 1, words + 1, own, wish);
    ejk_context_destroy(catalogue);
    return status;
}

void call_help_flags(const ejk_kernel *kernel) {
    printf(
        "\nArguments that are no tensors may be given as flags, as --causal: `ejk info --op %s`.\n",
        kernel ? kernel->op_id : "OPERATION");
}

bool call_open(const ejk_kernel *kernel, op_call *out) {
    *out = (op_call){.kernel = kernel,
                     .args = calloc(1, kernel->args->size),
                     .owned = calloc((size_t)call_count(kernel), sizeof *out->owned)};
    if (out->args && out->owned) return true;
    free(out->args);
    free(out->owned);
    *out = (op_call){.kernel = kernel};
    return report_error("no memory for the arguments of %s", kernel->op_id);
}

void call_close(op_call *call) {
    for (int32_t i = 0; call->owned && i < call_count(call->kernel); i++)
        ejk_owned_tensor_close(&call->owned[i]);
    free(call->owned);
    free(call->args);
    call->owned = NULL;
    call->args = NULL;
}

int32_t call_count(const ejk_kernel *kernel) {
    return call_member(kernel, NULL);
}

/* Members of the lists before this one come first; NULL comes after all. */
int32_t call_member(const ejk_kernel *kernel, const ejk_field *list) {
    int32_t index = kernel->args->count;
    for (int32_t i = 0; i < kernel->args->count && &kernel->args->fields[i] != list; i++)
        if (kernel->args->fields[i].kind == EJK_FIELD_TENSORS) index += EJK_MAX_TENSORS;
    return index;
}

const ejk_field *call_field(const ejk_kernel *kernel, int32_t index) {
    const ejk_field *fields = kernel->args->fields;
    int32_t left = index - kernel->args->count, i = 0;
    if (left < 0) return &fields[index];
    while (fields[i].kind != EJK_FIELD_TENSORS || left >= EJK_MAX_TENSORS)
        left -= fields[i++].kind == EJK_FIELD_TENSORS ? EJK_MAX_TENSORS : 0;
    return &fields[i];
}

ejk_tensor *call_tensor(const ejk_kernel *kernel, void *args, int32_t index) {
    const ejk_field *field = call_field(kernel, index);
    const bool member = index >= kernel->args->count;
    int32_t count, at = member ? index - call_member(kernel, field) : 0;
    ejk_tensor *tensors = ejk_field_tensors(field, args, &count);
    return (field->kind == EJK_FIELD_TENSOR || member) && at < count ? &tensors[at] : NULL;
}

bool call_is_updated(const ejk_field *field) {
    return ejk_field_is_input(field) && ejk_field_is_output(field);
}

int32_t call_first_output(const ejk_kernel *kernel) {
    int32_t updated = -1;
    for (int32_t i = 0; i < kernel->args->count; i++) {
        if (!ejk_field_is_input(&kernel->args->fields[i])) return i;
        if (updated < 0 && call_is_updated(&kernel->args->fields[i])) updated = i;
    }
    return updated;
}

bool call_set_platform(const ejk_kernel *kernel, void *args, const char *platform) {
    if (!platform) return true;
    char path[2 * EJK_NAME_SIZE] = "platform";
    if (!ejk_record_find(kernel->args, path, NULL) && kernel->config_field)
        snprintf(path, sizeof path, "%s.platform", kernel->config_field);
    return succeeded(ejk_record_set_text(kernel->args, args, path, platform));
}

bool call_set_config(const op_call *call, const char *json) {
    if (!json) return true;
    if (!call->kernel->config_field)
        return report_error("--config is given, but %s has no configuration", call->kernel->op_id);
    return succeeded(
        ejk_record_set_text(call->kernel->args, call->args, call->kernel->config_field, json));
}

/* True if there was a result of another floating-point type than float32, whose unit leaves it open. */
static bool declare_float32(const op_call *call) {
    bool changed = false;
    for (int32_t i = 0; i < call->kernel->args->count; i++) {
        const ejk_field *field = &call->kernel->args->fields[i];
        ejk_tensor *tensor = call_tensor(call->kernel, call->args, i);
        if (!tensor || !ejk_tensor_present(tensor) || tensor->dtype == EJK_DTYPE_F32) continue;
        ejk_dtype asked; /* UNSET: any float */
        if (ejk_field_is_input(field) ||
            ejk_field_dtype(call->kernel->args, field, call->args, EJK_DTYPE_UNSET, &asked) !=
                EJK_OK ||
            asked != EJK_DTYPE_UNSET)
            continue;
        tensor->dtype = EJK_DTYPE_F32;
        changed = true;
    }
    return changed;
}

bool call_plan(op_call *call, ejk_context *context, ejk_plan **out) {
    ejk_status status = ejk_plan_create(context, call->kernel, call->args, out);
    if (status != EJK_STATUS_INVALID_DTYPE) return succeeded(status);
    char first[1024];
    snprintf(first, sizeof first, "%s", ejk_last_error());
    if (declare_float32(call) && ejk_plan_create(context, call->kernel, call->args, out) == EJK_OK)
        return true;
    return report_error("%s", first);
}
