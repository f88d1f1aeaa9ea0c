/* SPDX-License-Identifier: Apache-2.0 */
/* flash_attention and its gradients. */
#include "conformance/attention.h"
#include "conformance/cases.h"

#define CASE                                                                                       \
    .finish = attention_finish, .exact = attention_exact, .naive = attention_naive,                \
    .slice = attention_slice

static bool generate(struct call *c) {
    return attention_generate(
        c, (struct attention_options){
               .soft_cap = true, .sinks = true, .dropout = true, .raw = true, .packed = true});
}

static bool generate_vjp(struct call *c) {
    return attention_generate(
        c,
        (struct attention_options){
            .soft_cap = true, .sinks = true, .dropout = true, .packed = true, .gradients = true});
}

const struct operation flash_attention_case = {CASE, .op = "flash_attention", .cases = 200,
                                               .generate = generate};
const struct operation flash_attention_vjp_case = {CASE, .op = "flash_attention_vjp", .cases = 120,
                                                   .generate = generate_vjp};
