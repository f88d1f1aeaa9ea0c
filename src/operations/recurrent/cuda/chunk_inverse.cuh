/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels that work on all chunks at once do alike: which chunk a block has, rows to be normalised, and the
 * inverse.
 * Constants: KEY_SIZE, TERMS, BACK, SQUARE; INVERSE_PIECES (as many as T has unless given), HEADS of a block (1 unless
 * given).
 */
#ifndef EJKI_RECURRENT_CHUNK_INVERSE_CUH
#define EJKI_RECURRENT_CHUNK_INVERSE_CUH

#ifndef WARPS
#define WARPS 4
#endif
#ifndef HEADS
#define HEADS 1
#endif
#include "operations/recurrent/cuda/chunk.cuh"
#include "operations/recurrent/cuda/chunk_solve.cuh"
#include "operations/recurrent/cuda/rows.cuh"

#define TILE  (REC_CHUNK * pitch_of(KEY_SIZE) * 2)

/* A chunk of a head: its first row in the sequence, and how many rows there are. */
struct chunk_of_head {
    rec_sequence q;
    rec_size h, place, first, steps;
    int rows;
};
/* That of the block, of the first of its heads; whether there is one. */
DEVICE bool find_chunk(const rec_problem &p, chunk_of_head &c) {
    const u32 groups = (u32)p.heads / HEADS, chunk = blockIdx.x / groups;
    c.h = (blockIdx.x - chunk * groups) * HEADS, c.place = (rec_size)blockIdx.x * HEADS;
    c.q = rec_sequence_of(&p, rec_sequence_at(&p, chunk));
    c.first = (chunk - rec_first_chunk(&p, c.q.index, c.q.begin)) * REC_CHUNK, c.steps = c.q.end - c.q.begin;
    c.rows = (int)(c.steps - c.first < REC_CHUNK ? c.steps - c.first : REC_CHUNK);
    return c.first < c.steps;
}

/* Begins to copy rows of the chunk, of `heads` heads, to a tile. */
DEVICE void copy_rows(const rec_problem &p, const chunk_of_head &c, int role, rec_size heads, u32 tile) {
    const rows_of rows = rows_in(p, p.view[role], c.q, rec_head(&p, c.h, heads), 0);
    copy_tile<REC_CHUNK, KEY_SIZE>(tile, rows, (int)c.first, (int)c.steps, 1);
}

DEVICE float squares_of(const uint4 &x) {
    const u32 word[] = {x.x, x.y, x.z, x.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = widen_pair(word[i]);
        sum += two.x * two.x + two.y * two.y;
    }
    return sum;
}
/* What a row is multiplied by to be normalised, of which this is the sum of squares. */
DEVICE float factor_of(float squares) {
    return 1 / sqrtf(squares + (float)REC_EPSILON);
}
/* Of a row, by two neighbouring threads, each of which has half of its pieces. */
DEVICE float factor_of_pair(const rec_problem &p, u32 tile, int row) {
    enum { PIECES = KEY_SIZE / 16 };
    const int half = threadIdx.x % 2;
    float sum = 0;
    if (!p.normalise) return 1;
#pragma unroll
    for (int n = 0; n < PIECES; n++) /* others of four rows are in other banks */
        sum += squares_of(load_piece(piece_at<KEY_SIZE>(tile, row, half * PIECES + (n ^ half * 4) % PIECES)));
    return factor_of(sum_of_lanes(sum, 2));
}

/* ---- T and P ---------------------------------------------------------------------------------------- */

/* A lane's part of a block of 16 x 16 of T or P, as a right operand, to memory. */
DEVICE void put_block(char *to, int row, int column, const uint4 &x) {
    const int lane = threadIdx.x % 32;
    char *block = to + (row * (row + 1) / 2 + column) * REC_TILE_BYTES;
    if (SQUARE) {
        char *own = block + lane / 4 * 32 + lane % 4 * 4;
        *(u32 *)own = x.x, *(u32 *)(own + 16) = x.y;
        *(u32 *)(own + 8 * 32) = x.z, *(u32 *)(own + 8 * 32 + 16) = x.w;
    } else {
        ((uint4 *)block)[lane] = x;
    }
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
 * NULL. With `turned`, without these, sums are over rows, else over columns.
 */
template <int pieces, bool turned> DEVICE void put_blocks(const float *from, const float *betas, char *to) {
    for (int tile = threadIdx.x / 32; tile < REC_TILES; tile += WARPS) {
        const int row = rec_block_row(tile), column = rec_block_column(tile);
        float rest[8];
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const int own = 16 * row + element_row(i), other = 16 * column + element_column(i);
            if (turned) {
                const float *at = from + (16 * row + element_column(i)) * PITCH + 16 * column + element_row(i);
                rest[i] = at[0], rest[i + 1] = at[PITCH];
            } else {
                const float2 two = *(const float2 *)(from + own * PITCH + other);
                const float2 by = betas ? *(const float2 *)(betas + other) : make_float2(1, 1);
                rest[i] = two.x * by.x, rest[i + 1] = two.y * by.y;
            }
        }
#pragma unroll
        for (int piece = 0; piece < pieces; piece++) {
            put_block(to + piece * REC_TRIANGLE_BYTES, row, column,
                      make_uint4(pack(rest[0], rest[1]), pack(rest[2], rest[3]), pack(rest[4], rest[5]),
                                 pack(rest[6], rest[7])));
#pragma unroll
            for (int i = 0; i < 8; i++) rest[i] -= widen(narrow(rest[i]));
        }
    }
}

/* T of A, in whose place its floats are made. Gradients are given the inverse, turned, behind T. */
DEVICE void invert(float *a, const float *betas, char *to) {
    invert_all(a);
    put_blocks<TERMS, false>(a, betas, to);
    if (BACK) put_blocks<TERMS, true>(a, NULL, to + TERMS * REC_TRIANGLE_BYTES);
}

#endif
