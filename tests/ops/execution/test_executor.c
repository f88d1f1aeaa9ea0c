/* SPDX-License-Identifier: Apache-2.0 */
/* Executors: calls, explicit configurations, methods, stamps, gradients by hooks, tuning of kernels. */
#include "support/expect.h"
#include "support/toy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ejk_context *context;
static ejk_config_selector_chain *chain;
static ejk_executor *executor;
static float x[64], y[64];

static int setup(void **state) {
    (void)state;
    context = toy_context(&(ejk_context_options){.threads = 2});
    toy_advice = ejk_int(24);
    EXPECT_OK(ejk_config_selector_chain_create(NULL, &chain));
    EXPECT_OK(ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor));
    for (int i = 0; i < 64; i++) {
        x[i] = (float)(i % 7) - 3;
        y[i] = -1;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ejk_executor_destroy(executor);
    ejk_config_selector_chain_destroy(chain);
    ejk_context_destroy(context);
    return 0;
}

static void expect_doubled(void) {
    for (int i = 0; i < 64; i++) assert_true(y[i] == 2 * x[i]);
}

static int64_t rows_of(const toy_args *args, const ejk_call_options *options,
                       ejk_choice_step *step) {
    toy_config config;
    EXPECT_OK(ejk_executor_choose_config(executor, &toy_kernel, args, options, &config, step));
    return config.params.rows.value;
}

static void test_calls(void **state) {
    (void)state;
    const toy_args args = toy_call(x, y, 8, 8);
    EXPECT_OK(ejk_executor_call(executor, &toy_kernel, &args, NULL));
    expect_doubled();
    ejk_choice_step step;
    assert_int_equal(rows_of(&args, NULL, &step), 24);
    assert_int_equal(step, EJK_CHOICE_HEURISTICS);
    const toy_config config = {.params.rows = ejk_int(40)};
    const ejk_call_options options = {.cfg = &config};
    assert_int_equal(rows_of(&args, &options, &step), 40);
    assert_int_equal(step, EJK_CHOICE_OVERRIDE);
    memset(y, 0, sizeof y);
    EXPECT_OK(ejk_executor_call(executor, &toy_kernel, &args, &options));
    expect_doubled();
    ejk_plan *plan;
    EXPECT_OK(ejk_executor_compile(executor, &toy_kernel, &args, &options, &plan));
    memset(y, 0, sizeof y);
    EXPECT_OK(ejk_plan_execute(plan, &args, NULL, 0));
    expect_doubled();
    ejk_plan_destroy(plan);
    const toy_config empty = {.params.rows = {0}}; /* nothing is set: as if there were none */
    assert_int_equal(rows_of(&args, &(ejk_call_options){.cfg = &empty}, &step), 24);
    assert_int_equal(step, EJK_CHOICE_HEURISTICS);
    /* A configuration that nobody can take is refused, and nothing is written. */
    const toy_config bad = {.params.rows = ejk_int(7)};
    memset(y, 0x7f, sizeof y);
    EXPECT_FAIL(INVALID_ARGUMENT, "rows is 7",
                ejk_executor_call(executor, &toy_kernel, &args, &(ejk_call_options){.cfg = &bad}));
    assert_int_equal(((const unsigned char *)y)[0], 0x7f);
    /* A tuned choice put into memory is taken by the next call. */
    const ejk_invocation invocation = {
        .kernel = &toy_kernel, .args = &args, .implementation = &toy_implementation, .threads = 2};
    EXPECT_OK(ejk_config_selector_chain_remember(chain, &invocation, &config, NULL, false));
    assert_int_equal(rows_of(&args, NULL, &step), 40);
    assert_int_equal(step, EJK_CHOICE_MEMORY);
}

