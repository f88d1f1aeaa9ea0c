/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention and scaled_dot_product_attention against flash attention, whose implementations they share, and in
 * what they refuse.
 */
#include "support/dense_case.h"
#include "support/expect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ejk_context *context;
static dense_case c;

static int setup(void **state) {
    (void)state;
    return ejk_context_create(&(ejk_context_options){.threads = 3}, &context) != EJK_OK;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

/* Of rows that see something, without sinks and dropout, the weights sum to 1, and they weigh the values. */
static void weights_weigh_the_values(void **state) {
    (void)state;
    for (uint64_t seed = 1000; seed < 1200; seed++) {
        dense_fill(&c, seed, EJK_DTYPE_F32);
        const bool whole = !ejk_tensor_present(&c.args.softmax_aux) &&
                           !(c.args.deterministic == EJK_FALSE && c.args.dropout_prob > 0);
        EXPECT_OK(ejk_attention(context, &c.args));
        for (int64_t row = 0; row < c.b * c.hq * c.t; row++) {
            const int64_t b = row / (c.hq * c.t), h = row / c.t % c.hq, i = row % c.t;
            double sum = 0;
            for (int64_t j = 0; j < c.s; j++) sum += dense_weight(&c, row * c.s + j);
            if (whole) EXPECT_NEAR(sum, isinf(c.lse[row]) ? 0 : 1, 1e-6);
            for (int64_t d = 0; d < c.dv; d++) {
                double out = 0;
                for (int64_t j = 0; j < c.s; j++)
                    out += dense_weight(&c, row * c.s + j) *
                           c.value[((b * c.s + j) * c.hkv + h / (c.hq / c.hkv)) * c.dv + d];
                EXPECT_NEAR(dense_out(&c, ((b * c.t + i) * c.hq + h) * c.dv + d), out, 1e-5);
            }
        }
    }
}

/* Other operations write the bits that flash attention writes. */
static void bits_are_those_of_flash_attention(void **state) {
    (void)state;
    static float lse[DENSE_MOST];
    static double out[DENSE_MOST];
    for (uint64_t seed = 2000; seed < 2200; seed++) {
        dense_fill(&c, seed, seed % 2 ? EJK_DTYPE_F32 : EJK_DTYPE_F64);
        ejk_flash_attention_args flash = dense_flash(&c);
        flash.out.data = out;
        flash.lse.data = lse;
        memset(out, 0xff, sizeof out);
        memset(lse, 0xff, sizeof lse);
        EXPECT_OK(ejk_flash_attention(context, &flash));
        if (seed % 3) c.args.weights = (ejk_tensor){0};
        EXPECT_OK(ejk_attention(context, &c.args));
        assert_memory_equal(out, c.out_storage, sizeof out);
        assert_memory_equal(lse, c.lse, sizeof lse);

        c.args.softmax_aux = (ejk_tensor){0};
        c.args.logits_soft_cap = (ejk_opt_float){0};
        c.args.dropout_prob = 0;
        flash = dense_flash(&c);
        EXPECT_OK(ejk_flash_attention(context, &flash));
        memcpy(out, c.out_storage, sizeof out);
        const ejk_scaled_dot_product_attention_args sdpa = dense_sdpa(&c);
        memset(c.out_storage, 0xff, sizeof c.out_storage);
        EXPECT_OK(ejk_scaled_dot_product_attention_fwd(context, &sdpa));
        assert_memory_equal(out, c.out_storage, sizeof out);
    }
}

static double gradients[3][4][DENSE_MOST];
static double d_out[DENSE_MOST], d_sinks[3][64];

static ejk_tensor gradient(const ejk_tensor *of, void *data) {
    ejk_tensor t = *of;
    if (t.dtype != EJK_DTYPE_UNSET) t.data = data;
    return t;
}

#define GRADIENTS(v, n)                                                                            \
    ((v).d_out = gradient(&c.args.out, d_out),                                                     \
     (v).d_query = gradient(&c.args.query, gradients[n][0]),                                       \
     (v).d_key = gradient(&c.args.key, gradients[n][1]),                                           \
     (v).d_value = gradient(&c.args.value, gradients[n][2]),                                       \
     (v).d_bias = gradient(&c.args.bias, gradients[n][3]))

static void gradients_are_those_of_flash_attention(void **state) {
    (void)state;
    struct random r = {4};
    for (uint64_t seed = 3000; seed < 3100; seed++) {
        dense_fill(&c, seed, EJK_DTYPE_F64);
        for (int i = 0; i < DENSE_MOST; i++) d_out[i] = random_normal(&r);
        memset(gradients, 0xff, sizeof gradients);
        memset(d_sinks, 0xff, sizeof d_sinks);
        EXPECT_OK(ejk_attention_fwd(context, &c.args));
        const ejk_flash_attention_args call = dense_flash(&c);
        ejk_flash_attention_vjp_args flash;
        memset(&flash, 0, sizeof flash);
        memcpy(&flash, &call, offsetof(ejk_flash_attention_args, out));
        flash.out = c.args.out;
        flash.lse = c.args.lse;
        GRADIENTS(flash, 0);
        flash.d_softmax_aux = gradient(&c.args.softmax_aux, d_sinks[0]);
        EXPECT_OK(ejk_flash_attention_vjp(context, &flash));
        ejk_attention_vjp_args v;
        memset(&v, 0, sizeof v);
        memcpy(&v, &c.args, offsetof(ejk_attention_args, return_weights));
        v.out = c.args.out;
        v.lse = c.args.lse;
        GRADIENTS(v, 1);
        v.d_softmax_aux = gradient(&c.args.softmax_aux, d_sinks[1]);
        EXPECT_OK(ejk_attention_vjp(context, &v));
        assert_memory_equal(gradients[0], gradients[1], sizeof gradients[0]);
        assert_memory_equal(d_sinks[0], d_sinks[1], sizeof d_sinks[0]);
        v.d_weights = c.args.weights;
        EXPECT_FAIL(UNAVAILABLE, "d_weights", ejk_attention_vjp(context, &v));
        if (ejk_tensor_present(&c.args.softmax_aux) || c.args.logits_soft_cap.set ||
            flash.dropout_prob > 0)
            continue;
        const ejk_scaled_dot_product_attention_args sdpa = dense_sdpa(&c);
        ejk_scaled_dot_product_attention_vjp_args s;
        memset(&s, 0, sizeof s);
        memcpy(&s, &sdpa, offsetof(ejk_scaled_dot_product_attention_args, out));
        s.out = c.args.out;
        s.lse = c.args.lse;
        GRADIENTS(s, 2);
        EXPECT_OK(ejk_scaled_dot_product_attention_vjp(context, &s));
        assert_memory_equal(gradients[0], gradients[2], sizeof gradients[0]);
    }
}

static void mask_infos_stand_for_masks(void **state) {
    (void)state;
    static double out[DENSE_MOST];
    dense_fill(&c, 7, EJK_DTYPE_F32);
    memset(&c.args.attention_mask, 0, sizeof c.args.attention_mask);
    memset(&c.args.q_segment_ids, 0, sizeof c.args.q_segment_ids);
    memset(&c.args.kv_segment_ids, 0, sizeof c.args.kv_segment_ids);
    for (int i = 0; i < 256; i++) c.query_ids[i] = c.key_ids[i] = i / 3 % 2;
    const ejk_tensor q = ejk_tensor_2d(c.query_ids, EJK_DTYPE_I64, c.b, c.t),
                     kv = ejk_tensor_2d(c.key_ids, EJK_DTYPE_I64, c.b, c.s);
    ejk_mask_info *info;
    EXPECT_OK(ejk_mask_info_from_segments(&q, &kv, false, NULL, &info));
    ejk_attention_args by_ids = c.args;
    by_ids.q_segment_ids = q;
    by_ids.kv_segment_ids = kv;
    EXPECT_OK(ejk_attention(context, &by_ids));
    memcpy(out, c.out_storage, sizeof out);
    memset(c.out_storage, 0xff, sizeof out);
    EXPECT_OK(ejk_attention_masked(context, &c.args, info));
    assert_memory_equal(out, c.out_storage, sizeof out);
    EXPECT_FAIL(INVALID_ARGUMENT, "q_segment_ids", ejk_attention_masked(context, &by_ids, info));
    c.args.softmax_aux = (ejk_tensor){0};
    c.args.logits_soft_cap = (ejk_opt_float){0};
    c.args.deterministic = EJK_UNSET;
    EXPECT_OK(ejk_attention_masked(context, &c.args, info));
    memcpy(out, c.out_storage, sizeof out);
    memset(c.out_storage, 0xff, sizeof out);
    const ejk_scaled_dot_product_attention_args sdpa = dense_sdpa(&c);
    EXPECT_OK(ejk_scaled_dot_product_attention_masked(context, &sdpa, info));
    assert_memory_equal(out, c.out_storage, sizeof out);
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_attention_masked(context, NULL, info));
    EXPECT_FAIL(INVALID_ARGUMENT, "args",
                ejk_scaled_dot_product_attention_masked(context, NULL, info));
    ejk_mask_info_release(info);
}

