/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mean_pooling as its kernels see it: read by the C compiler and by NVRTC, so plain types only. Rows of y are means
 * of tokens of x; the gradient reads y and writes x. Trailing axes are runs of `width` elements, contiguous in both,
 * outer[0] x outer[1] x outer[2] of them. Strides count elements.
 */
#ifndef EJKI_MEAN_POOLING_PROBLEM_CUH
#define EJKI_MEAN_POOLING_PROBLEM_CUH

#ifdef __CUDACC_RTC__
#define POOL static __device__ __forceinline__
#else
#include <string.h>
#define POOL static inline
#endif

typedef long long pool_size;

typedef struct pool_view {
    void *data;
    pool_size batch, step, outer[3]; /* strides; `step` is that of tokens or rows */
} pool_view;

typedef struct pool_problem {
    pool_size batch, tokens, rows; /* rows of each batch entry */
    pool_size chunk;               /* 0: whole sequences */
    pool_size sequences;           /* packed ones */
    pool_size outer[3], width;
    pool_view x, y;
    const void *ends; /* with `packed`: sequences + 1 numbers of 4 bytes, or of 8 with `wide` */
    int packed, wide, dtype, gradient;
} pool_problem;

/* Tokens begin to end - 1 are those of a row; row -1: a token is in none. */
typedef struct pool_range {
    pool_size row, begin, end;
} pool_range;

/* What cu_seqlens says, kept inside: on a GPU nobody has looked at it before. The CPU's may lie anywhere. */
POOL pool_size pool_end(const pool_problem *p, pool_size n) {
    pool_size value;
#ifdef __CUDACC_RTC__
    value = p->wide ? ((const pool_size *)p->ends)[n] : ((const int *)p->ends)[n];
#else
    int narrow;
    if (p->wide) {
        memcpy(&value, (const char *)p->ends + n * 8, sizeof value);
    } else {
        memcpy(&narrow, (const char *)p->ends + n * 4, sizeof narrow);
        value = narrow;
    }
#endif
    return value < 0 ? 0 : value > p->tokens ? p->tokens : value;
}

POOL pool_size pool_least(pool_size a, pool_size b) {
    return a < b ? a : b;
}

/* The first row of a sequence. */
POOL pool_size pool_first(const pool_problem *p, pool_size n) {
    return (p->chunk ? pool_end(p, n) / p->chunk : 0) + n;
}

/* The last sequence that begins at or before a row, or a token: first rows and ends ascend. */
POOL pool_size pool_find(const pool_problem *p, pool_size at, int is_row) {
    pool_size low = 0, high = p->sequences;
    while (high - low > 1) {
        const pool_size middle = (low + high) / 2;
        if ((is_row ? pool_first(p, middle) : pool_end(p, middle)) <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Chunk `index` of the tokens begin to end - 1. */
POOL pool_range pool_chunk(const pool_problem *p, pool_size row, pool_size index, pool_size begin,
                           pool_size end) {
    pool_range range = {row, begin, end};
    if (!p->chunk) return range;
    const pool_size size = end - begin, chunks = size / p->chunk + (size % p->chunk != 0);
    range.begin = index >= chunks ? end : begin + index * p->chunk;
    range.end = end - range.begin < p->chunk ? end : range.begin + p->chunk;
    return range;
}

POOL pool_range pool_of_row(const pool_problem *p, pool_size row) {
    const pool_range none = {row, 0, 0};
    if (!p->packed) return pool_chunk(p, row, row, 0, p->tokens);
    if (p->sequences == 0) return none;
    const pool_size n = pool_find(p, row, 1), begin = pool_end(p, n), end = pool_end(p, n + 1);
    return end < begin ? none : pool_chunk(p, row, row - pool_first(p, n), begin, end);
}

POOL pool_range pool_of_token(const pool_problem *p, pool_size token) {
    const pool_range none = {-1, token, p->tokens};
    if (!p->packed) {
        const pool_size row = p->chunk ? token / p->chunk : 0;
        return pool_chunk(p, row, row, 0, p->tokens);
    }
    if (p->sequences == 0) return none;
    const pool_size n = pool_find(p, token, 0), begin = pool_end(p, n), end = pool_end(p, n + 1);
    if (token < begin || token >= end) return none;
    const pool_size index = p->chunk ? (token - begin) / p->chunk : 0;
    return pool_chunk(p, pool_first(p, n) + index, index, begin, end);
}

/* Where the run of a token or a row begins. */
POOL pool_size pool_start(const pool_problem *p, const pool_view *v, pool_size b, pool_size at,
                          pool_size run) {
    const pool_size middle = run / p->outer[2];
    return b * v->batch + at * v->step + run % p->outer[2] * v->outer[2] +
           middle % p->outer[1] * v->outer[1] + middle / p->outer[1] * v->outer[0];
}

POOL pool_size pool_runs(const pool_problem *p) {
    return p->outer[0] * p->outer[1] * p->outer[2];
}

#endif
