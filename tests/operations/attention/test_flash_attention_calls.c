/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention as it is called: what it costs, offsets and caps of any size, nothing to attend to, a model's
 * attention, tuning, and bad calls that need a struct to say them.
 */
#include "operations/attention/flash/problem.h"
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    B = 2,
    T = 3,
    S = 4,
    HQ = 4,
    HKV = 2,
    D = 5,
    DV = 6,
    OUT = B * T * HQ * DV,
    LSE = B * HQ * T
};

static ejk_context *context;
static float q[B * T * HQ * D], k[B * S * HKV * D], v[B * S * HKV * DV];
static float out[OUT], lse[LSE], row_max[LSE], row_sum[LSE];
static unsigned char anything[4096];

static ejk_flash_attention_args good(void) {
    return (ejk_flash_attention_args){
        .query = ejk_tensor_4d(q, EJK_DTYPE_F32, B, T, HQ, D),
        .key = ejk_tensor_4d(k, EJK_DTYPE_F32, B, S, HKV, D),
        .value = ejk_tensor_4d(v, EJK_DTYPE_F32, B, S, HKV, DV),
        .out = ejk_tensor_4d(out, EJK_DTYPE_F32, B, T, HQ, DV),
        .lse = ejk_tensor_3d(lse, EJK_DTYPE_F32, B, HQ, T),
        .platform = "reference",
    };
}

static int setup(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] = (float)(i % 7) - 3;
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) k[i] = (float)(i % 5) - 2;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) v[i] = (float)(i % 11);
    for (int i = 0; i < OUT; i++) out[i] = -77;
    for (int i = 0; i < LSE; i++) lse[i] = row_max[i] = row_sum[i] = -77;
    return ejk_context_create(NULL, &context) != EJK_OK;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

static void expect_untouched(void) {
    for (int i = 0; i < OUT; i++) assert_true(out[i] == -77);
    for (int i = 0; i < LSE; i++)
        assert_true(lse[i] == -77 && row_max[i] == -77 && row_sum[i] == -77);
}

static void refuse(ejk_status status, const char *words, const ejk_flash_attention_args *args,
                   int line) {
    expect_status(status, ejk_flash_attention(context, args), words, "call", __FILE__, line);
    expect_untouched();
}

/* A good call with one thing changed, which answers that status and those words. */
#define REFUSED(status, words, ...)                                                                \
    do {                                                                                           \
        ejk_flash_attention_args args = good();                                                    \
        __VA_ARGS__;                                                                               \
        refuse(EJK_STATUS_##status, (words), &args, __LINE__);                                     \
    } while (0)

#define F32 EJK_DTYPE_F32

/* What no text says; the others are in test_attention_refusals.c. */
static void test_refusals(void **state) {
    (void)state;
    ejk_flash_attention_args fine = good();
    EXPECT_FAIL(INVALID_ARGUMENT, "context", ejk_flash_attention(NULL, &fine));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_flash_attention(context, NULL));
    REFUSED(INVALID_ARGUMENT, "query", args.query.data = NULL);
    REFUSED(INVALID_ARGUMENT, "lse", args.lse.data = NULL);
    REFUSED(INVALID_SHAPE, "query", args.query.rank = 9);
    REFUSED(INVALID_SHAPE, "query", args.query.rank = -1);
    REFUSED(INVALID_DTYPE, "query", args.query.dtype = (ejk_dtype)99);
    REFUSED(INVALID_ARGUMENT, "logits_dtype", args.logits_dtype = (ejk_dtype)99);
    REFUSED(INVALID_LAYOUT, "out overlaps value", args.value.data = out + 3);
    REFUSED(INVALID_LAYOUT, "out overlaps lse", args.lse.data = out + OUT - 1);
    REFUSED(INVALID_ARGUMENT, "key: lies on cuda:0, but query on the CPU",
            args.key.device_type = EJK_DEVICE_CUDA);
    REFUSED(INVALID_ARGUMENT, "platform", memset(args.platform, 'x', sizeof args.platform));
    REFUSED(INVALID_ARGUMENT, "nan", args.logits_soft_cap = ejk_float(NAN));
    REFUSED(INVALID_ARGUMENT, "inf", args.logits_soft_cap = ejk_float(INFINITY));
    REFUSED(INVALID_ARGUMENT, "softmax_scale", args.softmax_scale = ejk_float(NAN));
    REFUSED(INVALID_ARGUMENT, "softmax_scale", args.softmax_scale = ejk_float(-INFINITY));
    REFUSED(INVALID_ARGUMENT, "dropout_prob", args.dropout_prob = NAN);
    REFUSED(INVALID_ARGUMENT, "normalize_output", args.normalize_output = (ejk_opt_bool)3);
}

