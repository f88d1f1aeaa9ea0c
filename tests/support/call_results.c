/* SPDX-License-Identifier: Apache-2.0 */
#include "support/call_results.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool call_writes(const ejk_field *field) {
    return field->kind == EJK_FIELD_TENSOR && ejk_field_is_output(field);
}

ejk_tensor *call_tensor(const void *args, const ejk_field *field) {
    return (ejk_tensor *)(void *)((char *)(uintptr_t)args + field->offset);
}

void *call_results(const ejk_record *record, const void *args) {
    void *own = malloc(record->size);
    if (!own) abort();
    memcpy(own, args, record->size);
    for (int32_t i = 0; i < record->count; i++) {
        if (!call_writes(&record->fields[i])) continue;
        ejk_tensor *tensor = call_tensor(own, &record->fields[i]);
        if (!ejk_tensor_present(tensor)) continue;
        const size_t bytes = (size_t)ejk_tensor_count(tensor) * ejk_dtype_size(tensor->dtype) + 1;
        *tensor = ejk_tensor_contiguous(malloc(bytes), tensor->dtype, tensor->rank, tensor->shape);
        if (!tensor->data) abort();
        memset(tensor->data, 0xff, bytes);
    }
    return own;
}

void call_free_results(const ejk_record *record, void *own) {
    for (int32_t i = 0; i < record->count; i++)
        if (call_writes(&record->fields[i]) &&
            ejk_tensor_present(call_tensor(own, &record->fields[i])))
            free(call_tensor(own, &record->fields[i])->data);
    free(own);
}

ejk_status call_reference(ejk_context *context, const ejk_kernel *kernel, const void *args) {
    void *own = malloc(kernel->args->size);
    if (!own) abort();
    memcpy(own, args, kernel->args->size);
    for (int32_t i = 0; i < kernel->args->count; i++)
        if (strcmp(kernel->args->fields[i].name, "platform") == 0)
            strcpy((char *)own + kernel->args->fields[i].offset, "reference");
    const ejk_status status = ejk_call(context, kernel, own);
    free(own);
    return status;
}
