/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of attention over pages share. A tile is TILE of a sequence's pairs of a row and a query head of one
 * head of the keys; tile j of sequence n has number floor(begin[n] * group / TILE) + n + j, so that a block finds its
 * sequence without adding up, and no two tiles have the same number.
 *
 * Nobody has looked at tables, lengths and starts before. look.cu does; what it has found wrong is in `flags`: of a
 * sequence, whose rows become 0 with LSE -inf, and behind the last sequence, of starts, which concerns all rows.
 */
#ifndef EJKI_PAGED_CUDA_PAGED_CUH
#define EJKI_PAGED_CUDA_PAGED_CUH

#include "operations/paged/shared/problem.cuh"

enum { PAGED_TILE = 16, PAGED_STEP = 32, PAGED_THREADS = 128, PAGED_CLEARING = 32 };
enum { PAGED_UPDATE_HEADS = 4 }; /* of a token, that a warp writes */
/* Keys of a sequence with few rows are dealt out to so many blocks at most, so many to each at least. */
enum { PAGED_SPLITS = 32, PAGED_LEAST_KEYS = 256, PAGED_SPLIT_STEP = 128 };
/* Kernels with tensor cores split keys of sequences that have no more pairs of a row and a head than these. */
enum { PAGED_FEW = 32, PAGED_FEW_SPLITS = 16 };
/* CTAs of join.cu on an SM: as many as registers allow. */
enum { PAGED_JOIN_THREADS = 256, PAGED_JOIN_RESIDENT = 3 };
/* Splits whose parts are folded before they are joined; PAGED_FEW_SPLITS is a multiple. */
enum { PAGED_RUN = 4 };
/* Of latents: whose sums are many, so that a split has to be worth them. */
enum { PAGED_FEW_LATENT = 512, PAGED_LATENT_SPLITS = 8, PAGED_LEAST_LATENT_KEYS = 2048 };

typedef struct paged_arguments {
    paged_problem p;
    int *flags;       /* [sequences + 1] */
    float *parts;     /* [sequences, kv_heads, splits, group, value_dim + 2]: sums, then maximum and sum of weights */
    paged_size tiles; /* of a head of the keys */
    paged_size splits;
    /* Of kernels with tensor cores: sums [rows, heads, splits, value_dim] and, behind them, maxima and sums of
     * weights [rows, heads, splits, 2], maxima being exponents of 2; rows are tokens or, above 0, `rows_most` of each
     * sequence. */
    float *ends;
    paged_size rows_most;
    int waits;          /* the kernel is the first of a call, launched while the one ahead may still run */
    paged_size few;     /* pairs of sequences that attend.cu leaves to others */
    int *tickets;       /* of latent.cu, so many, which look.cu clears */
    paged_size ticket_count;
} paged_arguments;

/* Keys of each split. */
PAGED paged_size paged_split_keys(paged_size keys, paged_size splits, paged_size least) {
    const paged_size each = (keys + splits - 1) / splits;
    return paged_most((each + PAGED_SPLIT_STEP - 1) / PAGED_SPLIT_STEP * PAGED_SPLIT_STEP, least);
}

/* Where the part of a split begins. */
PAGED paged_size paged_part(const paged_arguments *a, paged_size n, paged_size head, paged_size split) {
    const paged_problem *p = &a->p;
    return ((n * p->kv_heads + head) * a->splits + split) * p->group * (p->value_dim + 2);
}

#endif
