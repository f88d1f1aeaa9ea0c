/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels that work on all chunks at once do alike: which chunk a block has, rows to be normalised, and the
 * inverse.
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

/* A chunk of a head: its first row in the sequence, and how many rows there are. */
struct chunk_of_head {
    rec_sequence q;
    rec_size h, place, first, steps;
    int rows;
};
/* That of the block; whether there is one. */
DEVICE bool find_chunk(const rec_problem &p, chunk_of_head &c) {
    const rec_size chunk = blockIdx.x / p.heads;
    c.h = blockIdx.x % p.heads, c.place = blockIdx.x;
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

/* Blocks on the diagonal are solved by substitution, one by each of four warps. */
#define OWN (REC_CHUNK / 4)

DEVICE bool inverts() {
    return WARPS == 4 || threadIdx.x < 128;
}

/*
 * The inverse of the warp's own block, a column a lane, which is in registers; the lanes behind these write the zeros
 * that are read with it, beside blocks of even warps.
 */
DEVICE void solve(const float *a, float *to) {
    const int warp = threadIdx.x / 32, column = threadIdx.x % 32, first = OWN * warp;
    float x[OWN];
    if (column >= OWN && warp % 2) return;
#pragma unroll
    for (int t = 0; t < OWN; t++) {
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
    for (int t = 0; t < OWN; t++) to[(first + t) * PITCH + first + column] = x[t];
}

/* A thread's row of a product of blocks of `size` x `size`, by 4 size threads, and its part of the columns. */
template <int size> DEVICE int row_of_block() {
    return threadIdx.x % (4 * size) / 4;
}
template <int size> DEVICE void multiply_blocks(const float *left, const float *right, float (&sum)[size / 4]) {
    const float *row = left + row_of_block<size>() * PITCH, *columns = right + threadIdx.x % 4 * (size / 4);
#pragma unroll
    for (int i = 0; i < size / 4; i++) sum[i] = 0;
#pragma unroll 4
    for (int r = 0; r < size; r++) {
        const float by = row[r];
#pragma unroll
        for (int i = 0; i < size / 4; i += 4) {
            const float4 x = *(const float4 *)(columns + r * PITCH + i);
            sum[i] += by * x.x, sum[i + 1] += by * x.y, sum[i + 2] += by * x.z, sum[i + 3] += by * x.w;
        }
    }
}
template <int size> DEVICE void store_block(const float (&x)[size / 4], float sign, float *to) {
    float *at = to + row_of_block<size>() * PITCH + threadIdx.x % 4 * (size / 4);
#pragma unroll
    for (int i = 0; i < size / 4; i++) at[i] = sign * x[i];
}

/* T21 = -T22 (A21 T11) of a block of 2 size columns at `a` and `to`, where T11 and T22 are; A21 is overwritten. */
template <int size> DEVICE void join(float *a, float *to) {
    float sum[size / 4], *below = a + size * PITCH, *second = to + size * PITCH;
    if (inverts()) {
        multiply_blocks<size>(below, to, sum);
        __syncwarp(); /* rows of A21 are read by one warp */
        store_block<size>(sum, 1, below);
    }
    __syncthreads();
    if (inverts()) {
        multiply_blocks<size>(second + size, below, sum);
        store_block<size>(sum, -1, second);
    }
    __syncthreads();
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
 * (1 + A)^-1 to `memory` of A, which warps have written before a barrier and which is overwritten. Blocks on the
 * diagonal are joined two by two. Blocks above the diagonal nobody reads.
 */
DEVICE void invert_all(float *a, float *memory) {
    const int half = threadIdx.x / (4 * OWN) * 2 * OWN * (PITCH + 1); /* of two warps */
    if (inverts()) solve(a, memory);
    __syncthreads();
    join<OWN>(a + half, memory + half);
    join<2 * OWN>(a, memory);
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