/* Explicit parameters of an implementation that takes some, beyond its bounds. */
static ejk_status never(const ejk_run *run) {
    (void)run;
    return EJK_STATUS_INTERNAL;
}

static void test_configuration(void **state) {
    (void)state;
    static const ejk_parameter parameters[] = {
        {"kv_blocksize", 16, 512, 16, 64, "keys at once"},
    };
    static const ejk_implementation picky = {.algorithm = "flash_attention",
                                             .name = "f32/picky",
                                             .platform = EJK_PLATFORM_XLA,
                                             .backend = EJK_BACKEND_CPU,
                                             .version = 1,
                                             .parameters = parameters,
                                             .parameter_count = 1,
                                             .run = never};
    EXPECT_OK(ejk_registry_register(ejk_context_registry(context), &picky));
    REFUSED(INVALID_ARGUMENT, "kv_blocksize is 8, expected 16 to 512", strcpy(args.platform, "xla");
            args.cfg.fwd_params.kv_blocksize = ejk_int(8));
    REFUSED(INVALID_ARGUMENT, "kv_blocksize is 40", strcpy(args.platform, "xla");
            args.cfg.fwd_params.kv_blocksize = ejk_int(40));
    ejk_flash_attention_args args = good();
    const char *text = "{\"fwd_params\":{\"kv_blocksize\":\"many\"}}";
    EXPECT_FAIL(MALFORMED, "kv_blocksize",
                ejk_record_from_json(&ejk_flash_attention_config_record, text, &args.cfg));
    args.cfg.fwd_params.num_warps = ejk_int(-4); /* the reference takes none: without effect */
    EXPECT_OK(ejk_flash_attention(context, &args));
}

/* ---- What the arguments mean ----------------------------------------------------------------------- */

static ejk_cost cost_of(const ejk_flash_attention_args *args) {
    ejk_plan *plan;
    EXPECT_OK(ejk_plan_create(context, &ejk_flash_attention_kernel, args, &plan));
    ejk_cost cost = ejk_plan_cost(plan);
    ejk_plan_destroy(plan);
    return cost;
}

/* Against counting, for every offset and window around a small problem. */
static void test_cost(void **state) {
    (void)state;
    for (int64_t offset = -6; offset <= 6; offset++)
        for (int64_t window = -1; window <= 5; window++)
            for (int causal = 0; causal < 2; causal++) {
                ejk_flash_attention_args args = good();
                args.causal = causal;
                args.causal_offset = ejk_int(offset);
                if (window >= 0) args.sliding_window = ejk_window_of(window, window / 2);
                int64_t visible = 0;
                for (int64_t i = 0; i < T; i++)
                    for (int64_t j = 0; j < S; j++)
                        visible += (!causal || j <= i + offset) &&
                                   (window < 0 ||
                                    (j >= i + offset - window && j <= i + offset + window / 2));
                assert_true(cost_of(&args).flops == (double)(2 * B * HQ * visible * (D + DV)));
            }
    ejk_flash_attention_args args = good();
    double floats = B * T * HQ * D + B * S * HKV * (D + DV) + OUT + LSE;
    assert_true(cost_of(&args).bytes == 4 * floats);
    args.bias = ejk_tensor_4d(anything, F32, 1, HQ, 1, S);
    args.softmax_aux = ejk_tensor_2d(anything, F32, HKV, 3);
    args.lse = (ejk_tensor){0};
    assert_true(cost_of(&args).bytes == 4 * (floats - LSE + HQ * S + HKV * 3));
}