/* A call changed in one way is refused, and leaves what it would have written. */
#define REFUSED(status, words, change)                                                             \
    do {                                                                                           \
        dense_fill(&c, 12, EJK_DTYPE_F32);                                                         \
        change;                                                                                    \
        memset(c.lse, 0x11, sizeof c.lse);                                                         \
        static double before_out[DENSE_MOST], before_weights[DENSE_MOST];                          \
        memcpy(before_out, c.out_storage, sizeof before_out);                                      \
        memcpy(before_weights, c.weights_storage, sizeof before_weights);                          \
        EXPECT_FAIL(status, words, ejk_attention(context, &c.args));                               \
        assert_memory_equal(before_out, c.out_storage, sizeof before_out);                         \
        assert_memory_equal(before_weights, c.weights_storage, sizeof before_weights);             \
    } while (0)

/* Rows of which the last are no sequence's: the same as flash attention's padded layout. */
static void sequences_may_be_padded(void **state) {
    (void)state;
    static double expected[DENSE_MOST];
    for (uint64_t seed = 0; seed < 20; seed++) {
        dense_fill(&c, seed, EJK_DTYPE_F32);
        ejk_flash_attention_args flash = dense_flash(&c);
        ejk_scaled_dot_product_attention_args sdpa = dense_sdpa(&c);
        flash.bias = sdpa.bias = flash.attention_mask = sdpa.attention_mask = (ejk_tensor){0};
        flash.softmax_aux = flash.q_segment_ids = flash.kv_segment_ids = (ejk_tensor){0};
        sdpa.q_segment_ids = sdpa.kv_segment_ids = (ejk_tensor){0};
        flash.logits_soft_cap = (ejk_opt_float){0};
        flash.dropout_prob = 0;
        int32_t query_sums[16] = {0}, key_sums[16] = {0};
        for (int64_t b = 0; b < c.b; b++) {
            query_sums[b + 1] = query_sums[b] + (int32_t)(c.t - (b == 0));
            key_sums[b + 1] = key_sums[b] + (int32_t)(c.s - (b == 1));
        }
        flash.cum_seqlens_q = sdpa.cum_seqlens_q =
            ejk_tensor_1d(query_sums, EJK_DTYPE_I32, c.b + 1);
        flash.cum_seqlens_k = sdpa.cum_seqlens_k = ejk_tensor_1d(key_sums, EJK_DTYPE_I32, c.b + 1);
        memset(c.out_storage, 0xff, sizeof c.out_storage);
        EXPECT_OK(ejk_flash_attention(context, &flash));
        memcpy(expected, c.out_storage, sizeof expected);
        memset(c.out_storage, 0xff, sizeof c.out_storage);
        EXPECT_OK(ejk_scaled_dot_product_attention(context, &sdpa));
        assert_memory_equal(c.out_storage, expected, sizeof expected);
    }
}

