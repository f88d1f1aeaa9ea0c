/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the gradients on GPUs, read by the C compiler and by NVRTC. A token of a head has a row of floats with what
 * its columns add up to, of which others make gradients of tensors:
 *
 *     dq, dk; with key decays dg; of rank-one updates da, db      [Dk] each, one after the other
 *     dv                                                          [Dv]
 *     d_beta, dg of the head, u · d_out, x · d_out
 *
 * of which dq is without its own token's part, and dg is that of log decays.
 */
#ifndef EJKI_RECURRENT_GRADIENT_CUH
#define EJKI_RECURRENT_GRADIENT_CUH

#include "operations/recurrent/shared/problem.cuh"

/* Tokens between two states that are kept; all states of such a segment are made again at once. */
#define REC_SEGMENT 32

/* Vectors of a row, in their order, and its numbers. */
enum rec_sums { REC_SUM_QUERY, REC_SUM_KEY, REC_SUM_GATE, REC_SUM_A, REC_SUM_B };
enum rec_numbers { REC_D_BETA, REC_D_HEAD, REC_ALONG_U, REC_ALONG_X, REC_NUMBERS };

typedef struct rec_gradient {
    rec_problem p;
    float *sums;   /* [B,T,H][row] */
    float *kept;   /* states before each segment, [segments][H][state] */
    float *states; /* of the segment at hand, for each block of the grid [REC_SEGMENT][state of a tile + u and x] */
    rec_size tasks, segments, width; /* sequences x heads; of all sequences; floats of a row */
    int direct;                      /* rec_direct: what is in its tensor already */
    int apart;                       /* dq and dk of so many heads, that share both, are in the row of the first */
    const float *bonuses; /* of chunks, [chunks][H][Dk], whose sum is that of the bonus; NULL if tokens tell */
} rec_gradient;

/* Gradients that need no sum over heads, which chunks store where they belong; whether dq has its own token's part. */
enum rec_direct {
    REC_DIRECT_QUERY = 1,
    REC_DIRECT_KEY = 2,
    REC_DIRECT_VALUE = 4,
    REC_WHOLE_QUERY = 8,
    REC_DIRECT_GATE = 16 /* of key channels */
};

/* Vectors of a token that spread() of gradient_sums.cu makes of rows, by warps; heads have some of gates. */
REC rec_size rec_spread(const rec_problem *p, int direct) {
    const int has_gates = p->key_decay && !(direct & REC_DIRECT_GATE);
    const int has_vectors = has_gates || p->value_decay || p->update == REC_RANK_ONE;
    return (direct & REC_DIRECT_QUERY ? 0 : p->query_heads) + (direct & REC_DIRECT_KEY ? 0 : p->key_heads) +
           (direct & REC_DIRECT_VALUE ? 0 : p->value_heads) + (has_vectors ? p->heads : 0);
}
/* Blocks for these. */
REC rec_size rec_spread_blocks(const rec_problem *p, int direct, int threads) {
    return (p->batch * p->tokens * rec_spread(p, direct) + threads / 32 - 1) / (threads / 32);
}

/* Vectors of Dk floats that a row begins with. */
REC int rec_vectors(const rec_problem *p) {
    return p->update == REC_RANK_ONE ? 5 : p->key_decay ? 3 : 2;
}
REC rec_size rec_row_size(const rec_problem *p) {
    return rec_vectors(p) * p->key_size + p->value_size + REC_NUMBERS;
}

/* The first segment of a sequence. */
REC rec_size rec_first_segment(const rec_problem *p, const rec_sequence *s) {
    return p->packed ? s->begin / REC_SEGMENT + s->index
                     : s->index * ((p->tokens + REC_SEGMENT - 1) / REC_SEGMENT);
}
REC rec_size rec_segments(const rec_problem *p) {
    return p->packed ? p->tokens / REC_SEGMENT + p->sequences
                     : p->sequences * ((p->tokens + REC_SEGMENT - 1) / REC_SEGMENT);
}

#endif
