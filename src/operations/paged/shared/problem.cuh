/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paged family as its kernels see it: read by the C compiler and by NVRTC, so plain types only. Every operation
 * of the family fills this struct. Strides count elements.
 *
 * Sequence n has the query rows starts[n] to starts[n + 1] - 1 of the packed queries and the keys firsts[n] to
 * lens[n] - 1. Key t lies in page floor(t / page) of the sequence at row t mod page; which page of the cache that is,
 * a table says. Query row r stands at position lens[n] - rows + r.
 */
#ifndef EJKI_PAGED_PROBLEM_CUH
#define EJKI_PAGED_PROBLEM_CUH

#ifdef __CUDACC_RTC__
#define PAGED static __device__ __forceinline__
#else
#include <string.h>
#define PAGED static inline
#endif

typedef long long paged_size;

/* int32 or, with `wide`, int64; NULL = absent. The CPU's may lie at any address. */
typedef struct paged_ints {
    const void *data;
    int wide;
} paged_ints;

/* [tokens, heads, D]; lse has no third axis. With paged_problem.batch_rows tokens are [batch, batch_rows]. */
typedef struct paged_rows {
    void *data;
    paged_size token, head, batch;
    int dtype;
} paged_rows;

/* Rows of a cache: row `at` of page `page` of head h begins at page * .page + at * .token + h * .head. */
typedef struct paged_cache {
    void *data;
    paged_size page, token, head;
    int dtype;
    float factor; /* an element stands for element * factor * scale */
    /* float32, [1], [Hkv] or [pages,page,Hkv]; strides are 0 along what it is the same for. */
    const float *scale;
    paged_size scale_page, scale_token, scale_head;
    int scaled, scaled_rows; /* there is one; it is one per row */
} paged_cache;

/* Block tables; indptr and indices; page n of sequence n; pages of a row each, the sequence's own tokens. */
enum { PAGED_TABLE, PAGED_LISTS, PAGED_OWN, PAGED_TOKENS };

typedef struct paged_problem {
    paged_size tokens, sequences, heads, kv_heads, group;
    paged_size dim, tail_dim,
        value_dim;          /* of the products; the tail is a second part of queries and keys */
    paged_size pages, page; /* pages of the cache, rows of a page */
    paged_size slots;       /* rows of the cache in all, where a page may be cut short */
    paged_size width;       /* pages that a table has for a sequence; of lists, their length */
    paged_size batch_rows;  /* tokens of a batch entry; 0: there is one */
    paged_size rows_each;   /* without starts: every sequence has so many query rows */
    paged_size prefix;      /* keys that all sequences have in the same pages; 0: not known, or of no use */
    int tables;
    paged_ints table, lists, starts, lens, firsts, count, slot_mapping;
    paged_size table_step; /* from one sequence's entries to the next's */
    paged_size count_at;   /* entry of count that says how many sequences there are */
    paged_rows query, query_tail, out, lse;
    paged_cache key, key_tail, value;
    paged_rows new_key, new_tail, new_value; /* what is written before */
    int *status;                             /* a word, set on a GPU where a table is wrong */
    double scale, cap;                       /* cap 0: none */
    double query_scale; /* not 0: queries are rounded to the cache's type after division by it */
    paged_size left;    /* keys before a row's own that it sees; below 0: all */
    int dtype, causal, writes, attends, has_new_value;
    const float *alibi;
    const float *bias; /* qq_bias */
    paged_size bias_step, bias_rows, bias_columns;
    int has_alibi, has_bias;
    const void *sinks;
    paged_size sink_count, sink_step, sink_group;
    int sink_dtype;
} paged_problem;

/* Rows begin to begin + rows - 1 of the queries, at the end of `keys` keys, of which those before `first` do not
 * count. */
typedef struct paged_sequence {
    paged_size n, begin, rows, keys, first;
} paged_sequence;

PAGED paged_size paged_int(const paged_ints *list, paged_size i) {
#ifdef __CUDACC_RTC__
    return list->wide ? ((const paged_size *)list->data)[i] : ((const int *)list->data)[i];
#else
    paged_size value;
    int narrow;
    if (list->wide) {
        memcpy(&value, (const char *)list->data + i * 8, sizeof value);
        return value;
    }
    memcpy(&narrow, (const char *)list->data + i * 4, sizeof narrow);
    return narrow;
#endif
}

PAGED paged_size paged_least(paged_size a, paged_size b) {
    return a < b ? a : b;
}
PAGED paged_size paged_most(paged_size a, paged_size b) {
    return a > b ? a : b;
}

