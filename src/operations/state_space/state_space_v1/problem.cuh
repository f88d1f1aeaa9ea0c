/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_space_v1 and its gradient as their kernels see them: read by the C compiler and by NVRTC, so plain types only.
 * Rows are of the call's element type, other tensors of their own. Strides count elements.
 */
#ifndef EJKI_STATE_SPACE_V1_PROBLEM_CUH
#define EJKI_STATE_SPACE_V1_PROBLEM_CUH

#include "operations/state_space/shared/sequences.cuh"

typedef struct scan_rows { /* [B,T,E], or [B,T,G,K] */
    void *data;
    seq_size batch, step, group;
} scan_rows;

typedef struct scan_states { /* [N or S,E,K], or [E,K] without the first, or [E] */
    void *data;
    seq_size entry, channel;
    int dtype;
} scan_states;

typedef struct scan_problem {
    sequences sequences;
    seq_size batch, channels, states, groups;
    scan_rows x, dt, gate, b, c, y; /* y: out, or its cotangent */
    scan_states a, d, dt_bias;
    scan_states before, after; /* states that are read and written; the cotangent of the latter */
    double least, most;        /* limits of step sizes */
    int softplus, pooled, dtype, gradient;
    int has_gate, has_d, has_bias, has_before, has_after;
    scan_rows d_x, d_dt, d_gate, d_b, d_c;
    scan_states d_a, d_d, d_dt_bias, d_before;
} scan_problem;

SEQUENCES seq_size scan_at(const scan_rows *r, seq_size row, seq_size token, seq_size group) {
    return row * r->batch + token * r->step + group * r->group;
}

SEQUENCES seq_size scan_state_at(const scan_states *s, seq_size entry, seq_size channel) {
    return entry * s->entry + channel * s->channel;
}

/* The entry of a sequence among the states that are read or written, -1: none. */
SEQUENCES seq_size scan_slot(const scan_problem *p, int there, seq_size n) {
    return !there ? -1 : p->pooled ? seq_slot(&p->sequences, n) : n;
}

#endif
