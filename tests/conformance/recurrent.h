/* SPDX-License-Identifier: Apache-2.0 */
/* A call of the recurrent family as its case holds it, and the recurrence in three precisions. */
#ifndef TESTS_CONFORMANCE_RECURRENT_H
#define TESTS_CONFORMANCE_RECURRENT_H

#include "conformance/call.h"

enum role {
    QUERY,
    KEY,
    VALUE,
    A,
    B,
    BETA,
    BONUS,
    G,
    GK,
    GV,
    GAMMA,
    A_LOG,
    DT_BIAS,
    INITIAL,
    ROLES
};
enum update { ADD, DELTA, RANK_ONE };
enum { MOST_SEQUENCES = 8, KEPT_STEPS = 32 };

/* An operation, with the names of its tensors; NULL where it has none. */
struct member {
    const char *name[ROLES];
    enum update update;
    bool before, normalises, has_raw, multiplies, has_layers, has_pool_only, keeps;
};

struct recurrent {
    const struct member *member;
    int64_t batch, tokens, sequences, heads, own[3]; /* of query, key, value */
    int64_t dk, dv, slots;
    bool packed, flat, reverse, wide_gate, bias_row, gamma_each, normalise, logits, pool, turned;
    double scale, slope;
    int64_t end[MOST_SEQUENCES + 1], row[MOST_SEQUENCES], segments; /* of sequences */
    ejk_tensor tensor[ROLES], ids;
    double *x[ROLES], *state, *d_out,
        *d_final;     /* their values; `state` in place of the initial one */
    int64_t *segment; /* of tokens, or NULL */
    /* What a call keeps for gradients. Of gradients: where an evaluation puts it, and the tensors that get it. */
    double *states, *errors;
    ejk_tensor kept[2];
};

/* Rows of kept states: of an entry of the batch; before the first of a sequence. */
static inline int64_t kept_rows(const struct recurrent *p) {
    return (p->tokens + KEPT_STEPS - 1) / KEPT_STEPS + (p->packed ? p->sequences - 1 : 0);
}
static inline int64_t kept_before(const struct recurrent *p, int64_t n) {
    return p->packed ? p->end[n] / KEPT_STEPS + n : n * kept_rows(p);
}

/* All results of a call, in an order of summation; EXACT is the first. */
void recurrent_long(struct call *c, const struct recurrent *p, int order);
void recurrent_double(struct call *c, const struct recurrent *p, int order);
void recurrent_float(struct call *c, const struct recurrent *p, int order);

#endif
