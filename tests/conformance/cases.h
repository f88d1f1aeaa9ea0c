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
    X(chunked_prefill_paged_decode)                                                                \
    X(decode_attention)                                                                            \
    X(flash_attention)                                                                             \
    X(flash_attention_vjp)                                                                         \
    X(kv_cache_copy)                                                                               \
    X(mean_pooling)                                                                                \
    X(mean_pooling_vjp)                                                                            \
    X(multi_latent_ragged_page_attention)                                                          \
    X(page_attention)                                                                              \
    X(prefill_page_attention)                                                                      \
    X(ragged_decode_attention)                                                                     \
    X(ragged_page_attention)                                                                       \
    X(ragged_page_attention_v3)                                                                    \
    X(scaled_dot_product_attention)                                                                \
    X(scaled_dot_product_attention_vjp)                                                            \
    X(unified_attention)                                                                           \
    X(update_kv_cache)

#define DECLARE_CASE(op) extern const struct operation op##_case;
CASES(DECLARE_CASE)
#undef DECLARE_CASE

#endif
