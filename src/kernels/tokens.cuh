/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of tokens, [B,T,…], as kernels see them: axes behind the tokens as runs, and packed sequences cut into
 * chunks. Read by the C compiler and by NVRTC, so plain types only. Strides count elements.
 */
#ifndef EJKI_KERNELS_TOKENS_CUH
#define EJKI_KERNELS_TOKENS_CUH

#ifdef __CUDACC_RTC__
#define EJKI_TOKENS static __device__ __forceinline__
#else
#include <ejkernel/record.h>
#include <string.h>
#define EJKI_TOKENS static inline
#endif

typedef long long ejki_size;

/* Number n of a list of integers of 4 bytes, or of 8 if it is wide. On the CPU it may lie anywhere. */
EJKI_TOKENS ejki_size ejki_number(const void *list, int wide, ejki_size n) {
#ifdef __CUDACC_RTC__
    return wide ? ((const ejki_size *)list)[n] : ((const int *)list)[n];
#else
    ejki_size value;
    int narrow;
    if (wide) {
        memcpy(&value, (const char *)list + n * 8, sizeof value);
        return value;
    }
    memcpy(&narrow, (const char *)list + n * 4, sizeof narrow);
    return narrow;
#endif
}

/* The same kept within 0 to `most`: on a GPU nobody has looked at the list before. */
EJKI_TOKENS ejki_size ejki_number_within(const void *list, int wide, ejki_size n, ejki_size most) {
    const ejki_size value = ejki_number(list, wide, n);
    return value < 0 ? 0 : value > most ? most : value;
}

/* ---- Runs ------------------------------------------------------------------------------------------- */

/* Trailing axes: outer[0] x outer[1] x outer[2] runs of `width` elements that are contiguous in each tensor. */
typedef struct ejki_runs {
    ejki_size outer[3], width;
} ejki_runs;

/* Strides: of the batch, of tokens or what stands in their place, of runs. */
typedef struct ejki_tokens {
    void *data;
    ejki_size batch, step, outer[3];
} ejki_tokens;

EJKI_TOKENS ejki_size ejki_run_count(const ejki_runs *r) {
    return r->outer[0] * r->outer[1] * r->outer[2];
}

/* A run of a step, a token or what stands in its place, of an entry of the batch. */
typedef struct ejki_item {
    ejki_size b, step, run;
} ejki_item;

/* Item n of all in the order of memory, where an entry has `steps`. */
EJKI_TOKENS ejki_item ejki_item_at(const ejki_runs *r, ejki_size steps, ejki_size n) {
    const ejki_size runs = ejki_run_count(r);
    const ejki_item item = {n / runs / steps, n / runs % steps, n % runs};
    return item;
}

/* Where an item's run of another step begins. */
EJKI_TOKENS ejki_size ejki_run_start(const ejki_runs *r, const ejki_tokens *t,
                                     const ejki_item *item, ejki_size step) {
    const ejki_size middle = item->run / r->outer[2];
    return item->b * t->batch + step * t->step + item->run % r->outer[2] * t->outer[2] +
           middle % r->outer[1] * t->outer[1] + middle / r->outer[1] * t->outer[0];
}

#ifndef __CUDACC_RTC__
/*
 * The last `trailing` axes, at most four, of two tensors that have the same lengths there: axes that continue the
 * innermost run in both are taken into it. Sets outer strides.
 */
void ejki_runs_of(const ejk_tensor *x, const ejk_tensor *y, int32_t trailing, ejki_runs *runs,
                  ejki_tokens *x_tokens, ejki_tokens *y_tokens);

/* INVALID_SHAPE: sequences are packed by `ends`, and there is more or less than one row of tokens. */
ejk_status ejki_expect_one_row(const ejk_tensor *ends, int64_t batch);

/*
 * INVALID_ARGUMENT: two of the `count` entries of a list of that name are the same of `slots`; those below 0 are none.
 * What is outside the records of calls have refused.
 */
