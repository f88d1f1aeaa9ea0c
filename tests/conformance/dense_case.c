/* SPDX-License-Identifier: Apache-2.0 */
/* attention, scaled_dot_product_attention and their gradients. */
#include "conformance/attention.h"
#include "conformance/cases.h"

#define SET_SHARED(args, a)                                                                        \
    do {                                                                                           \
        (args)->query = (a)->query;                                                                \
        (args)->key = (a)->key;                                                                    \
        (args)->value = (a)->value;                                                                \
        (args)->bias = (a)->bias;                                                                  \
        (args)->attention_mask = (a)->mask;                                                        \
        (args)->q_segment_ids = (a)->query_ids;                                                    \
        (args)->kv_segment_ids = (a)->key_ids;                                                     \
        (args)->softmax_scale = (a)->scale;                                                        \
        (args)->causal = (a)->causal;                                                              \
        (args)->causal_offset = (a)->offset;                                                       \
        (args)->sliding_window = (a)->window;                                                      \
        (args)->out = (a)->out;                                                                    \
        (args)->lse = (a)->lse;                                                                    \
    } while (0)

#define SET_GRADIENTS(args, a)                                                                     \
    do {                                                                                           \
        (args)->d_out = (a)->d_out;                                                                \
        (args)->d_lse = (a)->d_lse;                                                                \
        (args)->d_query = (a)->d_query;                                                            \
        (args)->d_key = (a)->d_key;                                                                \
        (args)->d_value = (a)->d_value;                                                            \
        (args)->d_bias = (a)->d_bias;                                                              \
    } while (0)

/* Dropout counts only where the call is not deterministic. */
#define SET_ATTENTION(args, a)                                                                     \
    do {                                                                                           \
        SET_SHARED(args, a);                                                                       \
        (args)->softmax_aux = (a)->sinks;                                                          \
        (args)->logits_soft_cap = (a)->cap;                                                        \
        (args)->dropout_prob = (a)->dropout > 0 ? (a)->dropout : 0.25;                             \
        (args)->dropout_seed = ejk_int((int64_t)(a)->dropout_seed);                                \
        if ((a)->dropout > 0) (args)->deterministic = EJK_FALSE;                                   \
    } while (0)

#define SET_SDPA(args, a)                                                                          \
    do {                                                                                           \
        SET_SHARED(args, a);                                                                       \
        (args)->cum_seqlens_q = (a)->cum_q;                                                        \
        (args)->cum_seqlens_k = (a)->cum_k;                                                        \
    } while (0)

static struct attention *make(struct call *c, struct attention_options options) {
    struct attention *a = attention_create(c, options);
    attention_features(c, a);
    attention_contents(c, a);
    if (options.gradients) attention_gradients(c, a);
    return a;
}

/* ---- attention --------------------------------------------------------------------------------------- */

static bool generate(struct call *c) {
    ejk_attention_args *args = c->args;
    struct attention *a =
        make(c, (struct attention_options){.soft_cap = true, .sinks = true, .dropout = true});
    SET_ATTENTION(args, a);
    if (random_chance(&c->random, 0.7))
        args->weights = CALL_TENSOR(c, c->dtype, a->batch, a->heads, a->queries, a->keys);
    return true;
}

static bool slice(const struct call *c, struct random *r, struct slice *s) {
    return attention_slice(c, r, s, &((ejk_attention_args *)s->args)->causal_offset);
}

const struct operation attention_case = {.op = "attention",
                                         .cases = 60,
                                         .generate = generate,
                                         .finish = attention_finish,
                                         .exact = attention_exact,
                                         .naive = attention_naive,
                                         .slice = slice};

static bool generate_vjp(struct call *c) {
    ejk_attention_vjp_args *args = c->args;
    struct attention *a =
        make(c, (struct attention_options){
                    .soft_cap = true, .sinks = true, .dropout = true, .gradients = true});
    SET_ATTENTION(args, a);
    SET_GRADIENTS(args, a);
    args->d_softmax_aux = a->d_sinks;
    return true;
}

static bool slice_vjp(const struct call *c, struct random *r, struct slice *s) {
    return attention_slice(c, r, s, &((ejk_attention_vjp_args *)s->args)->causal_offset);
}

const struct operation attention_vjp_case = {.op = "attention_vjp",
                                             .cases = 30,
                                             .generate = generate_vjp,
                                             .finish = attention_finish,
                                             .exact = attention_exact,
                                             .naive = attention_naive,
                                             .slice = slice_vjp};

/* ---- scaled_dot_product_attention -------------------------------------------------------------------- */

static bool generate_sdpa(struct call *c) {
    ejk_scaled_dot_product_attention_args *args = c->args;
    struct attention *a = make(c, (struct attention_options){.packed = true});
    SET_SDPA(args, a);
    return true;
}

static bool slice_sdpa(const struct call *c, struct random *r, struct slice *s) {
    return attention_slice(c, r, s,
                           &((ejk_scaled_dot_product_attention_args *)s->args)->causal_offset);
}

const struct operation scaled_dot_product_attention_case = {.op = "scaled_dot_product_attention",
                                                            .cases = 30,
                                                            .generate = generate_sdpa,
                                                            .finish = attention_finish,
                                                            .exact = attention_exact,
                                                            .naive = attention_naive,
                                                            .slice = slice_sdpa};

static bool generate_sdpa_vjp(struct call *c) {
    ejk_scaled_dot_product_attention_vjp_args *args = c->args;
    struct attention *a = make(c, (struct attention_options){.packed = true, .gradients = true});
    SET_SDPA(args, a);
    SET_GRADIENTS(args, a);
    return true;
}

static bool slice_sdpa_vjp(const struct call *c, struct random *r, struct slice *s) {
    return attention_slice(c, r, s,
                           &((ejk_scaled_dot_product_attention_vjp_args *)s->args)->causal_offset);
}

const struct operation scaled_dot_product_attention_vjp_case = {
    .op = "scaled_dot_product_attention_vjp",
    .cases = 30,
    .generate = generate_sdpa_vjp,
    .finish = attention_finish,
    .exact = attention_exact,
    .naive = attention_naive,
    .slice = slice_sdpa_vjp};
