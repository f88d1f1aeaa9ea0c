/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of codes of 4 or 8 bits, rounded to ELEMENT, as an operand of wgmma in shared memory: 64 of the depth at a
 * time, a thread for each row of codes. The bits are those of dequantize, rounded. A row's codes come in pieces of
 * CODE_ROW bytes under a swizzle of 64; groups are whole multiples of 64 codes.
 *
 * Constants: COLUMNS; MODE and BITS as mm_quant; SCALE and ZERO, types, ZERO 0 = none; FACTOR.
 */
#ifndef EJKI_MATMUL_CUDA_SM90_CONVERTER_CUH
#define EJKI_MATMUL_CUDA_SM90_CONVERTER_CUH

#include "operations/matmul/cuda/quant.cuh"
#include "operations/matmul/cuda/sm90/tiles.cuh"

enum {
    CODE_ROW = TILE_CODE_ROW,
    CODE_BUFFERS = TILE_CODE_BUFFERS,
    CODE_STEPS = CODE_ROW * 8 / BITS / 64, /* steps of the depth that a piece of a row has */
    CODE_LINES = COLUMNS / 128,            /* rows of codes that a thread has */
    WORD_CODES = 32 / BITS,
    BY_TABLE = MODE == MM_NF4 || MODE == MM_FP4,
    /* Codes less their centre, times a scale of the same type, are rounded once by the product of two pairs. */
    BY_PAIRS = MODE == MM_AFFINE && BITS == 4 && !ZERO && !FACTOR && SCALE == ELEMENT,
};

struct code_ring {
    u8 buffer[CODE_BUFFERS][COLUMNS * CODE_ROW];
    u64 full[CODE_BUFFERS], empty[CODE_BUFFERS];
    float table[16];
};

/* Of one row and a step. */
struct code_scales {
    float scale, zero;
};

DEVICE void release_to(u32 barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

DEVICE void fill_table(float (&table)[16]) {
    if (BY_TABLE && threadIdx.x < 16) table[threadIdx.x] = number_of(MODE, threadIdx.x, 0);
}

/* Of row `line` of codes; 0 where there is no such row, or step. */
DEVICE code_scales scales_of_step(const mm_product &p, mm_size held, mm_size line, int step) {
    const mm_quant &q = p.quant;
    code_scales s = {};
    if (line >= p.columns || (mm_size)step * 64 >= p.depth) return s;
    const u32 group = (u32)step * 64 / (u32)mm_least(q.size, p.depth);
    s.scale = load_scale(SCALE, q.scales, held * q.scale_group + line * q.scale_row + group);
    if (ZERO) s.zero = load_stored(ZERO, q.zeros, held * q.zero_group + line * q.zero_row + group);
    return s;
}

/* Of the steps of a piece, from one on, and of a thread's rows. */
DEVICE void scales_of_piece(const mm_product &p, mm_size held, mm_size line, int first,
                            code_scales (&s)[CODE_STEPS][CODE_LINES]) {
#pragma unroll
    for (int part = 0; part < CODE_STEPS; part++)
#pragma unroll
        for (int n = 0; n < CODE_LINES; n++) s[part][n] = scales_of_step(p, held, line + 128 * n, first + part);
}

/* Numbers of a word's codes, in their order. */
DEVICE void numbers_of_word(float (&x)[WORD_CODES], u32 word, float zero, const float (&table)[16]) {
    const u32 whole = 0x4b000000; /* 2^23, whose last bit is worth 1 */
    const float centre = 1 << (BITS - 1);
    if (MODE == MM_INT8) word ^= 0x80808080u;
#pragma unroll
    for (int n = 0; n < WORD_CODES; n++) {
        const u32 code = BITS == 4 ? word >> 4 * n & 15 : __byte_perm(word, 0, 0x4440 | n);
        if (BY_TABLE)
            x[n] = table[code];
        else if (MODE == MM_FP8)
            x[n] = value_of_e4m3(code);
        else if (ZERO)
            x[n] = __int_as_float(code | whole) - 8388608.0f - zero;
        else
            x[n] = __int_as_float(code | whole) - (8388608.0f + centre);
    }
}

DEVICE u32 pair_of_values(float low, float high) {
    u32 pair;
    if (ELEMENT == BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Eight codes of 4 bits as four pairs of neighbours, by operations on pairs. `scale` is a pair of it. */
DEVICE uint4 eight_by_pairs(u32 word, u32 scale) {
    const u32 base = ELEMENT == BF16 ? 0x43004300u : 0x64006400u; /* 128 and 1024: the last bit is worth 1 */
    const u32 less = ELEMENT == BF16 ? 0xc308c308u : 0xe408e408u; /* -136 and -1032 */
    u32 pair[4];                                                  /* codes n and n + 4 */
#pragma unroll
    for (int n = 0; n < 4; n++) {
        asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(pair[n]) : "r"(word >> 4 * n), "n"(0x000f000f), "r"(base));
        if (ELEMENT == BF16)
            asm("add.rn.bf16x2 %0, %0, %1;\nmul.rn.bf16x2 %0, %0, %2;" : "+r"(pair[n]) : "r"(less), "r"(scale));
        else
            asm("add.rn.f16x2 %0, %0, %1;\nmul.rn.f16x2 %0, %0, %2;" : "+r"(pair[n]) : "r"(less), "r"(scale));
    }
    return make_uint4(__byte_perm(pair[0], pair[1], 0x5410), __byte_perm(pair[2], pair[3], 0x5410),
                      __byte_perm(pair[0], pair[1], 0x7632), __byte_perm(pair[2], pair[3], 0x7632));
}

/* Eight codes from the word at `word` on, of 4 bits or of 8. */
DEVICE uint4 eight_values(const u32 *word, const mm_quant &q, const code_scales &s, const float (&table)[16]) {
    if constexpr (BY_PAIRS) {
        return eight_by_pairs(word[0], pair_of_values(s.scale, s.scale));
    } else {
        const float factor = FACTOR ? *(const float *)q.factor : 1;
        float x[8];
#pragma unroll
        for (int w = 0; w < BITS / 4; w++) {
            float own[WORD_CODES];
            numbers_of_word(own, word[w], s.zero, table);
#pragma unroll
            for (int n = 0; n < WORD_CODES; n++) {
                x[w * WORD_CODES + n] = own[n] * s.scale;
                if (FACTOR) x[w * WORD_CODES + n] *= factor;
            }
        }
        return make_uint4(pair_of_values(x[0], x[1]), pair_of_values(x[2], x[3]), pair_of_values(x[4], x[5]),
                          pair_of_values(x[6], x[7]));
    }
}

/* Step `part` of a piece of row `line` into boxes of 64 columns by 64 of the depth, under a swizzle of 128 bytes. */
DEVICE void convert_line(u32 codes, int part, int line, const code_scales &s, const mm_quant &q,
                         const float (&table)[16], u32 to) {
    enum { PIECES = BITS == 4 ? 2 : 4, EIGHTS_OF_PIECE = 8 / PIECES };
    const u32 row = codes + line * CODE_ROW, own = to + line / 64 * (64 * 128) + line % 64 * 128;
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        const uint4 piece = load_piece(row + ((part * PIECES + n) ^ (line / 2 % 4)) * 16);
        const u32 word[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int e = 0; e < EIGHTS_OF_PIECE; e++) {
            const uint4 x = eight_values(word + e * (BITS / 4), q, s, table);
            const u32 at = own + ((n * EIGHTS_OF_PIECE + e) ^ (line % 8)) * 16;
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                         : "memory");
        }
    }
}

#endif
