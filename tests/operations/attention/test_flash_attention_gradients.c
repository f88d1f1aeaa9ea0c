/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of hidden places, what dropout keeps, and what calls of the operation are refused.
 */
#include "support/expect.h"
#include "support/random.h"

#include "operations/attention/shared/dropout.h"

#include <Random123/philox.h>
#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 512 };

/* What is differentiated by. */
enum { QUERY, KEY, VALUE, BIAS, SINKS, INPUTS };

typedef struct sample {
    double in[INPUTS][MOST], gradient[INPUTS][MOST];
    double out[MOST], d_out[MOST];
    float lse[MOST], d_lse[MOST];
    unsigned char mask[MOST];
    int64_t sums[2][MOST];
    int32_t query_ids[MOST], key_ids[MOST];
    ejk_flash_attention_args args;
    ejk_tensor shape[INPUTS];
    int64_t count[INPUTS], outs, rows;
} sample;

static ejk_context *context;

static int setup(void **state) {
    (void)state;
    EXPECT_OK(ejk_context_create(&(ejk_context_options){.threads = 2}, &context));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

static int64_t one_or(struct random *r, int64_t size) {
    return random_chance(r, 0.5) ? 1 : size;
}

/* Sizes small enough that every element is moved; each feature in a third of the samples. */
static void fill(sample *s, uint64_t seed) {
    struct random r = {seed};
    memset(s, 0, sizeof *s);
    const int64_t b = random_int(&r, 1, 2), t = random_int(&r, 1, 5), keys = random_int(&r, 1, 6);
    const int64_t kv = random_int(&r, 1, 2), heads = kv * random_int(&r, 1, 2);
    const int64_t d = random_int(&r, 1, 3), dv = random_int(&r, 1, 3);
    const int64_t bias[4] = {one_or(&r, b), one_or(&r, heads), one_or(&r, t), keys};
    const int64_t mask[4] = {one_or(&r, b), random_chance(&r, 0.5) ? kv : heads, one_or(&r, t),
                             keys};
    const int64_t sinks[2] = {random_chance(&r, 0.5) ? kv : heads, random_int(&r, 1, 3)};
    const bool flat = random_chance(&r, 0.5);
    s->shape[QUERY] =
        ejk_tensor_contiguous(s->in[QUERY], EJK_DTYPE_F64, 4, (int64_t[]){b, t, heads, d});
    s->shape[KEY] =
        ejk_tensor_contiguous(s->in[KEY], EJK_DTYPE_F64, 4, (int64_t[]){b, keys, kv, d});
    s->shape[VALUE] =
        ejk_tensor_contiguous(s->in[VALUE], EJK_DTYPE_F64, 4, (int64_t[]){b, keys, kv, dv});
    if (random_chance(&r, 0.33))
        s->shape[BIAS] = ejk_tensor_contiguous(s->in[BIAS], EJK_DTYPE_F64, 4, bias);
    if (random_chance(&r, 0.33))
        s->shape[SINKS] = ejk_tensor_contiguous(s->in[SINKS], EJK_DTYPE_F64, flat ? 1 : 2,
                                                flat ? sinks + 1 : sinks);
    for (int i = 0; i < INPUTS; i++) {
        s->count[i] = s->shape[i].dtype == EJK_DTYPE_UNSET ? 0 : ejk_tensor_count(&s->shape[i]);
        for (int64_t n = 0; n < s->count[i]; n++) s->in[i][n] = 2 * random_real(&r) - 1;
    }
    s->outs = b * t * heads * dv;
    s->rows = b * t * heads;
    for (int64_t n = 0; n < s->outs; n++) s->d_out[n] = 2 * random_real(&r) - 1;
    for (int64_t n = 0; n < s->rows; n++) s->d_lse[n] = (float)(2 * random_real(&r) - 1);
    for (int64_t n = 0; n < MOST; n++) {
        s->mask[n] = random_chance(&r, 0.6);
        s->query_ids[n] = (int32_t)random_int(&r, -1, 1);
        s->key_ids[n] = (int32_t)random_int(&r, -1, 1);
    }
    s->args = (ejk_flash_attention_args){
        .query = s->shape[QUERY],
        .key = s->shape[KEY],
        .value = s->shape[VALUE],
        .bias = s->shape[BIAS],
        .softmax_aux = s->shape[SINKS],
        .out = ejk_tensor_contiguous(s->out, EJK_DTYPE_F64, 4, (int64_t[]){b, t, heads, dv}),
        .lse = ejk_tensor_contiguous(s->lse, EJK_DTYPE_F32, 3, (int64_t[]){b, heads, t}),
        .causal = random_chance(&r, 0.33),
        .platform = "reference"};
    if (random_chance(&r, 0.33))
        s->args.attention_mask = ejk_tensor_contiguous(s->mask, EJK_DTYPE_BOOL, 4, mask);
    if (random_chance(&r, 0.33)) {
        s->args.q_segment_ids =
            ejk_tensor_contiguous(s->query_ids, EJK_DTYPE_I32, 2, (int64_t[]){b, t});
        s->args.kv_segment_ids =
            ejk_tensor_contiguous(s->key_ids, EJK_DTYPE_I32, 2, (int64_t[]){b, keys});
    }
    if (random_chance(&r, 0.33)) s->args.sliding_window.left = ejk_int(random_int(&r, 0, 3));
    if (random_chance(&r, 0.33)) s->args.sliding_window.right = ejk_int(random_int(&r, 0, 3));
    if (random_chance(&r, 0.33)) s->args.causal_offset = ejk_int(random_int(&r, -2, 4));
    if (random_chance(&r, 0.33)) s->args.logits_soft_cap = ejk_float(0.7);
    if (random_chance(&r, 0.33)) s->args.softmax_scale = ejk_float(1.3);
    if (random_chance(&r, 0.33)) {
        s->args.dropout_prob = 0.4;
        s->args.dropout_seed = ejk_int((int64_t)seed * 77777);
    }
}

/* Non-decreasing ends, the first 0; of padded sequences with at most `length` between them. */
static ejk_tensor ends_of(struct random *r, int64_t *sums, int64_t count, int64_t length,
                          bool padded) {
    sums[0] = 0;
    for (int64_t n = 0; n < count; n++)
        sums[n + 1] = sums[n] + random_int(r, 0, padded ? length : length - sums[n]);
    return ejk_tensor_1d(sums, EJK_DTYPE_I64, count + 1);
}

static void drop_batch(ejk_tensor *t) {
    const bool lse = t->rank == 3;
    if (lse) {
        *t = ejk_tensor_2d(t->data, t->dtype, t->shape[1], t->shape[0] * t->shape[2]);
        return;
    }
    *t = ejk_tensor_3d(t->data, t->dtype, t->shape[0] * t->shape[1], t->shape[2], t->shape[3]);
}

/* Cuts the sample's tokens into sequences: each batch entry's, or all that lie one after the other. */
static void pack(sample *s, uint64_t seed, bool padded) {
    struct random r = {seed * 31 + 7};
    random_bits(&r);
    ejk_flash_attention_args *a = &s->args;
    int64_t count = a->query.shape[0];
    if (!padded) {
        ejk_tensor *const all[] = {&a->query, &a->key, &a->value, &a->out, &a->lse};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop_batch(all[i]);
        a->bias = a->attention_mask = a->q_segment_ids = a->kv_segment_ids = (ejk_tensor){0};
        s->shape[QUERY] = a->query;
        s->shape[KEY] = a->key;
        s->shape[VALUE] = a->value;
        s->shape[BIAS] = a->bias;
        s->count[BIAS] = 0;
        count = random_int(&r, 0, 4);
    }
    const int32_t axis = padded ? 1 : 0;
    a->cum_seqlens_q = ends_of(&r, s->sums[0], count, a->query.shape[axis], padded);
    a->cum_seqlens_k = ends_of(&r, s->sums[1], count, a->key.shape[axis], padded);
}

/* A gradient's tensor: the input's shape, other memory. */
static ejk_tensor gradient_of(sample *s, int input) {
    ejk_tensor t = s->shape[input];
    if (t.dtype != EJK_DTYPE_UNSET) t.data = s->gradient[input];
    return t;
}

static ejk_flash_attention_vjp_args vjp_args(sample *s, bool with_lse) {
    ejk_flash_attention_vjp_args v = {.d_query = gradient_of(s, QUERY),
                                      .d_key = gradient_of(s, KEY),
                                      .d_value = gradient_of(s, VALUE),
                                      .d_bias = gradient_of(s, BIAS),
                                      .d_softmax_aux = gradient_of(s, SINKS)};
    memcpy(&v, &s->args, offsetof(ejk_flash_attention_args, out));
    v.out = v.d_out = s->args.out;
    v.d_out.data = s->d_out;
    v.lse = s->args.lse;
    if (with_lse) {
        v.d_lse = s->args.lse;
        v.d_lse.data = s->d_lse;
    }
    return v;
}

/* Nothing that is masked has a gradient, and NaN there reaches none. */
static void hidden_places_have_no_gradient(void **state) {
    (void)state;
    static sample s;
    for (uint64_t seed = 0; seed < 50; seed++) {
        fill(&s, seed);
        const int64_t keys = s.shape[KEY].shape[1],
                      row = s.shape[KEY].shape[2] * s.shape[KEY].shape[3];
        memset(s.mask, 1, sizeof s.mask);
        const int64_t rows = ejk_tensor_count(&s.args.query) / s.args.query.shape[3];
        for (int64_t n = 0; n < rows * keys && n < MOST; n++) s.mask[n] = n % keys != 0;
        s.args.attention_mask =
            ejk_tensor_contiguous(s.mask, EJK_DTYPE_BOOL, 4, (int64_t[]){1, 1, 1, keys});
        for (int64_t b = 0; b < s.shape[KEY].shape[0]; b++)
            for (int64_t n = 0; n < row; n++) s.in[KEY][b * keys * row + n] = NAN;
        const ejk_flash_attention_vjp_args v = vjp_args(&s, true);
        EXPECT_OK(ejk_flash_attention(context, &s.args));
        EXPECT_OK(ejk_flash_attention_vjp(context, &v));
        for (int i = 0; i < INPUTS; i++)
            for (int64_t n = 0; n < s.count[i]; n++) assert_true(isfinite(s.gradient[i][n]));
        for (int64_t b = 0; b < s.shape[KEY].shape[0]; b++)
            for (int64_t n = 0; n < row; n++) assert_true(s.gradient[KEY][b * keys * row + n] == 0);
    }
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    static sample s;
    fill(&s, 1);
    s.args.bias = s.shape[BIAS] = (ejk_tensor){0};
    s.args.softmax_aux = s.shape[SINKS] = (ejk_tensor){0};
    ejk_flash_attention_vjp_args v = vjp_args(&s, false);
    s.gradient[QUERY][0] = 42;
    v.normalize_output = EJK_FALSE;
    EXPECT_FAIL(INVALID_ARGUMENT, "normalize_output", ejk_flash_attention_vjp(context, &v));
    v = vjp_args(&s, false);
    v.d_bias = ejk_tensor_contiguous(s.gradient[BIAS], EJK_DTYPE_F64, 4,
                                     (int64_t[]){1, 1, 1, s.args.key.shape[1]});
    EXPECT_FAIL(INVALID_ARGUMENT, "d_bias", ejk_flash_attention_vjp(context, &v));
    v = vjp_args(&s, false);
    v.d_query.shape[1]++;
    EXPECT_FAIL(INVALID_SHAPE, "d_query", ejk_flash_attention_vjp(context, &v));
    v = vjp_args(&s, false);
    v.lse = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "lse", ejk_flash_attention_vjp(context, &v));
    v = vjp_args(&s, false);
    v.dropout_prob = 1;
    EXPECT_FAIL(INVALID_ARGUMENT, "dropout_prob", ejk_flash_attention_vjp(context, &v));
    v = vjp_args(&s, false);
    v.d_key.data = s.in[KEY];
    EXPECT_FAIL(INVALID_LAYOUT, "d_key", ejk_flash_attention_vjp(context, &v));
    v = vjp_args(&s, false);
    v.d_key = ejk_tensor_3d(s.gradient[KEY], EJK_DTYPE_F64, v.key.shape[1], v.key.shape[2],
                            v.key.shape[3]);
    EXPECT_FAIL(INVALID_SHAPE, "d_key has rank 3", ejk_flash_attention_vjp(context, &v));
    for (int padded = 0; padded < 2; padded++) {
        static sample packed;
        fill(&packed, 1);
        pack(&packed, 1, padded);
        v = vjp_args(&packed, false);
        packed.gradient[QUERY][0] = 42;
        packed.sums[1][0] = 1;
        EXPECT_FAIL(INVALID_ARGUMENT, "cum_seqlens_k starts at 1",
                    ejk_flash_attention_vjp(context, &v));
        v.cum_seqlens_k = (ejk_tensor){0};
        EXPECT_FAIL(INVALID_ARGUMENT, "cum_seqlens_q is given alone",
                    ejk_flash_attention_vjp(context, &v));
        assert_true(packed.gradient[QUERY][0] == 42);
    }
    ejk_flash_attention_args args = s.args;
    args.lse = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "lse", ejk_flash_attention_fwd(context, &args));
    EXPECT_OK(ejk_flash_attention_fwd(context, &s.args));
    assert_true(s.gradient[QUERY][0] == 42);
}

