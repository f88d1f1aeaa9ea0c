/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cases of attention share: random arguments, and the one naive attention, forward and backward, that all of
 * them are compared with. A case says which arguments its operation has, and copies them by name.
 */
#ifndef TESTS_CONFORMANCE_ATTENTION_H
#define TESTS_CONFORMANCE_ATTENTION_H

#include "conformance/call.h"

/* What an operation can be asked for. */
struct attention_options {
    bool soft_cap, sinks, dropout, raw, packed; /* raw: normalize_output = false */
    bool heads_first;                           /* [B,H,T,D] */
    bool gradients, weights;
    bool positions; /* offsets count from 0 where they are given */
};

/* What the scores are like. */
enum pattern { NORMAL, LARGE, EQUAL, ONE_HOT, RISING, FALLING, JUMP, TINY, PATTERNS };
/* Where NaN and infinities are put: in all that no query sees, or in places that some may see. */
enum poison { CLEAN, IN_HIDDEN, IN_KEY, IN_VALUE, IN_BIAS };

/* Arguments by the names that the operations have for them, and what they are made of. */
struct attention {
    struct attention_options options;
    enum pattern pattern;
    enum poison poison;
    int64_t batch, queries, keys, heads, kv_heads, group, dim, value_dim;
    int64_t sequences; /* packed ones; 0 = none */
    bool tokens;       /* which lie one after the other */
    int64_t *ends[2];  /* of their queries and keys, from 0 on */

    ejk_tensor query, key, value, bias, mask, sinks, query_ids, key_ids, cum_q, cum_k;
    ejk_tensor query_positions, key_positions;
    bool causal, normalize;
    ejk_opt_int offset, chunk;
    ejk_window window;
    ejk_opt_float scale, cap;
    double dropout;
    uint64_t dropout_seed;
    const uint8_t *elements; /* [Hq,T,S] that a block mask shows; NULL = all */
    ejk_tensor out, lse, row_max, row_sum, weights;
    ejk_tensor d_out, d_lse, d_query, d_key, d_value, d_bias, d_sinks;

    void *more; /* the case's */

    /* Of the model: inputs as doubles, [B,T,H,D]. */
    double *q, *k, *v, *b, *s, *c_out, *c_lse;
    double *given_out, *given_lse, *exact_out,
        *exact_lse; /* what the operation wrote, and before it was rounded */
    uint8_t *seen;  /* [B,Hq,T,S]: SHOWN, KEPT */
    uint8_t *none;  /* [B,T]: a row of no sequence */
};
enum { SHOWN = 1, KEPT = 2 };

/* Chooses sizes; then features; then contents of all tensors. A case may change what it likes between them. */
struct attention *attention_create(struct call *c, struct attention_options options);
void attention_features(struct call *c, struct attention *a);
/* All tensors of zeros that are not there yet, then what they hold. */
void attention_tensors(struct call *c, struct attention *a);
void attention_contents(struct call *c, struct attention *a);
/* Gradients that are wanted, and cotangents. */
void attention_gradients(struct call *c, struct attention *a);

/* operation.finish, exact and naive of all cases. */
void attention_finish(struct call *c);
void attention_exact(struct call *c);
void attention_naive(struct call *c, int order);

/* operation.slice: batch entries, queries and KV heads, with causal_offset moved. */
bool attention_slice(const struct call *c, struct random *r, struct slice *s);

/* Sets all arguments that the operation has, by name; but what is dropped only where it has no other rule. */
void attention_arguments(struct call *c, const struct attention *a);
/* Sizes, features, contents, gradients if asked for, and arguments. NULL: nobody wants the call. */
struct attention *attention_generate(struct call *c, struct attention_options options);

/* [B,T,H,D], [T,H,D] or [B,H,T,D] of zeros. */
ejk_tensor attention_tensor(struct call *c, const struct attention *a, ejk_dtype dtype, int64_t n,
                            int64_t heads, int64_t width);

/* ---- The model --------------------------------------------------------------------------------------- */

/* Orders of the same arithmetic: sums backwards, with the scale multiplied into the query first; sums from their
 * middle on; products added without being rounded and scores in base 2, as kernels have them. */
enum { BACKWARDS = 1, FROM_MIDDLE = 2, FUSED = 4 };

/* Results; NULL for those that are not wanted. */
struct attention_results {
    double *out, *lse, *row_max, *row_sum, *weights;
    double *out_spread;
    double *d[5], *d_spread[5]; /* query, key, value, bias, sinks */
};

void attention_long_forward(struct call *c, const struct attention *a, int order,
                            const struct attention_results *r);
void attention_long_backward(struct call *c, const struct attention *a, int order,
                             const struct attention_results *r);
void attention_double_forward(struct call *c, const struct attention *a, int order,
                              const struct attention_results *r);
void attention_double_backward(struct call *c, const struct attention *a, int order,
                               const struct attention_results *r);
void attention_float_forward(struct call *c, const struct attention *a, int order,
                             const struct attention_results *r);
void attention_float_backward(struct call *c, const struct attention *a, int order,
                              const struct attention_results *r);

/* Where row (b, i, h) of a [B,T,H,…] tensor is in one that may have heads first. */
static inline int64_t attention_row(const struct attention *a, int64_t n, int64_t heads, int64_t b,
                                    int64_t i, int64_t h) {
    return a->options.heads_first ? (b * heads + h) * n + i : (b * n + i) * heads + h;
}

/* Element of a bias for (b, h, i, 0). */
static inline int64_t attention_bias(const struct attention *a, int64_t b, int64_t h, int64_t i) {
    const int64_t *n = a->bias.shape;
    return (((n[0] == 1 ? 0 : b) * n[1] + (n[1] == 1 ? 0 : h)) * n[2] + (n[2] == 1 ? 0 : i)) * n[3];
}

/* First sink of a query head. */
static inline int64_t attention_sink(const struct attention *a, int64_t h) {
    const int64_t count = a->sinks.shape[a->sinks.rank - 1];
    if (a->sinks.rank == 1 || a->sinks.shape[0] == 1) return 0;
    return (a->sinks.shape[0] == a->heads ? h : h / a->group) * count;
}

/* Number of sinks that a row reads. */
static inline int64_t attention_sinks(const struct attention *a, int64_t b, int64_t i) {
    if (!ejk_tensor_present(&a->sinks) || a->none[b * a->queries + i]) return 0;
    return a->sinks.shape[a->sinks.rank - 1];
}

/* What softmax_scale means. */
static inline double attention_scale(const struct attention *a) {
    if (a->scale.set) return a->scale.value;
    return a->dim ? 1 / sqrt((double)a->dim) : 1;
}

#endif
