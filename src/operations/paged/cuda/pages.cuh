/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of a sequence in pages, found without trust: kernels that start before look.cu has ended read tables by these,
 * and never outside tables and caches.
 */
#ifndef EJKI_PAGED_CUDA_PAGES_CUH
#define EJKI_PAGED_CUDA_PAGES_CUH

#include "kernels/cuda/element.cuh"
#include "operations/paged/cuda/paged.cuh"

/* A kernel may be compiled for PAGE_ROWS rows of a page and HEAD_GROUP heads of a KV head; 0: any. */
#ifndef PAGE_ROWS
#define PAGE_ROWS  0
#define HEAD_GROUP 0
#endif
DEVICE u32 page_rows(const paged_problem &p) {
    return PAGE_ROWS ? PAGE_ROWS : (u32)p.page;
}
DEVICE int group_of(const paged_problem &p) {
    return HEAD_GROUP ? HEAD_GROUP : (int)p.group;
}

/* A sequence's entries in the table. */
struct page_list {
    paged_size n, entries;
    int count;
};

DEVICE page_list pages_of(const paged_problem &p, paged_size n) {
    page_list list = {n, 0, 0};
    paged_size count = 0;
    if (p.tables == PAGED_LISTS) {
        const paged_size begin = paged_most(paged_int(&p.lists, n), 0);
        const paged_size end = paged_least(paged_int(&p.lists, n + 1), p.width);
        list.entries = begin;
        count = end - begin;
    } else if (p.tables == PAGED_TOKENS) {
        list.entries = paged_most(paged_int(&p.starts, n), 0);
        count = p.tokens - list.entries;
    } else {
        list.entries = paged_entries(&p, n, &count);
    }
    list.count = (int)paged_least(paged_most(count, 0), 1 << 30);
    return list;
}

/* Keys that a list has pages for, at most. */
DEVICE int room_of(const paged_problem &p, const page_list &list) {
    return (int)paged_least((paged_size)list.count * page_rows(p), 1 << 30);
}

/* The entry of a key's page, as it stands there; -1: none. */
DEVICE paged_size entry_of(const paged_problem &p, const page_list &list, int key) {
    const u32 j = (u32)key / page_rows(p);
    return key >= 0 && j < (u32)list.count ? paged_page(&p, list.n, list.entries, j) : -1;
}

/* Stands for the place of a row that is not to be read: strides may be negative, and places with them. */
#define NO_PLACE (1ll << 63)

/* Whether row `row` of a page lies in the cache. */
DEVICE bool is_in_cache(const paged_problem &p, paged_size page, int row) {
    return page >= 0 && page < p.pages && page * page_rows(p) + row < p.slots;
}

/* A number of keys that fits 32 bits. */
DEVICE int narrowed(paged_size keys) {
    return (int)paged_most(paged_least(keys, 1 << 30), 0);
}

#endif
