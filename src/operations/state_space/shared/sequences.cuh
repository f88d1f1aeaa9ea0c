/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences of a stateful call: rows of a batch, or packed ones by their ends, and the slot of each one's state in a
 * pool. Read by the C compiler and by NVRTC, so plain types only.
 */
#ifndef EJKI_STATE_SPACE_SEQUENCES_CUH
#define EJKI_STATE_SPACE_SEQUENCES_CUH

#include "kernels/tokens.cuh"

#define SEQUENCES EJKI_TOKENS

typedef ejki_size seq_size;

typedef struct sequences {
    const void *ends, *indices; /* of 4 bytes each, or of 8 where they are wide */
    seq_size count, tokens, slots;
    int packed, wide_ends, indexed, wide_indices;
} sequences;

/* Tokens begin to end - 1 of a row of the batch. */
typedef struct seq_range {
    seq_size row, begin, end;
} seq_range;

SEQUENCES seq_size seq_end(const sequences *s, seq_size n) {
    return ejki_number_within(s->ends, s->wide_ends, n, s->tokens);
}

SEQUENCES seq_range seq_of(const sequences *s, seq_size n) {
    const seq_range whole = {n, 0, s->tokens};
    if (!s->packed) return whole;
    const seq_size begin = seq_end(s, n), end = seq_end(s, n + 1);
    const seq_range range = {0, begin, end < begin ? begin : end};
    return range;
}

/* The sequence of a token, or -1; empty sequences have none. */
SEQUENCES seq_size seq_find(const sequences *s, seq_size row, seq_size token) {
    if (!s->packed) return row;
    seq_size low = 0, high = s->count;
    if (high == 0) return -1;
    while (high - low > 1) {
        const seq_size middle = (low + high) / 2;
        if (seq_end(s, middle) <= token)
            low = middle;
        else
            high = middle;
    }
    return token >= seq_end(s, low) && token < seq_end(s, low + 1) ? low : -1;
}

/* Tokens from `token` on, up to `end`, that are the same sequence's, or no sequence's. */
SEQUENCES seq_size seq_stop(const sequences *s, seq_size n, seq_size token, seq_size end) {
    if (!s->packed) return end;
    const seq_size first = s->count ? seq_end(s, 0) : s->tokens;
    const seq_size own = n >= 0 ? seq_end(s, n + 1) : token < first ? first : s->tokens;
    return own < end ? own : end;
}

/* Where a sequence's state lies; -1: it begins at 0 and is not kept. */
SEQUENCES seq_size seq_slot(const sequences *s, seq_size n) {
    if (!s->indexed) return n;
    const seq_size slot = ejki_number(s->indices, s->wide_indices, n);
    return slot < 0 || slot >= s->slots ? -1 : slot;
}

#endif
