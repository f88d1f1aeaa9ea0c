/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words of packed.h as operands of a tier's multiplication. A line of codes becomes steps: an
 * element of the depth each in floats, two with pairs of bf16, four with bytes. Whole numbers lie around 0, except as
 * bytes, where they are what is stored and product_rows.h takes the middle off the sums, but for tiles of AMX.
 *
 *              floats                    pairs                       bytes
 *   eight      a table of 16             a table of 16: one shift    halves of bytes; E2M1 twice as large, from 0 on
 *              and VPERMPS or like it    and VPERMW
 *   whole      a byte less 128           the same, two a lane        the byte
 *   e4m3       exponent moved, and       the same, two a lane        none
 *              multiplied into range
 * NF4's numbers are rounded to bf16 in pairs; all others are exact.
 */
#ifndef EJKI_PRODUCT_CODES_H
#define EJKI_PRODUCT_CODES_H

#include "kernels/simd/vec_bytes.h"
#include "kernels/simd/vec_words.h"
#include "operations/matmul/shared/product_shape.h"
#include "operations/matmul/shared/quant.h"
/* With the sizes of a tile. */
#include "kernels/simd/gemm_body.h"

enum { CODES_EIGHT, CODES_WHOLE, CODES_E4M3 };

/* Elements of the depth in a word. */
#if defined(TILE_BYTE_DOT)
#define CODES_STEP 4
#else
#define CODES_STEP TILE_UNIT
#endif

#ifdef TILE_BF16_DOT
typedef uint16_t code_halves __attribute__((vector_size(64)));
#endif

typedef struct codes_table {
    v_table floats;
#if defined(TILE_BF16_DOT)
    v_pair_table pairs;
    __m512i e4m3[4]; /* numbers of 7 bits as bf16 */
#ifdef FEW_IN_STEPS
    v_table rounded; /* numbers of pairs as floats */
#endif
#elif defined(TILE_BYTE_DOT)
    uint8_t bytes[16];
    bool has_bytes;
#endif
} codes_table;

INLINE int codes_kind(const mm_quant *q) {
    return q->bits <= 4 ? CODES_EIGHT : q->mode == MM_FP8 ? CODES_E4M3 : CODES_WHOLE;
}

static const float codes_whole[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

INLINE codes_table codes_table_of(const mm_quant *q) {
    const float *numbers = q->mode == MM_NF4   ? ejki_nf4
                           : q->mode == MM_FP4 ? ejki_fp4
                                               : codes_whole;
    codes_table t = {.floats = v_table_of(numbers)};
#if defined(TILE_BF16_DOT)
    t.pairs = v_pair_table_of(numbers);
#ifdef FEW_IN_STEPS
    t.rounded = v_of_bits((v_words)v_round_bf16(t.floats) & 0xffff0000u);
#endif
    for (int i = 0; i < 128; i++) {
        const uint16_t bits = ejki_f32_to_bf16(ejki_e4m3_to_f32((uint8_t)i));
        memcpy((char *)t.e4m3 + 2 * i, &bits, sizeof bits);
    }
#elif defined(TILE_BYTE_DOT)
    t.has_bytes = q->mode == MM_FP4;
    for (int i = 0; i < 16; i++) t.bytes[i] = (uint8_t)(2 * numbers[i] + 12);
#endif
    return t;
}

/*
 * E4M3 from its bits, which are the upper ones of each word: the exponent moves by 120. That makes x of a normal number
 * x, and 2^-7 (1 + m / 8) of the subnormal m / 8 2^-6, which is twice that less 2^-6, and 2 x - 2^-6 is not below x for
 * any other. No subnormal float comes up, which callers may have set the processor to take for 0. Only 0 x 7f is a NaN.
 */
INLINE vf codes_e4m3(v_words upper) {
    const vf moved = v_of_bits((upper >> 4 & 0x07f00000u) + (120u << 23));
    const vf twice = v_fma(moved, v_set1(2), v_set1(-0x1p-6f));
    return v_of_bits(v_bits(v_min(moved, twice)) | (upper & 0x80000000u));
}

/* Code `k` of each word as a float, around 0. */
INLINE vf codes_float(const int kind, const codes_table *t, v_words words, const int k) {
    if (kind == CODES_EIGHT) return v_entries(words >> (16 * (k % 2) + 4 * (k / 2)), t->floats);
    if (kind == CODES_E4M3) return codes_e4m3(words << (24 - 8 * k));
    /* A byte counts as it is in a float of 2^23, or of 2^15 where it is the second one. */
    const uint32_t size = k % 2 ? 0x47000000u : 0x4b000000u, byte = k % 2 ? 0xff00u : 0xffu;
    if (k >= 2) words >>= 16;
    return v_sub(v_of_bits((words & byte) | size), v_set1(k % 2 ? 0x1p15f + 128 : 0x1p23f + 128));
}

#ifdef TILE_BF16_DOT
/* Pairs of the numbers that lower bytes of half words are. */
INLINE vf codes_e4m3_pairs(const codes_table *t, __m512i bytes) {
    const __mmask32 upper = _mm512_test_epi16_mask(bytes, _mm512_set1_epi16(0x40));
    const __m512i low = _mm512_permutex2var_epi16(t->e4m3[0], bytes, t->e4m3[1]);
    const __m512i high = _mm512_permutex2var_epi16(t->e4m3[2], bytes, t->e4m3[3]);
    const __m512i sign =
        _mm512_and_si512(_mm512_slli_epi16(bytes, 8), _mm512_set1_epi16(INT16_MIN));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_mask_mov_epi16(low, upper, high), sign));
}
#endif

