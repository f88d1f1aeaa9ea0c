/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that will be read next, asked for beside products, in the order of memory and into the second-level cache:
 * requests for the first level hold the few registers that it has for misses. A product asks for as many bytes as it
 * reads, one piece from ask_next() on; where that was a pointer that moves and turns at the ends of rows line by line,
 * the pointer and not the products set the pace (bf16 decode: 12 of 20 µs a block of 64 keys).
 */
#ifndef EJKI_PAGED_ASK_H
#define EJKI_PAGED_ASK_H

#include "operations/paged/cpu/paged_plan.h"

/* What is left of some rows, each `bytes` bytes from `offset` on. */
typedef struct paged_ask {
    const char *const *row, *const *end;
    paged_size offset, bytes, at;
} paged_ask;

static inline void ask_for(paged_ask *a, const char *const *rows, paged_size count,
                           paged_size offset, paged_size bytes) {
    *a = (paged_ask){
        .row = rows, .end = bytes > 0 ? rows + count : rows, .offset = offset, .bytes = bytes};
}

/* Where the next `bytes` bytes begin, as if rows lay side by side; `other` if nothing is left. */
static inline const char *ask_next(paged_ask *a, paged_size bytes, const char *other) {
    if (a->row == a->end) return other;
    const char *next = *a->row + a->offset + a->at;
    for (a->at += bytes; a->row < a->end && a->at >= a->bytes; a->row++) a->at -= a->bytes;
    return next;
}

/* Asks for the lines of `bytes` bytes. Addresses may lie beyond any tensor. */
static inline __attribute__((always_inline)) void ask_lines(const char *next, const int bytes) {
    EJKI_UNROLL for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch((const void *)((uintptr_t)next + (uintptr_t)i), 0, 2);
}

#endif
