/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_sparse_attention: recorded defects of other implementations, each shown absent, lists of blocks, and what
 * contents are refused.
 */
#include "support/context.h"
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <string.h>

enum { T = 40, HQ = 4, HKV = 2, D = 8, SLOTS = 3, BLOCK = 8 };
static float query[T * HQ * D], key[T * HKV * D], value[T * HKV * D], out[T * HQ * D];
static float other[T * HQ * D], gate[T * HQ], cotangent[T * HQ * D], gradient[T * HQ * D];
static int32_t blocks[T * HKV * SLOTS], chosen[T * HKV * 5], counts[T * HKV];

static float uniform(void) {
    static uint32_t bits = 1;
    bits = bits * 1664525u + 1013904223u;
    return (float)(bits >> 8) / 8388608.0f - 1;
}
static void fill(float *to, int n) {
    for (int i = 0; i < n; i++) to[i] = uniform();
}

static ejk_tensor heads(float *data, int64_t count) {
    return ejk_tensor_4d(data, EJK_DTYPE_F32, 1, T, count, D);
}

static ejk_native_sparse_attention_args call(void) {
    fill(query, T * HQ * D);
    fill(key, T * HKV * D);
    fill(value, T * HKV * D);
    for (int i = 0; i < T * HQ; i++) gate[i] = 0;
    return (ejk_native_sparse_attention_args){.query = heads(query, HQ),
                                              .key = heads(key, HKV),
                                              .value = heads(value, HKV),
                                              .g_cmp = ejk_tensor_3d(gate, EJK_DTYPE_F32, 1, T, HQ),
                                              .block_size = ejk_int(BLOCK),
                                              .out = heads(out, HQ)};
}

static ejk_native_sparse_attention_args listed(void) {
    ejk_native_sparse_attention_args a = call();
    a.g_cmp = (ejk_tensor){0};
    a.block_indices = ejk_tensor_4d(blocks, EJK_DTYPE_I32, 1, T, HKV, SLOTS);
    return a;
}

static void expect_same(const float *a, const float *b, int n, double near) {
    for (int i = 0; i < n; i++) EXPECT_NEAR((double)a[i], (double)b[i], near);
}

/* Where all blocks are chosen each counts once, so the selected branch is dense attention. */
static void early_tokens_count_their_block_once(void **state) {
    (void)state;
    ejk_native_sparse_attention_args a = call();
    ejk_flash_attention_args dense = {
        .query = a.query, .key = a.key, .value = a.value, .causal = true, .out = heads(other, HQ)};
    EXPECT_OK(ejk_flash_attention(context, &dense));
    for (int most = 5; most <= 16; most += 11) {
        a.block_counts = ejk_int(most);
        EXPECT_OK(ejk_native_sparse_attention(context, &a));
        expect_same(out, other, T * HQ * D, 1e-6);
    }
    a.block_counts = ejk_int(3); /* tokens before the fourth block choose all they have */
    EXPECT_OK(ejk_native_sparse_attention(context, &a));
    expect_same(out, other, 3 * BLOCK * HQ * D, 1e-6);
}

/* Twice, as none and behind the token: a block of a list counts once or not at all, in any order. */
static void lists_name_sets(void **state) {
    (void)state;
    ejk_native_sparse_attention_args a = listed();
    for (int n = 0; n < T * HKV; n++) {
        const int own = n / HKV / BLOCK;
        const int32_t list[SLOTS] = {own / 2, own, own / 2};
        memcpy(blocks + n * SLOTS, list, sizeof list);
    }
    EXPECT_OK(ejk_native_sparse_attention(context, &a));
    memcpy(other, out, sizeof out);
    for (int n = 0; n < T * HKV; n++) {
        const int own = n / HKV / BLOCK;
        const int32_t list[SLOTS] = {own, own < 4 ? own + 1 : -1, own / 2};
        memcpy(blocks + n * SLOTS, list, sizeof list);
    }
    a.selected = ejk_tensor_4d(chosen, EJK_DTYPE_I32, 1, T, HKV, SLOTS);
    EXPECT_OK(ejk_native_sparse_attention(context, &a));
    assert_memory_equal(out, other, sizeof out);
    assert_true(chosen[0] == 0 && chosen[1] == -1);
    const int32_t *last = chosen + (T - 1) * HKV * SLOTS;
    assert_true(last[0] == 2 && last[1] == 4 && last[2] == -1);
    for (int n = 0; n < T * HKV * SLOTS; n++) blocks[n] = -1;
    EXPECT_OK(ejk_native_sparse_attention(context, &a));
    for (int i = 0; i < T * HQ * D; i++) assert_true(out[i] == 0);
}

/* It changes results: an argument, and nothing that is tuned. */
static void block_size_is_an_argument(void **state) {
    (void)state;
    size_t offset;
    assert_non_null(
        ejk_record_find(&ejk_native_sparse_attention_args_record, "block_size", &offset));
    assert_null(ejk_record_find(&ejk_native_sparse_attention_config_record, "block_size", &offset));
    ejk_native_sparse_attention_args a = call();
    a.cfg = (ejk_native_sparse_attention_config){.platform = "auto"};
    a.block_counts = ejk_int(1);
    EXPECT_OK(ejk_native_sparse_attention(context, &a));
    memcpy(other, out, sizeof out);
    a.block_size = ejk_int(BLOCK / 2);
    EXPECT_OK(ejk_native_sparse_attention(context, &a));
    assert_memory_not_equal(out, other, sizeof out);
}

