/* SPDX-License-Identifier: Apache-2.0 */
/* Operations whose gradients are an operation of their own: reached and tuned through executors. */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>

#include "operations/attention/flash/vjp_problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { B = 1, T = 24, HQ = 4, HKV = 2, D = 8, Q = B * T * HQ * D, K = B * T * HKV * D, N = 3 };

static ejk_context *context;
static ejk_config_selector_chain *chain;
static ejk_executor *executor;
static float query[Q], key[K], value[K], out[Q], lse[B * HQ * T], sinks[HQ], d_out[Q];
static int32_t ids[B * T];
static float d_query[Q], d_key[K], d_value[K], d_sinks[HQ];
static float wanted_query[Q], wanted_key[K], wanted_value[K], wanted_sinks[HQ];

static void fill(float *array, int count, double step) {
    for (int i = 0; i < count; i++) array[i] = (float)sin(step * (i + 1));
}

static int set_up(void **state) {
    (void)state;
    EXPECT_OK(ejk_context_create(&(ejk_context_options){.threads = 1}, &context));
    EXPECT_OK(ejk_config_selector_chain_create(NULL, &chain));
    EXPECT_OK(ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor));
    fill(query, Q, 0.7);
    fill(key, K, 0.3);
    fill(value, K, 0.1);
    fill(d_out, Q, 0.45);
    fill(sinks, HQ, 1);
    for (int i = 0; i < B * T; i++) ids[i] = i / 10;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    ejk_executor_destroy(executor);
    ejk_config_selector_chain_destroy(chain);
    ejk_context_destroy(context);
    return 0;
}

static ejk_tensor tokens(float *data, int heads) {
    return ejk_tensor_4d(data, EJK_DTYPE_F32, B, T, heads, D);
}

static ejk_tensor heads_first(float *data, int heads) {
    return ejk_tensor_4d(data, EJK_DTYPE_F32, B, heads, T, D);
}

static ejk_tensor rows(void) {
    return ejk_tensor_3d(lse, EJK_DTYPE_F32, B, HQ, T);
}

static ejk_tensor segments(void) {
    return ejk_tensor_2d(ids, EJK_DTYPE_I32, B, T);
}

static ejk_flash_attention_args flash_call(void) {
    return (ejk_flash_attention_args){.query = tokens(query, HQ),
                                      .key = tokens(key, HKV),
                                      .value = tokens(value, HKV),
                                      .softmax_aux = ejk_tensor_2d(sinks, EJK_DTYPE_F32, HQ, 1),
                                      .causal = true,
                                      .logits_soft_cap = ejk_float(3),
                                      .q_segment_ids = segments(),
                                      .kv_segment_ids = segments(),
                                      .out = tokens(out, HQ),
                                      .lse = rows()};
}

static ejk_flash_attention_vjp_args flash_vjp_call(void) {
    return (ejk_flash_attention_vjp_args){.query = tokens(query, HQ),
                                          .key = tokens(key, HKV),
                                          .value = tokens(value, HKV),
                                          .softmax_aux = ejk_tensor_2d(sinks, EJK_DTYPE_F32, HQ, 1),
                                          .causal = true,
                                          .logits_soft_cap = ejk_float(3),
                                          .q_segment_ids = segments(),
                                          .kv_segment_ids = segments(),
                                          .out = tokens(out, HQ),
                                          .lse = rows(),
                                          .d_out = tokens(d_out, HQ),
                                          .d_query = tokens(wanted_query, HQ),
                                          .d_key = tokens(wanted_key, HKV),
                                          .d_value = tokens(wanted_value, HKV),
                                          .d_softmax_aux =
                                              ejk_tensor_2d(wanted_sinks, EJK_DTYPE_F32, HQ, 1)};
}

/* ---- Calls ------------------------------------------------------------------------------------------ */

