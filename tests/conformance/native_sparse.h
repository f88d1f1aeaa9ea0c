/* SPDX-License-Identifier: Apache-2.0 */
/* A call of native_sparse_attention, what its branches see and which blocks are chosen: for its case. */
#ifndef TESTS_CONFORMANCE_NATIVE_SPARSE_H
#define TESTS_CONFORMANCE_NATIVE_SPARSE_H

#include "conformance/lines.h"

enum { COMPRESSED, SELECTED, WINDOW, BRANCHES };

/* Keys and values of all heads, or means of their blocks: rows of a head and entry follow each other. */
struct rows {
    long double *key, *value;
};

struct sparse {
    struct lines lines;
    int64_t batch, tokens, heads, kv_heads, group, dim, width;
    int64_t block, rows, most, slots, window; /* rows: blocks of an entry */
    double scale;
    ejk_tensor query, key, value, gate[BRANCHES], indices, counts, selected, out;
    double *q, *g[BRANCHES], *cotangent;
    struct rows token, mean;
    int64_t *chosen, *count; /* [B,T,Hkv][slots], [B,T,Hkv] */
};

/* A row of a query head, and what a branch of it sees. */
struct row {
    int64_t b, t, head, kv, begin, first; /* first: row of the sequence's first block */
    int64_t *seen, count;
    long double *weight, *own;
};

/* What a product of weights takes: a number of the type of the call. */
long double sparse_narrowed(const struct call *c, int order, long double value);
/* A token's sequence: its first token and the row of its first block; -1: it is in none. */
int64_t sparse_line(const struct sparse *s, int64_t t, int64_t *row);
/* Means of rows of the tokens, with sums in the precision of the call. */
long double *sparse_means(struct call *c, int order, const long double *from, int64_t width);
/* Values of queries, keys, values and gates, once. */
void sparse_read(struct call *c);
int64_t sparse_query_at(const struct sparse *s, const struct row *r);
/* Room of a row; what a branch of it sees; weights of that. */
struct row sparse_row(struct call *c);
void sparse_see(const struct sparse *s, struct row *r, int branch);
void sparse_weigh(struct call *c, int order, const struct row *r, const long double *key);
/* Blocks of each token; queries whose choice is a matter of rounding become others. */
void sparse_choose(struct call *c);
/* Keys that nobody sees hold NaN. */
void sparse_hide_unseen(struct call *c);

#endif
