/* SPDX-License-Identifier: Apache-2.0 */
/* What only data says: every length, start, slot and table entry that a run follows, looked at before it writes. */
#include "operations/paged/shared/paged_call.h"

#include "base/base.h"

static ejk_status check_count(const paged_problem *p) {
    const paged_size count = p->count.data ? paged_int(&p->count, p->count_at) : p->sequences;
    if (count >= 0 && count <= p->sequences) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%lld sequences are to be processed, expected 0 to %lld", (long long)count,
                     (long long)p->sequences);
}

/* A list of ends: from 0, not decreasing, at most `most`. */
static ejk_status check_ends(const paged_ints *list, paged_size count, paged_size most,
                             const char *name) {
    if (!list->data) return EJK_OK;
    for (paged_size n = 0, last = 0; n <= count; n++) {
        const paged_size at = paged_int(list, n);
        if (at < last || at > most || (n == 0 && at != 0))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s[%lld] is %lld, expected %lld%s%lld",
                             name, (long long)n, (long long)at, (long long)last,
                             n == 0 ? ", not beyond " : " to ", (long long)most);
        last = at;
    }
    return EJK_OK;
}

/* The pages of keys first to end - 1. */
static ejk_status check_pages(const paged_problem *p, paged_size n, paged_size first,
                              paged_size end) {
    paged_size count;
    const paged_size entries = paged_entries(p, n, &count);
    if (end <= first) return EJK_OK;
    if (ejki_cdiv(end, p->page) > count)
        return ejki_fail(
            EJK_STATUS_INVALID_ARGUMENT,
            "sequence %lld has %lld keys, expected at most %lld: its %lld pages of %lld",
            (long long)n, (long long)end, (long long)(count * p->page), (long long)count,
            (long long)p->page);
    for (paged_size j = first / p->page; j * p->page < end; j++) {
        const paged_size page = paged_page(p, n, entries, j);
        if (page < 0 || page >= p->pages)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "page %lld of sequence %lld is %lld, expected 0 to %lld", (long long)j,
                             (long long)n, (long long)page, (long long)(p->pages - 1));
        const paged_size rows = paged_least(p->page, end - j * p->page);
        if (page * p->page + rows > p->slots)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "page %lld of sequence %lld is %lld, which has no row %lld",
                             (long long)j, (long long)n, (long long)page, (long long)(rows - 1));
    }
    return EJK_OK;
}

static ejk_status check_sequence(const paged_problem *p, paged_size n) {
    const paged_size keys = paged_int(&p->lens, n);
    const paged_size first = p->firsts.data ? paged_int(&p->firsts, n) : 0;
    if (keys < 0 || first < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "sequence %lld has keys %lld to %lld, expected 0 or more", (long long)n,
                         (long long)first, (long long)keys);
    const paged_sequence s = paged_sequence_of(p, n);
    if (p->writes && s.rows > s.keys)
        return ejki_fail(
            EJK_STATUS_INVALID_ARGUMENT,
            "sequence %lld writes %lld rows and has %lld keys, expected as many at least",
            (long long)n, (long long)s.rows, (long long)s.keys);
    if (p->has_bias && p->attends && (s.rows > p->bias_rows || s.rows > p->bias_columns))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "sequence %lld has %lld rows, expected at most the %lld of qq_bias",
                         (long long)n, (long long)s.rows,
                         (long long)ejki_min(p->bias_rows, p->bias_columns));
    if (s.rows == 0) return EJK_OK;
    const paged_size written = p->writes ? s.keys - s.rows : s.keys;
    const paged_size seen = p->attends ? paged_low(p, &s, 0) : written;
    return check_pages(p, n, paged_least(seen, written), s.keys);
}

/* Pages of the common prefix, of a sequence that has rows, are those of the first that has. */
static ejk_status check_prefix(const paged_problem *p, paged_size first, paged_size n) {
    paged_size count;
    const paged_size keys = paged_sequence_of(p, n).keys;
    if (keys < p->prefix)
        return ejki_fail(
            EJK_STATUS_INVALID_ARGUMENT,
            "sequence %lld has %lld keys, expected the %lld of common_prefix_len at least",
            (long long)n, (long long)keys, (long long)p->prefix);
    const paged_size entries = paged_entries(p, n, &count),
                     wanted = paged_entries(p, first, &count);
    for (paged_size j = 0; j * p->page < p->prefix; j++) {
        const paged_size page = paged_page(p, n, entries, j),
                         other = paged_page(p, first, wanted, j);
        if (page != other)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "page %lld of sequence %lld is %lld, expected %lld, as sequence %lld "
                             "has it, within common_prefix_len",
                             (long long)j, (long long)n, (long long)page, (long long)other,
                             (long long)first);
    }
    return EJK_OK;
}

static ejk_status check_prefixes(const paged_problem *p) {
    const paged_size count = paged_count(p);
    paged_size first = -1;
    for (paged_size n = 0; p->prefix > 0 && n < count; n++) {
        if (paged_sequence_of(p, n).rows == 0) continue;
        if (first < 0) first = n;
        EJKI_TRY(check_prefix(p, first, n));
    }
    return EJK_OK;
}

static ejk_status check_slots(const paged_problem *p) {
    for (paged_size t = 0; t < p->tokens; t++) {
        const paged_size slot = paged_int(&p->slot_mapping, t);
        if (slot < -1 || slot >= p->slots)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "slot_mapping[%lld] is %lld, expected -1 to %lld", (long long)t,
                             (long long)slot, (long long)(p->slots - 1));
    }
    return EJK_OK;
}

ejk_status ejki_paged_validate(const void *problem) {
    const paged_problem *p = problem;
    if (p->slot_mapping.data) return check_slots(p);
    EJKI_TRY(check_count(p));
    const paged_size count = paged_count(p);
    EJKI_TRY(check_ends(&p->starts, count, p->tokens, "query_start_loc"));
    if (p->tables == PAGED_LISTS) EJKI_TRY(check_ends(&p->lists, count, p->width, "kv_indptr"));
    for (paged_size n = 0; n < count; n++) EJKI_TRY(check_sequence(p, n));
    return check_prefixes(p);
}