static void test_extreme_offsets(void **state) {
    (void)state;
    static const int64_t offsets[] = {INT64_MIN, INT64_MIN + 1, -5, 9, INT64_MAX - 1, INT64_MAX};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        ejk_flash_attention_args args = good();
        args.causal = true;
        args.causal_offset = ejk_int(offsets[i]);
        args.sliding_window.left = ejk_int(INT64_MAX);
        EXPECT_OK(ejk_flash_attention(context, &args));
        for (int r = 0; r < LSE; r++) assert_true((offsets[i] < 0) == (isinf(lse[r]) != 0));
        for (int r = 0; r < OUT; r++) assert_true(offsets[i] > 0 || out[r] == 0);
    }
}

static void test_nothing(void **state) {
    (void)state;
    ejk_flash_attention_args args = good();
    args.key = ejk_tensor_4d(NULL, F32, B, 0, HKV, D);
    args.value = ejk_tensor_4d(NULL, F32, B, 0, HKV, DV);
    EXPECT_OK(ejk_flash_attention(context, &args));
    for (int i = 0; i < OUT; i++) assert_true(out[i] == 0);
    for (int i = 0; i < LSE; i++) assert_true(lse[i] == -INFINITY);
    args = (ejk_flash_attention_args){.query = ejk_tensor_4d(NULL, F32, 0, T, HQ, D),
                                      .key = ejk_tensor_4d(NULL, F32, 0, S, HKV, D),
                                      .value = ejk_tensor_4d(NULL, F32, 0, S, HKV, DV),
                                      .out = ejk_tensor_4d(NULL, F32, 0, T, HQ, DV)};
    EXPECT_OK(ejk_flash_attention(context, &args));
}

/* ---- bytelm: what a model's layers compute ---------------------------------------------------------- */

static ejk_owned_tensor load(int layer, const char *what) {
    char path[512];
    snprintf(path, sizeof path, "%s/examples/data/bytelm/layer%d_%s.npy", EJK_SOURCE_DIR, layer,
             what);
    ejk_owned_tensor tensor;
    EXPECT_OK(ejk_npy_read(path, &tensor));
    return tensor;
}

