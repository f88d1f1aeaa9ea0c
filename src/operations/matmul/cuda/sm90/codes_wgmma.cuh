/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with codes by wgmma: a warp's 16 rows of codes are the left operand, made in registers, rows of a the right
 * one, in shared memory: boxes of LINES rows and 64 of the depth under a swizzle of 128 bytes, the depth as it is.
 * Constants: those of codes_step.cuh, TILES 1.
 */
#ifndef EJKI_MATMUL_CUDA_SM90_CODES_WGMMA_CUH
#define EJKI_MATMUL_CUDA_SM90_CODES_WGMMA_CUH

#include "operations/matmul/cuda/sm90/codes_step.cuh"

enum {
    UNIT = GROUP < 2 ? GROUP : 2, /* chunks whose codes are in registers at a time, twice */
    UNIT_PRODUCTS = UNIT * SIXTEENS,
};

typedef float line_sums[LINES / 2];

/* Where 16 of a step's depth of the rows that begin at `rows` lie: one addition for each, without a carry. */
DEVICE u64 rows_operand(u32 rows, int sixteen) {
    const u64 first = smem_descriptor(rows, 0);
    return first >> 32 << 32 | ((u32)first + (sixteen / 4 * BOX + sixteen % 4 * 32) / 16);
}

/* The sums of a group, scaled. */
DEVICE void add_group(const line_sums &products, const group_scales &scales, line_sums &sums) {
    const float2 scale = *(const float2 *)&scales.scale[threadIdx.x % 32 / 4 * 2];
#pragma unroll
    for (int i = 0; i < LINES / 2; i++) sums[i] = fmaf(products[i], i / 2 % 2 ? scale.y : scale.x, sums[i]);
}

/* ---- Codes as elements, neighbours in pairs ------------------------------------------------------------ */

/* Where lane q of four finds two of each eight codes, its place in a product: of __byte_perm. */
DEVICE u32 own_bytes() {
    const u32 q = threadIdx.x % 4;
    if (BITS == 8) return MODE == MM_FP8 ? 2 * q | (2 * q + 1) << 4 : 2 * q | (2 * q + 1) << 8;
    return TABLE ? 0x4440 | q : q * 0x1111;
}
/* (x & mask) ^ base: two operations if it is left to the compiler. */
DEVICE u32 masked(u32 x, u32 mask, u32 base) {
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "r"(mask), "r"(base));
    return y;
}
/* A byte of two codes, four times: their numbers. */
DEVICE u32 pair_of_byte(u32 bytes) {
    if (ELEMENT == BF16)
        return multiply_add_pairs(bytes & 0x00f0000f, pack(0x1p127f, 0x1p123f), pair_of(-(float)CENTRE / NUMBERS_OVER));
    return multiply_add_pairs(masked(bytes, 0x00f0000f, 0x64006400), pack(1, 0.0625f),
                              pack(-1024.0f - CENTRE, -64.0f - CENTRE));
}
/* Two bytes, of each half the lower one: their numbers. */
DEVICE u32 pair_of_bytes(u32 bytes) {
    const u32 sign = MODE == MM_INT8 ? 0x00800080 : 0;
    if (ELEMENT == BF16) return pair_of_subnormals(masked(bytes, 0x00ff00ff, sign), 1);
    return add_pairs(masked(bytes, 0x00ff00ff, 0x64006400 ^ sign), pair_of(-(1024.0f + CENTRE)));
}

/*
 * A chunk of the two rows of a lane that begin at `codes`: four lanes load all of a row's chunk, the same place, and
 * take what is theirs out of it.
 */
typedef uint4 chunk_pieces[2];
DEVICE void load_chunk(chunk_pieces &piece, u32 codes) {
#pragma unroll
    for (int half = 0; half < 2; half++) piece[half] = load_piece(codes + half * (8 * CODE_BYTES));
}
/* Left operands of a chunk, one for each 16 of the depth, in its order. */
DEVICE void take_neighbours(left_words &left, const chunk_pieces &piece, u32 own, u32 table) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 word[4] = {piece[half].x, piece[half].y, piece[half].z, piece[half].w};
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            u32 &pair = left[n / 2][n % 2 * 2 + half];
            if constexpr (TABLE) {
                const u32 at = __byte_perm(word[n], 0, own) * (32 * 4);
                asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(table + at));
            } else if constexpr (BITS == 4) {
                pair = pair_of_byte(__byte_perm(word[n], word[n], own));
            } else {
                const u32 bytes = __byte_perm(word[2 * n], word[2 * n + 1], own);
                pair = MODE == MM_FP8 ? pair_of_e4m3(bytes) : pair_of_bytes(bytes);
            }
        }
    }
}

typedef u32 unit_words[UNIT_PRODUCTS][4];
typedef chunk_pieces unit_pieces[UNIT];

/* The chunks from `first` on, of a warp's rows of codes at `codes`, this lane's row included; left operands of them. */
DEVICE void load_unit(unit_pieces &piece, u32 codes, int first) {
#pragma unroll
    for (int c = 0; c < UNIT; c++) load_chunk(piece[c], codes + ((first + c) ^ (threadIdx.x % 32 / 4)) * 16);
}
DEVICE void take_unit(unit_words &left, const unit_pieces &piece, u32 own, u32 table) {
#pragma unroll
    for (int c = 0; c < UNIT; c++) take_neighbours(*(left_words *)&left[c * SIXTEENS], piece[c], own, table);
}
/* Their products, added or not; they are under way when it returns. */
DEVICE void multiply_unit(line_sums &products, unit_words &left, u32 rows, int first, bool adds) {
#pragma unroll
    for (int k = 0; k < UNIT_PRODUCTS; k++) hold(left[k]);
    hold(products);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < UNIT_PRODUCTS; k++)
        wgmma<LINES>::template rs<0>(products, left[k], rows_operand(rows, first * SIXTEENS + k), k > 0 || adds);
    wgmma_commit();
}

#endif
