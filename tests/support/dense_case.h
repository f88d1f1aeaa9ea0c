/* SPDX-License-Identifier: Apache-2.0 */
/* Random calls of dense attention, and what they must give, computed as the definition reads. */
#ifndef TESTS_DENSE_CASE_H
#define TESTS_DENSE_CASE_H

#include "support/random.h"

#include <ejkernel/ejkernel.h>
#include <stdint.h>

enum { DENSE_MOST = 4096 };

/* Numbers of a call in double precision; tensors hold them in the type of the case. */
typedef struct dense_case {
    int64_t b, t, s, hq, hkv, d, dv;
    ejk_dtype dtype;
    double query[DENSE_MOST], key[DENSE_MOST], value[DENSE_MOST], bias[DENSE_MOST], sinks[64];
    /* What tensors point to. */
    double storage[5][DENSE_MOST], out_storage[DENSE_MOST], weights_storage[DENSE_MOST];
    float lse[DENSE_MOST];
    unsigned char mask[DENSE_MOST];
    int64_t query_ids[256], key_ids[256];
    ejk_attention_args args;
    /* Expected. */
    double out[DENSE_MOST], weights[DENSE_MOST], logs[DENSE_MOST];
} dense_case;

/* A case of that type with outputs out, weights and lse, filled with NaN; every feature in a third of them. */
void dense_fill(dense_case *c, uint64_t seed, ejk_dtype dtype);
/* Fills what is expected. */
void dense_expect(dense_case *c);
/* Results as numbers. */
double dense_out(const dense_case *c, int64_t index);
double dense_weight(const dense_case *c, int64_t index);
/* The same call as another operation's. */
ejk_flash_attention_args dense_flash(const dense_case *c);
ejk_scaled_dot_product_attention_args dense_sdpa(const dense_case *c);

#endif
