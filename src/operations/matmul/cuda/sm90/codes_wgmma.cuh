/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with codes by wgmma: a warp's 16 rows of codes are the left operand, made in registers, rows of a the right
 * one, in shared memory: boxes of LINES rows and 64 of the depth under a swizzle of 128 bytes, the depth in the order
 * of codes. Bits are those of codes_step.cuh. Constants: those of codes_step.cuh, TILES 1.
 */
#ifndef EJKI_MATMUL_CUDA_SM90_CODES_WGMMA_CUH
#define EJKI_MATMUL_CUDA_SM90_CODES_WGMMA_CUH

#include "operations/matmul/cuda/sm90/codes_step.cuh"

enum {
    UNIT = GROUP < 2 ? GROUP : 2, /* chunks whose codes are in registers at a time, twice */
    UNIT_PRODUCTS = UNIT * SIXTEENS,
};

/*
 * Four pieces of a row, 64 bytes, into the order of a wgmma's depth: of each chunk words 4 n + q are what lane q of
 * four has in register n of both sixteens of codes.
 */
DEVICE void order_pieces(uint4 (&piece)[4]) {
    enum { WORDS = 2 * SIXTEENS, CHUNKS_OF_PIECES = 4 / WORDS };
    const u32 *in = (const u32 *)piece;
    u32 out[16];
#pragma unroll
    for (int c = 0; c < CHUNKS_OF_PIECES; c++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
            row_words x;
#pragma unroll
            for (int n = 0; n < WORDS; n++) x[n] = in[4 * WORDS * c + WORDS * q + n];
            order_rows(x);
#pragma unroll
            for (int n = 0; n < WORDS; n++) out[4 * WORDS * c + 4 * n + q] = x[n];
        }
#pragma unroll
    for (int n = 0; n < 4; n++) piece[n] = make_uint4(out[4 * n], out[4 * n + 1], out[4 * n + 2], out[4 * n + 3]);
}

typedef float line_sums[LINES / 2];

/* Where 16 of a step's depth of the rows that begin at `rows` lie: one addition for each, without a carry. */
DEVICE u64 rows_operand(u32 rows, int sixteen) {
    const u64 first = smem_descriptor(rows, 0);
    return first >> 32 << 32 | ((u32)first + (sixteen / 4 * BOX + sixteen % 4 * 32) / 16);
}

/* The sums of a group, scaled. */
DEVICE void add_group(const line_sums &products, const group_scales &scales, line_sums &sums) {
    const int r = threadIdx.x % 32 / 4;
    const float scale[2] = {scales.scale[r], scales.scale[r + 8]};
#pragma unroll
    for (int i = 0; i < LINES / 2; i++) sums[i] = fmaf(products[i], scale[i / 2 % 2], sums[i]);
}

typedef u32 unit_words[UNIT_PRODUCTS][4];

/* Left operands of the chunks from `first` on, of a warp's rows of codes at `codes`, this lane's place included. */
DEVICE void take_unit(unit_words &left, u32 codes, int first, u32 table) {
    const int r = threadIdx.x % 32 / 4;
#pragma unroll
    for (int c = 0; c < UNIT; c++)
        take_codes(*(left_words *)&left[c * SIXTEENS], codes + ((first + c) ^ r) * 16, table);
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