/* The mean of what is kept is what there was, and the same seed keeps the same. */
static void dropout_keeps_its_part(void **state) {
    (void)state;
    enum { KEYS = 4096 };
    static double value[KEYS], key[KEYS], query[1], first[1], second[1];
    for (int j = 0; j < KEYS; j++) value[j] = 1;
    ejk_flash_attention_args args = {.query = ejk_tensor_4d(query, EJK_DTYPE_F64, 1, 1, 1, 1),
                                     .key = ejk_tensor_4d(key, EJK_DTYPE_F64, 1, KEYS, 1, 1),
                                     .value = ejk_tensor_4d(value, EJK_DTYPE_F64, 1, KEYS, 1, 1),
                                     .out = ejk_tensor_4d(first, EJK_DTYPE_F64, 1, 1, 1, 1),
                                     .dropout_prob = 0.25,
                                     .dropout_seed = ejk_int(5)};
    EXPECT_OK(ejk_flash_attention(context, &args));
    EXPECT_NEAR(first[0], 1, 0.03); /* five deviations */
    assert_true(first[0] != 1);
    args.out.data = second;
    EXPECT_OK(ejk_flash_attention(context, &args));
    assert_true(first[0] == second[0]);
    args.dropout_seed = ejk_int(6);
    EXPECT_OK(ejk_flash_attention(context, &args));
    assert_true(first[0] != second[0]);
}

