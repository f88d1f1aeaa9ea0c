/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of quantised matrices (mm_quant in product.cuh) as numbers: what every path agrees on, bit for bit.
 *     affine     (code − zero) · scale, the zero being that of the group, or without zeros 2^(bits−1)
 *     int8       code · scale, two's complement
 *     nf4, fp4, fp8      table[code] · scale;   with `factor`, times that
 * All in float32, each operation rounded once.
 */
#ifndef EJKI_MATMUL_QUANT_H
#define EJKI_MATMUL_QUANT_H

#include "operations/matmul/shared/packed.h"
#include "operations/matmul/shared/product.cuh"
#include "tensor/access.h"

#include <math.h>

/* Quantiles of the normal distribution, the most extreme ones being 1. */
static const float ejki_nf4[16] = {-1.0f,        -0.6961928f,  -0.52507305f, -0.3949175f,
                                   -0.28444138f, -0.18477343f, -0.09105004f, 0.0f,
                                   0.0795803f,   0.1609302f,   0.2461123f,   0.33791524f,
                                   0.44070983f,  0.562617f,    0.72295684f,  1.0f};
/* E2M1: a sign and eight magnitudes. */
static const float ejki_fp4[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

static inline float ejki_quant_scale(int type, const void *data, mm_size index) {
    if (type == EJK_DTYPE_I8) return ldexpf(1.0f, ((const int8_t *)data)[index]);
    return (float)ejki_load_f64((ejk_dtype)type, data, index);
}

/* Code `index` of a row. Codes of 3, 5, 6 and 7 bits lie across bytes. */
static inline uint32_t ejki_quant_code(const uint8_t *row, int bits, mm_size index) {
    const mm_size bit = index * bits;
    const uint8_t *at = row + bit / 8;
    const int shift = (int)(bit % 8);
    uint32_t word = at[0];
    if (shift + bits > 8) word |= (uint32_t)at[1] << 8;
    return (word >> shift) & ((1u << bits) - 1);
}

/* A code without its scale; `zero` is that of an affine group. */
static inline float ejki_quant_number(int mode, uint32_t code, float zero) {
    switch (mode) {
    case MM_INT8: return (float)(int8_t)code;
    case MM_NF4: return ejki_nf4[code];
    case MM_FP4: return ejki_fp4[code];
    case MM_FP8: return ejki_e4m3_to_f32((uint8_t)code);
    default: return (float)code - zero;
    }
}

static inline const uint8_t *ejki_quant_row(const mm_quant *q, mm_size matrix, mm_size row) {
    return (const uint8_t *)q->codes + matrix * q->code_group + row * q->code_row;
}

/* Scale and zero of a row's group; a factor for all is kept apart. */
typedef struct ejki_quant_group {
    float scale, zero, factor;
} ejki_quant_group;

/* A row's part of the block that has code `index`, packed. */
typedef struct ejki_quant_packed {
    packed_form form;
    packed_block block;
    const uint8_t *words, *scales, *zeros;
    float factor;
} ejki_quant_packed;

static inline ejki_quant_packed ejki_quant_packed_at(const mm_quant *q, mm_size matrix, mm_size row,
                                                     mm_size index) {
    const uint8_t *at = (const uint8_t *)q->codes + matrix * q->code_group;
    packed_header h;
    mm_quant own = *q;
    memcpy(&h, at, sizeof h);
    own.scale_type = h.scale_type;
    own.zero_type = h.zero_type;
    ejki_quant_packed p = {.form = packed_form_of(&own, h.rows, h.columns), .factor = h.factor};
    p.block = packed_block_of(&p.form, index);
    p.words = at + PACKED_HEADER + row / PACKED_COLUMNS * p.form.stream + p.block.at;
    p.scales = p.words + p.block.words * 4 * PACKED_COLUMNS;
    p.zeros = p.scales + PACKED_COLUMNS * p.form.scale_bytes;
    return p;
}

static inline ejki_quant_group ejki_quant_group_of(const mm_quant *q, mm_size matrix, mm_size row,
                                                   mm_size group) {
    ejki_quant_group g = {.zero = (float)(1 << (q->bits - 1)), .factor = 1};
    if (q->packed) {
        const ejki_quant_packed p = ejki_quant_packed_at(q, matrix, row, group * q->size);
        const mm_size column = row % PACKED_COLUMNS;
        g.scale = ejki_quant_scale(p.form.scale_type, p.scales, column);
        if (p.form.zero_type)
            g.zero = (float)ejki_load_f64((ejk_dtype)p.form.zero_type, p.zeros, column);
        g.factor = p.factor;
        return g;
    }
    g.scale = ejki_quant_scale(q->scale_type, q->scales,
                               matrix * q->scale_group + row * q->scale_row + group);
    if (q->zero_type != EJK_DTYPE_UNSET)
        g.zero = (float)ejki_load_f64((ejk_dtype)q->zero_type, q->zeros,
                                      matrix * q->zero_group + row * q->zero_row + group);
    if (q->has_factor) memcpy(&g.factor, q->factor, sizeof g.factor);
    return g;
}

/* Code `index` of a row of a matrix, plain or packed. */
static inline uint32_t ejki_quant_code_at(const mm_quant *q, mm_size matrix, mm_size row,
                                          mm_size index) {
    if (!q->packed) return ejki_quant_code(ejki_quant_row(q, matrix, row), q->bits, index);
    const ejki_quant_packed p = ejki_quant_packed_at(q, matrix, row, index);
    const mm_size k = (index - p.block.first) % p.form.unit;
    const mm_size line = (index - p.block.first) / p.form.unit;
    uint32_t word;
    memcpy(&word, p.words + (line * PACKED_COLUMNS + row % PACKED_COLUMNS) * 4, sizeof word);
    if (p.form.unit == 8)
        word = word >> (16 * (k % 2) + 4 * (k / 2)) & 15;
    else
        word = word >> 8 * k & 255;
    if (q->mode == MM_INT8) return word ^ 0x80;
    if (q->mode == MM_AFFINE) return word - (uint32_t)(p.form.centre - (1 << (q->bits - 1)));
    return word;
}

static inline float ejki_quant_value(const mm_quant *q, const ejki_quant_group *g, uint32_t code) {
    const float value = ejki_quant_number(q->mode, code, g->zero) * g->scale;
    return value * g->factor;
}

/* The derivative of value `index` of a row by the scale or the zero of its group, without a factor of all. */
static inline float ejki_quant_slope(const mm_quant *q, int by, mm_size row, mm_size group,
                                     mm_size index) {
    float zero = (float)(1 << (q->bits - 1));
    if (by == MM_BY_ZERO)
        return -ejki_quant_scale(q->scale_type, q->scales, row * q->scale_row + group);
    if (q->zero_type != EJK_DTYPE_UNSET)
        zero = (float)ejki_load_f64((ejk_dtype)q->zero_type, q->zeros, row * q->zero_row + group);
    return ejki_quant_number(q->mode, ejki_quant_code(ejki_quant_row(q, 0, row), q->bits, index),
                             zero);
}

#endif
