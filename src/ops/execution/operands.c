/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/execution/operands.h"

#include <ejkernel/tensor.h>

#include "base/base.h"
#include "ops/core/fill.h"
#include "ops/core/request.h"

#include <stdlib.h>
#include <string.h>

static ejk_tensor *tensor_at(const ejk_field *field, const void *args) {
    return (ejk_tensor *)(void *)((char *)args + field->offset);
}

static bool is_result(const ejk_field *field) {
    return field->role == EJK_OUTPUT || field->role == EJK_REQUIRED_OUTPUT;
}

bool ejki_is_output(const ejk_field *field, const void *args) {
    return field->kind == EJK_FIELD_TENSOR && is_result(field) &&
           tensor_at(field, args)->dtype != EJK_DTYPE_UNSET;
}

static bool is_input(const ejk_field *field, const void *args) {
    return field->kind == EJK_FIELD_TENSOR && !is_result(field) &&
           tensor_at(field, args)->dtype != EJK_DTYPE_UNSET;
}

/* Memory of its own for a tensor, the same strides in it; all zeros. */
static ejk_status give_memory(const ejk_field *field, ejk_tensor *tensor, void **memory) {
    int64_t low, high;
    ejk_tensor_span(tensor, &low, &high);
    *memory =
        ejki_allocate(high - low); /* as bench has it: pages change which configuration is best */
    if (!*memory)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the %lld bytes of %s",
                         (long long)(high - low), field->name);
    memset(*memory, 0, (size_t)(high - low));
    tensor->data = (char *)*memory - low;
    return EJK_OK;
}

static ejk_status copy_args(const ejk_record *record, const void *args, ejki_operands_copy *out) {
    *out = (ejki_operands_copy){.record = record,
                                .args = malloc(record->size + 1),
                                .memory = calloc((size_t)record->count + 1, sizeof(void *))};
    if (!out->args || !out->memory)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a copy of a call");
    memcpy(out->args, args, record->size);
    return EJK_OK;
}

ejk_status ejki_operands_copy_create(const ejk_record *record, const void *args,
                                     ejki_operands_copy *out) {
    if (ejki_place_of(record, args).device_type != EJK_DEVICE_CPU)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "calls with tensors on a GPU are not measured in this version");
    EJKI_TRY(copy_args(record, args, out));
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        const bool input = is_input(field, args);
        if (!input && !ejki_is_output(field, args)) continue;
        ejk_tensor *tensor = tensor_at(field, out->args);
        if (input && tensor->data) continue;
        EJKI_TRY(give_memory(field, tensor, &out->memory[i]));
        if (input)
            ejki_fill(tensor, 1, i,
                      tensor->dtype == EJK_DTYPE_BOOL || tensor->dtype == EJK_DTYPE_U8);
    }
    return EJK_OK;
}

int64_t ejki_operands_input_bytes(const ejki_operands_copy *copy) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < copy->record->count; i++) {
        int64_t low, high;
        if (!is_input(&copy->record->fields[i], copy->args)) continue;
        ejk_tensor_span(tensor_at(&copy->record->fields[i], copy->args), &low, &high);
        bytes += high - low;
    }
    return bytes;
}

ejk_status ejki_operands_copy_inputs(const ejki_operands_copy *first, ejki_operands_copy *out) {
    EJKI_TRY(copy_args(first->record, first->args, out));
    for (int32_t i = 0; i < first->record->count; i++) {
        const ejk_field *field = &first->record->fields[i];
        if (!is_input(field, first->args)) continue;
        ejk_tensor *tensor = tensor_at(field, out->args);
        EJKI_TRY(give_memory(field, tensor, &out->memory[i]));
        EJKI_TRY(ejk_tensor_copy(tensor_at(field, first->args), tensor));
    }
    return EJK_OK;
}

void ejki_operands_copy_release(ejki_operands_copy *copy) {
    for (int32_t i = 0; copy->memory && i < copy->record->count; i++) free(copy->memory[i]);
    free(copy->memory);
    free(copy->args);
    *copy = (ejki_operands_copy){0};
}

/* All ones is NaN in every floating type. */
void ejki_operands_poison(const ejki_operands_copy *copy) {
    for (int32_t i = 0; i < copy->record->count; i++) {
        int64_t low, high;
        if (!ejki_is_output(&copy->record->fields[i], copy->args)) continue;
        ejk_tensor_span(tensor_at(&copy->record->fields[i], copy->args), &low, &high);
        memset(copy->memory[i], 0xff, (size_t)(high - low));
    }
}