/* Unset is 1/sqrt(D), where there is no gradient as well as where there is. */
static void the_scale_has_a_default(void **state) {
    (void)state;
    ejk_native_sparse_attention_args a = call();
    EXPECT_OK(ejk_native_sparse_attention(context, &a));
    memcpy(other, out, sizeof out);
    a.softmax_scale = ejk_float(1 / sqrt((double)D));
    EXPECT_OK(ejk_native_sparse_attention(context, &a));
    assert_memory_equal(out, other, sizeof out);
}

static double loss(ejk_native_sparse_attention_args *a) {
    double sum = 0;
    EXPECT_OK(ejk_native_sparse_attention(context, a));
    for (int i = 0; i < T * HQ * D; i++) sum += (double)out[i] * (double)cotangent[i];
    return sum;
}

/* Gradients exist with g_cmp, through means too; the selection stays as it is. */
static void compressed_calls_have_gradients(void **state) {
    (void)state;
    static float d_key[T * HKV * D], d_gate[T * HQ];
    ejk_native_sparse_attention_args a = call();
    fill(gate, T * HQ);
    fill(cotangent, T * HQ * D);
    a.block_counts = ejk_int(5);
    ejk_native_sparse_attention_vjp_args v = {.query = a.query,
                                              .key = a.key,
                                              .value = a.value,
                                              .g_cmp = a.g_cmp,
                                              .block_counts = a.block_counts,
                                              .block_size = a.block_size,
                                              .d_out = heads(cotangent, HQ),
                                              .d_query = heads(gradient, HQ),
                                              .d_key = heads(d_key, HKV),
                                              .d_g_cmp =
                                                  ejk_tensor_3d(d_gate, EJK_DTYPE_F32, 1, T, HQ)};
    EXPECT_OK(ejk_native_sparse_attention_vjp(context, &v));
    const struct {
        float *at, own;
    } inputs[] = {{key + 5, d_key[5]},
                  {query + 20 * HQ * D + 3, gradient[20 * HQ * D + 3]},
                  {gate + 30 * HQ, d_gate[30 * HQ]}};
    for (int i = 0; i < 3; i++) {
        const float x = *inputs[i].at, h = 1.0f / 64;
        *inputs[i].at = x + h;
        const double above = loss(&a);
        *inputs[i].at = x - h;
        const double slope = (above - loss(&a)) / (2 * (double)h);
        *inputs[i].at = x;
        EXPECT_NEAR((double)inputs[i].own, slope, 1e-3);
        assert_true(fabs(slope) > 1e-3);
    }
}

/* All weights are equal for queries of 0: the first blocks are chosen, besides the token's own. */
static void ties_go_to_the_first(void **state) {
    (void)state;
    ejk_native_sparse_attention_args a = call();
    memset(query, 0, sizeof query);
    a.block_counts = ejk_int(3);
    a.selected = ejk_tensor_4d(chosen, EJK_DTYPE_I32, 1, T, HKV, 3);
    EXPECT_OK(ejk_native_sparse_attention(context, &a));
    const int32_t *last = chosen + (T - 1) * HKV * 3;
    assert_true(last[0] == 0 && last[1] == 1 && last[2] == 4);
}

static void contents_are_looked_at(void **state) {
    (void)state;
    ejk_native_sparse_attention_args a = listed();
    memset(blocks, 0, sizeof blocks);
    out[0] = -7;
    blocks[3 * HKV * SLOTS + 1] = 5;
    EXPECT_FAIL(INVALID_ARGUMENT, "block_indices is 5 for token 3 of entry 0, expected -1 to 4",
                ejk_native_sparse_attention(context, &a));
    blocks[3 * HKV * SLOTS + 1] = -2;
    EXPECT_FAIL(INVALID_ARGUMENT, "block_indices is -2", ejk_native_sparse_attention(context, &a));
    a.block_counts = ejk_int(1); /* it is not looked at then */
    EXPECT_OK(ejk_native_sparse_attention(context, &a));
    a.token_block_counts = ejk_tensor_3d(counts, EJK_DTYPE_I32, 1, T, HKV);
    counts[1] = 2;
    out[0] = -7;
    EXPECT_FAIL(INVALID_ARGUMENT, "token_block_counts is 2 for token 0 of entry 0, expected 0 to 1",
                ejk_native_sparse_attention(context, &a));
    assert_true(out[0] == -7);
}

/* What is visible counts; products of the dense call of this size are more than twice as many. */
static void the_cost_is_of_what_is_seen(void **state) {
    (void)state;
    ejk_native_sparse_attention_args a = call();
    ejk_plan *plan;
    ejk_cost cost;
    a.block_counts = ejk_int(1);
    EXPECT_OK(ejk_plan_create(context, &ejk_native_sparse_attention_kernel, &a, &plan));
    cost = ejk_plan_cost(plan);
    const double all = 4.0 * D * HQ * T * (T + 1) / 2;
    assert_true(cost.flops > 0 && 2 * cost.flops < all && cost.bytes > 0);
    ejk_plan_destroy(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(early_tokens_count_their_block_once),
        cmocka_unit_test(lists_name_sets),
        cmocka_unit_test(block_size_is_an_argument),
        cmocka_unit_test(the_scale_has_a_default),
        cmocka_unit_test(compressed_calls_have_gradients),
        cmocka_unit_test(ties_go_to_the_first),
        cmocka_unit_test(contents_are_looked_at),
        cmocka_unit_test(the_cost_is_of_what_is_seen),
    };
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
