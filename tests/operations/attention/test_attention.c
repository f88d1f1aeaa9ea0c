/* SPDX-License-Identifier: Apache-2.0 */
/* attention and scaled_dot_product_attention with a MaskInfo, and weights that are not wanted. */
#include "support/expect.h"
#include "support/random.h"

#include <ejkernel/ejkernel.h>
#include <string.h>

enum {
    B = 2,
    T = 7,
    S = 9,
    HQ = 4,
    HKV = 2,
    D = 5,
    OUT = B * T * HQ * D,
    WEIGHTS = B * HQ * T * S
};

static ejk_context *context;
static float q[OUT], k[B * S * HKV * D], v[B * S * HKV * D], out[2][OUT], weights[WEIGHTS];
static int64_t query_ids[B * T], key_ids[B * S];

static int setup(void **state) {
    (void)state;
    struct random r = {3};
    for (size_t i = 0; i < OUT; i++) q[i] = (float)random_normal(&r);
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) k[i] = (float)random_normal(&r);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) v[i] = (float)random_normal(&r);
    for (int64_t i = 0; i < B * T; i++) query_ids[i] = i / 3 % 2;
    for (int64_t i = 0; i < B * S; i++) key_ids[i] = i / 3 % 2;
    return ejk_context_create(&(ejk_context_options){.threads = 3}, &context) != EJK_OK;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

static ejk_attention_args call(float *result) {
    memset(result, 0xff, sizeof *out);
    return (ejk_attention_args){.query = ejk_tensor_4d(q, EJK_DTYPE_F32, B, T, HQ, D),
                                .key = ejk_tensor_4d(k, EJK_DTYPE_F32, B, S, HKV, D),
                                .value = ejk_tensor_4d(v, EJK_DTYPE_F32, B, S, HKV, D),
                                .out = ejk_tensor_4d(result, EJK_DTYPE_F32, B, T, HQ, D)};
}

/* The bits that ids give, by either operation. */
static void mask_infos_stand_for_masks(void **state) {
    (void)state;
    ejk_mask_info *info;
    ejk_attention_args by_ids = call(out[0]);
    by_ids.q_segment_ids = ejk_tensor_2d(query_ids, EJK_DTYPE_I64, B, T);
    by_ids.kv_segment_ids = ejk_tensor_2d(key_ids, EJK_DTYPE_I64, B, S);
    EXPECT_OK(ejk_mask_info_from_segments(&by_ids.q_segment_ids, &by_ids.kv_segment_ids, false,
                                          NULL, &info));
    EXPECT_OK(ejk_attention(context, &by_ids));
    ejk_attention_args args = call(out[1]);
    EXPECT_OK(ejk_attention_masked(context, &args, info));
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    args = call(out[1]);
    const ejk_scaled_dot_product_attention_config cfg = {.platform = "auto"};
    const ejk_scaled_dot_product_attention_args sdpa = {
        .query = args.query, .key = args.key, .value = args.value, .out = args.out, .cfg = cfg};
    EXPECT_OK(ejk_scaled_dot_product_attention_masked(context, &sdpa, info));
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    EXPECT_FAIL(INVALID_ARGUMENT, "q_segment_ids", ejk_attention_masked(context, &by_ids, info));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_attention_masked(context, NULL, info));
    EXPECT_FAIL(INVALID_ARGUMENT, "args",
                ejk_scaled_dot_product_attention_masked(context, NULL, info));
    ejk_mask_info_release(info);
}

/* What is given, but not wanted, is not written; d_weights is not there yet. */
static void weights_may_be_unwanted(void **state) {
    (void)state;
    ejk_attention_args args = call(out[0]);
    args.cfg = (ejk_attention_config){.platform = "reference"};
    args.return_weights = EJK_FALSE;
    args.weights = ejk_tensor_4d(weights, EJK_DTYPE_F32, B, HQ, T, S);
    for (int i = 0; i < WEIGHTS; i++) weights[i] = -77;
    EXPECT_OK(ejk_attention(context, &args));
    for (int i = 0; i < WEIGHTS; i++) assert_true(weights[i] == -77);
    static float lse[B * HQ * T];
    const ejk_attention_vjp_args vjp = {.query = args.query,
                                        .key = args.key,
                                        .value = args.value,
                                        .out = args.out,
                                        .d_out = args.out,
                                        .lse = ejk_tensor_3d(lse, EJK_DTYPE_F32, B, HQ, T),
                                        .d_weights = args.weights};
    EXPECT_FAIL(UNAVAILABLE, "d_weights", ejk_attention_vjp(context, &vjp));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mask_infos_stand_for_masks),
        cmocka_unit_test(weights_may_be_unwanted),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
