/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes and scales of matrices, and their values, with the bits of quantize/reference.c: float32, each operation
 * rounded once.
 */
#include "operations/matmul/cuda/quant.cuh"
#include "operations/matmul/cuda/quantize.cuh"

enum { THREADS = QUANTIZE_THREADS, WARPS = THREADS / 32 };

/* ---- Values ------------------------------------------------------------------------------------------ */

/* A thread has UNIT codes of a row, which may be of several groups. */
extern "C" __global__ void __launch_bounds__(THREADS) dequantize(const __grid_constant__ quantize_arguments a) {
    const mm_quant &q = a.quant;
    const mm_size units = (a.columns + THREADS * UNIT - 1) / (THREADS * UNIT), line = blockIdx.x / units;
    const mm_size matrix = line / a.rows, row = line % a.rows;
    const mm_size first = (blockIdx.x % units * THREADS + threadIdx.x) * UNIT;
    if (first >= a.columns) return;
    const u8 *codes = row_of_codes(q, matrix, row);
    const mm_size at = matrix * a.values.group + row * a.values.row + first;
    mm_size group = first / q.size, end = (group + 1) * q.size;
    quant_group g = group_of(q, matrix, row, group);
    float x[UNIT];
#pragma unroll
    for (int n = 0; n < UNIT; n++) {
        if (first + n >= a.columns) continue;
        if (first + n == end) g = group_of(q, matrix, row, ++group), end += q.size;
        x[n] = value_of_code(q, g, code_at(codes, q.bits, first + n));
    }
    if (a.values.dtype != F32 && first + UNIT <= a.columns && ((u64)((u16 *)a.values.data + at)) % 16 == 0) {
        u32 word[UNIT / 2];
#pragma unroll
        for (int n = 0; n < UNIT / 2; n++)
            word[n] = a.values.dtype == BF16
                          ? (u32)bits_of<BF16>(x[2 * n]) | (u32)bits_of<BF16>(x[2 * n + 1]) << 16
                          : (u32)bits_of<F16>(x[2 * n]) | (u32)bits_of<F16>(x[2 * n + 1]) << 16;
        *(uint4 *)((u16 *)a.values.data + at) = make_uint4(word[0], word[1], word[2], word[3]);
        return;
    }
#pragma unroll
    for (int n = 0; n < UNIT; n++)
        if (first + n < a.columns) store_float(a.values.dtype, a.values.data, at + n, x[n]);
}

/* ---- Codes ------------------------------------------------------------------------------------------- */

/* Rounded, from low to high; NaN is low. */
DEVICE u32 kept(float x, float low, float high) {
    if (!(x > low)) return (u32)(int)low;
    return (u32)(int)(x < high ? rintf(x) : high);
}

/* The nearest of a table of ascending entries, by midpoints. */
DEVICE u32 nearest_nf4(float x) {
    u32 code = 0;
    if (x != x) return 7;
    while (code < 15 && x > (nf4_values[code] + nf4_values[code + 1]) * 0.5f) code++;
    return code;
}

/* The nearest magnitude, of two the one with the even code; NaN is 0. */
DEVICE u32 nearest_fp4(float x) {
    const float size = fabsf(x);
    u32 code = 0;
    while (code < 7) {
        const float middle = (fp4_values[code] + fp4_values[code + 1]) * 0.5f;
        if (!(size > middle || (size == middle && code % 2 == 1))) break;
        code++;
    }
    return (u32)__float_as_int(x) >> 31 && x == x ? code | 8 : code;
}

DEVICE u32 code_of(const mm_quant &q, const quant_group &g, float x) {
    const float scale = g.scale * g.factor, y = scale == 0 ? 0 : x / scale;
    switch (q.mode) {
    case MM_INT8: return y != y ? 0 : kept(y, -127, 127) & 0xff;
    case MM_NF4: return nearest_nf4(y);
    case MM_FP4: return nearest_fp4(y);
    case MM_FP8: return bits_of_e4m3(y);
    default: return kept(y + g.zero, 0, (float)((1 << q.bits) - 1));
    }
}

/* ---- Scales ------------------------------------------------------------------------------------------ */

struct range {
    float low, high, size; /* size: the largest magnitude */
};

/* By a warp. NaN counts for nothing. */
DEVICE range range_of(const quantize_arguments &a, mm_size at, mm_size first, mm_size end) {
    range r = {INFINITY, NEG_INF, 0};
    for (mm_size c = first + threadIdx.x % 32; c < end; c += 32) {
        const float x = load_float(a.values.dtype, a.values.data, at + c);
        r.low = x < r.low ? x : r.low;
        r.high = x > r.high ? x : r.high;
        r.size = fabsf(x) > r.size ? fabsf(x) : r.size;
    }
    for (int n = 16; n > 0; n /= 2) {
        r.low = fminf(r.low, __shfl_xor_sync(~0u, r.low, n));
        r.high = fmaxf(r.high, __shfl_xor_sync(~0u, r.high, n));
        r.size = fmaxf(r.size, __shfl_xor_sync(~0u, r.size, n));
    }
    if (!(r.low <= r.high)) r.low = r.high = 0;
    return r;
}

