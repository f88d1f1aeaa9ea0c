/* SPDX-License-Identifier: Apache-2.0 */
/* Whether lengths, starts and tables are wrong, as paged_validate.c says on the CPU: a thread's share of the answer, of
 * all threads of a block. */
#ifndef EJKI_PAGED_CUDA_LOOK_CUH
#define EJKI_PAGED_CUDA_LOOK_CUH

#include "kernels/cuda/element.cuh"
#include "operations/paged/cuda/pages.cuh"

/* Entry n of a list of ends is below the one before, or out of bounds. */
DEVICE bool is_bad_end(const paged_ints &list, paged_size n, paged_size most) {
    const paged_size at = paged_int(&list, n), before = n > 0 ? paged_int(&list, n - 1) : 0;
    return at < before || at > most || (n == 0 && at != 0);
}

DEVICE bool are_starts_bad(const paged_problem &p) {
    bool bad = false;
    if (p.count.data) {
        const paged_size count = paged_int(&p.count, p.count_at);
        bad = count < 0 || count > p.sequences;
    }
    if (p.starts.data)
        for (paged_size n = threadIdx.x; n <= paged_count(&p); n += blockDim.x)
            bad = bad || is_bad_end(p.starts, n, p.tokens);
    return bad;
}

/* A page that keys first to end - 1 need is not in the cache. */
DEVICE bool are_pages_bad(const paged_problem &p, paged_size n, paged_size first, paged_size end) {
    const paged_size page_size = PAGE_ROWS ? PAGE_ROWS : p.page;
    paged_size count;
    const paged_size entries = paged_entries(&p, n, &count);
    if (end <= first) return false;
    if ((end + page_size - 1) / page_size > count) return true;
    bool bad = false;
    for (paged_size j = first / page_size + threadIdx.x; j * page_size < end; j += blockDim.x) {
        const paged_size page = paged_page(&p, n, entries, j), rows = paged_least(page_size, end - j * page_size);
        bad = bad || page < 0 || page >= p.pages || page * page_size + rows > p.slots;
    }
    return bad;
}

DEVICE bool is_sequence_bad(const paged_problem &p, paged_size n) {
    if (p.tables == PAGED_LISTS && (is_bad_end(p.lists, n, p.width) || is_bad_end(p.lists, n + 1, p.width)))
        return true;
    if (p.starts.data && (is_bad_end(p.starts, n, p.tokens) || is_bad_end(p.starts, n + 1, p.tokens))) return true;
    if (p.lens.data && paged_int(&p.lens, n) < 0) return true;
    if (p.firsts.data && paged_int(&p.firsts, n) < 0) return true;
    const paged_sequence s = paged_sequence_of(&p, n);
    if (p.writes && s.rows > s.keys) return true;
    if (p.has_bias && (s.rows > p.bias_rows || s.rows > p.bias_columns)) return true;
    if (s.rows == 0) return false;
    const paged_size written = p.writes ? s.keys - s.rows : s.keys;
    return are_pages_bad(p, n, paged_least(paged_low(&p, &s, 0), written), s.keys);
}

#endif