/* Inputs in the order of the arguments: query, key, value, softmax_aux, q_segment_ids, kv_segment_ids. */
static void test_flash_attention(void **state) {
    (void)state;
    ejk_flash_attention_args args = flash_call();
    const ejk_flash_attention_vjp_args direct = flash_vjp_call();
    EXPECT_OK(ejk_executor_fwd(executor, &ejk_flash_attention_kernel, &args, NULL, NULL));
    EXPECT_OK(ejk_flash_attention_vjp(context, &direct));
    ejk_tensor cotangents[2] = {tokens(d_out, HQ)};
    ejk_tensor gradients[6] = {tokens(d_query, HQ), tokens(d_key, HKV), tokens(d_value, HKV),
                               ejk_tensor_2d(d_sinks, EJK_DTYPE_F32, HQ, 1)};
    ejk_vjp_call vjp = {NULL, cotangents, 2, gradients, 6};
    EXPECT_OK(ejk_executor_vjp(executor, &ejk_flash_attention_kernel, &args, &vjp, NULL));
    assert_memory_equal(d_query, wanted_query, sizeof d_query);
    assert_memory_equal(d_key, wanted_key, sizeof d_key);
    assert_memory_equal(d_value, wanted_value, sizeof d_value);
    assert_memory_equal(d_sinks, wanted_sinks, sizeof d_sinks);
    assert_true(fabsf(d_query[0]) + fabsf(d_sinks[0]) > 0);
    /* What is wrong changes nothing. */
    memset(d_query, 0, sizeof d_query);
    gradients[4] = segments();
    EXPECT_FAIL(INVALID_ARGUMENT, "no d_q_segment_ids",
                ejk_executor_vjp(executor, &ejk_flash_attention_kernel, &args, &vjp, NULL));
    gradients[4] = (ejk_tensor){0};
    cotangents[0] = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "d_out",
                ejk_executor_vjp(executor, &ejk_flash_attention_kernel, &args, &vjp, NULL));
    cotangents[0] = tokens(d_out, HQ);
    vjp.gradient_count = 4;
    EXPECT_FAIL(INVALID_ARGUMENT, "gradient count is 4, expected 6",
                ejk_executor_vjp(executor, &ejk_flash_attention_kernel, &args, &vjp, NULL));
    vjp.gradient_count = 6;
    gradients[1] = tokens(d_key, 1);
    EXPECT_FAIL(INVALID_SHAPE, "gradient 1 has another shape than key",
                ejk_executor_vjp(executor, &ejk_flash_attention_kernel, &args, &vjp, NULL));
    args.lse = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "lse is not given",
                ejk_executor_fwd(executor, &ejk_flash_attention_kernel, &args, NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "lse is not given",
                ejk_executor_vjp(executor, &ejk_flash_attention_kernel, &args, &vjp, NULL));
    for (int i = 0; i < Q; i++) assert_true(d_query[i] == 0);
}

/* A configuration and a platform reach the gradients too: another platform rounds otherwise. */
static void test_options(void **state) {
    (void)state;
    ejk_flash_attention_args args = flash_call();
    EXPECT_OK(ejk_executor_fwd(executor, &ejk_flash_attention_kernel, &args, NULL, NULL));
    const ejk_tensor cotangents[2] = {tokens(d_out, HQ)};
    const ejk_tensor gradients[6] = {tokens(d_query, HQ)};
    const ejk_vjp_call vjp = {NULL, cotangents, 2, gradients, 6};
    const ejk_flash_attention_config reference = {.platform = "reference"};
    const ejk_call_options options = {.cfg = &reference};
    ejk_flash_attention_vjp_args direct = flash_vjp_call();
    memcpy(direct.platform, "reference", sizeof "reference");
    EXPECT_OK(ejk_flash_attention_vjp(context, &direct));
    EXPECT_OK(ejk_executor_vjp(executor, &ejk_flash_attention_kernel, &args, &vjp, &options));
    assert_memory_equal(d_query, wanted_query, sizeof d_query);
    memset(d_query, 0, sizeof d_query);
    memcpy(args.platform, "reference", sizeof "reference");
    EXPECT_OK(ejk_executor_vjp(executor, &ejk_flash_attention_kernel, &args, &vjp, NULL));
    assert_memory_equal(d_query, wanted_query, sizeof d_query);
    memcpy(args.platform, "simd", sizeof "simd");
    const ejk_flash_attention_config odd = {.bwd_params.q_blocksize = ejk_int(-1)};
    EXPECT_FAIL(INVALID_ARGUMENT, "q_blocksize",
                ejk_executor_vjp(executor, &ejk_flash_attention_kernel, &args, &vjp,
                                 &(ejk_call_options){.cfg = &odd}));
}

