/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of logits on GPUs: a block of LOSS_THREADS threads has a token, and each thread runs of VECTOR logits. ELEMENT:
 * type of logits, OUT: of their gradients; WIDE: runs lie at multiples of their size.
 */
#ifndef EJKI_LOSS_ROWS_CUH
#define EJKI_LOSS_ROWS_CUH

#include "kernels/cuda/element.cuh"
#include "operations/loss/shared/tokens.cuh"

#define THREADS LOSS_THREADS
#define VECTOR  (16 / (int)sizeof(element))
#define WARPS   (THREADS / 32)
#define BLOCKS  (1024 / THREADS) /* of a multiprocessor at least: 64 registers a thread */

typedef run_of<ELEMENT, VECTOR> run;
typedef run_of<OUT, VECTOR> out_run;

/* What a token counts: 0 where the mask is false, whatever its weight is. */
DEVICE float weight_at(const loss_view &mask, const loss_view &weights, i64 tokens, i64 row) {
    if (mask.dtype && !((const u8 *)mask.data)[loss_token_at(&mask, tokens, row)]) return 0;
    return weights.dtype ? load_float(weights.dtype, weights.data, loss_token_at(&weights, tokens, row)) : 1;
}

/* Logits from `at` on, of which `left` are there; -inf for the others. */
DEVICE run get(const element *at, i64 left) {
    if (WIDE && left >= VECTOR) return *(const run *)at;
    run value;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) value.at[i] = i < left ? at[i] : narrow(NEG_INF);
    return value;
}

/* `streams`: what is written is not read soon, and takes no place in caches from what is. */
DEVICE void put(element_of<OUT>::bits *at, i64 left, const float (&d)[VECTOR], bool streams) {
    if (WIDE && left >= VECTOR) {
        out_run value;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) value.at[i] = bits_of<OUT>(d[i]);
        if (streams && sizeof value == 16)
            __stcs((uint4 *)at, *(const uint4 *)&value);
        else
            *(out_run *)at = value;
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (i < left) at[i] = bits_of<OUT>(d[i]);
    }
}

/* Sums over all threads of the block, in a fixed order. */
DEVICE double sum_of_block(double value) {
    __shared__ double shared[THREADS];
    __syncthreads();
    shared[threadIdx.x] = value;
    for (int step = THREADS / 2; step; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) shared[threadIdx.x] += shared[threadIdx.x + step];
    }
    __syncthreads();
    return shared[0];
}

#endif