/* The generator's own implementation says what its words are. */
static void dropout_words_are_philox(void **state) {
    (void)state;
    struct random r = {3};
    for (int i = 0; i < 1000; i++) {
        const uint64_t seed = random_bits(&r), a = random_bits(&r), b = random_bits(&r);
        const philox4x32_ctr_t at = {
            {(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)}};
        const philox4x32_key_t by = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
        const philox4x32_ctr_t expected = philox4x32(at, by);
        uint32_t words[4];
        ejki_dropout_words(seed, at.v[0], at.v[1], at.v[2], at.v[3], words);
        for (int n = 0; n < 4; n++) assert_int_equal(words[n], expected.v[n]);
    }
}

/* Elements of the gradient of a bias that no pair is seen for are 0, also where whole blocks see nothing. */
static void hidden_biases_have_no_gradient(void **state) {
    (void)state;
    enum { T = 700, D = 32, LEFT = 99 };
    static uint16_t in[4][T * D], bias[T * T], out[T * D], slopes[3][T * D], d_bias[T * T];
    static float lse[T];
    uint32_t random = 1;
    for (int n = 0; n < 4 * T * D; n++)
        in[n / (T * D)][n % (T * D)] =
            ejk_f32_to_bf16((float)((random = random * 1664525 + 1013904223) >> 8) / 8388608 - 1);
    memset(bias, 0, sizeof bias);
    memset(d_bias, 0xff, sizeof d_bias); /* NaN */
    const ejk_dtype bf16 = EJK_DTYPE_BF16;
    ejk_flash_attention_args a = {.causal = true, .sliding_window.left = ejk_int(LEFT)};
    a.query = ejk_tensor_4d(in[0], bf16, 1, T, 1, D);
    a.key = ejk_tensor_4d(in[1], bf16, 1, T, 1, D);
    a.value = ejk_tensor_4d(in[2], bf16, 1, T, 1, D);
    a.bias = ejk_tensor_4d(bias, bf16, 1, 1, T, T);
    a.out = ejk_tensor_4d(out, bf16, 1, T, 1, D);
    a.lse = ejk_tensor_3d(lse, EJK_DTYPE_F32, 1, 1, T);
    ejk_flash_attention_vjp_args v = {.causal = true, .sliding_window = a.sliding_window};
    v.query = a.query;
    v.key = a.key;
    v.value = a.value;
    v.bias = a.bias;
    v.out = a.out;
    v.lse = a.lse;
    v.d_out = ejk_tensor_4d(in[3], bf16, 1, T, 1, D);
    v.d_query = ejk_tensor_4d(slopes[0], bf16, 1, T, 1, D);
    v.d_key = ejk_tensor_4d(slopes[1], bf16, 1, T, 1, D);
    v.d_value = ejk_tensor_4d(slopes[2], bf16, 1, T, 1, D);
    v.d_bias = ejk_tensor_4d(d_bias, bf16, 1, 1, T, T);
    ejk_context *own = NULL;
    assert_int_equal(ejk_context_create(NULL, &own), EJK_OK);
    assert_int_equal(ejk_flash_attention_fwd(own, &a), EJK_OK);
    assert_int_equal(ejk_flash_attention_vjp(own, &v), EJK_OK);
    for (int i = 0; i < T; i++) {
        float sum = 0, size = 0;
        for (int j = 0; j < T; j++) {
            const float slope = ejk_bf16_to_f32(d_bias[i * T + j]);
            if (j > i || j < i - LEFT) assert_true(slope == 0);
            sum += slope;
            size += fabsf(slope);
        }
        /* Weights of a row add up to 1 whatever its biases are, and out has been rounded to bf16. */
        assert_true(fabsf(sum) <= 0.02f * size + 4e-3f);
        assert_true(i == 0 || size > 0);
    }
    ejk_context_destroy(own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hidden_places_have_no_gradient, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_calls_are_refused, setup, teardown),
        cmocka_unit_test(dropout_words_are_philox),
        cmocka_unit_test_setup_teardown(dropout_keeps_its_part, setup, teardown),
        cmocka_unit_test(hidden_biases_have_no_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