static void expect_layer(int layer, ejk_window window) {
    ejk_owned_tensor query = load(layer, "query"), key = load(layer, "key"),
                     value = load(layer, "value"), sinks = load(layer, "sinks"),
                     exact = load(layer, "output"), result;
    EXPECT_OK(ejk_owned_tensor_create(F32, 4, exact.tensor.shape, &result));
    ejk_flash_attention_args args = {.query = query.tensor,
                                     .key = key.tensor,
                                     .value = value.tensor,
                                     .softmax_aux = sinks.tensor,
                                     .out = result.tensor,
                                     .causal = true,
                                     .sliding_window = window,
                                     .logits_soft_cap = ejk_float(30),
                                     .platform = "reference"};
    EXPECT_OK(ejk_flash_attention(context, &args));
    double error = 0, norm = 0;
    const double *expected = exact.tensor.data;
    const float *got = result.tensor.data;
    for (int64_t i = 0; i < ejk_tensor_count(&exact.tensor); i++) {
        error += (got[i] - expected[i]) * (got[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    if (!(sqrt(error / norm) < 1e-6))
        fail_msg("layer %d: relative error %g", layer, sqrt(error / norm));
    ejk_owned_tensor *owned[] = {&query, &key, &value, &sinks, &exact, &result};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) ejk_owned_tensor_close(owned[i]);
}

static void test_model(void **state) {
    (void)state;
    expect_layer(0, (ejk_window){0});
    expect_layer(1, ejk_window_of(127, 0));
}

/* A cap that no score reaches is none, and one that all exceed by far leaves them alike, on every platform. */
static void test_caps_of_any_size(void **state) {
    (void)state;
    static const double caps[] = {1e300, 1e39, 1e31, 1e29, 1e-300, 1e-40, 1e-30};
    static float zeros[B * T * HQ * D], own[OUT], wanted[OUT];
    for (int i = 0; i < 4; i++)
        for (size_t n = 0; n < sizeof caps / sizeof *caps; n++) {
            ejk_flash_attention_args args = good();
            if (i % 2 == 1) args.query.data = zeros;
            args.out.data = wanted;
            args.lse = (ejk_tensor){0};
            if (caps[n] < 1) args.softmax_scale = ejk_float(0);
            EXPECT_OK(ejk_flash_attention(context, &args));
            strcpy(args.platform, i < 2 ? "simd" : "reference");
            args.out.data = own;
            args.softmax_scale = (ejk_opt_float){0};
            args.logits_soft_cap = ejk_float(caps[n]);
            EXPECT_OK(ejk_flash_attention(context, &args));
            for (int j = 0; j < OUT; j++) EXPECT_NEAR(own[j], wanted[j], 1e-4);
        }
}

/* Tuning finds candidates for the tiled and the row-wise kernel, all different; each computes the same. */
static void test_tuning(void **state) {
    (void)state;
    static const int64_t queries[] = {60, 1};
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
        const int64_t t = queries[i], s = 200;
        const ejk_flash_attention_args args = {
            .query = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 1, t, 4, 32),
            .key = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 1, s, 2, 32),
            .value = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 1, s, 2, 32),
            .out = ejk_tensor_4d(NULL, EJK_DTYPE_F32, 1, t, 4, 32),
            .causal = true};
        const ejk_autotune_options options = {.tuner = {.time_s = 30}};
        ejk_flash_attention_config best;
        ejk_tune_report *report;
        EXPECT_OK(ejk_autotune(context, &ejk_flash_attention_kernel, &args, &options, &best,
                               &report, NULL));
        assert_true(report->count >= 4);
        for (int32_t c = 0; c < report->count; c++) {
            const ejk_tune_candidate *candidate = &report->candidates[c];
            assert_int_not_equal(candidate->verdict, EJK_TUNE_VERDICT_FAILED);
            assert_int_not_equal(candidate->verdict, EJK_TUNE_VERDICT_DISAGREES);
            for (int32_t former = 0; former < c; former++)
                assert_string_not_equal(candidate->description,
                                        report->candidates[former].description);
        }
        ejk_tune_report_destroy(report);
    }
}

/* What an implementation lists comes over what is suggested; 0 leaves that. */
static void test_candidates(void **state) {
    (void)state;
    static const ejk_parameter parameters[] = {{"num_stages", 1, 4, 1, 2, "stages"},
                                               {"q_blocksize", 16, 256, 16, 64, "rows"}};
    static const ejk_candidate candidates[] = {{{3, 128}}, {{0, 32}}};
    const ejk_implementation own = {.algorithm = "flash_attention",
                                    .name = "own",
                                    .parameters = parameters,
                                    .parameter_count = 2,
                                    .candidates = candidates,
                                    .candidate_count = 2};
    const ejki_flash_problem problem = {.queries = 64, .keys = 64, .group = 1};
    const ejk_invocation invocation = {.kernel = &ejk_flash_attention_kernel,
                                       .problem = &problem,
                                       .implementation = &own,
                                       .threads = 1};
    ejk_flash_attention_config list[3];
    int32_t count = -1;
    EXPECT_OK(ejk_flash_attention_kernel.candidate_cfgs(&invocation, list, 3, &count));
    assert_int_equal(count, 2);
    assert_int_equal(list[0].fwd_params.num_stages.value, 3);
    assert_int_equal(list[0].fwd_params.q_blocksize.value, 128);
    assert_false(list[1].fwd_params.num_stages.set);
    assert_int_equal(list[1].fwd_params.q_blocksize.value, 32);
    EXPECT_OK(ejk_flash_attention_kernel.candidate_cfgs(&invocation, list, 1, &count));
    assert_int_equal(count, 1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_refusals),        TEST(test_configuration), TEST(test_cost),
        TEST(test_extreme_offsets), TEST(test_nothing),       TEST(test_caps_of_any_size),
        TEST(test_model),           TEST(test_tuning),        TEST(test_candidates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
