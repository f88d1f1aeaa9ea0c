/* SPDX-License-Identifier: Apache-2.0 */
/* flash_attention and its gradients. */
#include "conformance/attention.h"
#include "conformance/cases.h"

#define SET_INPUTS(args, a)                                                                        \
    do {                                                                                           \
        (args)->query = (a)->query;                                                                \
        (args)->key = (a)->key;                                                                    \
        (args)->value = (a)->value;                                                                \
        (args)->bias = (a)->bias;                                                                  \
        (args)->attention_mask = (a)->mask;                                                        \
        (args)->softmax_aux = (a)->sinks;                                                          \
        (args)->cum_seqlens_q = (a)->cum_q;                                                        \
        (args)->cum_seqlens_k = (a)->cum_k;                                                        \
        (args)->q_segment_ids = (a)->query_ids;                                                    \
        (args)->kv_segment_ids = (a)->key_ids;                                                     \
        (args)->softmax_scale = (a)->scale;                                                        \
        (args)->logits_soft_cap = (a)->cap;                                                        \
        (args)->dropout_prob = (a)->dropout;                                                       \
        (args)->dropout_seed = ejk_int((int64_t)(a)->dropout_seed);                                \
        (args)->causal = (a)->causal;                                                              \
        (args)->causal_offset = (a)->offset;                                                       \
        (args)->sliding_window = (a)->window;                                                      \
        (args)->out = (a)->out;                                                                    \
        (args)->lse = (a)->lse;                                                                    \
    } while (0)

static bool generate(struct call *c) {
    ejk_flash_attention_args *args = c->args;
    struct attention *a = attention_create(
        c, (struct attention_options){
               .soft_cap = true, .sinks = true, .dropout = true, .raw = true, .packed = true});
    attention_features(c, a);
    attention_contents(c, a);
    SET_INPUTS(args, a);
    if (!a->normalize) args->normalize_output = EJK_FALSE;
    args->row_max = a->row_max;
    args->row_sum = a->row_sum;
    return true;
}

static bool slice(const struct call *c, struct random *r, struct slice *s) {
    return attention_slice(c, r, s, &((ejk_flash_attention_args *)s->args)->causal_offset);
}

const struct operation flash_attention_case = {.op = "flash_attention",
                                               .cases = 200,
                                               .generate = generate,
                                               .finish = attention_finish,
                                               .exact = attention_exact,
                                               .naive = attention_naive,
                                               .slice = slice};

static bool generate_vjp(struct call *c) {
    ejk_flash_attention_vjp_args *args = c->args;
    struct attention *a = attention_create(
        c,
        (struct attention_options){
            .soft_cap = true, .sinks = true, .dropout = true, .packed = true, .gradients = true});
    attention_features(c, a);
    attention_contents(c, a);
    attention_gradients(c, a);
    SET_INPUTS(args, a);
    args->d_out = a->d_out;
    args->d_lse = a->d_lse;
    args->d_query = a->d_query;
    args->d_key = a->d_key;
    args->d_value = a->d_value;
    args->d_bias = a->d_bias;
    args->d_softmax_aux = a->d_sinks;
    return true;
}

static bool slice_vjp(const struct call *c, struct random *r, struct slice *s) {
    return attention_slice(c, r, s, &((ejk_flash_attention_vjp_args *)s->args)->causal_offset);
}

const struct operation flash_attention_vjp_case = {.op = "flash_attention_vjp",
                                                   .cases = 120,
                                                   .generate = generate_vjp,
                                                   .finish = attention_finish,
                                                   .exact = attention_exact,
                                                   .naive = attention_naive,
                                                   .slice = slice_vjp};
