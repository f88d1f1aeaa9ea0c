/* SPDX-License-Identifier: Apache-2.0 */
/* fused_cross_entropy and its gradient as their kernels see them. Strides count elements. */
#ifndef EJKI_FUSED_CROSS_ENTROPY_PROBLEM_CUH
#define EJKI_FUSED_CROSS_ENTROPY_PROBLEM_CUH

#include "operations/loss/shared/tokens.cuh"

typedef struct loss_problem {
    mm_size batch, tokens, vocab;
    mm_size width; /* of hidden; -1: logits are given */
    mm_size block_tokens, block_classes;
    loss_view logits, hidden, targets, weights, mask, soft;
    loss_view lse; /* a result, or an input of gradients */
    loss_view d_logits, d_hidden;
    mm_view weight, bias, d_weight, d_bias;
    void *loss, *z_loss_out, *weight_sum, *accuracy; /* gradients: `loss` is the cotangent */
    int dtype, result, gradient; /* types of logits or hidden, and of results */
    int sums;                    /* reduction */
    mm_size ignore;
    double cap; /* 0: none */
    double z;
    double right, wrong, constant; /* q of the target and of others, Σ q log q */
} loss_problem;

/* Element (b, t) of a view. */
MM mm_size loss_at(const loss_problem *p, const loss_view *v, mm_size row) {
    return loss_token_at(v, p->tokens, row);
}

MM mm_size loss_rows(const loss_problem *p) {
    return p->batch * p->tokens;
}

#endif
