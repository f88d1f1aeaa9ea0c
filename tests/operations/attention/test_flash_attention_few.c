/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of few keys. Rows by whole vectors, eight keys and nothing but `out` have a way of their own through the
 * kernel: on every tier it has to give the bits of the way beside it, which a log-sum-exp asks for, and near those
 * of the reference, from and to views at odd addresses.
 */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>

enum { B = 2, S = 8, H = 2, MOST_T = 24, MOST_D = 24, ROOM = B * MOST_T * H * MOST_D };

typedef struct sizes {
    int64_t queries, head_dim, value_dim;
} sizes;
static const sizes all[] = {{8, 8, 8}, {16, 8, 24}, {24, 24, 16}, {4, 4, 4}, {9, 8, 8}, {8, 12, 8}};

/* Floats from the second byte on: no view needs to be aligned. */
typedef unsigned char odd[1 + ROOM * sizeof(float)];
static odd query, key, value, out, again, reference, lse;

static float number(const odd array, int64_t i) {
    float x;
    memcpy(&x, array + 1 + (size_t)i * sizeof x, sizeof x);
    return x;
}
static void put(odd array, int64_t i, float x) {
    memcpy(array + 1 + (size_t)i * sizeof x, &x, sizeof x);
}

static ejk_tensor view(odd array, int64_t length, int64_t width) {
    return ejk_tensor_4d(array + 1, EJK_DTYPE_F32, B, length, H, width);
}

static ejk_flash_attention_args call(const sizes *n, odd result) {
    return (ejk_flash_attention_args){
        .query = view(query, n->queries, n->head_dim),
        .key = view(key, S, n->head_dim),
        .value = view(value, S, n->value_dim),
        .out = view(result, n->queries, n->value_dim),
    };
}

static void fill(void) {
    for (int i = 0; i < ROOM; i++) {
        put(query, i, sinf(0.7f * (float)i) * 2);
        put(key, i, cosf(0.3f * (float)i));
        put(value, i, sinf(0.1f * (float)i + 1));
        put(out, i, -77);
        put(again, i, -77);
    }
}

/* The three ways of one call. The first elements of the output are 0, whatever the reference computes in f64. */
static void compare(ejk_context *context, const sizes *n, int64_t zeros) {
    ejk_flash_attention_args args = call(n, out);
    EXPECT_OK(ejk_flash_attention(context, &args));
    args = call(n, again);
    args.lse = ejk_tensor_3d(lse + 1, EJK_DTYPE_F32, B, H, n->queries);
    EXPECT_OK(ejk_flash_attention(context, &args));
    args = call(n, reference);
    strcpy(args.platform, "reference");
    EXPECT_OK(ejk_flash_attention(context, &args));
    const int64_t count = B * n->queries * H * n->value_dim;
    for (int64_t i = 0; i < count; i++) {
        const float got = number(out, i), beside = number(again, i);
        const float wanted = i < zeros ? 0 : number(reference, i);
        if (isnan(wanted)) {
            assert_true(isnan(got) && isnan(beside));
            continue;
        }
        assert_memory_equal(&got, &beside, sizeof got);
        if (isfinite(wanted))
            EXPECT_NEAR(got, wanted, 3e-6);
        else
            assert_true(got == wanted);
    }
    for (int64_t i = count; i < ROOM; i++) assert_true(number(out, i) == -77);
}

static void try_sizes(ejk_context *context, const sizes *n) {
    const int64_t token = H * n->head_dim;
    fill();
    compare(context, n, 0);
    fill();
    put(query, 3 * token, NAN); /* one row */
    put(value, 2, INFINITY);    /* one column of one head */
    compare(context, n, 0);
    fill(); /* in f32, products of row 0, head 0 with all keys are -inf: it sees nothing */
    for (int64_t i = 0; i < B * n->queries; i++) put(query, i * token, 0);
    for (int64_t j = 0; j < S; j++) put(key, j * token, 1e38f);
    put(query, 0, -1e38f);
    put(value, 1, INFINITY);
    compare(context, n, n->value_dim);
}

static void test_on_every_tier(void **state) {
    (void)state;
    static const ejk_isa tiers[] = {EJK_ISA_SCALAR, EJK_ISA_NEON, EJK_ISA_AVX2, EJK_ISA_AVX512};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        if (tiers[i] != EJK_ISA_SCALAR && !ejk_cpu()->tiers[tiers[i]]) continue;
        ejk_context *context = NULL;
        EXPECT_OK(ejk_context_create(
            &(ejk_context_options){.threads = 1, .isa = ejk_isa_name(tiers[i])}, &context));
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) try_sizes(context, &all[k]);
        ejk_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_on_every_tier)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