static ejk_status answer(const ejk_hook_call *call) {
    const ejk_flash_attention_args *args = call->args;
    float *to = call->gradient_count ? call->gradients[0].data : args->out.data;
    to[0] = call->gradient_count ? 17 : 16;
    return EJK_OK;
}

/* A user's kernel of the same records: what it brings of its own comes first. */
static void test_custom_hooks(void **state) {
    (void)state;
    static const ejk_hook hooks[] = {{.name = "fwd_with_residuals", .call = answer},
                                     {.name = "custom_vjp", .call = answer}};
    const ejk_flash_attention_args args = flash_call();
    const ejk_tensor cotangents[2] = {tokens(d_out, HQ), rows()};
    const ejk_tensor gradients[6] = {tokens(d_query, HQ)};
    const ejk_vjp_call vjp = {NULL, cotangents, 2, gradients, 6};
    static ejk_kernel kernel, own_vjp; /* the context looks at them until it ends */
    kernel = ejk_flash_attention_kernel;
    own_vjp = ejk_flash_attention_vjp_kernel;
    kernel.op_id = "my_attention";
    kernel.algorithm = "flash_attention";
    kernel.hooks = hooks;
    kernel.hook_count = 2;
    EXPECT_OK(ejk_executor_fwd(executor, &kernel, &args, NULL, NULL));
    assert_true(out[0] == 16);
    EXPECT_OK(ejk_executor_vjp(executor, &kernel, &args, &vjp, NULL));
    assert_true(d_query[0] == 17);
    /* Without hooks, it has the gradients that the context knows of. */
    kernel.hook_count = 0;
    EXPECT_FAIL(UNAVAILABLE, "no hook vjp", ejk_executor_vjp(executor, &kernel, &args, &vjp, NULL));
    own_vjp.op_id = "my_attention_vjp";
    own_vjp.algorithm = "flash_attention_vjp";
    own_vjp.forward = &kernel;
    EXPECT_OK(ejk_context_add_kernel(context, &own_vjp));
    EXPECT_OK(ejk_executor_fwd(executor, &kernel, &args, NULL, NULL));
    const ejk_flash_attention_vjp_args direct = flash_vjp_call();
    EXPECT_OK(ejk_flash_attention_vjp(context, &direct));
    EXPECT_OK(ejk_executor_vjp(
        executor, &kernel, &args,
        &(ejk_vjp_call){NULL, (ejk_tensor[2]){tokens(d_out, HQ)}, 2, gradients, 6}, NULL));
    assert_memory_equal(d_query, wanted_query, sizeof d_query);
}

/* Every operation of the library that has gradients is found by the one it belongs to. */
static void test_every_operation(void **state) {
    (void)state;
    int found = 0;
    const ejk_kernel *kernel;
    for (int32_t i = 0; (kernel = ejk_context_kernel(context, i)) != NULL; i++) {
        const size_t length = strlen(kernel->op_id);
        if (length < 4 || strcmp(kernel->op_id + length - 4, "_vjp") != 0) continue;
        assert_non_null(kernel->forward);
        assert_int_equal(strlen(kernel->forward->op_id), length - 4);
        assert_memory_equal(kernel->forward->op_id, kernel->op_id, length - 4);
        assert_ptr_equal(kernel->forward->config, kernel->config);
        found++;
    }
    assert_true(found >= 5);
}

/* ---- Tuning ----------------------------------------------------------------------------------------- */

typedef struct heard {
    int count;
    char op_id[4][64];
} heard;