/* Operand `step` of a line of words. */
INLINE vf codes_step(const int kind, const codes_table *t, v_words words, const int step) {
#if defined(TILE_BYTE_DOT)
    if (kind != CODES_EIGHT) return v_of_bits(words);
    const v_words bytes = words >> (4 * step) & 0x0f0f0f0fu;
    return t->has_bytes ? v_byte_entries(v_of_bits(bytes), t->bytes) : v_of_bits(bytes);
#elif defined(TILE_BF16_DOT)
    if (kind == CODES_EIGHT)
        return v_pair_entries((__m512i)((code_halves)words >> (uint16_t)(4 * step)), t->pairs);
    if (kind == CODES_E4M3)
        return codes_e4m3_pairs(t, (__m512i)((code_halves)words >> (uint16_t)(8 * step)));
    return v_pairs_of(codes_float(kind, t, words, step), codes_float(kind, t, words, step + 2));
#else
    return codes_float(kind, t, words, step);
#endif
}

/* An operand of codes as tiles multiply it: bytes around 0, as tiles have signed ones on both sides. */
INLINE vf codes_in_tiles(vf codes, int middle) {
#if defined(TILE_BYTE_DOT) && defined(TILE_AMX)
    return v_bytes_less(codes, middle);
#else
    (void)middle;
    return codes;
#endif
}

#ifdef FEW_IN_STEPS
/* The numbers of an operand's pairs as floats: a shift and a table each, where VPERMW would take two instructions. */
INLINE void codes_both(const int kind, const codes_table *t, v_words words, const int step,
                       vf *first, vf *second) {
    if (kind == CODES_EIGHT) {
        *first = v_entries(words >> (4 * step), t->rounded);
        *second = v_entries(words >> (16 + 4 * step), t->rounded);
    } else if (kind == CODES_WHOLE) {
        *first = codes_float(kind, t, words, step);
        *second = codes_float(kind, t, words, step + 2);
    } else {
        const vf pairs = codes_step(kind, t, words, step);
        *first = v_of_first(pairs);
        *second = v_of_second(pairs);
    }
}
#endif

/* Which code of a line is element `i` of word `step` of a row. */
INLINE int codes_order(const int unit, const int step, const int i) {
#if defined(TILE_BYTE_DOT)
    return unit == 8 ? 2 * step + (i % 2) * 4 + i / 2 : i;
#elif defined(TILE_BF16_DOT)
    return unit == 8 ? 2 * step + i : step + 2 * i;
#else
    (void)unit;
    (void)i;
    return step;
#endif
}

INLINE vf codes_floats(const uint8_t *at) {
    float lane[VL];
    memcpy(lane, at, sizeof lane);
    return v_load(lane);
}
/* VL scales that are powers of two: 0 stands for 2^-127, 255 for a NaN. Bytes become the last bits of numbers from 2^23
 * on, as gcc 12 converts them to words one by one. */
INLINE vf codes_powers(const uint8_t *at) {
    const v_words own = v_bits(v_add(v_load_u8(at), v_set1(0x1p23f)));
    const v_words ends = (v_words)(own == 0x4b000000u) | (v_words)(own == 0x4b0000ffu);
    return v_of_bits(own << 23 | (ends & 0x00400000u));
}

/* `count` vectors of scales or zeros. */
INLINE void codes_scales(const int type, const uint8_t *at, const int count, vf *to) {
#define CODES_SCALES(load, bytes)                                                                  \
    EJKI_UNROLL for (int j = 0; j < count; j++) to[j] = load((at) + j * VL * (bytes))
    switch (type) {
    case EJK_DTYPE_F16: CODES_SCALES(v_load_f16, 2); return;
    case EJK_DTYPE_BF16: CODES_SCALES(v_load_bf16, 2); return;
    case EJK_DTYPE_U8: CODES_SCALES(v_load_u8, 1); return;
    case EJK_DTYPE_F8E4M3: CODES_SCALES(v_load_e4m3, 1); return;
    case EJK_DTYPE_F8E8M0: CODES_SCALES(codes_powers, 1); return;
    default: CODES_SCALES(codes_floats, 4);
    }
#undef CODES_SCALES
}
INLINE vf codes_scale(const int type, const uint8_t *at) {
    vf v;
    codes_scales(type, at, 1, &v);
    return v;
}

#endif
