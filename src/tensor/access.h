/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One element of a tensor, whatever its type, by its index from an address that need not be aligned: what
 * references, checks and fillers use. Loops over many elements of one type convert runs (convert.h), or
 * have the type as a constant, of which the compiler leaves one case.
 */
#ifndef EJKI_TENSOR_ACCESS_H
#define EJKI_TENSOR_ACCESS_H

#include "tensor/convert.h"

/* Of whole bytes. By numbers, since a tensor without elements may have no memory. */
static inline void *ejki_element_at(ejk_dtype dtype, const void *data, int64_t index) {
    return (void *)((uintptr_t)data + (uintptr_t)(index * (int64_t)ejk_dtype_size(dtype)));
}

/* Stride of an axis that may be multiplied: 0 where the axis has one element at most, and any number for a stride. */
static inline int64_t ejki_step(const ejk_tensor *t, int32_t axis) {
    return t->shape[axis] > 1 ? t->strides[axis] : 0;
}

static inline bool ejki_is_float(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F64 || dtype == EJK_DTYPE_F32 || dtype == EJK_DTYPE_BF16 ||
           dtype == EJK_DTYPE_F16 || dtype == EJK_DTYPE_F8E4M3 || dtype == EJK_DTYPE_F8E5M2 ||
           dtype == EJK_DTYPE_F8E8M0;
}

#define EJKI_LOAD(type, expression)                                                                \
    do {                                                                                           \
        type x;                                                                                    \
        memcpy(&x, (const char *)data + index * (int64_t)sizeof x, sizeof x);                      \
        return (expression);                                                                       \
    } while (0)

/* Half a byte, the low one first. */
static inline uint8_t ejki_load_half(const void *data, int64_t index) {
    const uint8_t byte = ((const uint8_t *)data)[index >> 1];
    return (index & 1) != 0 ? byte >> 4 : byte & 0x0f;
}

static inline void ejki_store_half(void *data, int64_t index, uint8_t half) {
    uint8_t *byte = (uint8_t *)data + (index >> 1);
    const int shift = (index & 1) != 0 ? 4 : 0;
    *byte = (uint8_t)((*byte & ~(0x0f << shift)) | (half & 0x0f) << shift);
}

/* A whole number; 0 of a type that is none. bool: 0 or 1. */
static inline int64_t ejki_load_i64(ejk_dtype dtype, const void *data, int64_t index) {
    switch (dtype) {
    case EJK_DTYPE_I64: EJKI_LOAD(int64_t, x);
    case EJK_DTYPE_I32: EJKI_LOAD(int32_t, x);
    case EJK_DTYPE_I16: EJKI_LOAD(int16_t, x);
    case EJK_DTYPE_I8: EJKI_LOAD(int8_t, x);
    case EJK_DTYPE_U32: EJKI_LOAD(uint32_t, x);
    case EJK_DTYPE_U8: EJKI_LOAD(uint8_t, x);
    case EJK_DTYPE_BOOL: EJKI_LOAD(uint8_t, x != 0);
    case EJK_DTYPE_U4: return ejki_load_half(data, index);
    case EJK_DTYPE_I4: return (ejki_load_half(data, index) ^ 8) - 8;
    default: return 0;
    }
}

/* Exact but for an int64 beyond 2^53. */
static inline double ejki_load_f64(ejk_dtype dtype, const void *data, int64_t index) {
    switch (dtype) {
    case EJK_DTYPE_F64: EJKI_LOAD(double, x);
    case EJK_DTYPE_F32: EJKI_LOAD(float, (double)x);
    case EJK_DTYPE_BF16: EJKI_LOAD(uint16_t, (double)ejki_bf16_to_f32(x));
    case EJK_DTYPE_F16: EJKI_LOAD(uint16_t, (double)ejki_f16_to_f32(x));
    case EJK_DTYPE_F8E4M3: EJKI_LOAD(uint8_t, (double)ejki_e4m3_to_f32(x));
    case EJK_DTYPE_F8E5M2: EJKI_LOAD(uint8_t, (double)ejki_e5m2_to_f32(x));
    case EJK_DTYPE_F8E8M0: EJKI_LOAD(uint8_t, (double)ejki_e8m0_to_f32(x));
    default: return (double)ejki_load_i64(dtype, data, index);
    }
}

#undef EJKI_LOAD

#define EJKI_STORE(type, expression)                                                               \
    do {                                                                                           \
        const type x = (type)(expression);                                                         \
        memcpy((char *)data + index * (int64_t)sizeof x, &x, sizeof x);                            \
        return;                                                                                    \
    } while (0)

/* What fits; nothing where the type is no whole number. */
static inline void ejki_store_i64(ejk_dtype dtype, void *data, int64_t index, int64_t value) {
    switch (dtype) {
    case EJK_DTYPE_I64: EJKI_STORE(int64_t, value);
    case EJK_DTYPE_I32: EJKI_STORE(int32_t, value);
    case EJK_DTYPE_I16: EJKI_STORE(int16_t, value);
    case EJK_DTYPE_I8: EJKI_STORE(int8_t, value);
    case EJK_DTYPE_U32: EJKI_STORE(uint32_t, value);
    case EJK_DTYPE_U8: EJKI_STORE(uint8_t, value);
    case EJK_DTYPE_BOOL: EJKI_STORE(uint8_t, value != 0);
    case EJK_DTYPE_U4:
    case EJK_DTYPE_I4: ejki_store_half(data, index, (uint8_t)value); return;
    default: return;
    }
}

/* Rounded once, to nearest, ties to even. Nothing where the type is no floating-point number. */
static inline void ejki_store_f64(ejk_dtype dtype, void *data, int64_t index, double value) {
    switch (dtype) {
    case EJK_DTYPE_F64: EJKI_STORE(double, value);
    case EJK_DTYPE_F32: EJKI_STORE(float, value);
    case EJK_DTYPE_BF16: EJKI_STORE(uint16_t, ejki_f64_to_bf16(value));
    case EJK_DTYPE_F16: EJKI_STORE(uint16_t, ejki_f64_to_f16(value));
    case EJK_DTYPE_F8E4M3: EJKI_STORE(uint8_t, ejki_f64_to_e4m3(value));
    case EJK_DTYPE_F8E5M2: EJKI_STORE(uint8_t, ejki_f64_to_e5m2(value));
    case EJK_DTYPE_F8E8M0: EJKI_STORE(uint8_t, ejki_f64_to_e8m0(value));
    default: return;
    }
}

#undef EJKI_STORE

#endif
