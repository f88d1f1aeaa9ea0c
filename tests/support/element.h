/* SPDX-License-Identifier: Apache-2.0 */
/* One element of any floating type, bool or integer, as double and back, rounded to the type; at any address. */
#ifndef TESTS_ELEMENT_H
#define TESTS_ELEMENT_H

#include <ejkernel/tensor.h>

static inline size_t element_size(ejk_dtype dtype) {
    switch (dtype) {
    case EJK_DTYPE_F64: return 8;
    case EJK_DTYPE_F32: return 4;
    case EJK_DTYPE_BF16:
    case EJK_DTYPE_F16: return 2;
    default: return ejk_dtype_size(dtype);
    }
}

/* Of the types that the switches below leave. */
static inline void element_convert(ejk_dtype from, const void *source, ejk_dtype to, void *there) {
    const ejk_tensor in = ejk_tensor_contiguous((void *)(uintptr_t)source, from, 0, NULL);
    const ejk_tensor out = ejk_tensor_contiguous(there, to, 0, NULL);
    if (ejk_tensor_copy(&in, &out) != EJK_OK) __builtin_abort();
}

/* Random calls are made of these, element by element: no call of a function for the common types. */
static inline double element_load(ejk_dtype dtype, const void *data, int64_t index) {
    const char *from = (const char *)data + index * (int64_t)element_size(dtype);
    double value = 0;
    float narrow;
    uint32_t wide;
    uint16_t bits;
    switch (dtype) {
    case EJK_DTYPE_F64: __builtin_memcpy(&value, from, sizeof value); return value;
    case EJK_DTYPE_F32: __builtin_memcpy(&narrow, from, sizeof narrow); return (double)narrow;
    case EJK_DTYPE_BF16:
        __builtin_memcpy(&bits, from, sizeof bits);
        wide = (uint32_t)bits << 16;
        __builtin_memcpy(&narrow, &wide, sizeof narrow);
        return (double)narrow;
    case EJK_DTYPE_F16:
        __builtin_memcpy(&bits, from, sizeof bits);
        return (double)ejk_f16_to_f32(bits);
    default: element_convert(dtype, from, EJK_DTYPE_F64, &value); return value;
    }
}

static inline void element_store(ejk_dtype dtype, void *data, int64_t index, double value) {
    char *to = (char *)data + index * (int64_t)element_size(dtype);
    const float narrow = (float)value;
    uint16_t bits;
    switch (dtype) {
    case EJK_DTYPE_F64: __builtin_memcpy(to, &value, sizeof value); return;
    case EJK_DTYPE_F32: __builtin_memcpy(to, &narrow, sizeof narrow); return;
    case EJK_DTYPE_BF16:
    case EJK_DTYPE_F16:
        bits = dtype == EJK_DTYPE_BF16 ? ejk_f32_to_bf16(narrow) : ejk_f32_to_f16(narrow);
        __builtin_memcpy(to, &bits, sizeof bits);
        return;
    default: element_convert(EJK_DTYPE_F64, &value, dtype, to); return;
    }
}

#endif