static void hear(void *user, const ejk_tuned_call *call) {
    heard *h = user;
    assert_true(h->count < 4);
    snprintf(h->op_id[h->count++], sizeof h->op_id[0], "%s", call->key->op_id);
}

static ejk_choice_step step_of(const ejk_kernel *kernel, const void *args) {
    ejk_flash_attention_config config;
    ejk_choice_step step;
    EXPECT_OK(ejk_executor_choose_config(executor, kernel, args, NULL, &config, &step));
    return step;
}

static void tune(const ejk_kernel *kernel, const void *args, ejk_tune_pass pass, heard *h) {
    const ejk_autotune_options options = {.pass = pass,
                                          .tuner = {.time_s = 5, .max_rounds = 6, .iters = 6}};
    EXPECT_OK(ejk_executor_autotune(executor, kernel, args, &options, hear, h));
}

static void test_tuned_backward(void **state) {
    (void)state;
    heard h = {0};
    ejk_flash_attention_args args = flash_call();
    const ejk_flash_attention_vjp_args direct = flash_vjp_call();
    args.lse = (ejk_tensor){0}; /* brought along by the tuner */
    memset(out, 0, sizeof out);
    assert_int_equal(step_of(&ejk_flash_attention_vjp_kernel, &direct), EJK_CHOICE_HEURISTICS);
    tune(&ejk_flash_attention_kernel, &args, EJK_TUNE_BACKWARD, &h);
    assert_int_equal(h.count, 1);
    assert_string_equal(h.op_id[0], "flash_attention_vjp@v0");
    assert_int_equal(step_of(&ejk_flash_attention_vjp_kernel, &direct), EJK_CHOICE_MEMORY);
    assert_int_equal(step_of(&ejk_flash_attention_kernel, &args), EJK_CHOICE_HEURISTICS);
    for (int i = 0; i < Q; i++) assert_true(out[i] == 0); /* results go elsewhere */
    tune(&ejk_flash_attention_kernel, &args, EJK_TUNE_BOTH, &h);
    assert_int_equal(h.count, 3);
    assert_string_equal(h.op_id[1], "flash_attention@v0");
    assert_string_equal(h.op_id[2], "flash_attention_vjp@v0");
    assert_int_equal(step_of(&ejk_flash_attention_kernel, &args), EJK_CHOICE_MEMORY);
}

/* Tensors of those that follow have no data: only shapes are known. */
static void test_other_operations(void **state) {
    (void)state;
    heard h = {0};
    const ejk_attention_args attention = {.query = tokens(NULL, HQ),
                                          .key = tokens(NULL, HKV),
                                          .value = tokens(NULL, HKV),
                                          .out = tokens(NULL, HQ)};
    tune(&ejk_attention_kernel, &attention, EJK_TUNE_BACKWARD, &h);
    assert_string_equal(h.op_id[0], "attention_vjp@v0");
    const ejk_scaled_dot_product_attention_args scaled = {.query = tokens(NULL, HQ),
                                                          .key = tokens(NULL, HKV),
                                                          .value = tokens(NULL, HKV),
                                                          .out = tokens(NULL, HQ)};
    tune(&ejk_scaled_dot_product_attention_kernel, &scaled, EJK_TUNE_BACKWARD, &h);
    assert_string_equal(h.op_id[1], "scaled_dot_product_attention_vjp@v0");
    const ejk_blocksparse_attention_args sparse = {.query = heads_first(NULL, HQ),
                                                   .key = heads_first(NULL, HKV),
                                                   .value = heads_first(NULL, HKV),
                                                   .causal = true,
                                                   .out = heads_first(NULL, HQ)};
    tune(&ejk_blocksparse_attention_kernel, &sparse, EJK_TUNE_BACKWARD, &h);
    assert_string_equal(h.op_id[2], "blocksparse_attention_vjp@v0");
    const int64_t parts[] = {N, B, T, HQ, D};
    const ejk_attention_merge_args merge = {
        .partial_out = ejk_tensor_contiguous(NULL, EJK_DTYPE_F32, 5, parts),
        .partial_lse = ejk_tensor_4d(NULL, EJK_DTYPE_F32, N, B, HQ, T),
        .out = tokens(NULL, HQ)};
    tune(&ejk_attention_merge_kernel, &merge, EJK_TUNE_BACKWARD, &h);
    assert_string_equal(h.op_id[3], "attention_merge_vjp@v0");
}

