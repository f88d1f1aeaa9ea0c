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
    X(causal_conv1d)                                                                               \
    X(causal_conv1d_vjp)                                                                           \
    X(flash_attention)                                                                             \
    X(flash_attention_vjp)                                                                         \
    X(gated_rms_norm)                                                                              \
    X(gated_rms_norm_vjp)                                                                          \
    X(mean_pooling)                                                                                \
    X(mean_pooling_vjp)                                                                            \
    X(scaled_dot_product_attention)                                                                \
    X(scaled_dot_product_attention_vjp)

#define DECLARE_CASE(op) extern const struct operation op##_case;
CASES(DECLARE_CASE)
#undef DECLARE_CASE

#endif
