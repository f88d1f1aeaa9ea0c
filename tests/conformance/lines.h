/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of stateful calls, as cases make them up: rows of a batch or packed ones, and their slots in a pool. */
#ifndef TESTS_CONFORMANCE_LINES_H
#define TESTS_CONFORMANCE_LINES_H

#include "conformance/call.h"

enum { MOST_LINES_OF_CALL = 12 };

struct lines {
    int64_t batch, tokens, count, slots;
    bool packed;
    int64_t row[MOST_LINES_OF_CALL], begin[MOST_LINES_OF_CALL], end[MOST_LINES_OF_CALL];
    int64_t slot[MOST_LINES_OF_CALL]; /* of a pool; -1: none */
    ejk_tensor ends, indices;
};

/* Of decays, biases and states beside tensors of tokens: the call's type, or f32, or f64 beside f64. */
ejk_dtype lines_type(struct call *c);
/* Packed ones may be empty, and tokens behind the last are in none. */
void lines_make(struct call *c, struct lines *l, int64_t batch, int64_t tokens);
/* Slots of a pool that is larger than it has to be, in any order. */
void lines_pool(struct call *c, struct lines *l);
/* True for tokens of a sequence. */
bool lines_have(const struct lines *l, int64_t token);
/* Entry of an expected state that is no sequence's, or of a token that is none's. */
bool lines_keep(const struct lines *l, int64_t slot);
/* NaN where nobody reads: in tokens of no sequence of [B,T,…], or in slots of a pool that are no sequence's. */
void lines_hide(const struct lines *l, const ejk_tensor *t);
void lines_hide_slots(const struct lines *l, const ejk_tensor *pool);

#endif
