/* SPDX-License-Identifier: Apache-2.0 */
/* Keys in pages of a cache; see ejki_cuda_pages. */
#ifndef EJKI_ATTENTION_CUDA_PAGES_CUH
#define EJKI_ATTENTION_CUDA_PAGES_CUH

#include "operations/attention/cuda/common/problem.cuh"

DEVICE i64 paged_number(const void *list, int is_i64, i64 n) {
    return is_i64 ? ((const i64 *)list)[n] : ((const int *)list)[n];
}

/* Where a sequence's entries begin, and how many there are. */
DEVICE i64 paged_begin(const ejki_cuda_pages &p, int n, int *count) {
    *count = p.entries;
    if (!p.lists) return n * p.step;
    const i64 begin = clamped(paged_number(p.lists, p.lists_are_i64, n), p.entries);
    *count = larger(clamped(paged_number(p.lists, p.lists_are_i64, n + 1), p.entries) - (int)begin, 0);
    return begin;
}

DEVICE bool is_paged(const ejki_cuda_pages &p, int n) {
    return !p.count || n < paged_number(p.count, p.count_is_i64, 0);
}

/* No more than there are pages for. */
DEVICE int paged_keys(const ejki_cuda_pages &p, int n) {
    int count;
    paged_begin(p, n, &count);
    const i64 most = (i64)count * p.page;
    return clamped(paged_number(p.lens, p.lens_are_i64, n), (int)(most < 1 << 30 ? most : 1 << 30));
}

/* The page of the cache that has page j of a sequence; that behind the last where there is none. */
DEVICE int paged_place(const ejki_cuda_pages &p, i64 begin, int count, int j) {
    const i64 page = j >= 0 && j < count ? paged_number(p.table, p.table_is_i64, begin + j) : -1;
    return page < 0 || page >= p.pages ? p.pages : (int)page;
}

#endif
