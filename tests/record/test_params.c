/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of passes and the shared configuration, with the values of the documents. */
#include "support/expect.h"

#include <ejkernel/params.h>
#include <math.h>

static void expect_dict(const ejk_fwd_params *params, const char *wanted) {
    char *text = NULL;
    EXPECT_OK(ejk_fwd_params_to_dict(params, &text));
    assert_string_equal(text, wanted);
    ejk_free(text);
}

static void to_dict_has_what_is_set_in_field_order(void **state) {
    (void)state;
    const ejk_fwd_params none = {.q_blocksize = {.set = false}};
    expect_dict(&none, "{}");
    expect_dict(NULL, "{}");
    const ejk_fwd_params two = {.num_warps = ejk_int(4), .q_blocksize = ejk_int(128)};
    expect_dict(&two, "{\"q_blocksize\":128,\"num_warps\":4}");
    const ejk_fwd_params all = {.blocksize_m = ejk_int(1),
                                .blocksize_k = ejk_int(0),
                                .blocksize_n = ejk_int(-3),
                                .q_blocksize = ejk_int(4),
                                .kv_blocksize = ejk_int(5),
                                .blocksize_heads = ejk_int(6),
                                .blocksize_keys = ejk_int(7),
                                .num_warps = ejk_int(9),
                                .num_key_splits = ejk_int(8),
                                .num_stages = ejk_int(INT64_MAX),
                                .prefetch_hint = ejk_int(1),
                                .prefetch_bytes = ejk_int(64)};
    expect_dict(&all, "{\"blocksize_m\":1,\"blocksize_k\":0,\"blocksize_n\":-3,\"q_blocksize\":4,"
                      "\"kv_blocksize\":5,\"blocksize_heads\":6,\"blocksize_keys\":7,"
                      "\"num_key_splits\":8,\"num_warps\":9,\"num_stages\":9223372036854775807,"
                      "\"prefetch_hint\":1,\"prefetch_bytes\":64}");
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_fwd_params_to_dict(&all, NULL));
}

static void merging_never_erases(void **state) {
    (void)state;
    const ejk_fwd_params base = {.q_blocksize = ejk_int(64), .num_warps = ejk_int(4)};
    const ejk_fwd_params over = {.q_blocksize = ejk_int(0), .num_stages = ejk_int(2)};
    const ejk_fwd_params wanted = {
        .q_blocksize = ejk_int(0), .num_warps = ejk_int(4), .num_stages = ejk_int(2)};
    const ejk_fwd_params none = {.q_blocksize = {.set = false}};
    const struct {
        const ejk_fwd_params *base, *over, *wanted;
    } cases[] = {{&base, &over, &wanted}, {&base, NULL, &base},  {NULL, &over, &over},
                 {&base, &none, &base},   {&none, &over, &over}, {NULL, NULL, &none}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ejk_fwd_params merged = ejk_fwd_params_merge(cases[i].base, cases[i].over);
        assert_true(ejk_record_equal(&ejk_fwd_params_record, &merged, cases[i].wanted));
        assert_true(ejk_record_hash(&ejk_fwd_params_record, &merged) ==
                    ejk_record_hash(&ejk_fwd_params_record, cases[i].wanted));
    }
}

static void backward_follows_from_forward(void **state) {
    (void)state;
    const ejk_opt_float usual = {.set = false};
    static const struct {
        int64_t q, kv; /* -1 = unset */
        double scale;  /* 0.5 is given as unset */
        int64_t wanted_q, wanted_kv;
    } cases[] = {
        {-1, -1, 0.5, 64, 64}, {128, 256, 0.5, 64, 128}, {0, 0, 0.5, 64, 64}, {129, 1, 0.5, 64, 0},
        {100, 7, 0.3, 30, 2},  {128, 64, 2, 256, 128},   {128, 64, 0, 0, 0},  {1, 3, 0.99, 0, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ejk_fwd_params fwd = {.num_warps = ejk_int(4), .blocksize_m = ejk_int(9)};
        if (cases[i].q >= 0) fwd.q_blocksize = ejk_int(cases[i].q);
        if (cases[i].kv >= 0) fwd.kv_blocksize = ejk_int(cases[i].kv);
        const ejk_bwd_params wanted = {.q_blocksize = ejk_int(cases[i].wanted_q),
                                       .kv_blocksize = ejk_int(cases[i].wanted_kv),
                                       .num_warps = ejk_int(4)};
        ejk_bwd_params bwd;
        EXPECT_OK(ejk_bwd_params_from_fwd_params(
            &fwd, cases[i].scale == 0.5 ? usual : ejk_float(cases[i].scale), &bwd));
        assert_true(ejk_record_equal(&ejk_bwd_params_record, &bwd, &wanted));
    }
    ejk_bwd_params bwd;
    const ejk_bwd_params plain = {.q_blocksize = ejk_int(64), .kv_blocksize = ejk_int(64)};
    EXPECT_OK(ejk_bwd_params_from_fwd_params(NULL, usual, &bwd));
    assert_true(ejk_record_equal(&ejk_bwd_params_record, &bwd, &plain));

    const ejk_fwd_params large = {.kv_blocksize = ejk_int(INT64_MAX)};
    EXPECT_FAIL(INVALID_ARGUMENT, "scale is -0.5",
                ejk_bwd_params_from_fwd_params(NULL, ejk_float(-0.5), &bwd));
    EXPECT_FAIL(INVALID_ARGUMENT, "finite",
                ejk_bwd_params_from_fwd_params(NULL, ejk_float((double)NAN), &bwd));
    EXPECT_FAIL(INVALID_ARGUMENT, "finite",
                ejk_bwd_params_from_fwd_params(NULL, ejk_float((double)INFINITY), &bwd));
    EXPECT_FAIL(OVERFLOW, "kv_blocksize is 9223372036854775807 times scale 1",
                ejk_bwd_params_from_fwd_params(&large, ejk_float(1), &bwd));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_bwd_params_from_fwd_params(NULL, usual, NULL));
    assert_true(ejk_record_equal(&ejk_bwd_params_record, &bwd, &plain));
}