/* Largest magnitude of the codes. */
DEVICE float largest(int mode) {
    return mode == MM_FP4 ? 6 : mode == MM_FP8 ? 448 : 1;
}

/* The exponent of an mx scale. */
DEVICE int exponent_of(const quantize_arguments &a, float size) {
    const bool is_fp4 = a.quant.mode == MM_FP4;
    const int least = a.quant.scale_type == I8 ? -128 : -127;
    int e;
    if (!(size > 0)) return least;
    if (size == INFINITY) return 127;
    const float fraction = frexpf(size, &e); /* size = fraction * 2^e, from 1/2 to below 1 */
    e -= is_fp4 ? 3 : 9;
    if (!a.floors) e += fraction > (is_fp4 ? 0.75f : 0.875f); /* 6 is 3/4 * 2^3, 448 is 7/8 * 2^9 */
    return e < least ? least : e > 127 ? 127 : e;
}

DEVICE float scale_of(const quantize_arguments &a, const range &r, float factor) {
    const mm_quant &q = a.quant;
    if (q.mode == MM_INT8) return r.size / 127;
    if (q.mode != MM_AFFINE) return r.size / (largest(q.mode) * factor);
    const float steps = (float)((1 << q.bits) - 1);
    const float scale = q.zero_type ? (r.high - r.low) / steps : r.size / (float)(1 << (q.bits - 1));
    return scale == 0 ? 1 : scale;
}

/* Rounded to the type of scales. */
DEVICE void put_scale(const quantize_arguments &a, mm_size index, const range &r, float factor) {
    void *data = (void *)a.quant.scales;
    switch (a.quant.scale_type) {
    case I8: ((signed char *)data)[index] = (signed char)exponent_of(a, r.size); break;
    case F8E8M0: ((u8 *)data)[index] = (u8)(exponent_of(a, r.size) + 127); break;
    default: store_stored(a.quant.scale_type, data, index, scale_of(a, r, factor));
    }
}

DEVICE void put_zero(const mm_quant &q, mm_size index, float low, float scale) {
    void *data = (void *)q.zeros;
    const float zero = scale == 0 ? 0 : -low / scale, steps = (float)((1 << q.bits) - 1);
    const float most = q.zero_type == F16 ? 65504 : 3e38f; /* finite codes */
    switch (q.zero_type) {
    case I32: ((int *)data)[index] = (int)kept(zero, 0, steps); break;
    case U8: ((u8 *)data)[index] = (u8)kept(zero, 0, steps); break;
    case I8: ((signed char *)data)[index] = (signed char)kept(zero, 0, steps < 127 ? steps : 127); break;
    default: store_stored(q.zero_type, data, index, zero > most ? most : zero < -most ? -most : zero);
    }
}

/* A block has a row: its warps have the scales of groups in turn, then its threads have units of codes. */
extern "C" __global__ void __launch_bounds__(THREADS) quantize(const __grid_constant__ quantize_arguments a) {
    const mm_quant &q = a.quant;
    const mm_size matrix = blockIdx.x / a.rows, row = blockIdx.x % a.rows;
    const mm_size at = matrix * a.values.group + row * a.values.row, groups = (a.columns + q.size - 1) / q.size;
    const float factor = q.has_factor ? *(const float *)q.factor : 1;
    u8 *codes = (u8 *)row_of_codes(q, matrix, row);
    for (mm_size group = threadIdx.x / 32; group < groups; group += WARPS) {
        const mm_size first = group * q.size, index = matrix * q.scale_group + row * q.scale_row + group;
        const range r = range_of(a, at, first, mm_least(a.columns, first + q.size));
        if (threadIdx.x % 32 != 0) continue;
        put_scale(a, index, r, factor);
        if (q.zero_type)
            put_zero(q, matrix * q.zero_group + row * q.zero_row + group, r.low,
                     load_scale(q.scale_type, q.scales, index));
    }
    __syncthreads();
    for (mm_size unit = threadIdx.x; unit * q.bits < a.bytes; unit += THREADS) {
        u64 word = 0;
        mm_size group = -1;
        quant_group g = {};
        for (int n = 0; n < UNIT; n++) {
            const mm_size c = unit * UNIT + n;
            if (c >= a.columns) break;
            if (c / q.size != group) g = group_of(q, matrix, row, group = c / q.size);
            word |= (u64)code_of(q, g, load_float(a.values.dtype, a.values.data, at + c)) << n * q.bits;
        }
        for (int n = 0; n < q.bits && unit * q.bits + n < a.bytes; n++)
            codes[unit * q.bits + n] = (u8)(word >> 8 * n);
    }
}
