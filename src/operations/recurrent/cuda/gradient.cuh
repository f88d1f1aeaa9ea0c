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
} rec_gradient;

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