/* Without an executor: the configuration is that of the gradients. */
static void test_autotune(void **state) {
    (void)state;
    const ejk_flash_attention_args args = flash_call();
    const ejk_flash_attention_config candidate = {.bwd_params.q_blocksize = ejk_int(48)};
    const ejk_autotune_options options = {.pass = EJK_TUNE_BACKWARD,
                                          .configs = &candidate,
                                          .config_count = 1,
                                          .tuner = {.time_s = 5, .max_rounds = 6, .iters = 6}};
    ejk_flash_attention_config best;
    ejk_tune_report *report;
    EXPECT_OK(
        ejk_autotune(context, &ejk_flash_attention_kernel, &args, &options, &best, &report, NULL));
    assert_int_equal(report->count, 2);
    assert_non_null(strstr(report->candidates[1].description, "bwd_params"));
    assert_true(report->candidates[1].verdict != EJK_TUNE_VERDICT_FAILED);
    assert_true(report->candidates[1].verdict != EJK_TUNE_VERDICT_DISAGREES);
    ejk_tune_report_destroy(report);
    /* What has no gradients has none to tune. */
    const int64_t parts[] = {N, B, T, HQ, D};
    const ejk_attention_merge_accumulators_args merge = {
        .accumulator = ejk_tensor_contiguous(NULL, EJK_DTYPE_F32, 5, parts),
        .row_max = ejk_tensor_4d(NULL, EJK_DTYPE_F32, N, B, HQ, T),
        .row_sum = ejk_tensor_4d(NULL, EJK_DTYPE_F32, N, B, HQ, T),
        .out = tokens(NULL, HQ)};
    EXPECT_FAIL(UNAVAILABLE, "no hook vjp",
                ejk_autotune(context, &ejk_attention_merge_accumulators_kernel, &merge,
                             &(ejk_autotune_options){.pass = EJK_TUNE_BACKWARD}, &best, NULL,
                             NULL));
}

/* Both directions in one: the call's choice with the parameters that the gradients have for themselves. */
static void test_autotune_both(void **state) {
    (void)state;
    const ejk_flash_attention_args args = flash_call();
    const ejk_flash_attention_config candidate = {.fwd_params.q_blocksize = ejk_int(16),
                                                  .bwd_params.q_blocksize = ejk_int(48)};
    ejk_autotune_options options = {.pass = EJK_TUNE_BOTH,
                                    .configs = &candidate,
                                    .config_count = 1,
                                    .tuner = {.time_s = 5, .max_rounds = 6, .iters = 6}};
    ejk_flash_attention_config best, untouched;
    ejk_config_measurement measurement = {0};
    ejk_tune_report *report = NULL;
    EXPECT_OK(ejk_autotune(context, &ejk_flash_attention_kernel, &args, &options, &best, &report,
                           &measurement));
    assert_non_null(report->backward);
    assert_null(report->backward->backward);
    assert_int_equal(report->count, 2);
    assert_int_equal(report->backward->count, 2);
    assert_non_null(strstr(report->candidates[0].description, "fwd_params"));
    assert_non_null(strstr(report->backward->candidates[0].description, "bwd_params"));
    assert_true(best.fwd_params.q_blocksize.set && best.bwd_params.q_blocksize.set);
    if (report->backward->chosen == 1) assert_int_equal(best.bwd_params.q_blocksize.value, 48);
    assert_true(measurement.repetitions == report->candidates[report->chosen].samples);
    report->backward->cancelled = true;
    report->backward->rounds = 0;
    report->backward->chosen = report->backward->default_index;
    assert_false(ejk_tune_report_is_settled(report));
    char *json;
    EXPECT_OK(ejk_tune_report_to_json(report, 0, &json));
    assert_non_null(strstr(json, "\"backward\""));
    ejk_free(json);
    ejk_tune_report_destroy(report);
    EXPECT_OK(
        ejk_autotune(context, &ejk_flash_attention_kernel, &args, &options, &best, NULL, NULL));
    /* Nothing is written if either fails. */
    memset(&best, 0x5a, sizeof best);
    memcpy(&untouched, &best, sizeof best);
    report = NULL;
    const ejk_flash_attention_args accumulator = {.query = args.query,
                                                  .key = args.key,
                                                  .value = args.value,
                                                  .normalize_output = EJK_FALSE,
                                                  .out = args.out};
    EXPECT_FAIL(INVALID_ARGUMENT, "no gradients of an accumulator",
                ejk_autotune(context, &ejk_flash_attention_kernel, &accumulator, &options, &best,
                             &report, NULL));
    assert_null(report);
    assert_memory_equal(&best, &untouched, sizeof best);
}