static void test_methods(void **state) {
    (void)state;
    const toy_args args = toy_call(x, y, 8, 8);
    ejk_call_options options = {.method = "pmap"};
    EXPECT_FAIL(UNKNOWN_NAME, "pmap", ejk_executor_call(executor, &toy_kernel, &args, &options));
    options.method = "shard_map";
    EXPECT_FAIL(INVALID_ARGUMENT, "mesh",
                ejk_executor_call(executor, &toy_kernel, &args, &options));
    options.mesh = "2";
    EXPECT_FAIL(INVALID_ARGUMENT, "in_specs",
                ejk_executor_call(executor, &toy_kernel, &args, &options));
    options.in_specs = "x";
    EXPECT_FAIL(INVALID_ARGUMENT, "out_specs",
                ejk_executor_call(executor, &toy_kernel, &args, &options));
    options.out_specs = "x";
    EXPECT_FAIL(UNAVAILABLE, "run_shard_map",
                ejk_executor_call(executor, &toy_kernel, &args, &options));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_executor_call(executor, &toy_kernel, NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "executor", ejk_executor_call(NULL, &toy_kernel, &args, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "context", ejk_executor_create(NULL, NULL, &executor));
}

static void expect_stamp(ejk_stamp stamp, const char *prefix, const char *expected) {
    ejk_profiler *profiler;
    ejk_executor *stamping;
    ejk_profiler_event *events;
    int64_t count;
    EXPECT_OK(
        ejk_profiler_create(&(ejk_profiler_options){.min_duration_ns = ejk_int(0)}, &profiler));
    EXPECT_OK(ejk_executor_create(
        context,
        &(ejk_executor_options){.stamp = stamp, .stamp_prefix = prefix, .profiler = profiler},
        &stamping));
    const toy_args args = toy_call(x, y, 8, 8);
    EXPECT_OK(ejk_executor_call(stamping, &toy_kernel, &args, NULL));
    EXPECT_OK(
        ejk_executor_call(stamping, &toy_kernel, &args, &(ejk_call_options){.stamp = EJK_FALSE}));
    EXPECT_OK(ejk_profiler_events(profiler, &events, &count));
    assert_int_equal(count, expected ? 1 : 0);
    if (expected) assert_int_equal(strncmp(events[0].name, expected, strlen(expected)), 0);
    ejk_free(events);
    ejk_executor_destroy(stamping);
    ejk_profiler_destroy(profiler);
}

static void test_stamps(void **state) {
    (void)state;
    expect_stamp(EJK_STAMP_ENVIRONMENT, NULL, NULL);
    expect_stamp(EJK_STAMP_NONE, NULL, NULL);
    expect_stamp(EJK_STAMP_HASH, NULL, "ejkernel_ops#toy@v0:");
    expect_stamp(EJK_STAMP_HASH, "mine", "mine#toy@v0:");
    expect_stamp(EJK_STAMP_JSON, NULL, "ejkernel_ops:{\"args\":[");
    setenv("EJKERNEL_OPS_STAMP", "Hash", 1);
    expect_stamp(EJK_STAMP_ENVIRONMENT, NULL, "ejkernel_ops#toy@v0:");
    setenv("EJKERNEL_OPS_STAMP", "other", 1);
    expect_stamp(EJK_STAMP_ENVIRONMENT, NULL, NULL);
    unsetenv("EJKERNEL_OPS_STAMP");
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

/* Residuals of the toy: y is kept. */
#define TOY_KEPT(F, R) F(TENSOR, kept, EJK_OUTPUT, "", "[n,m] float32", "the result")
EJK_RECORD_STRUCT(toy_kept, TOY_KEPT);
#define EJK_RECORD_SELF toy_kept
EJK_RECORD_DEFINE(toy_kept_record, toy_kept, TOY_KEPT);
#undef EJK_RECORD_SELF

static int64_t seen_rows;
static int slow_rows; /* the vjp hook dawdles for this number of rows */

static ejk_status forward(const ejk_hook_call *call) {
    const toy_args *args = call->args;
    const ejk_tensor *kept = &((const toy_kept *)call->residuals)->kept;
    const int64_t count = ejk_tensor_count(&args->x);
    for (int64_t i = 0; i < count; i++) {
        ((float *)args->y.data)[i] = (float)(((const float *)args->x.data)[i] * args->factor);
        ((float *)kept->data)[i] = ((float *)args->y.data)[i];
    }
    return EJK_OK;
}

static ejk_status backward(const ejk_hook_call *call) {
    const toy_args *args = call->args;
    seen_rows = ((const toy_config *)call->config)->params.rows.value;
    if (call->gradient_count != 1 || call->cotangent_count != 1) return EJK_STATUS_INTERNAL;
    if (call->gradients[0].dtype == EJK_DTYPE_UNSET) return EJK_OK;
    const int64_t count = ejk_tensor_count(&args->x), times = seen_rows == slow_rows ? 400 : 20;
    float *gradient = call->gradients[0].data;
    const float *cotangent = call->cotangents[0].data;
    for (int64_t n = 0; n < times; n++)
        for (int64_t i = 0; i < count; i++)
            *(volatile float *)&gradient[i] = (float)(cotangent[i] * args->factor);
    return EJK_OK;
}

static int forward_runs;

static ejk_status forward_only(const ejk_hook_call *call) {
    const toy_args *args = call->args;
    forward_runs++;
    memcpy(args->y.data, args->x.data, 64 * sizeof(float));
    return EJK_OK;
}

static const ejk_hook gradient_hooks[] = {{.name = "fwd_with_residuals", .call = forward},
                                          {.name = "custom_vjp_cpu", .call = backward}};

static ejk_kernel differentiable(void) {
    ejk_kernel kernel = toy_kernel;
    kernel.op_id = "smooth_toy";
    kernel.heuristic_cfg = NULL;
    kernel.hooks = gradient_hooks;
    kernel.hook_count = 2;
    kernel.residuals = &toy_kept_record;
    return kernel;
}

static void test_gradients(void **state) {
    (void)state;
    const ejk_kernel kernel = differentiable();
    const toy_args args = toy_call(x, y, 8, 8);
    float kept[64], cotangent[64], gradient[64];
    toy_kept residuals = {.kept = ejk_tensor_2d(kept, EJK_DTYPE_F32, 8, 8)};
    for (int i = 0; i < 64; i++) cotangent[i] = (float)i;
    EXPECT_FAIL(INVALID_ARGUMENT, "residuals",
                ejk_executor_fwd(executor, &kernel, &args, NULL, NULL));
    EXPECT_OK(ejk_executor_fwd(executor, &kernel, &args, &residuals, NULL));
    expect_doubled();
    const ejk_tensor out = ejk_tensor_2d(cotangent, EJK_DTYPE_F32, 8, 8),
                     in = ejk_tensor_2d(gradient, EJK_DTYPE_F32, 8, 8),
                     odd = ejk_tensor_2d(gradient, EJK_DTYPE_F32, 4, 16), none = {0};
    ejk_vjp_call vjp = {&residuals, &out, 1, &in, 1};
    EXPECT_OK(ejk_executor_vjp(executor, &kernel, &args, &vjp, NULL));
    for (int i = 0; i < 64; i++) assert_true(gradient[i] == 2 * (float)i);
    const toy_config config = {.params.rows = ejk_int(40)};
    EXPECT_OK(
        ejk_executor_vjp(executor, &kernel, &args, &vjp, &(ejk_call_options){.cfg = &config}));
    assert_int_equal(seen_rows, 40);
    vjp.gradients = &none;
    EXPECT_OK(ejk_executor_vjp(executor, &kernel, &args, &vjp, NULL));
    vjp.gradients = &odd;
    EXPECT_FAIL(INVALID_SHAPE, "gradient 0 has another shape than x",
                ejk_executor_vjp(executor, &kernel, &args, &vjp, NULL));
    vjp.gradients = &in;
    vjp.cotangent_count = 0;
    EXPECT_FAIL(INVALID_ARGUMENT, "cotangent count is 0, expected 1",
                ejk_executor_vjp(executor, &kernel, &args, &vjp, NULL));
    vjp.cotangent_count = 1;
    EXPECT_FAIL(UNAVAILABLE, "has no hook vjp",
                ejk_executor_vjp(executor, &toy_kernel, &args, &vjp, NULL));
}

/* ---- Tuning ----------------------------------------------------------------------------------------- */

/* What a hook does for each number of rows: it is honest and slow or quick, or wrong in some way, and then
 * quickest of all. */
typedef enum manner { SLOW, QUICK, LIAR, LAZY, NAN_RESULT, FAILING, HANGING } manner;
static manner behaviour[65];

static ejk_status behave(const ejk_hook_call *call) {
    const toy_args *args = call->args;
    const int64_t rows = ((const toy_config *)call->config)->params.rows.value;
    const int64_t count = ejk_tensor_count(&args->x);
    const float *in = args->x.data;
    float *out = args->y.data;
    switch (behaviour[rows]) {
    case FAILING: return EJK_STATUS_INTERNAL;
    case LAZY: return EJK_OK;
    case HANGING: usleep(400000); break;
    default: break;
    }
    const int times = behaviour[rows] == SLOW ? 400 : behaviour[rows] == QUICK ? 40 : 1;
    for (int n = 0; n < times; n++)
        for (int64_t i = 0; i < count; i++)
            *(volatile float *)&out[i] = (float)(in[i] * args->factor);
    if (behaviour[rows] == LIAR) out[count / 2] += 0.25f;
    if (behaviour[rows] == NAN_RESULT) out[0] = NAN;
    return EJK_OK;
}

static void test_autotune(void **state) {
    (void)state;
    static const ejk_hook hooks[] = {{.name = "run", .call = behave}};
    ejk_kernel kernel = toy_kernel;
    kernel.op_id = "tricky_toy";
    kernel.heuristic_cfg = NULL;
    kernel.hooks = hooks;
    kernel.hook_count = 1;
    const toy_args args = toy_call(x, y, 8, 8);
    memset(y, 0, sizeof y);
    enum { COUNT = 7 };
    toy_config configs[COUNT] = {{.params.rows = ejk_int(1)}};
    for (int i = 0; i < COUNT; i++) {
        configs[i].params.rows = ejk_int(i + 1);
        behaviour[i + 1] = (manner)i; /* 1 is slow, 2 quick, 3 a liar, … */
    }
    const ejk_autotune_options options = {
        .configs = configs, .config_count = COUNT, .tuner = {.time_s = 10}};
    toy_config best;
    ejk_tune_report *report;
    ejk_config_measurement measurement;
    EXPECT_OK(ejk_autotune(context, &kernel, &args, &options, &best, &report, &measurement));
    assert_int_equal(report->count, COUNT + 1);
    assert_int_equal(report->candidates[1 + LIAR].verdict, EJK_TUNE_VERDICT_DISAGREES);
    assert_int_equal(report->candidates[1 + LAZY].verdict, EJK_TUNE_VERDICT_DISAGREES);
    assert_int_equal(report->candidates[1 + NAN_RESULT].verdict, EJK_TUNE_VERDICT_DISAGREES);
    assert_int_equal(report->candidates[1 + FAILING].verdict, EJK_TUNE_VERDICT_FAILED);
    assert_int_equal(report->candidates[1 + HANGING].verdict, EJK_TUNE_VERDICT_TOO_SLOW);
    assert_int_equal(best.params.rows.value, 1 + QUICK); /* ten times as quick as the default */
    assert_true(measurement.median_s < measurement.reference_s);
    assert_true(measurement.unix_time > 0);
    for (int i = 0; i < 64; i++) assert_true(y[i] == 0); /* results go elsewhere */
    ejk_tune_report_destroy(report);
    /* Where nobody honest is quicker, the default stays. */
    behaviour[1 + QUICK] = LIAR;
    EXPECT_OK(ejk_autotune(context, &kernel, &args, &options, &best, NULL, NULL));
    assert_true(!best.params.rows.set || best.params.rows.value == 1 + SLOW);
    EXPECT_FAIL(INVALID_ARGUMENT, "best",
                ejk_autotune(context, &kernel, &args, &options, NULL, NULL, NULL));
}

static const float *inputs_seen[4096];
static int input_count;

static void note_input(const ejk_run *run) {
    const float *input = toy_input(run);
    for (int i = 0; i < 64; i++) assert_true(input[i] == x[i]);
    for (int i = 0; i < input_count; i++)
        if (inputs_seen[i] == input) return;
    assert_true(input_count < 4096);
    inputs_seen[input_count++] = input;
}

static int count_inputs(const ejk_kernel *kernel, int64_t memory_bytes) {
    static const toy_config configs[] = {{.params.rows = {8, true}}};
    const toy_args args = toy_call(x, y, 8, 8);
    const ejk_autotune_options options = {
        .configs = configs, .config_count = 1, .tuner = {.memory_bytes = memory_bytes}};
    toy_config best;
    input_count = 0;
    toy_during = note_input;
    EXPECT_OK(ejk_autotune(context, kernel, &args, &options, &best, NULL, NULL));
    toy_during = NULL;
    return input_count;
}

/* A quarter of a FLOP for a byte: the same inputs again and again would be found in a cache. */
static void test_inputs_rotate_where_memory_is_the_bound(void **state) {
    (void)state;
    toy_advice = ejk_int(16);
    assert_in_range(count_inputs(&toy_kernel, 0), 5, 1025); /* as many as there were runs */
    /* Candidates that take more than 1 kB are not run, nor are more copies made. */
    assert_int_equal(count_inputs(&toy_kernel, 1024), 1 + 1024 / (int)sizeof x);
    ejk_kernel unknown = toy_kernel;
    unknown.cost = NULL;
    unknown.heuristic_cfg = NULL;
    assert_int_equal(count_inputs(&unknown, 0), 1);
}

static void test_tuning_of_gradients(void **state) {
    (void)state;
    const ejk_kernel kernel = differentiable();
    const toy_args args = toy_call(NULL, NULL, 8, 8);
    static const toy_config configs[] = {{.params.rows = {8, true}}};
    slow_rows = 0; /* the default, whose rows are unset */
    const ejk_autotune_options options = {
        .configs = configs, .config_count = 1, .tuner = {.time_s = 30}, .pass = EJK_TUNE_BACKWARD};
    toy_config best;
    EXPECT_OK(ejk_autotune(context, &kernel, &args, &options, &best, NULL, NULL));
    assert_int_equal(best.params.rows.value, 8);
    ejk_autotune_options both = options;
    both.pass = EJK_TUNE_BOTH;
    ejk_kernel whole = kernel; /* with a forward pass of its own, too */
    whole.op_id = "whole_toy";
    const ejk_hook hooks[] = {
        gradient_hooks[0], gradient_hooks[1], {.name = "run", .call = forward_only}};
    whole.hooks = hooks;
    whole.hook_count = 3;
    ejk_tune_report *report;
    forward_runs = 0;
    EXPECT_OK(ejk_autotune(context, &whole, &args, &both, &best, &report, NULL));
    assert_int_equal(best.params.rows.value, 8);
    assert_true(forward_runs > 2 * report->pairs);
    ejk_tune_report_destroy(report);
    EXPECT_FAIL(UNAVAILABLE, "has no hook vjp",
                ejk_autotune(context, &toy_kernel, &args, &both, &best, NULL, NULL));
}

static int tunings;

static void count_tuned(void *user, const ejk_tuned_call *call) {
    (void)user;
    assert_string_equal(call->key->op_id, "toy@v0");
    assert_int_equal(call->report->count,
                     3 + 1); /* 24 and halves and doubles of it within 8 to 64 */
    tunings++;
}

static void test_executor_autotune(void **state) {
    (void)state;
    const toy_args args = toy_call(x, y, 8, 8);
    const ejk_autotune_options options = {.tuner = {.time_s = 30}};
    tunings = 0;
    EXPECT_OK(ejk_executor_autotune(executor, &toy_kernel, &args, &options, count_tuned, NULL));
    assert_int_equal(tunings, 1);
    ejk_choice_step step;
    (void)rows_of(&args, NULL, &step);
    assert_int_equal(step, EJK_CHOICE_MEMORY);
    ejk_executor *plain;
    EXPECT_OK(ejk_executor_create(context, NULL, &plain));
    EXPECT_FAIL(UNAVAILABLE, "no selector chain",
                ejk_executor_autotune(plain, &toy_kernel, &args, &options, NULL, NULL));
    ejk_executor_destroy(plain);
}

static void test_default_executor(void **state) {
    (void)state;
    char folder[] = "ejk_executor_XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    const ejk_opt_int unset = {0}, one = ejk_int(1);
    ejk_executor *own;
    EXPECT_FAIL(INVALID_ARGUMENT, "warmup_iterations is -1",
                ejk_create_default_executor(context, NULL, EJK_UNSET, ejk_int(-1), unset, &own));
    EXPECT_FAIL(INVALID_ARGUMENT, "timing_iterations is 0",
                ejk_create_default_executor(context, NULL, EJK_UNSET, unset, ejk_int(0), &own));
    const toy_args args = toy_call(x, y, 8, 8);
    toy_config config;
    ejk_choice_step step;
    EXPECT_OK(ejk_create_default_executor(context, folder, EJK_FALSE, unset, unset, &own));
    EXPECT_OK(ejk_executor_choose_config(own, &toy_kernel, &args, NULL, &config, &step));
    assert_int_equal(step, EJK_CHOICE_HEURISTICS);
    ejk_executor_destroy(own);
    EXPECT_OK(ejk_create_default_executor(context, folder, EJK_UNSET, one, one, &own));
    EXPECT_OK(ejk_executor_call(own, &toy_kernel, &args, NULL));
    expect_doubled();
    EXPECT_OK(ejk_executor_choose_config(own, &toy_kernel, &args, NULL, &config, &step));
    assert_int_equal(step, EJK_CHOICE_MEMORY); /* tuned by the call before */
    ejk_executor_destroy(own);
    EXPECT_OK(ejk_create_default_executor(context, folder, EJK_UNSET, one, one, &own));
    EXPECT_OK(ejk_executor_choose_config(own, &toy_kernel, &args, NULL, &config, &step));
    assert_int_equal(step, EJK_CHOICE_PERSISTENT);
    ejk_executor_destroy(own);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_calls),
        TEST(test_methods),
        TEST(test_stamps),
        TEST(test_gradients),
        TEST(test_autotune),
        TEST(test_inputs_rotate_where_memory_is_the_bound),
        TEST(test_tuning_of_gradients),
        TEST(test_executor_autotune),
        TEST(test_default_executor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
