/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cases of the paged family share: random caches, tables and lengths, and the one naive attention over them.
 * A case says what its operation can be asked for and copies tensors by name.
 */
#ifndef TESTS_CONFORMANCE_PAGED_H
#define TESTS_CONFORMANCE_PAGED_H

#include "conformance/call.h"

enum { PAGED_SEQUENCES = 8, PAGED_WIDTH = 80 };

/* Orders of the axes of a cache in memory order. */
enum paged_form {
    FORM_NHD,
    FORM_HND,
    FORM_HEADS,
    FORM_INTERLEAVED,
    FORM_SLOTS,
    FORM_PACKED,
    FORM_LATENT,
    FORM_OWN
};

/* What an operation can be asked for. */
struct paged_options {
    enum paged_form form;
    int64_t one_row; /* of each sequence; or 0 */
    bool one_sequence, lists, alibi, bias, sinks, sink_heads, scales, window, cap, firsts, narrow;
    bool writes;                       /* new rows come first; no page is in two places */
    const char *key_name, *value_name; /* of what is written */
    bool factors;                      /* scales as numbers */
    bool same_type;                    /* caches are of the queries' type */
    bool own_lse;                      /* [tokens,heads] */
    bool few;                          /* sequences that count */
    bool prefix;                       /* keys in common */
};

struct paged {
    struct paged_options options;
    int64_t sequences, counted, tokens, heads, kv_heads, group, dim, value_dim, page, pages, width;
    int64_t begin[PAGED_SEQUENCES + 1], keys[PAGED_SEQUENCES], first[PAGED_SEQUENCES];
    int64_t table[PAGED_SEQUENCES][PAGED_WIDTH];
    int64_t left; /* keys before a row's own, or -1 */
    int64_t latent,
        tail_at; /* of rows in two parts: elements of the first, where the second begins */
    bool by_lists;
    ejk_tensor query, key_cache, value_cache, lens, firsts, tables, starts, indptr, indices;
    ejk_tensor alibi, bias, sinks, k_scale, v_scale, out, lse, status;
    ejk_opt_float scale, cap;
    ejk_opt_int window, prefix;
    double scale_is; /* what softmax_scale means */
    ejk_tensor new_key, new_value, query_tail, new_tail, count;
    ejk_opt_float k_factor, v_factor, q_scale;

    /* Of the model. */
    double *q, *k, *v, *ks, *vs, *sink, *slope, *qq;
    void *more;
};

/* Sizes, tables and contents. */
struct paged *paged_create(struct call *c, struct paged_options options);
/* NaN in all that no row sees. */
void paged_finish(struct call *c);
/* out and lse. */
void paged_exact(struct call *c);
void paged_naive(struct call *c, int order);
/* Index of an element of a cache; head counts key heads, `which` is 1 for values. */
int64_t paged_at(const struct paged *p, int64_t page, int64_t row, int64_t head, int which);
/* Heads and sequences that may be computed alone: their rows, or -1. Cuts kv_lens, tables and starts. */
bool paged_slice(const struct call *c, struct random *r, struct slice *s, const char *tokens,
                 ejk_tensor *lens, ejk_tensor *tables, ejk_tensor *starts, ejk_tensor *indptr,
                 ejk_tensor *indices);

#endif