/* Looks at what a call for gradients is given when it is tuned; its gradients are all 0. */
static double seen_lse, seen_out;
static int seen;

static ejk_status look(const ejk_run *run) {
    const ejki_flash_vjp_problem *v = run->problem;
    const ejki_flash_problem *p = &v->forward;
    seen++;
    seen_lse = p->lse.data[(HQ - 1) * p->lse.stride_h + T - 1];
    seen_out = ((const float *)p->out.data)[Q - 1];
    memset(v->d_query.data, 0, sizeof d_query);
    return EJK_OK;
}

static void test_results_of_the_forward_call(void **state) {
    (void)state;
    const ejk_implementation spy = {.algorithm = "flash_attention_vjp",
                                    .name = "spy",
                                    .platform = EJK_PLATFORM_SIMD,
                                    .backend = EJK_BACKEND_CPU,
                                    .dtype = EJK_DTYPE_F32,
                                    .priority = 1000,
                                    .version = 1,
                                    .run = look};
    EXPECT_OK(ejk_registry_register(ejk_context_registry(context), &spy));
    ejk_flash_attention_vjp_args args = {.query = tokens(query, HQ),
                                         .key = tokens(key, HKV),
                                         .value = tokens(value, HKV),
                                         .causal = true,
                                         .out = tokens(NULL, HQ),
                                         .lse = rows(),
                                         .d_out = tokens(NULL, HQ),
                                         .d_query = tokens(NULL, HQ)};
    const ejk_autotune_options options = {.tuner = {.time_s = 1, .max_rounds = 1, .iters = 1}};
    ejk_flash_attention_config best;
    ejk_flash_attention_args forward = {.query = args.query,
                                        .key = args.key,
                                        .value = args.value,
                                        .causal = true,
                                        .out = tokens(out, HQ),
                                        .lse = rows()};
    EXPECT_OK(ejk_flash_attention(context, &forward));
    const double true_lse = lse[HQ * T - 1], true_out = out[Q - 1];
    for (int i = 0; i < HQ * T; i++) lse[i] = 7; /* what is given is used as it is */
    EXPECT_OK(
        ejk_autotune(context, &ejk_flash_attention_vjp_kernel, &args, &options, &best, NULL, NULL));
    assert_true(seen > 0);
    assert_true(seen_lse == 7 && lse[0] == 7);
    EXPECT_NEAR(seen_out, true_out, 1e-6);
    args.lse.data = NULL;
    seen = 0;
    EXPECT_OK(
        ejk_autotune(context, &ejk_flash_attention_vjp_kernel, &args, &options, &best, NULL, NULL));
    assert_true(seen > 0);
    EXPECT_NEAR(seen_lse, true_lse, 1e-6);
    EXPECT_NEAR(seen_out, true_out, 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_flash_attention, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_options, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_custom_hooks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_operation, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_tuned_backward, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_operations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_autotune, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_autotune_both, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_results_of_the_forward_call, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
