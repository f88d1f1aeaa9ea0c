/* SPDX-License-Identifier: Apache-2.0 */
/* attention, scaled_dot_product_attention and their gradients. */
#include "conformance/attention.h"
#include "conformance/cases.h"

#define CASE                                                                                       \
    .finish = attention_finish, .exact = attention_exact, .naive = attention_naive,                \
    .slice = attention_slice

/* Dropout counts only where the call is not deterministic. */
#define SET_DROPOUT(args, a)                                                                       \
    do {                                                                                           \
        (args)->dropout_prob = (a)->dropout > 0 ? (a)->dropout : 0.25;                             \
        if ((a)->dropout > 0) (args)->deterministic = EJK_FALSE;                                   \
    } while (0)

static bool generate(struct call *c) {
    ejk_attention_args *args = c->args;
    const struct attention *a = attention_generate(
        c, (struct attention_options){
               .soft_cap = true, .sinks = true, .dropout = true, .weights = true});
    if (!a) return false;
    SET_DROPOUT(args, a);
    return true;
}

static bool generate_vjp(struct call *c) {
    ejk_attention_vjp_args *args = c->args;
    const struct attention *a = attention_generate(
        c, (struct attention_options){
               .soft_cap = true, .sinks = true, .dropout = true, .gradients = true});
    SET_DROPOUT(args, a);
    return true;
}

static bool generate_sdpa(struct call *c) {
    return attention_generate(c, (struct attention_options){.packed = true});
}

static bool generate_sdpa_vjp(struct call *c) {
    return attention_generate(c, (struct attention_options){.packed = true, .gradients = true});
}

const struct operation attention_case = {CASE, .op = "attention", .cases = 60,
                                         .generate = generate};
const struct operation attention_vjp_case = {CASE, .op = "attention_vjp", .cases = 30,
                                             .generate = generate_vjp};
const struct operation scaled_dot_product_attention_case = {
    CASE, .op = "scaled_dot_product_attention", .cases = 30, .generate = generate_sdpa};
const struct operation scaled_dot_product_attention_vjp_case = {
    CASE, .op = "scaled_dot_product_attention_vjp", .cases = 30, .generate = generate_sdpa_vjp};
