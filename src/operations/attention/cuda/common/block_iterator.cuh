/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block iterator: the blocks of keys, or of rows, that a tile goes through. Without a block mask all of a range.
 * With one, empty blocks are skipped: the lanes of a warp read the states of the next 32 at once, so that the
 * latency is paid once. Every warp of a CTA finds the same.
 */
#ifndef EJKI_CUDA_VISITS_CUH
#define EJKI_CUDA_VISITS_CUH

#include "operations/attention/cuda/common/visibility.cuh"

enum { EMPTY, PARTIAL, FULL }; /* what the block mask says of a block */

/* The state of a rectangle of heads, rows and keys, the last of each included. */
DEVICE int block_state(const ejki_cuda_problem &p, int head, int last_head, int i, int last_i, int j,
                    int last_j) {
#if BLOCK_MASK
    bool some = false, whole = true;
    const int mask_heads = p.visibility.heads_per_mask;
    for (int mask_head = head / mask_heads; mask_head <= last_head / mask_heads; mask_head++)
        for (int a = i / MASK_QUERIES; a <= last_i / MASK_QUERIES; a++) {
            const int *mask_row = block_mask_row(p, mask_head * mask_heads, a * MASK_QUERIES);
            for (int b = j / MASK_KEYS; b <= last_j / MASK_KEYS; b++) {
                some = some || mask_row[b] != EJKI_CUDA_EMPTY;
                whole = whole && mask_row[b] == EJKI_CUDA_FULL;
            }
        }
    return some ? whole ? FULL : PARTIAL : EMPTY;
#else
    return FULL;
#endif
}

/* Runs `depth` blocks ahead of the one in progress, for prefetching. */
template <int depth> struct block_iterator {
    int first, end;
#if BLOCK_MASK
    int base, next; /* of the 32 that were looked at; where to go on */
    u32 some, whole;
    int line[depth]; /* twice the block, and 1 if everybody visible it */
#endif
};

template <int depth> DEVICE block_iterator<depth> iterate_blocks(int first, int end) {
    block_iterator<depth> v;
    v.first = first;
    v.end = end;
#if BLOCK_MASK
    v.base = first - 32;
    v.next = first;
#endif
    return v;
}

/* The nth block; at least `end` if there is none. Called in order; look() gives the state of a block. */
template <int depth, class looker> DEVICE int next_block(block_iterator<depth> &v, int n, looker look) {
#if BLOCK_MASK
    int block = v.end, whole = 0;
    while (v.next < v.end) {
        if (v.next >= v.base + 32) {
            v.base = v.next;
            const int own = v.base + threadIdx.x % 32;
            const int state = own < v.end ? look(own) : EMPTY;
            v.some = __ballot_sync(~0u, state != EMPTY);
            v.whole = __ballot_sync(~0u, state == FULL);
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

/* The block in progress, `depth` behind the last one asked for; *whole: it is fully visible by the mask. */
template <int depth> DEVICE int current_block(const block_iterator<depth> &v, int n, bool *whole) {
#if BLOCK_MASK
    *whole = v.line[0] & 1;
    return v.line[0] >> 1;
#else
    *whole = true;
    return v.first + n;
#endif
}

#endif
