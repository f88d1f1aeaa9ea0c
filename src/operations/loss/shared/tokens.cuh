/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors whose first axes are those of tokens, as kernels of losses see them. Strides count elements. */
#ifndef EJKI_LOSS_TOKENS_CUH
#define EJKI_LOSS_TOKENS_CUH

#include "operations/matmul/shared/product.cuh"

/*
 * Threads of a block of a GPU's kernels: one has a token. At a token's end few loads are under way, so that several
 * blocks of a multiprocessor have to be: cross entropy read at 65 % of an H200's bandwidth with 512, at 80 % with 256.
 */
#define LOSS_THREADS 256

/* [B,T] or [B,T,…], the last axis contiguous. dtype 0: absent. */
typedef struct loss_view {
    void *data;
    mm_size batch, token;
    int dtype;
} loss_view;

/* The first element of a token: `row` counts those of all entries of a batch, which have `tokens` each. */
MM mm_size loss_token_at(const loss_view *v, mm_size tokens, mm_size row) {
    return row / tokens * v->batch + row % tokens * v->token;
}

#endif