static void expect_config(const ejk_kernel_config *config, const char *wanted) {
    char *text = NULL;
    EXPECT_OK(ejk_record_to_json(&ejk_kernel_config_record, config, 0, &text));
    assert_string_equal(text, wanted);
    ejk_free(text);
}

#define CONFIG(q, platform, backend, algorithm, priority)                                          \
    "{\"algorithm\":" algorithm ",\"backend\":\"" backend "\",\"block_d\":64,\"block_k\":128,"     \
    "\"block_q\":" q ",\"num_stages\":2,\"num_warps\":4,\"platform\":\"" platform                  \
    "\",\"priority\":" priority "}"

static void the_shared_configuration_has_its_defaults(void **state) {
    (void)state;
    EXPECT_OK(ejk_record_check(&ejk_kernel_config_record));
    ejk_kernel_config config = ejk_kernel_config_default(), out;
    expect_config(&config, CONFIG("128", "auto", "any", "null", "0"));
    EXPECT_OK(ejk_kernel_config_normalise(NULL, &out));
    expect_config(&out, CONFIG("128", "auto", "any", "null", "0"));
    memset(&config, 0, sizeof config);
    EXPECT_OK(ejk_kernel_config_normalise(&config, &out));
    expect_config(&out, CONFIG("128", "auto", "any", "null", "0"));
    config = (ejk_kernel_config){.block_q = ejk_int(32),
                                 .platform = "TRITON",
                                 .backend = "Gpu",
                                 .algorithm = "v2",
                                 .priority = -7};
    EXPECT_OK(ejk_kernel_config_normalise(&config, &config));
    expect_config(&config, CONFIG("32", "triton", "gpu", "\"v2\"", "-7"));
    config = (ejk_kernel_config){.platform = "xla", .backend = "gpu"};
    EXPECT_OK(ejk_kernel_config_normalise(&config, &config));
    expect_config(&config, CONFIG("128", "xla", "any", "null", "0"));
}

static void a_wrong_configuration_is_refused(void **state) {
    (void)state;
    ejk_kernel_config out = {.priority = 5};
    const ejk_kernel_config untouched = out;
#define REFUSED(status, words, ...)                                                                \
    do {                                                                                           \
        ejk_kernel_config config = {__VA_ARGS__};                                                  \
        EXPECT_FAIL(status, words, ejk_kernel_config_normalise(&config, &out));                    \
        assert_memory_equal(&out, &untouched, sizeof out);                                         \
    } while (0)
    REFUSED(INVALID_ARGUMENT, "block_q is 0", .block_q = ejk_int(0));
    REFUSED(INVALID_ARGUMENT, "block_k is -1", .block_k = ejk_int(-1));
    REFUSED(INVALID_ARGUMENT, "num_stages is 0", .num_stages = ejk_int(0));
    REFUSED(UNKNOWN_NAME, "'torch' is no platform", .platform = "torch");
    REFUSED(UNKNOWN_NAME, "'npu' is no backend", .backend = "npu");
    ejk_kernel_config endless = {.priority = 0};
    memset(endless.algorithm, 'a', sizeof endless.algorithm);
    EXPECT_FAIL(INVALID_ARGUMENT, "algorithm", ejk_kernel_config_normalise(&endless, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_kernel_config_normalise(NULL, NULL));
    assert_memory_equal(&out, &untouched, sizeof out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(to_dict_has_what_is_set_in_field_order),
        cmocka_unit_test(merging_never_erases),
        cmocka_unit_test(backward_follows_from_forward),
        cmocka_unit_test(the_shared_configuration_has_its_defaults),
        cmocka_unit_test(a_wrong_configuration_is_refused),
    };
    return cmocka_run_group_tests_name("params", tests, NULL, NULL);
}
