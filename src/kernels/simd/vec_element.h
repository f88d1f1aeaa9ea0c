/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of a tensor as floats, whatever their type, f32, bf16 or f16, and back.
 * Where the type is a constant the compiler leaves one case; elsewhere the branch is the same each time.
 */
#ifndef EJKI_VEC_ELEMENT_H
#define EJKI_VEC_ELEMENT_H

#include "kernels/simd/unroll.h"
#include "kernels/simd/vec.h"
#include "tensor/convert.h"

static inline int64_t element_size(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F32 ? 4 : 2;
}

/* Element `index` from `data`. By numbers, since a tensor without elements may have no memory. */
static inline void *element_at(ejk_dtype dtype, const void *data, int64_t index) {
    return (void *)((uintptr_t)data + (uintptr_t)(index * element_size(dtype)));
}

static inline float element_load(ejk_dtype dtype, const void *data, int64_t index) {
    const void *place = element_at(dtype, data, index);
    float value;
    uint16_t bits;
    if (dtype == EJK_DTYPE_F32) {
        memcpy(&value, place, sizeof value);
        return value;
    }
    memcpy(&bits, place, sizeof bits);
    return dtype == EJK_DTYPE_BF16 ? ejki_bf16_to_f32(bits) : ejki_f16_to_f32(bits);
}

static inline void element_store(ejk_dtype dtype, void *data, int64_t index, float value) {
    void *place = element_at(dtype, data, index);
    if (dtype == EJK_DTYPE_F32) {
        memcpy(place, &value, sizeof value);
        return;
    }
    const uint16_t bits =
        dtype == EJK_DTYPE_BF16 ? ejki_f32_to_bf16(value) : ejki_f32_to_f16(value);
    memcpy(place, &bits, sizeof bits);
}

/* A function of a type, which is a constant there: what is called for each type is inlined. */
#define ELEMENT_CALL(dtype, function, ...)                                                         \
    ((dtype) == EJK_DTYPE_F32    ? (function)(EJK_DTYPE_F32, __VA_ARGS__)                          \
     : (dtype) == EJK_DTYPE_BF16 ? (function)(EJK_DTYPE_BF16, __VA_ARGS__)                         \
                                 : (function)(EJK_DTYPE_F16, __VA_ARGS__))

/* v_load, v_load_first, v_store and v_store_first of elements; stores round once. */
static inline __attribute__((always_inline)) vf v_widen(ejk_dtype dtype, const void *p) {
    if (dtype == EJK_DTYPE_F32) return v_load(p);
    return dtype == EJK_DTYPE_BF16 ? v_load_bf16(p) : v_load_f16(p);
}
static inline __attribute__((always_inline)) vf v_widen_first(ejk_dtype dtype, const void *p,
                                                              int64_t n) {
    if (dtype == EJK_DTYPE_F32) return v_load_first(p, n);
    return dtype == EJK_DTYPE_BF16 ? v_load_bf16_first(p, n) : v_load_f16_first(p, n);
}
static inline __attribute__((always_inline)) void v_narrow(ejk_dtype dtype, void *p, vf v) {
    if (dtype == EJK_DTYPE_F32)
        v_store(p, v);
    else if (dtype == EJK_DTYPE_BF16)
        v_store_bf16(p, v);
    else
        v_store_f16(p, v);
}
static inline __attribute__((always_inline)) void v_narrow_first(ejk_dtype dtype, void *p, vf v,
                                                                 int64_t n) {
    if (dtype == EJK_DTYPE_F32)
        v_store_first(p, v, n);
    else if (dtype == EJK_DTYPE_BF16)
        v_store_bf16_first(p, v, n);
    else
        v_store_f16_first(p, v, n);
}

/* n elements of a row, at most VL of which count: whole vectors wherever there is room for them. */
static inline __attribute__((always_inline)) vf v_widen_some(ejk_dtype dtype, const void *p,
                                                             int64_t n) {
    return n >= VL ? v_widen(dtype, p) : v_widen_first(dtype, p, n);
}
static inline __attribute__((always_inline)) void v_narrow_some(ejk_dtype dtype, void *p, vf v,
                                                                int64_t n) {
    if (n >= VL)
        v_narrow(dtype, p, v);
    else
        v_narrow_first(dtype, p, v, n);
}

#endif
