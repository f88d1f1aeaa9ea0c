/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused_kl_divergence and its gradient as their kernels see them. A direction says which distribution is the first of
 * KL(first, second): the teacher's forward, the student's in reverse; in "jsd" both are compared to their mean, and the
 * first is the teacher's.
 */
#ifndef EJKI_FUSED_KL_DIVERGENCE_PROBLEM_CUH
#define EJKI_FUSED_KL_DIVERGENCE_PROBLEM_CUH

#include "operations/loss/shared/tokens.cuh"

enum { KL_MEAN, KL_SUM, KL_NONE };

typedef struct kl_problem {
    mm_size batch, tokens, vocab;
    loss_view first, second, weights, mask;
    loss_view first_lse, second_lse; /* results, or inputs of gradients */
    loss_view d_first, d_second;
    loss_view loss, entropy; /* strides are 0 unless each token has its own; gradients: `loss` is the cotangent */
    void *weight_sum;
    int dtype, result, gradient; /* types of logits and of results */
    int mixes;                   /* jsd */
    int teaches;                 /* the first distribution is the teacher's */
    int reduction;
    double temperature, beta; /* beta: what the first has of the mean of both */
} kl_problem;

MM mm_size kl_rows(const kl_problem *p) {
    return p->batch * p->tokens;
}

#endif
