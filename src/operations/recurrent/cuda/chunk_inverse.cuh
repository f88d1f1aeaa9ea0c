/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both kernels that prepare chunks do alike: rows to be normalised, and the inverse.
 * Constants: KEY_SIZE, TERMS, BACK, SQUARE.
 */
#ifndef EJKI_RECURRENT_CHUNK_INVERSE_CUH
#define EJKI_RECURRENT_CHUNK_INVERSE_CUH

#ifndef WARPS
#define WARPS 4
#endif
#include "operations/recurrent/cuda/chunk.cuh"
#include "operations/recurrent/cuda/rows.cuh"

#define PITCH (REC_CHUNK + 4)
#define TILE  (REC_CHUNK * pitch_of(KEY_SIZE) * 2)

/* What a row is multiplied by to be normalised. */
DEVICE float factor_of(const rec_problem &p, u32 tile, int row) {
    float sum = 0;
    if (!p.normalise) return 1;
#pragma unroll
    for (int piece = 0; piece < KEY_SIZE / 8; piece++) {
        const uint4 x = load_piece(piece_at<KEY_SIZE>(tile, row, piece));
        const u32 word[] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float low = widen((u16)word[i]), high = widen((u16)(word[i] >> 16));
            sum += low * low + high * high;
        }
    }
    return 1 / sqrtf(sum + (float)REC_EPSILON);
}

/* ---- The inverse ------------------------------------------------------------------------------------ */

/* Column 32 half + lane of the inverse of a half's own block, by substitution; the column is in registers. */
DEVICE void solve(const float *a, int half, float *to) {
    const int column = threadIdx.x % 32, first = 32 * half;
    float x[32];
#pragma unroll
    for (int t = 0; t < 32; t++) {
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int r = 0; r < t; r += 4) {
            const float4 four = *(const float4 *)(a + (first + t) * PITCH + first + r);
            const float row[] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (r + i < t) sum[i] += row[i] * x[r + i];
        }
        x[t] = (t == column ? 1 : 0) - ((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
#pragma unroll
    for (int t = 0; t < 32; t++) to[(first + t) * PITCH + first + column] = x[t];
}

/* Row threadIdx.x / 4 of a product of blocks of 32 x 32 from two places, eight columns of it. */
DEVICE void multiply_halves(const float *left, const float *right, float (&sum)[8]) {
    const float *row = left + threadIdx.x / 4 * PITCH, *columns = right + threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = 0;
#pragma unroll 4
    for (int r = 0; r < 32; r++) {
        const float4 low = *(const float4 *)(columns + r * PITCH), high = *(const float4 *)(columns + r * PITCH + 4);
        const float by = row[r], x[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += by * x[i];
    }
}
DEVICE void store_halves(const float (&x)[8], float sign, float *to) {
    float *at = to + threadIdx.x / 4 * PITCH + threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) at[i] = sign * x[i];
}

#define BLOCKS (SQUARE ? REC_SQUARE_BYTES : REC_TILES * REC_TILE_BYTES)

/* A lane's part of a block of 16 x 16 of T or P, as a right operand, to memory. */
DEVICE void put_block(char *to, int row, int column, const uint4 &x) {
    const int lane = threadIdx.x % 32, own = 16 * row + lane / 4;
    if (SQUARE) {
        char *low = to + own * 128 + ((2 * column ^ own % 8) << 4) + lane % 4 * 4;
        char *high = to + own * 128 + (((2 * column + 1) ^ own % 8) << 4) + lane % 4 * 4;
        *(u32 *)low = x.x, *(u32 *)high = x.y;
        *(u32 *)(low + 8 * 128) = x.z, *(u32 *)(high + 8 * 128) = x.w;
    } else {
        ((uint4 *)to)[(row * (row + 1) / 2 + column) * 32 + lane] = x;
    }
}

/* Blocks above the diagonal of a square, or of a turned one those below it, which wgmma reads. */
DEVICE void clear_others(char *to, bool turned) {
    const int warp = threadIdx.x / 32;
    for (int n = warp + 1; n < 4; n++) put_block(to, turned ? n : warp, turned ? warp : n, make_uint4(0, 0, 0, 0));
}

/* Where element i of a lane's 16 bytes is in a block of 16 x 16. */
DEVICE int element_row(int i) {
    return threadIdx.x % 32 / 4 + i / 4 * 8;
}
DEVICE int element_column(int i) {
    return threadIdx.x % 4 * 2 + i / 2 % 2 * 8 + i % 2;
}

/*
 * Blocks on and below the diagonal to memory as right operands in `pieces` pieces, columns times `betas` unless that is
 * NULL. With `turned` sums are over rows, else over columns.
 */
template <int pieces, bool turned> DEVICE void put_blocks(const float *from, const float *betas, char *to) {
    for (int tile = threadIdx.x / 32; tile < REC_TILES; tile += WARPS) {
        const int row = tile >= 6 ? 3 : tile >= 3 ? 2 : tile >= 1, column = tile - row * (row + 1) / 2;
        float rest[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int own_row = 16 * row + (turned ? element_column(i) : element_row(i));
            const int own_column = 16 * column + (turned ? element_row(i) : element_column(i));
            rest[i] = from[own_row * PITCH + own_column] * (betas ? betas[own_column] : 1);
        }
#pragma unroll
        for (int piece = 0; piece < pieces; piece++) {
            put_block(to + piece * BLOCKS, SQUARE && turned ? column : row, SQUARE && turned ? row : column,
                      make_uint4(pack(rest[0], rest[1]), pack(rest[2], rest[3]), pack(rest[4], rest[5]),
                                 pack(rest[6], rest[7])));
#pragma unroll
            for (int i = 0; i < 8; i++) rest[i] -= widen(narrow(rest[i]));
        }
    }
}

/*
 * (1 + A)^-1 to `memory` of A, which warps have written before a barrier and which is overwritten. With halves of rows
 * and columns the inverse is T11, T22 and T21 = -T22 (A21 T11). Blocks above the diagonal nobody reads.
 */
DEVICE void invert_all(float *a, float *memory) {
    const bool works = WARPS == 4 || threadIdx.x < 128;
    float *below = a + 32 * PITCH, *second = memory + 32 * PITCH;
    float sum[8];
    if (threadIdx.x < 64) solve(a, threadIdx.x / 32, memory);
    __syncthreads();
    if (works) {
        multiply_halves(below, memory, sum);
        __syncwarp(); /* rows of A21 are read by one warp */
        store_halves(sum, 1, below);
    }
    __syncthreads();
    if (works) {
        multiply_halves(second + 32, below, sum);
        store_halves(sum, -1, second);
    }
    __syncthreads();
}

/* T of A; A and `memory` are overwritten. Gradients are given the inverse, turned, behind T. */
DEVICE void invert(float *a, const float *betas, float *memory, char *to) {
    invert_all(a, memory);
    put_blocks<TERMS, false>(memory, betas, to);
    if (SQUARE) clear_others(to, false);
    if (SQUARE && BACK) clear_others(to + TERMS * BLOCKS, true);
    if (BACK) put_blocks<TERMS, true>(memory, NULL, to + TERMS * BLOCKS);
}

#endif
