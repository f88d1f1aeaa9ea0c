/* SPDX-License-Identifier: Apache-2.0 */
/* native_sparse_attention and its gradients as their kernels see them. Strides count elements. */
#ifndef EJKI_NATIVE_SPARSE_PROBLEM_CUH
#define EJKI_NATIVE_SPARSE_PROBLEM_CUH

#include "kernels/tokens.cuh"

#define NSA EJKI_TOKENS

typedef ejki_size nsa_size;

/* [B,T,heads,…], the last axis contiguous, or [B,T,heads]. dtype 0: absent. */
typedef struct nsa_view {
    void *data;
    nsa_size batch, token, head;
    int dtype, wide; /* wide: of integers of 8 bytes */
} nsa_view;

enum { NSA_COMPRESSED, NSA_SELECTED, NSA_WINDOW, NSA_BRANCHES };

typedef struct nsa_problem {
    nsa_size batch, tokens, heads, kv_heads, group;
    nsa_size dim, width; /* of keys and of values */
    nsa_size slots;      /* most blocks of a token, and what block_counts says */
    nsa_size most;
    nsa_size window;     /* 0: none */
    nsa_size rows;       /* blocks of a batch entry */
    ejki_chunks blocks;  /* as chunks of sequences; the rows of a batch entry are its */
    double scale;
    nsa_view query, key, value, out; /* gradients: out is the cotangent */
    nsa_view gate[NSA_BRANCHES], indices, counts;
    nsa_view selected; /* a result, or an input of gradients */
    nsa_view d_query, d_key, d_value, d_gate[NSA_BRANCHES];
    int dtype, gradient;
} nsa_problem;

/* Element 0 of a token's head. */
NSA nsa_size nsa_at(const nsa_view *v, nsa_size b, nsa_size t, nsa_size h) {
    return b * v->batch + t * v->token + h * v->head;
}

/* Whether a branch is part of the call. */
NSA int nsa_has(const nsa_problem *p, int branch) {
    return branch == NSA_SELECTED || (branch == NSA_WINDOW ? p->window > 0 : p->gate[NSA_COMPRESSED].dtype != 0);
}

/* A sequence's tokens begin to end - 1 and the row of its first block. */
typedef struct nsa_line {
    nsa_size begin, end, row;
} nsa_line;

NSA nsa_size nsa_lines(const nsa_problem *p) {
    return p->blocks.packed ? p->blocks.sequences : 1;
}

/* Line n of a batch entry. */
NSA nsa_line nsa_line_of(const nsa_problem *p, nsa_size n) {
    nsa_line line = {0, p->tokens, 0};
    if (!p->blocks.packed) return line;
    line.begin = ejki_sequence_begin(&p->blocks, n);
    line.end = ejki_sequence_begin(&p->blocks, n + 1);
    if (line.end < line.begin) line.end = line.begin;
    line.row = ejki_sequence_row(&p->blocks, n);
    return line;
}

/* The line of a token; -1: it is in none. */
NSA nsa_size nsa_line_at(const nsa_problem *p, nsa_size t) {
    if (!p->blocks.packed) return 0;
    if (p->blocks.sequences == 0) return -1;
    const nsa_size n = ejki_sequence_at(&p->blocks, t, 0);
    const nsa_line line = nsa_line_of(p, n);
    return t >= line.begin && t < line.end ? n : -1;
}

/* Blocks that a token has at most. */
NSA nsa_size nsa_limit(const nsa_problem *p, nsa_size b, nsa_size t, nsa_size h) {
    if (!p->counts.dtype) return p->slots;
    const nsa_size own = ejki_number(p->counts.data, p->counts.wide, nsa_at(&p->counts, b, t, h));
    return own < 0 ? 0 : own < p->slots ? own : p->slots;
}

/* Lists the `count` entries of a token's list that are blocks up to `last`, ascending and each once; how many. */
NSA nsa_size nsa_collect(const nsa_view *v, nsa_size at, nsa_size count, nsa_size last,
                         int *list) {
    nsa_size found = 0;
    for (nsa_size i = 0; i < count; i++) {
        const nsa_size c = ejki_number(v->data, v->wide, at + i);
        nsa_size place = found;
        if (c < 0 || c > last) continue;
        while (place > 0 && list[place - 1] > c) place--;
        if (place > 0 && list[place - 1] == c) continue;
        for (nsa_size k = found++; k > place; k--) list[k] = list[k - 1];
        list[place] = (int)c;
    }
    return found;
}

#endif