ejk_status ejki_expect_distinct(const char *name, const void *list, int wide, ejki_size count,
                                ejki_size slots);

/* The chunk_size of a call, 0 = not given. INVALID_ARGUMENT: below 1. */
ejk_status ejki_chunk_size(const ejk_opt_int *given, int64_t *out);
#endif

/* ---- Chunks ----------------------------------------------------------------------------------------- */

/*
 * Tokens in chunks of `chunk`, 0 = whole sequences. Chunk j of packed sequence n has row ends[n] / chunk + n + j, so
 * that a row is found without adding up lengths; rows that no chunk has are left out.
 */
typedef struct ejki_chunks {
    const void
        *ends; /* packed: 0 and the ends, sequences + 1 numbers of 4 bytes, or of 8 if wide */
    ejki_size tokens, sequences, chunk;
    int packed, wide;
} ejki_chunks;

/* Tokens begin to end - 1 are those of a row; row -1: a token is in none. */
typedef struct ejki_range {
    ejki_size row, begin, end;
} ejki_range;

EJKI_TOKENS ejki_size ejki_sequence_begin(const ejki_chunks *c, ejki_size n) {
    return ejki_number_within(c->ends, c->wide, n, c->tokens);
}

EJKI_TOKENS ejki_size ejki_sequence_row(const ejki_chunks *c, ejki_size n) {
    return (c->chunk ? ejki_sequence_begin(c, n) / c->chunk : 0) + n;
}

/* The last packed sequence that begins at or before a row, or a token: both ascend. */
EJKI_TOKENS ejki_size ejki_sequence_at(const ejki_chunks *c, ejki_size at, int is_row) {
    ejki_size low = 0, high = c->sequences;
    while (high - low > 1) {
        const ejki_size middle = (low + high) / 2;
        if ((is_row ? ejki_sequence_row(c, middle) : ejki_sequence_begin(c, middle)) <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Chunk `index` of the tokens begin to end - 1; no tokens if there is no such. */
EJKI_TOKENS ejki_range ejki_chunk_of(const ejki_chunks *c, ejki_size row, ejki_size index,
                                     ejki_size begin, ejki_size end) {
    ejki_range range = {row, begin, end};
    if (!c->chunk) return range;
    const ejki_size size = end - begin, chunks = size / c->chunk + (size % c->chunk != 0);
    range.begin = index >= chunks ? end : begin + index * c->chunk;
    range.end = end - range.begin < c->chunk ? end : range.begin + c->chunk;
    return range;
}

EJKI_TOKENS ejki_range ejki_chunk_of_row(const ejki_chunks *c, ejki_size row) {
    const ejki_range none = {row, 0, 0};
    if (!c->packed) return ejki_chunk_of(c, row, row, 0, c->tokens);
    if (c->sequences == 0) return none;
    const ejki_size n = ejki_sequence_at(c, row, 1), begin = ejki_sequence_begin(c, n),
                    end = ejki_sequence_begin(c, n + 1);
    return end < begin ? none : ejki_chunk_of(c, row, row - ejki_sequence_row(c, n), begin, end);
}

/* Of a token in none the range is that of all tokens from it on. */
EJKI_TOKENS ejki_range ejki_chunk_of_token(const ejki_chunks *c, ejki_size token) {
    const ejki_range none = {-1, token, c->tokens};
    ejki_size n = 0, begin = 0, end = c->tokens;
    if (c->packed) {
        if (c->sequences == 0) return none;
        n = ejki_sequence_at(c, token, 0);
        begin = ejki_sequence_begin(c, n);
        end = ejki_sequence_begin(c, n + 1);
        if (token < begin || token >= end) return none;
    }
    const ejki_size index = c->chunk ? (token - begin) / c->chunk : 0;
    return ejki_chunk_of(c, (c->packed ? ejki_sequence_row(c, n) : 0) + index, index, begin, end);
}

#endif
