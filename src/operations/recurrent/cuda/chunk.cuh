/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two kernels of the chunked form hand to each other on GPUs, read by the C compiler and by NVRTC. A chunk is
 * REC_CHUNK tokens of a sequence, counted from its first; with G the sum of log decays since the chunk's beginning, S
 * the state before it, and rows q, k of queries and keys as the recurrence has them,
 *
 *     u = T (v - e^G (S'k))             T = (1 + A)^-1 diag(beta),  A_ts = beta_t e^(G_t - G_s) k_t.k_s, s < t
 *     out = e^G (S'q) + P u             P_ts = e^(G_t - G_s) q_t.k_s, s <= t
 *     S = e^G_end S + sum_s e^(G_end - G_s) k_s u_s'
 *
 * of delta rules; of sums u = v. chunk_prepare.cu makes T, P and factors of rows for all chunks at once, and where
 * decays are those of key channels, so that e^G is a factor of elements, chunk_prepare_key.cu makes T, P and the
 * operands with their decays; of rank-one updates chunk_prepare_rank.cu makes P and operands that T is in. On sm_90
 * walks of sums with decays of heads make P themselves, of what chunk_factors.cu makes. chunk_scan.cu walks over
 * chunks. No factor is the inverse of a decay.
 *
 * Gradients: chunk_scan.cu keeps states and u; chunk_back.cu walks backwards with dS, the cotangent of the state,
 *
 *     y = (1 + A)^-T (e^(G_end - G) dS'k + P' d_out),  dv = beta y     of sums y = dv without the inverse
 *     dS = e^G_end dS + sum_t e^G_t (q_t d_out_t' - k_t dv_t')
 *
 * and keeps dS and y, from which chunk_rows.cu makes the gradients of all chunks at once. P has as many pieces as T
 * then, and is turned; behind T lies (1 + A)^-1, turned.
 */
#ifndef EJKI_RECURRENT_CHUNK_CUH
#define EJKI_RECURRENT_CHUNK_CUH

#include "operations/recurrent/shared/problem.cuh"

#define REC_CHUNK 64

/*
 * T and P are blocks of 16 x 16 on and below the diagonal, row by row, as right operands of a warp's products: 16 bytes
 * a lane. T has several pieces, which add up to it. For wgmma a block is 16 rows, which its walk has in squares of
 * shared memory: rows of 128 bytes under the swizzle of as many, with zeros elsewhere.
 */
#define REC_TILES          10
#define REC_TILE_BYTES     512
#define REC_TRIANGLE_BYTES (REC_TILES * REC_TILE_BYTES)
#define REC_SQUARE_BYTES   (REC_CHUNK * 128)

/*
 * Factors of rows, REC_CHUNK each: of S'k, of S'q (with the scale), of k u'; that of the state; S'k's times beta. Where
 * the walk makes P itself, also what decays between rows are made of (two floats a row), and of keys.
 */
enum rec_factors {
    REC_SEEN,
    REC_ASKED,
    REC_LEFT,
    REC_PASSED,
    REC_UNSEEN,
    REC_FACTOR_ROWS,
    REC_PAIRS = REC_FACTOR_ROWS,
    REC_OF_KEYS = REC_PAIRS + 2,
    REC_MORE_ROWS
};

typedef struct rec_chunked {
    rec_problem p;
    char *inverses, *scores; /* [chunks][H][pieces][REC_TILES], [chunks][H][REC_TILES]; of gradients see below */
    char *operands;          /* [chunks][H][3 or 4][REC_CHUNK][Dk]: with key decays what S'k, S'q and k u' are of;
                        of rank-one updates also what is written for S'k */
    float *factors;          /* [chunks][H][REC_FACTOR_ROWS][REC_CHUNK], with key decays of the state, and beta:
                        [chunks][H][Dk + REC_CHUNK] */
    rec_size chunks;         /* at most, of all sequences */
    /*
     * Of gradients only: states before chunks and cotangents behind them, [chunks][H][Dv][Dk]; u of delta rules and the
     * cotangent of v - e^G (S'k) over beta, of sums that of v, [chunks][H][REC_CHUNK][Dv]; gradient.cuh's rows. Where
     * TERMS is 1, but for the latter they are bf16: states in blocks of 8 x 8, [Dv / 8][Dk / 8], the others as left
     * operands of 16 x 16, [Dv / 16][REC_CHUNK / 16], of 16 bytes a lane.
     */
    float *states, *cotangents, *solved, *backs, *sums;
    float *bonuses; /* gradient of the bonus, of each chunk: [chunks][H][Dk] */
    rec_size width; /* of a row */
    int direct;     /* rec_direct, where it is no constant: see gradient.cuh */
} rec_chunked;

/* The row of blocks that a block is in, and its column. */
REC int rec_block_row(int block) {
    return block >= 6 ? 3 : block >= 3 ? 2 : block >= 1;
}
REC int rec_block_column(int block) {
    const int row = rec_block_row(block);
    return block - row * (row + 1) / 2;
}

/* The first chunk of sequence n, which begins at a token; and more than there are of all. */
REC rec_size rec_first_chunk(const rec_problem *p, rec_size n, rec_size begin) {
    return p->packed ? begin / REC_CHUNK + n : n * ((p->tokens + REC_CHUNK - 1) / REC_CHUNK);
}
REC rec_size rec_chunks(const rec_problem *p) {
    if (!p->packed) return p->sequences * ((p->tokens + REC_CHUNK - 1) / REC_CHUNK);
    return p->sequences > 0 ? p->tokens / REC_CHUNK + p->sequences : 0;
}

/* Chunks of a sequence. */
REC rec_size rec_chunks_of(const rec_sequence *s) {
    return (s->end - s->begin + REC_CHUNK - 1) / REC_CHUNK;
}

/* The last sequence that begins at or before a chunk. */
REC rec_size rec_sequence_at(const rec_problem *p, rec_size chunk) {
    rec_size low = 0, high = p->sequences - 1;
    if (!p->packed) return (unsigned)chunk / (unsigned)((p->tokens + REC_CHUNK - 1) / REC_CHUNK);
    while (low < high) {
        const rec_size middle = (low + high + 1) / 2;
        if (rec_first_chunk(p, middle, rec_end(p, middle)) <= chunk)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

#endif
