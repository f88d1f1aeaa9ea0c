/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rwkv4 and its gradient as their kernels see them: read by the C compiler and by NVRTC, so plain types only. Rows are
 * of the call's element type, other tensors of their own. Strides count elements; channels are contiguous.
 */
#ifndef EJKI_RWKV4_PROBLEM_CUH
#define EJKI_RWKV4_PROBLEM_CUH

#include "operations/state_space/shared/sequences.cuh"

enum { SUM_VALUES, SUM_WEIGHTS, SHIFT, STATE_NUMBERS }; /* α, β, ε */

/* Where a sequence begins, and what ε is kept from going below. */
#define FIRST_SHIFT (-1e30)
#define LEAST_SHIFT (-3.4028234663852886e38)

typedef struct wkv_rows { /* [B,T,C] */
    void *data;
    seq_size batch, step;
} wkv_rows;

typedef struct wkv_states { /* [N or S,3,C], or [C] */
    void *data;
    seq_size entry, number;
    int dtype;
} wkv_states;

typedef struct wkv_problem {
    sequences sequences;
    seq_size batch, channels;
    wkv_rows k, v, y; /* y: out, or its cotangent */
    wkv_states w, u, before,
        after; /* states that are read and written; the cotangent of the latter */
    int dtype;
    int reverse, pooled, gradient, has_before, has_after;
    wkv_rows d_k, d_v;
    wkv_states d_w, d_u, d_before;
} wkv_problem;

/* Element 0 of step t of a sequence: the first in time, or with reverse the last one. */
SEQUENCES seq_size wkv_at(const wkv_problem *p, const wkv_rows *r, seq_range range, seq_size t) {
    return range.row * r->batch + (p->reverse ? range.end - 1 - t : range.begin + t) * r->step;
}

SEQUENCES seq_size wkv_state_at(const wkv_states *s, seq_size entry, int number) {
    return entry * s->entry + number * s->number;
}

/* The entry of a sequence among the states that are read or written, -1: none. */
SEQUENCES seq_size wkv_slot(const wkv_problem *p, int there, seq_size n) {
    return !there ? -1 : p->pooled ? seq_slot(&p->sequences, n) : n;
}

#endif
