/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of cross_entropy.cu are launched with. */
#ifndef EJKI_FUSED_CROSS_ENTROPY_ARGUMENTS_CUH
#define EJKI_FUSED_CROSS_ENTROPY_ARGUMENTS_CUH

#include "operations/loss/fused_cross_entropy/problem.cuh"

#define LOSS_I64 5 /* as ejk_dtype has it */

/* What is known of a token: loss_sums of rows.h, sums relative to the largest logit. */
typedef struct loss_state {
    float max, sum, target, linear, mass, most_soft;
    int best, best_soft;
} loss_state;

/* A token's share in the results, times its weight. */
typedef struct loss_share {
    float loss, z, right, weight;
} loss_share;

/* What serve() does: small kernels that have one slot together. */
enum {
    LOSS_TOTALS,
    LOSS_WEIGH,
    LOSS_PACK,
    LOSS_CLEAR,
    LOSS_PUT_HIDDEN,
    LOSS_PUT_WEIGHT,
    LOSS_ADD_BIAS
};

typedef struct loss_arguments {
    int serves;
    loss_problem p;
    loss_view x;  /* logits: those of the call, or the block's, whose first token is `first` */
    loss_view to; /* slopes, likewise */
    mm_size first, rows;
    mm_size class_first, classes;
    int begins, ends; /* the block has the first, the last class */
    int folds;        /* gradients: sums are not known yet */
    int adds, closes; /* sums over tokens go on, end */
    loss_state *states;
    loss_share *shares;
    float *each; /* d_loss and the division of a mean */
    void *hidden;
    float *d_hidden, *d_weight, *d_bias;
    float *clears; /* rows of clear_width floats */
    mm_size clear_width;
    mm_size stride; /* of rows of blocks */
} loss_arguments;

#endif
