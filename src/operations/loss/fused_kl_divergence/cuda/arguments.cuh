/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of kl_divergence.cu are launched with. */
#ifndef EJKI_FUSED_KL_DIVERGENCE_ARGUMENTS_CUH
#define EJKI_FUSED_KL_DIVERGENCE_ARGUMENTS_CUH

#include "operations/loss/fused_kl_divergence/problem.cuh"

/* A token's share in the results, times its weight. */
typedef struct kl_share {
    float loss, entropy, weight;
} kl_share;

typedef struct kl_arguments {
    kl_problem p;
    float scale, unit; /* y = scale · (x - base) are powers of two; 1 of y is `unit` of x / temperature */
    int sums;          /* gradients: what is given of lse is not enough */
    kl_share *shares;
    float *each; /* gradients: what all tokens have in common */
} kl_arguments;

#endif