/* Sequences that count. */
PAGED paged_size paged_count(const paged_problem *p) {
    if (!p->count.data) return p->sequences;
    return paged_least(paged_most(paged_int(&p->count, p->count_at), 0), p->sequences);
}

/* A sequence; of lengths that a GPU has not looked at, what is left inside the tensors. */
PAGED paged_sequence paged_sequence_of(const paged_problem *p, paged_size n) {
    paged_sequence s = {n, n * p->rows_each, p->rows_each, 0, 0};
    if (p->starts.data) {
        s.begin = paged_least(paged_most(paged_int(&p->starts, n), 0), p->tokens);
        s.rows = paged_least(paged_int(&p->starts, n + 1), p->tokens) - s.begin;
    }
    s.rows = paged_most(s.rows, 0);
    s.keys = p->lens.data ? paged_most(paged_int(&p->lens, n), 0) : s.rows;
    if (p->firsts.data) s.first = paged_most(paged_int(&p->firsts, n), 0);
    return s;
}

/* Where the row of a token's head begins. */
PAGED paged_size paged_row_at(const paged_problem *p, const paged_rows *rows, paged_size token,
                              paged_size head) {
    paged_size at = head * rows->head;
    if (p->batch_rows > 0) {
        at += token / p->batch_rows * rows->batch;
        token %= p->batch_rows;
    }
    return at + token * rows->token;
}

/* Where a sequence's entries begin in the table or the list, and how many it has. */
PAGED paged_size paged_entries(const paged_problem *p, paged_size n, paged_size *count) {
    *count = p->width;
    if (p->tables == PAGED_TABLE) return n * p->table_step;
    if (p->tables == PAGED_OWN) {
        *count = 1;
        return 0;
    }
    if (p->tables == PAGED_TOKENS) return paged_int(&p->starts, n);
    const paged_size begin = paged_int(&p->lists, n);
    *count = paged_int(&p->lists, n + 1) - begin;
    return begin;
}

/* The page of the cache that has a sequence's page j; entries as above. */
PAGED paged_size paged_page(const paged_problem *p, paged_size n, paged_size entries,
                            paged_size j) {
    if (p->tables == PAGED_TOKENS) return entries + j;
    return p->tables == PAGED_OWN ? n : paged_int(&p->table, entries + j);
}

/* Row r of a sequence sees keys low to high - 1; high <= low: none. */
PAGED paged_size paged_high(const paged_problem *p, const paged_sequence *s, paged_size r) {
    return p->causal ? paged_most(s->keys - s->rows + r + 1, 0) : s->keys;
}
PAGED paged_size paged_low(const paged_problem *p, const paged_sequence *s, paged_size r) {
    const paged_size at = s->keys - s->rows + r - p->left;
    return p->left < 0 ? s->first : paged_most(s->first, at);
}

/* ---- Writing ---------------------------------------------------------------------------------------- */

/* The sequence that a token is of: the last that begins at or before it. */
PAGED paged_size paged_find(const paged_problem *p, paged_size token) {
    paged_size low = 0, high = paged_count(p);
    if (!p->starts.data) return p->rows_each > 0 ? token / p->rows_each : high;
    while (high - low > 1) {
        const paged_size middle = (low + high) / 2;
        if (paged_int(&p->starts, middle) <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Where the new row of a token of sequence n goes; 0 if nowhere, as by what a GPU has not looked at before. */
PAGED int paged_target_in(const paged_problem *p, paged_size n, paged_size token, paged_size *page,
                          paged_size *row) {
    if (n >= paged_count(p)) return 0;
    const paged_sequence s = paged_sequence_of(p, n);
    const paged_size at = s.keys - s.rows + token - s.begin;
    if (token < s.begin || token >= s.begin + s.rows || at < 0) return 0;
    paged_size count;
    const paged_size entries = paged_entries(p, n, &count), j = at / p->page;
    if (j >= count) return 0;
    *page = paged_page(p, n, entries, j);
    *row = at % p->page;
    return *page >= 0 && *page < p->pages && *page * p->page + *row < p->slots;
}

/* The same of a slot, by number. */
PAGED int paged_target_of_slot(const paged_problem *p, paged_size token, paged_size *page,
                               paged_size *row) {
    const paged_size slot = paged_int(&p->slot_mapping, token);
    *page = slot / p->page;
    *row = slot % p->page;
    return slot >= 0 && slot < p->slots;
}

PAGED int paged_target(const paged_problem *p, paged_size token, paged_size *page,
                       paged_size *row) {
    return p->slot_mapping.data ? paged_target_of_slot(p, token, page, row)
                                : paged_target_in(p, paged_find(p, token), token, page, row);
}

#endif
