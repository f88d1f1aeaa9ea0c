/* SPDX-License-Identifier: Apache-2.0 */
/*
 * causal_conv1d and its gradient as their kernels see them: read by the C compiler and by NVRTC, so plain types only.
 * A sequence is extended by the `width` - 1 tokens of its state before it: entry j of it is the state's for
 * j < width - 1, token j - width + 1 after. Strides count elements.
 */
#ifndef EJKI_CAUSAL_CONV1D_PROBLEM_CUH
#define EJKI_CAUSAL_CONV1D_PROBLEM_CUH

#include "operations/state_space/shared/sequences.cuh"

/* Taps at most: rows of a window are kept by their addresses. */
#define CONV_MOST_TAPS 64

typedef struct conv_rows { /* [B,T,C] */
    void *data;
    seq_size batch, step;
} conv_rows;

typedef struct conv_states { /* [N or S,C,W-1] or, without the first, [C,W] */
    void *data;
    seq_size entry, channel;
} conv_states;

typedef struct conv_problem {
    sequences sequences;
    seq_size batch, channels, width;
    conv_rows x, y; /* y: out, or its cotangent */
    conv_states weight, before, after; /* states that are read and written; the cotangent of the latter */
    const void *bias;
    int silu, pooled, dtype, gradient;
    int has_bias, has_before, has_after;
    conv_rows d_x;
    conv_states d_weight, d_before;
    void *d_bias;
} conv_problem;

SEQUENCES seq_size conv_at(const conv_rows *r, seq_size row, seq_size token) {
    return row * r->batch + token * r->step;
}

SEQUENCES seq_size conv_state_at(const conv_states *s, seq_size entry, seq_size channel) {
    return entry * s->entry + channel * s->channel;
}

/* The entry of a sequence among the states that are read or written, -1: none. */
SEQUENCES seq_size conv_slot(const conv_problem *p, int there, seq_size n) {
    return !there ? -1 : p->pooled ? seq_slot(&p->sequences, n) : n;
}

#endif
