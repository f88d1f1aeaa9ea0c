/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of a matrix of codes of 4 or 8 bits, with the bits of dequantize in quantize.cu, for products that make them
 * first: what is known when it is compiled, and four units of eight codes for each thread, take it from what
 * instructions allow to what memory does. Groups are multiples of eight codes, rows too; codes begin at multiples of 4
 * bytes, rows of values at multiples of 16. A block has VALUES_COLUMNS of a row.
 *
 * Constants: MODE and BITS as mm_quant; SCALE and ZERO, types, ZERO 0 = none; FACTOR; OUT.
 */
#include "operations/matmul/cuda/quant.cuh"
#include "operations/matmul/cuda/quantize.cuh"

enum { THREADS = QUANTIZE_THREADS, UNITS = VALUES_COLUMNS / (THREADS * UNIT) };

DEVICE u32 pair_of_bits(float low, float high) {
    return (u32)bits_of<OUT>(low) | (u32)bits_of<OUT>(high) << 16;
}

DEVICE quant_group scales_at(const mm_quant &q, mm_size row, u32 group) {
    quant_group g = {0, (float)(1 << (BITS - 1)), 1};
    g.scale = load_scale(SCALE, q.scales, row * q.scale_row + group);
    if (ZERO) g.zero = load_stored(ZERO, q.zeros, row * q.zero_row + group);
    if (FACTOR) g.factor = *(const float *)q.factor;
    return g;
}

/* Lanes that want different numbers of a table get them at once from shared memory. */
enum { BY_TABLE = MODE == MM_NF4 || MODE == MM_FP4 };
DEVICE float value_of(const float (&table)[16], const quant_group &g, u32 code) {
    const float value = (BY_TABLE ? table[code & 15] : number_of(MODE, code, g.zero)) * g.scale;
    return FACTOR ? value * g.factor : value;
}

extern "C" __global__ void __launch_bounds__(THREADS) values(const __grid_constant__ quantize_arguments a) {
    __shared__ float table[16];
    const mm_quant &q = a.quant;
    const u32 columns = (u32)a.columns, parts = (columns + VALUES_COLUMNS - 1) / VALUES_COLUMNS;
    const mm_size row = blockIdx.x / parts;
    const u32 first = blockIdx.x % parts * VALUES_COLUMNS + threadIdx.x * UNIT, size = (u32)mm_least(q.size, columns);
    const u8 *codes = (const u8 *)q.codes + row * q.code_row;
    u16 *values = (u16 *)a.values.data + row * a.values.row;
    if (BY_TABLE && threadIdx.x < 16) table[threadIdx.x] = number_of(MODE, threadIdx.x, 0);
    u32 word[UNITS][BITS / 4] = {};
    quant_group g[UNITS] = {};
#pragma unroll
    for (int n = 0; n < UNITS; n++) {
        const u32 at = first + n * (THREADS * UNIT);
        if (at >= columns) continue;
#pragma unroll
        for (int w = 0; w < BITS / 4; w++) word[n][w] = ((const u32 *)codes)[at * BITS / 32 + w];
        g[n] = scales_at(q, row, at / size);
    }
    if (BY_TABLE) __syncthreads();
#pragma unroll
    for (int n = 0; n < UNITS; n++) {
        const u32 at = first + n * (THREADS * UNIT);
        float x[UNIT];
#pragma unroll
        for (int c = 0; c < UNIT; c++)
            x[c] = value_of(table, g[n], word[n][c * BITS / 32] >> c * BITS % 32 & ((1u << BITS) - 1));
        if (at < columns)
            *(uint4 *)(values + at) = make_uint4(pair_of_bits(x[0], x[1]), pair_of_bits(x[2], x[3]),
                                                 pair_of_bits(x[4], x[5]), pair_of_bits(x[6], x[7]));
    }
}
