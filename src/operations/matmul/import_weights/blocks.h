/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of GGUF: codes in the order of their values, and of each group scale and zero. Formulas are those of ggml's
 * block types; `least` is what a formula subtracts.
 */
#ifndef EJKI_IMPORT_WEIGHTS_BLOCKS_H
#define EJKI_IMPORT_WEIGHTS_BLOCKS_H

#include "operations/matmul/import_weights/problem.h"
#include "tensor/access.h"

enum { IMPORT_BLOCK_MAX = 256 };

static inline float import_f16(const unsigned char *at) {
    return (float)ejki_load_f64(EJK_DTYPE_F16, at, 0);
}

/* Two codes in a byte: the values j and j + 16 of a block of 32. A fifth bit is in `high`, bit by value, or NULL. */
static void codes_of_32(const unsigned char *low, const unsigned char *high, unsigned char *codes) {
    for (int j = 0; j < 16; j++) {
        codes[j] = low[j] & 15;
        codes[j + 16] = low[j] >> 4;
    }
    for (int j = 0; high != NULL && j < 32; j++)
        codes[j] = (unsigned char)(codes[j] | ((high[j / 8] >> j % 8) & 1) << 4);
}

/* Two codes in a byte: the values j and j + 32 of each 64. Fifth bits lie across: bit 2i and 2i + 1 of byte j. */
static void codes_of_256(const unsigned char *low, const unsigned char *high,
                         unsigned char *codes) {
    for (int j = 0; j < 256; j++) {
        const int chunk = j / 64, half = j % 64 / 32;
        const unsigned char byte = low[chunk * 32 + j % 32];
        codes[j] = half ? byte >> 4 : byte & 15;
        if (high != NULL)
            codes[j] = (unsigned char)(codes[j] | ((high[j % 32] >> (2 * chunk + half)) & 1) << 4);
    }
}

/* Six bits: four in `low`, as of each 128 values, two in `high`. */
static void codes_of_q6(const unsigned char *low, const unsigned char *high, unsigned char *codes) {
    for (int j = 0; j < 256; j++) {
        const int part = j / 128, quarter = j % 128 / 32, l = j % 32;
        const unsigned char byte = low[part * 64 + quarter % 2 * 32 + l];
        const int four = quarter < 2 ? byte & 15 : byte >> 4;
        codes[j] = (unsigned char)(four | ((high[part * 32 + l] >> (2 * quarter)) & 3) << 4);
    }
}

/* Codes of a block. Signed bytes are moved up by 128, so that the zero of affine codes is 0. */
static void import_block_codes(const import_layout *layout, const unsigned char *block,
                               unsigned char *codes) {
    switch (layout->bytes) {
    case 17: codes_of_32(block + 1, NULL, codes); return;          /* mxfp4 */
    case 18: codes_of_32(block + 2, NULL, codes); return;          /* q4_0 */
    case 20: codes_of_32(block + 4, NULL, codes); return;          /* q4_1 */
    case 22: codes_of_32(block + 6, block + 2, codes); return;     /* q5_0 */
    case 24: codes_of_32(block + 8, block + 4, codes); return;     /* q5_1 */
    case 144: codes_of_256(block + 16, NULL, codes); return;       /* q4_k */
    case 176: codes_of_256(block + 48, block + 16, codes); return; /* q5_k */
    case 210: codes_of_q6(block, block + 128, codes); return;      /* q6_k */
    default:                                                       /* q8_0 */
        for (int j = 0; j < 32; j++) codes[j] = block[2 + j] ^ 0x80;
    }
}

/* Scale and least of group g of q4_k and q5_k: six bits each, in twelve bytes. */
static void scales_of_k(const unsigned char *at, int g, int *scale, int *least) {
    if (g < 4) {
        *scale = at[g] & 63;
        *least = at[g + 4] & 63;
    } else {
        *scale = (at[g + 4] & 15) | (at[g - 4] >> 6) << 4;
        *least = at[g + 4] >> 4 | (at[g] >> 6) << 4;
    }
}

/* Products of a half and six or eight bits are exact in float32. */
static void import_block_scale(const import_layout *layout, const unsigned char *block, int g,
                               float *scale, float *least) {
    int s, m;
    *least = 0;
    switch (layout->bytes) {
    case 17: *scale = (float)ejki_load_f64(EJK_DTYPE_F8E8M0, block, 0); return;
    case 20:
    case 24:
        *scale = import_f16(block);
        *least = -import_f16(block + 2);
        return;
    case 144:
    case 176:
        scales_of_k(block + 4, g, &s, &m);
        *scale = import_f16(block) * (float)s;
        *least = import_f16(block + 2) * (float)m;
        return;
    case 210: *scale = import_f16(block + 208) * (float)(signed char)block[192 + g]; return;
    default: *scale = import_f16(block);
    }
}

#endif
