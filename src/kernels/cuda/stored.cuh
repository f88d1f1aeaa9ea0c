/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of a type that is known only at run time, those of 8 bits among them, by the numbers of ejk_dtype and with
 * the bits of tensor/convert.h. A branch on the type is the same for all threads.
 */
#ifndef EJKI_CUDA_STORED_CUH
#define EJKI_CUDA_STORED_CUH

#include "kernels/cuda/element.cuh"

#define I32    6
#define I8     8
#define U8     9
#define F8E4M3 11
#define F8E5M2 12
#define F8E8M0 13

DEVICE float value_of_e4m3(u32 code) {
    const u32 size = code & 0x7f;
    const float value = size < 8       ? (float)size * 0.001953125f
                        : size == 0x7f ? __int_as_float(0x7fc00000)
                                       : __int_as_float((size << 20) + 0x3c000000);
    return code & 0x80 ? -value : value;
}
/* The high byte of a float16. */
DEVICE float value_of_e5m2(u32 code) {
    return value_of<F16>((u16)(code << 8));
}
DEVICE float value_of_e8m0(u32 code) {
    return __int_as_float(code == 0 ? 0x00400000 : code == 0xff ? 0x7fc00000 : code << 23);
}

/* The greatest number stands for all above it. `one`: its last bit is worth that of a subnormal, so that sums round. */
DEVICE u8 bits_of_f8(float value, int mantissa, u32 bias_difference, u32 least_normal, u32 greatest, float one) {
    const u32 bits = __float_as_int(value), magnitude = bits & 0x7fffffff;
    const int dropped = 23 - mantissa;
    const u32 rebiased = (magnitude < greatest ? magnitude : greatest) - (bias_difference << 23);
    u32 number = (rebiased + (1u << (dropped - 1)) - 1 + (rebiased >> dropped & 1)) >> dropped;
    if (magnitude < least_normal)
        number = __float_as_int(__int_as_float(magnitude) + one) - __float_as_int(one);
    if (magnitude > 0x7f800000) number = 0x7f;
    return (u8)((bits >> 24 & 0x80) | number);
}
DEVICE u8 bits_of_e4m3(float value) {
    return bits_of_f8(value, 3, 120, 0x3c800000, 0x43e00000, 16384);
}
DEVICE u8 bits_of_e5m2(float value) {
    return bits_of_f8(value, 2, 112, 0x38800000, 0x47600000, 128);
}
/* NaN is 0. */
DEVICE signed char bits_of_i8(float value) {
    return (signed char)(value != value ? 0 : fminf(fmaxf(rintf(value), -128), 127));
}

DEVICE int bytes_of(int dtype) {
    return dtype == F32 ? 4 : dtype == BF16 || dtype == F16 ? 2 : 1;
}

DEVICE float load_stored(int dtype, const void *data, i64 index) {
    switch (dtype) {
    case F32: return ((const float *)data)[index];
    case BF16: return value_of<BF16>(((const u16 *)data)[index]);
    case F16: return value_of<F16>(((const u16 *)data)[index]);
    case F8E4M3: return value_of_e4m3(((const u8 *)data)[index]);
    case F8E5M2: return value_of_e5m2(((const u8 *)data)[index]);
    case F8E8M0: return value_of_e8m0(((const u8 *)data)[index]);
    case U8: return (float)((const u8 *)data)[index];
    case I32: return (float)((const int *)data)[index];
    default: return (float)((const signed char *)data)[index];
    }
}

/* Not of scales and whole numbers but int8. */
DEVICE void store_stored(int dtype, void *data, i64 index, float value) {
    switch (dtype) {
    case F32: ((float *)data)[index] = value; break;
    case BF16: ((u16 *)data)[index] = bits_of<BF16>(value); break;
    case F16: ((u16 *)data)[index] = bits_of<F16>(value); break;
    case F8E4M3: ((u8 *)data)[index] = bits_of_e4m3(value); break;
    case F8E5M2: ((u8 *)data)[index] = bits_of_e5m2(value); break;
    default: ((signed char *)data)[index] = bits_of_i8(value); break;
    }
}

#endif
