/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_space_v2 and its gradient as their steps see them: read by the C compiler and by NVRTC, so plain types only.
 * The recurrence comes first, so that kernels of the recurrent family, which take nothing else, are steps: c is their
 * query, b their key, x their value, step sizes their gates and rates, h is [Dv,Dk]. What is read, y, goes where its
 * view of the output says; behind it comes the step of gate and norm, "state_space_v2_gate". Backwards y is computed
 * again, that step turns y into its cotangent, and the gradients of the recurrence follow.
 *
 * Rows of tokens have strides b, t, h and a contiguous last axis. Strides count elements.
 */
#ifndef EJKI_STATE_SPACE_V2_PROBLEM_CUH
#define EJKI_STATE_SPACE_V2_PROBLEM_CUH

#include "operations/recurrent/shared/problem.cuh"

typedef struct ssd_problem {
    rec_problem recurrence;
    int has_gate, has_norm, norm_first;
    int keeps_y; /* y, and backwards its cotangent, lies in memory that steps share: rows [B,T,H,P] of y.dtype */
    rec_size group; /* numbers of one mean */
    double eps;
    rec_view y, result; /* result: out, or its cotangent */
    rec_view gate, d_gate, weight, d_weight;
} ssd_problem;

/* Numbers of a token. */
REC rec_size ssd_width(const ssd_problem *p) {
    return p->recurrence.heads * p->recurrence.value_size;
}

/* Row n of all B·T, head h. */
REC rec_size ssd_at(const ssd_problem *p, const rec_view *v, rec_size n, rec_size h) {
    const rec_size tokens = p->recurrence.tokens;
    return rec_at(v, n / tokens, n % tokens, h);
}

/* Whether a row is a token of a sequence. */
REC int ssd_counts(const ssd_problem *p, rec_size n) {
    return n % p->recurrence.tokens < rec_covered(&p->recurrence);
}

#endif
