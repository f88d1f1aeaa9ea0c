/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which blocks a tile visits. Without cells all of a range, one after the other. With cells a block without any that
 * is not empty is passed over: the lanes of a warp look at one each of the next 32, so that the way to their memory is
 * gone once for all of them. Every warp of a block finds the same.
 */
#ifndef EJKI_CUDA_VISITS_CUH
#define EJKI_CUDA_VISITS_CUH

#include "operations/attention/cuda/common/visibility.cuh"

enum { NOBODY, SOME, EVERYBODY }; /* of those that positions allow: who sees a block */

/* What cells say of heads, rows and keys, the last of each included. */
DEVICE int state_of(const ejki_cuda_problem &p, int head, int last_head, int i, int last_i, int j,
                    int last_j) {
#if BLOCK_MASK
    bool some = false, whole = true;
    const int planes = p.pattern.plane_heads;
    for (int plane = head / planes; plane <= last_head / planes; plane++)
        for (int a = i / MASK_QUERIES; a <= last_i / MASK_QUERIES; a++) {
            const int *cells = cells_of_row(p, plane * planes, a * MASK_QUERIES);
            for (int b = j / MASK_KEYS; b <= last_j / MASK_KEYS; b++) {
                some = some || cells[b] != EJKI_CUDA_EMPTY;
                whole = whole && cells[b] == EJKI_CUDA_FULL;
            }
        }
    return some ? whole ? EVERYBODY : SOME : NOBODY;
#else
    return EVERYBODY;
#endif
}

/* Visits, `depth` of which are known ahead of the one that is under way. */
template <int depth> struct visits {
    int first, end;
#if BLOCK_MASK
    int base, next; /* of the 32 that were looked at; where to go on */
    u32 some, whole;
    int line[depth]; /* twice the block, and 1 if everybody sees it */
#endif
};

template <int depth> DEVICE visits<depth> visits_of(int first, int end) {
    visits<depth> v;
    v.first = first;
    v.end = end;
#if BLOCK_MASK
    v.base = first - 32;
    v.next = first;
#endif
    return v;
}

/* The block that is visited `n`th; at least `end` if there is none. Asked in order; look() has its state. */
template <int depth, class looker> DEVICE int next_visit(visits<depth> &v, int n, looker look) {
#if BLOCK_MASK
    int block = v.end, whole = 0;
    while (v.next < v.end) {
        if (v.next >= v.base + 32) {
            v.base = v.next;
            const int own = v.base + threadIdx.x % 32;
            const int state = own < v.end ? look(own) : NOBODY;
            v.some = __ballot_sync(~0u, state != NOBODY);
            v.whole = __ballot_sync(~0u, state == EVERYBODY);
        }
        const u32 rest = v.some >> (v.next - v.base);
        if (rest) {
            block = v.next + __ffs(rest) - 1;
            whole = v.whole >> (block - v.base) & 1;
            v.next = block + 1;
            break;
        }
        v.next = v.base + 32;
    }
#pragma unroll
    for (int i = 0; i + 1 < depth; i++) v.line[i] = v.line[i + 1];
    v.line[depth - 1] = 2 * block + whole;
    return block;
#else
    return v.first + n;
#endif
}

/* The block of the visit under way, `depth` behind the last that was asked for, and whether everybody sees it. */
template <int depth> DEVICE int this_visit(const visits<depth> &v, int n, bool *whole) {
#if BLOCK_MASK
    *whole = v.line[0] & 1;
    return v.line[0] >> 1;
#else
    *whole = true;
    return v.first + n;
#endif
}

#endif
