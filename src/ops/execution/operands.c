/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/execution/operands.h"

#include <ejkernel/tensor.h>

#include "base/base.h"

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

/* A number from 0 to below 1 (splitmix64). */
static double next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Fills `bytes` with elements of a type, whatever the strides will make of them. */
static void fill(ejk_dtype dtype, void *memory, size_t bytes, uint64_t *state) {
    const size_t size = ejk_dtype_size(dtype);
    unsigned char *at = memory;
    for (size_t i = 0; i + size <= bytes; i += size) {
        const double value = next_random(state);
        const float single = (float)(2 * value - 1);
        uint16_t half;
        switch (dtype) {
        case EJK_DTYPE_F64: memcpy(at + i, &(double){2 * value - 1}, size); break;
        case EJK_DTYPE_F32: memcpy(at + i, &single, size); break;
        case EJK_DTYPE_BF16:
            half = ejk_f32_to_bf16(single);
            memcpy(at + i, &half, size);
            break;
        case EJK_DTYPE_F16:
            half = ejk_f32_to_f16(single);
            memcpy(at + i, &half, size);
            break;
        case EJK_DTYPE_BOOL:
        case EJK_DTYPE_U8: at[i] = value < 0.9; break;
        default: memset(at + i, 0, size); break;
        }
    }
}

static ejk_status give_memory(const ejk_field *field, ejk_tensor *tensor, void **memory,
                              uint64_t *state) {
    int64_t low, high;
    ejk_tensor_span(tensor, &low, &high);
    /* Some bytes more, so that an empty tensor has an address as well. */
    *memory = aligned_alloc(64, (size_t)ejki_round_up(high - low + 64, 64));
    if (!*memory)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the %lld bytes of %s",
                         (long long)(high - low), field->name);
    fill(tensor->dtype, *memory, (size_t)(high - low), state);
    tensor->data = (char *)*memory - low;
    return EJK_OK;
}

ejk_status ejki_operands_copy_create(const ejk_record *record, const void *args,
                                     ejki_operands_copy *out) {
    *out = (ejki_operands_copy){.record = record,
                                .args = malloc(record->size + 1),
                                .memory = calloc((size_t)record->count + 1, sizeof(void *))};
    if (!out->args || !out->memory)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a copy of a call");
    memcpy(out->args, args, record->size);
    uint64_t state = 1;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        if (field->kind != EJK_FIELD_TENSOR) continue;
        ejk_tensor *tensor = tensor_at(field, out->args);
        if (tensor->dtype == EJK_DTYPE_UNSET) continue;
        if (!is_result(field) && tensor->data) continue;
        EJKI_TRY(give_memory(field, tensor, &out->memory[i], &state));
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
