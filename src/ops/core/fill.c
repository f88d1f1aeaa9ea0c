/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/core/fill.h"

#include "base/base.h"

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

/* What a tensor is filled with: numbers that belong to a key, or a mask of them. */
typedef struct filling {
    uint64_t key;
    bool mask;
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

int64_t ejki_filled(const ejk_tensor *tensor, int32_t axis) {
    return tensor->strides[axis] == 0 ? ejki_min(tensor->shape[axis], 1) : tensor->shape[axis];
}

/* Runs along the last axis; `place` counts through the others, `number` is that of the run's first element. */
static void fill(const ejk_tensor *tensor, const filling *f) {
    const int32_t last = tensor->rank - 1;
    const int64_t run = last < 0 ? 1 : ejki_filled(tensor, last),
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
            more = ++place[i] < ejki_filled(tensor, i);
            if (!more) place[i] = 0;
        }
    }
}

static bool is_number(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F64 || dtype == EJK_DTYPE_F32 || dtype == EJK_DTYPE_BF16 ||
           dtype == EJK_DTYPE_F16;
}

void ejki_fill(const ejk_tensor *tensor, uint64_t seed, int32_t index, bool mask) {
    const filling f = {.key = number_at(seed, (uint64_t)index), .mask = mask};
    if (mask || is_number(tensor->dtype)) fill(tensor, &f);
}
