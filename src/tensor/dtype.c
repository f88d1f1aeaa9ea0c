/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/tensor.h>

#include "base/base.h"

#include <string.h>

size_t ejk_dtype_size(ejk_dtype dtype) {
    switch (dtype) {
#define DTYPE_SIZE(name, number, size, text)                                                       \
    case EJK_DTYPE_##name: return size;
        EJK_DTYPE_LIST(DTYPE_SIZE)
#undef DTYPE_SIZE
    case EJK_DTYPE_UNSET: break;
    }
    return 0;
}

size_t ejk_dtype_bits(ejk_dtype dtype) {
    if (dtype == EJK_DTYPE_I4 || dtype == EJK_DTYPE_U4) return 4;
    return 8 * ejk_dtype_size(dtype);
}

int64_t ejk_dtype_bytes(ejk_dtype dtype, int64_t count) {
    const int64_t bits = (int64_t)ejk_dtype_bits(dtype);
    int64_t bytes;
    if (bits == 0 || count < 0) return -1;
    if (bits < 8) return count / 2 + count % 2;
    return ejki_mul(count, bits / 8, &bytes) ? bytes : -1;
}

const char *ejk_dtype_name(ejk_dtype dtype) {
    switch (dtype) {
#define DTYPE_NAME(name, number, size, text)                                                       \
    case EJK_DTYPE_##name: return text;
        EJK_DTYPE_LIST(DTYPE_NAME)
#undef DTYPE_NAME
    case EJK_DTYPE_UNSET: return "unset";
    }
    return "unknown";
}

ejk_status ejk_dtype_from_name(const char *name, ejk_dtype *out) {
    static const struct {
        const char *name;
        ejk_dtype dtype;
    } names[] = {
#define DTYPE_LONG_NAME(name, number, size, text) {text, EJK_DTYPE_##name},
        EJK_DTYPE_LIST(DTYPE_LONG_NAME)
#undef DTYPE_LONG_NAME
            {"f64", EJK_DTYPE_F64},
        {"f32", EJK_DTYPE_F32},
        {"bf16", EJK_DTYPE_BF16},
        {"f16", EJK_DTYPE_F16},
        {"i64", EJK_DTYPE_I64},
        {"i32", EJK_DTYPE_I32},
        {"i16", EJK_DTYPE_I16},
        {"i8", EJK_DTYPE_I8},
        {"u8", EJK_DTYPE_U8},
        {"u32", EJK_DTYPE_U32},
        {"i4", EJK_DTYPE_I4},
        {"u4", EJK_DTYPE_U4},
        {"e4m3", EJK_DTYPE_F8E4M3},
        {"e5m2", EJK_DTYPE_F8E5M2},
        {"e8m0", EJK_DTYPE_F8E8M0},
    };
    if (name == NULL || out == NULL) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", name == NULL ? "name" : "out");
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].dtype;
            return EJK_OK;
        }
    }
    return ejki_fail(
        EJK_STATUS_UNKNOWN_NAME,
        "'%.60s' names no element type, expected float64, float32, bfloat16, float16, "
        "float8_e4m3fn, float8_e5m2, float8_e8m0fnu, int64, int32, int16, int8, uint32, "
        "uint8, int4, uint4, bool or a short form as f32, bf16, e4m3, i64",
        name);
}
