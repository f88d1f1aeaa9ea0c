/* SPDX-License-Identifier: Apache-2.0 */
/* What gradients of a token are collected in, and what every kernel of gradients knows. Include after token_body.h. */
#ifndef EJKI_RECURRENT_GRADIENT_H
#define EJKI_RECURRENT_GRADIENT_H

#include "operations/recurrent/cpu/scan/token_body.h"

/* Sums over columns that a token has collected; rows as in a token. */
typedef struct gradient {
    float *q, *k, *g, *a, *b; /* g: of log decays of key channels */
    float beta, head;         /* head: of log decays, over all channels */
    float along_u, along_x;   /* of d_out, with the scale */
    float qk, qa, own;        /* as in the token, without the scale */
} gradient;

enum { GRADIENT_ROWS = 5 };

/*
 * What a kernel's `work` begins with: the head of a sequence that is worked on, and where gradients of query, key and
 * value are summed up over the heads that share them, in floats: [tokens of the sequence][shared][pitch]. Where no
 * heads share anything there are no such sums, and gradients go straight to their tensors.
 */
#define WORK_FIELDS                                                                                \
    const rec_problem *p;                                                                          \
    rec_sequence q;                                                                                \
    rec_size h, pitch, value_pitch;                                                                \
    rec_size groups, in_group; /* groups of heads, heads of one */                                 \
    rec_size shared[3];        /* heads of query, key and value in a group */                      \
    float *sum[3];                                                                                 \
    float *partial; /* [sequences][heads][partial_size]: gamma, A_log, dt_bias, bonus */

#endif