/* Tokens side by side: the same as flash attention's, gradients too. */
static void sequences_may_be_packed(void **state) {
    (void)state;
    enum { TOKENS = 11, HEADS = 2, DIM = 3, COUNT = TOKENS * HEADS * DIM };
    static float data[4][COUNT], out[2][COUNT], gradient[2][COUNT], lse[2][HEADS * TOKENS];
    const int64_t shape[] = {TOKENS, HEADS, DIM}, rows[] = {HEADS, TOKENS};
    int32_t sums[] = {0, 4, 4, 9};
    for (int i = 0; i < 4 * COUNT; i++) data[i / COUNT][i % COUNT] = (float)(i * 37 % 41) / 20 - 1;
    const ejk_tensor tokens = ejk_tensor_contiguous(NULL, EJK_DTYPE_F32, 3, shape);
    ejk_flash_attention_vjp_args flash = {.query = tokens, .causal = true};
    flash.key = flash.value = flash.d_out = flash.out = flash.d_key = tokens;
    flash.query.data = data[0];
    flash.key.data = data[1];
    flash.value.data = data[2];
    flash.d_out.data = data[3];
    flash.cum_seqlens_q = flash.cum_seqlens_k = ejk_tensor_1d(sums, EJK_DTYPE_I32, 4);
    flash.lse = ejk_tensor_contiguous(lse[0], EJK_DTYPE_F32, 2, rows);
    flash.out.data = out[0];
    flash.d_key.data = gradient[0];
    ejk_flash_attention_args forward = {.out = flash.out, .lse = flash.lse};
    memcpy(&forward, &flash, offsetof(ejk_flash_attention_args, out));
    EXPECT_OK(ejk_flash_attention(context, &forward));
    EXPECT_OK(ejk_flash_attention_vjp(context, &flash));
    ejk_scaled_dot_product_attention_vjp_args sdpa = {.query = flash.query,
                                                      .key = flash.key,
                                                      .value = flash.value,
                                                      .cum_seqlens_q = flash.cum_seqlens_q,
                                                      .cum_seqlens_k = flash.cum_seqlens_k,
                                                      .causal = true,
                                                      .out = flash.out,
                                                      .lse = flash.lse,
                                                      .d_out = flash.d_out,
                                                      .d_key = flash.d_key};
    sdpa.out.data = out[1];
    sdpa.lse.data = lse[1];
    sdpa.d_key.data = gradient[1];
    ejk_scaled_dot_product_attention_args own = {.out = sdpa.out, .lse = sdpa.lse};
    memcpy(&own, &sdpa, offsetof(ejk_scaled_dot_product_attention_args, out));
    EXPECT_OK(ejk_scaled_dot_product_attention(context, &own));
    EXPECT_OK(ejk_scaled_dot_product_attention_vjp(context, &sdpa));
    assert_memory_equal(out[1], out[0], sizeof out[0]);
    assert_memory_equal(lse[1], lse[0], sizeof lse[0]);
    assert_memory_equal(gradient[1], gradient[0], sizeof gradient[0]);
    assert_true(out[1][0] == data[2][0] && out[1][COUNT - 1] == 0 && isinf(lse[1][TOKENS - 1]));
    own.cum_seqlens_q = own.cum_seqlens_k = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_SHAPE, "expected 4 without cum_seqlens_q",
                ejk_scaled_dot_product_attention(context, &own));
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    ejk_attention_args *a = &c.args;
    REFUSED(INVALID_ARGUMENT, "return_weights",
            (a->return_weights = EJK_TRUE, a->weights = (ejk_tensor){0}));
    REFUSED(UNAVAILABLE, "dtype is float64", a->dtype = EJK_DTYPE_F64);
    REFUSED(UNAVAILABLE, "softmax_dtype is bfloat16", a->softmax_dtype = EJK_DTYPE_BF16);
    REFUSED(INVALID_SHAPE, "weights", a->weights.shape[3]++);
    REFUSED(INVALID_DTYPE, "weights", a->weights.dtype = EJK_DTYPE_BF16);
    REFUSED(INVALID_LAYOUT, "weights", a->weights.data = c.storage[0]);
    REFUSED(INVALID_ARGUMENT, "weights", a->weights.data = NULL);
    REFUSED(INVALID_ARGUMENT, "dropout_prob", a->dropout_prob = 1);
    REFUSED(INVALID_ARGUMENT, "softmax_scale", a->softmax_scale = ejk_float(INFINITY));
    REFUSED(INVALID_ARGUMENT, "logits_soft_cap", a->logits_soft_cap = ejk_float(0));
    REFUSED(INVALID_ARGUMENT, "sliding_window", a->sliding_window.left = ejk_int(-1));
    REFUSED(INVALID_DTYPE, "out", a->out.dtype = EJK_DTYPE_BF16);
    REFUSED(INVALID_SHAPE, "key", a->key.shape[3]++);
    REFUSED(UNAVAILABLE, "triton", strcpy(a->platform, "triton"));
    REFUSED(UNKNOWN_NAME, "nonsense", strcpy(a->cfg.platform, "nonsense"));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_attention(context, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_scaled_dot_product_attention(context, NULL));

    dense_fill(&c, 12, EJK_DTYPE_F32);
    a->lse = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "lse", ejk_attention_fwd(context, a));
    ejk_scaled_dot_product_attention_args sdpa = dense_sdpa(&c);
    EXPECT_FAIL(INVALID_ARGUMENT, "lse", ejk_scaled_dot_product_attention_fwd(context, &sdpa));
    sdpa.softmax_scale = ejk_float(NAN);
    EXPECT_FAIL(INVALID_ARGUMENT, "softmax_scale",
                ejk_scaled_dot_product_attention(context, &sdpa));
    const ejk_attention_config wish = {.platform = "reference"};
    const ejk_scaled_dot_product_attention_config sdpa_wish = {.platform = "triton"};
    a->cfg = wish;
    sdpa = dense_sdpa(&c);
    sdpa.cfg = sdpa_wish;
    EXPECT_FAIL(UNAVAILABLE, "triton", ejk_scaled_dot_product_attention(context, &sdpa));
    sdpa = dense_sdpa(&c);
    sdpa.cum_seqlens_q = ejk_tensor_contiguous(c.key_ids, EJK_DTYPE_I64, 1, (int64_t[]){2});
    EXPECT_FAIL(INVALID_ARGUMENT, "cum_seqlens_q",
                ejk_scaled_dot_product_attention(context, &sdpa));
    /* What is asked for, but not wanted, is not written. */
    a->return_weights = EJK_FALSE;
    static double before[DENSE_MOST];
    memcpy(before, c.weights_storage, sizeof before);
    EXPECT_OK(ejk_attention(context, a));
    assert_memory_equal(before, c.weights_storage, sizeof before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_weigh_the_values),
        cmocka_unit_test(bits_are_those_of_flash_attention),
        cmocka_unit_test(gradients_are_those_of_flash_attention),
        cmocka_unit_test(mask_infos_stand_for_masks),
        cmocka_unit_test(sequences_may_be_padded),
        cmocka_unit_test(sequences_may_be_packed),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
