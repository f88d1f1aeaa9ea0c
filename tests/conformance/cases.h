/* SPDX-License-Identifier: Apache-2.0 */
/* Every case, one line each: whoever adds an operation adds it here. */
#ifndef TESTS_CONFORMANCE_CASES_H
#define TESTS_CONFORMANCE_CASES_H

#include "conformance/call.h"

#define CASES(X)                                                                                   \
    X(attention)                                                                                   \
    X(attention_merge)                                                                             \
    X(attention_merge_accumulators)                                                                \
    X(attention_merge_vjp)                                                                         \
    X(attention_vjp)                                                                               \
    X(blocksparse_attention)                                                                       \
    X(blocksparse_attention_vjp)                                                                   \
    X(flash_attention)                                                                             \
    X(flash_attention_vjp)                                                                         \
    X(gated_delta_rule)                                                                            \
    X(gated_delta_rule_vjp)                                                                        \
    X(gla_attention)                                                                               \
    X(gla_attention_vjp)                                                                           \
    X(kda_attention)                                                                               \
    X(kda_attention_vjp)                                                                           \
    X(lightning_attention)                                                                         \
    X(lightning_attention_vjp)                                                                     \
    X(mean_pooling)                                                                                \
    X(mean_pooling_vjp)                                                                            \
    X(ragged_gated_delta_rule)                                                                     \
    X(recurrent_attention)                                                                         \
    X(recurrent_attention_vjp)                                                                     \
    X(rwkv6)                                                                                       \
    X(rwkv6_vjp)                                                                                   \
    X(rwkv7)                                                                                       \
    X(rwkv7_mul)                                                                                   \
    X(rwkv7_mul_vjp)                                                                               \
    X(rwkv7_vjp)                                                                                   \
    X(scaled_dot_product_attention)                                                                \
    X(scaled_dot_product_attention_vjp)

#define DECLARE_CASE(op) extern const struct operation op##_case;
CASES(DECLARE_CASE)
#undef DECLARE_CASE

#endif
