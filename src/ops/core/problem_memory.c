/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the tensors of a problem, and reproducible numbers in it. */
#include "ops/core/problem_text.h"

#include <string.h>
#include <unistd.h>

/* S. Vigna's splitmix64 as a function of its position: any element's number without those before it. */
static uint64_t number_at(uint64_t key, uint64_t index) {
    uint64_t z = key + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static float uniform(uint64_t bits) {
    return (float)((double)(bits >> 11) * 0x1p-52 - 1);
}

/* What a tensor is filled with. */
typedef struct filling {
    uint64_t key;
    bool random, mask; /* neither: zeros */
} filling;

#define EACH(type, value)                                                                          \
    for (int64_t i = 0; i < count; i++) {                                                          \
        const uint64_t bits = number_at(f->key, (uint64_t)(first + i));                            \
        ((type *)at)[i * stride] = (value);                                                        \
    }                                                                                              \
    break

/* One run along the last axis, whose elements have the numbers from `first` on. */
static void fill_run(const ejk_tensor *tensor, void *at, int64_t count, int64_t stride,
                     int64_t first, const filling *f) {
    if (f->mask) {
        for (int64_t i = 0; i < count; i++)
            ((uint8_t *)at)[i * stride] = number_at(f->key, (uint64_t)(first + i)) % 10 != 0;
        return;
    }
    switch (tensor->dtype) {
    case EJK_DTYPE_F64: EACH(double, (double)(bits >> 11) * 0x1p-52 - 1);
    case EJK_DTYPE_F32: EACH(float, uniform(bits));
    case EJK_DTYPE_BF16: EACH(uint16_t, ejk_f32_to_bf16(uniform(bits)));
    case EJK_DTYPE_F16: EACH(uint16_t, ejk_f32_to_f16(uniform(bits)));
    default: break;
    }
}

/* Elements to fill along an axis: with stride 0 they are all one. */
static int64_t filled(const ejk_tensor *tensor, int32_t axis) {
    return tensor->strides[axis] == 0 ? ejki_min(tensor->shape[axis], 1) : tensor->shape[axis];
}

/* Runs along the last axis; `place` counts through the others, `number` is that of the run's first element. */
static void fill(const ejk_tensor *tensor, const filling *f) {
    const int32_t last = tensor->rank - 1;
    const int64_t run = last < 0 ? 1 : filled(tensor, last),
                  width = (int64_t)ejk_dtype_size(tensor->dtype);
    int64_t place[EJK_MAX_RANK] = {0}, step[EJK_MAX_RANK] = {0};
    if (ejk_tensor_count(tensor) == 0) return;
    for (int32_t i = last; i >= 0; i--)
        step[i] = i == last ? 1 : step[i + 1] * tensor->shape[i + 1];
    for (bool more = true; more;) {
        int64_t offset = 0, number = 0;
        for (int32_t i = 0; i < last; i++) {
            offset += place[i] * tensor->strides[i];
            number += place[i] * step[i];
        }
        fill_run(tensor, (char *)tensor->data + offset * width, run,
                 last < 0 ? 0 : tensor->strides[last], number, f);
        more = false;
        for (int32_t i = last - 1; i >= 0 && !more; i--) {
            more = ++place[i] < filled(tensor, i);
            if (!more) place[i] = 0;
        }
    }
}

/* Masks are bool, or bytes where the unit says bool. */
static bool is_mask(const ejki_slot *slot, ejk_dtype dtype) {
    ejk_dtype asked;
    if (dtype != EJK_DTYPE_BOOL && dtype != EJK_DTYPE_U8) return false;
    return dtype == EJK_DTYPE_BOOL ||
           (ejki_slot_dtype(slot, NULL, EJK_DTYPE_F32, &asked) == EJK_OK &&
            asked == EJK_DTYPE_BOOL);
}

static bool is_number(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F64 || dtype == EJK_DTYPE_F32 || dtype == EJK_DTYPE_BF16 ||
           dtype == EJK_DTYPE_F16;
}

/* Bytes to write, which strides that make elements one may let be more than there are; saturated. */
static int64_t written_bytes(const ejk_tensor *tensor) {
    int64_t bytes = (int64_t)ejk_dtype_size(tensor->dtype);
    for (int32_t i = 0; i < tensor->rank; i++)
        if (!ejki_mul(bytes, filled(tensor, i), &bytes)) return INT64_MAX;
    return bytes;
}

/* Systems promise more than they have, and end who takes it. */
static ejk_status check_total(const ejk_problem *problem) {
    const int64_t most = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    int64_t total = 0;
    for (int32_t i = 0; i < problem->slots.count; i++) {
        const ejk_tensor *tensor = ejki_slot_tensor(&problem->slots.list[i], problem->args);
        int64_t low = 0, high = 0, bytes = 0;
        if (ejk_tensor_present(tensor)) {
            ejk_tensor_span(tensor, &low, &high);
            bytes = ejki_max(high - low, written_bytes(tensor));
        }
        if (!ejki_add(total, bytes, &total) || total >= most)
            return ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                             "the tensors of %s need more than the %lld bytes of this machine",
                             problem->kernel->op_id, (long long)most);
    }
    return EJK_OK;
}

/* Memory of a tensor and its view's address in it: strides may lead to before the first element. */
static ejk_status place_tensor(ejk_problem *problem, int32_t index) {
    ejk_tensor *tensor = ejki_slot_tensor(&problem->slots.list[index], problem->args);
    ejk_owned_tensor *memory = &problem->memory[index];
    int64_t low, high;
    if (!ejk_tensor_present(tensor) || memory->owner) return EJK_OK;
    ejk_tensor_span(tensor, &low, &high);
    const int64_t bytes = high - low;
    EJKI_TRY(ejk_owned_tensor_create(EJK_DTYPE_U8, 1, &bytes, memory));
    tensor->data = (char *)memory->tensor.data - low;
    return EJK_OK;
}

static void take_back(ejk_problem *problem) {
    for (int32_t i = 0; i < problem->slots.count; i++) {
        ejk_owned_tensor_close(&problem->memory[i]);
        ejki_slot_tensor(&problem->slots.list[i], problem->args)->data = NULL;
    }
}

ejk_status ejk_problem_allocate(ejk_problem *problem, uint64_t seed) {
    if (!problem) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "problem is NULL, expected one");
    EJKI_TRY(check_total(problem));
    ejk_status status = EJK_OK;
    for (int32_t i = 0; i < problem->slots.count && status == EJK_OK; i++)
        status = place_tensor(problem, i);
    if (status != EJK_OK) {
        take_back(problem);
        return status;
    }
    for (int32_t i = 0; i < problem->slots.count; i++) {
        const ejki_slot *slot = &problem->slots.list[i];
        const ejk_tensor *tensor = ejki_slot_tensor(slot, problem->args);
        if (!ejk_tensor_present(tensor)) continue;
        const ejk_tensor *memory = &problem->memory[i].tensor;
        memset(memory->data, 0, (size_t)memory->shape[0]);
        const filling f = {.key = number_at(seed, (uint64_t)i),
                           .random = is_number(tensor->dtype),
                           .mask = is_mask(slot, tensor->dtype)};
        if (!ejki_slot_output(slot) && (f.random || f.mask)) fill(tensor, &f);
    }
    return EJK_OK;
}
