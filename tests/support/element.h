/* SPDX-License-Identifier: Apache-2.0 */
/* One element of any floating type, bool or integer, as double and back, rounded to the type; at any address. */
#ifndef TESTS_ELEMENT_H
#define TESTS_ELEMENT_H

#include <ejkernel/tensor.h>

static inline double element_load(ejk_dtype dtype, const void *data, int64_t index) {
    double value = 0;
    ejk_tensor from = ejk_tensor_contiguous(
        (char *)(uintptr_t)data + index * (int64_t)ejk_dtype_size(dtype), dtype, 0, NULL);
    float narrow;
    uint16_t bits;
    switch (dtype) {
    case EJK_DTYPE_F64: __builtin_memcpy(&value, from.data, sizeof value); return value;
    case EJK_DTYPE_F32: __builtin_memcpy(&narrow, from.data, sizeof narrow); return (double)narrow;
    case EJK_DTYPE_BF16:
    case EJK_DTYPE_F16:
        __builtin_memcpy(&bits, from.data, sizeof bits);
        return (double)(dtype == EJK_DTYPE_BF16 ? ejk_bf16_to_f32(bits) : ejk_f16_to_f32(bits));
    default: break;
    }
    ejk_tensor to = ejk_tensor_contiguous(&value, EJK_DTYPE_F64, 0, NULL);
    return ejk_tensor_copy(&from, &to) == EJK_OK ? value : -1;
}

static inline void element_store(ejk_dtype dtype, void *data, int64_t index, double value) {
    char *to = (char *)data + index * (int64_t)ejk_dtype_size(dtype);
    const float narrow = (float)value;
    uint16_t bits;
    ejk_tensor from, there;
    switch (dtype) {
    case EJK_DTYPE_F64: __builtin_memcpy(to, &value, sizeof value); return;
    case EJK_DTYPE_F32: __builtin_memcpy(to, &narrow, sizeof narrow); return;
    case EJK_DTYPE_BF16:
    case EJK_DTYPE_F16:
        bits = dtype == EJK_DTYPE_BF16 ? ejk_f32_to_bf16(narrow) : ejk_f32_to_f16(narrow);
        __builtin_memcpy(to, &bits, sizeof bits);
        return;
    default: break;
    }
    from = ejk_tensor_contiguous(&value, EJK_DTYPE_F64, 0, NULL);
    there = ejk_tensor_contiguous(to, dtype, 0, NULL);
    if (ejk_tensor_copy(&from, &there) != EJK_OK) __builtin_abort();
}

#endif
