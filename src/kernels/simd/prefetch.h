/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetches of a kernel that streams: a line some bytes behind what is read, into the first- or the second-level
 * cache. Both are parameters. The second level is the rule for every vendor: on Zen 4 prefetches into the first hardly
 * overlap, on the others measured both do as well.
 */
#ifndef EJKI_SIMD_PREFETCH_H
#define EJKI_SIMD_PREFETCH_H

#include <ejkernel/registry.h>

#include <stdbool.h>
#include <stdint.h>

#include "kernels/simd/unroll.h"

typedef struct prefetching {
    int64_t bytes;
    bool second_level;
} prefetching;

/* The first two parameters of such a kernel. */
#define PREFETCH_HINT                                                                              \
    { "prefetch_hint", 0, 1, 1, 1, "0: prefetch into the first-level cache; 1: into the second" }
#define PREFETCH_BYTES(distance)                                                                   \
    { "prefetch_bytes", 64, 1 << 20, 64, distance, "prefetch distance" }

INLINE prefetching prefetching_of(const int64_t *parameters) {
    return (prefetching){.bytes = parameters[1], .second_level = parameters[0] != 0};
}

INLINE void prefetch_line(prefetching how, const void *at) {
    if (how.second_level)
        __builtin_prefetch(at, 0, 2);
    else
        __builtin_prefetch(at, 0, 3);
}
/* The line `how.bytes` behind `at`, which may be no memory of the caller's. */
INLINE void prefetch_behind(prefetching how, const void *at) {
    prefetch_line(how, (const void *)((uintptr_t)at + (uintptr_t)how.bytes));
}

#endif
