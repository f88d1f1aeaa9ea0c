/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of quantised matrices as numbers on a GPU, with the bits of quant.h: float32, each operation rounded once. */
#ifndef EJKI_MATMUL_CUDA_QUANT_CUH
#define EJKI_MATMUL_CUDA_QUANT_CUH

#include "kernels/cuda/stored.cuh"
#include "operations/matmul/shared/product.cuh"

static __constant__ float nf4_values[16] = {
    -1.0f,        -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.09105004f, 0.0f,
    0.0795803f,   0.1609302f,  0.2461123f,   0.33791524f, 0.44070983f,  0.562617f,    0.72295684f,  1.0f};
static __constant__ float fp4_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                            -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* 2^exponent, of -128 to 127. */
DEVICE float power_of_two(int exponent) {
    return exponent < -126 ? __int_as_float(1 << (exponent + 149)) : __int_as_float((exponent + 127) << 23);
}

/* int8 scales are exponents. */
DEVICE float load_scale(int dtype, const void *data, mm_size index) {
    if (dtype == I8) return power_of_two(((const signed char *)data)[index]);
    return load_stored(dtype, data, index);
}

DEVICE u32 code_at(const u8 *row, int bits, mm_size index) {
    const mm_size bit = index * bits;
    const u8 *at = row + bit / 8;
    const int shift = (int)(bit % 8);
    u32 word = at[0];
    if (shift + bits > 8) word |= (u32)at[1] << 8;
    return (word >> shift) & ((1u << bits) - 1);
}

struct quant_group {
    float scale, zero, factor;
};

DEVICE quant_group group_of(const mm_quant &q, mm_size matrix, mm_size row, mm_size group) {
    quant_group g = {0, (float)(1 << (q.bits - 1)), 1};
    g.scale = load_scale(q.scale_type, q.scales, matrix * q.scale_group + row * q.scale_row + group);
    if (q.zero_type)
        g.zero = load_stored(q.zero_type, q.zeros, matrix * q.zero_group + row * q.zero_row + group);
    if (q.has_factor) g.factor = *(const float *)q.factor;
    return g;
}

DEVICE const u8 *row_of_codes(const mm_quant &q, mm_size matrix, mm_size row) {
    return (const u8 *)q.codes + matrix * q.code_group + row * q.code_row;
}

DEVICE float number_of(int mode, u32 code, float zero) {
    switch (mode) {
    case MM_INT8: return (float)(signed char)code;
    case MM_NF4: return nf4_values[code];
    case MM_FP4: return fp4_values[code];
    case MM_FP8: return value_of_e4m3(code);
    default: return (float)code - zero;
    }
}

DEVICE float value_of_code(const mm_quant &q, const quant_group &g, u32 code) {
    const float value = number_of(q.mode, code, g.zero) * g.scale;
    return q.has_factor ? value * g.factor : value;
}

/* Value `index` of a row. */
DEVICE float value_at(const mm_quant &q, mm_size matrix, mm_size row, mm_size index) {
    const quant_group g = group_of(q, matrix, row, index / q.size);
    return value_of_code(q, g, code_at(row_of_codes(q, matrix, row), q.bits, index));
}

#endif
