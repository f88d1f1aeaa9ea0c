/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that will be read `prefetch_bytes` later, prefetched beside products, which ask for as many bytes as they
 * read; `prefetch_hint` says in which order and for which cache.
 *
 * In the order of memory, one piece from prefetch_next() on: where that was a pointer that moves and turns at the ends
 * of rows line by line, the pointer and not the products were the limit (bf16 decode: 12 of 20 µs a block of 64 keys).
 * Always into the second level: requests for the first hold the few registers that it has for misses.
 *
 * Or the same lines of the rows that come later, as products read them. Zen 5 is served best so, by requests for the
 * first level (products of four rows with keys alone: 36 GB/s at 16 KiB, of 14 without requests, 18 at half and 29 at
 * twice the distance, 26 into the second level). Intel processors are, too, where heads of a key lie together, by
 * requests for the second: their own prefetching follows the four rows.
 */
#ifndef EJKI_PAGED_PREFETCH_H
#define EJKI_PAGED_PREFETCH_H

#include "operations/paged/cpu/paged_plan.h"

enum { LINE = 64 };

/* Vectors of a line: up to 16 of them in the scalar tier. */
#ifdef EJKI_TIER_SCALAR
#define UNROLL_PARTS EJKI_UNROLL_TWICE
#else
#define UNROLL_PARTS EJKI_UNROLL
#endif

/* What is left of some rows, each `bytes` bytes from `offset` on; `turn` is that of rows that tiles prefetch. */
typedef struct paged_prefetch {
    const char *const *row, *const *end;
    paged_size offset, bytes, at, turn;
} paged_prefetch;

static inline void prefetch_rows(paged_prefetch *a, const char *const *rows, paged_size count,
                                 paged_size offset, paged_size bytes) {
    *a = (paged_prefetch){
        .row = rows, .end = bytes > 0 ? rows + count : rows, .offset = offset, .bytes = bytes};
}

/* Where the next `bytes` bytes begin, as if rows lay side by side; `other` if nothing is left. */
static inline const char *prefetch_next(paged_prefetch *a, paged_size bytes, const char *other) {
    if (a->row == a->end) return other;
    const char *next = *a->row + a->offset + a->at;
    for (a->at += bytes; a->row < a->end && a->at >= a->bytes; a->row++) a->at -= a->bytes;
    return next;
}

/* What a product prefetches beside a line of each of its rows: as many lines, `step` bytes behind the last ones. */
typedef struct paged_lines {
    uintptr_t row[16], step;
    bool any, side, first_level; /* `side`: lines lie side by side, from row[0] on */
} paged_lines;

/* Prefetches beside a line of `rows` rows, `at` bytes behind the first. Addresses may lie beyond any tensor. */
static inline __attribute__((always_inline)) void prefetch_beside(const paged_lines *a,
                                                                  const int rows, uintptr_t at) {
    if (!a->any) return;
    if (a->side)
        EJKI_UNROLL for (int k = 0; k < rows; k++)
            __builtin_prefetch((const void *)(a->row[0] + at + (uintptr_t)(k * LINE)), 0, 2);
    else if (a->first_level)
        EJKI_UNROLL for (int k = 0; k < rows; k++)
            __builtin_prefetch((const void *)(a->row[k] + at), 0, 3);
    else
        EJKI_UNROLL for (int k = 0; k < rows; k++)
            __builtin_prefetch((const void *)(a->row[k] + at), 0, 2);
}

#endif
