/* SPDX-License-Identifier: Apache-2.0 */
/* What a call updates in place: an input and an output, kept and put back where calls are repeated. */
#include "support/expect.h"
#include "support/toy_scan.h"

#include <math.h>
#include <string.h>

enum { N = 3, M = 4 };

static ejk_context *context;
static float x[N * M], state[M], y[N * M];

static int setup(void **unused) {
    (void)unused;
    EXPECT_OK(ejk_context_create(NULL, &context));
    EXPECT_OK(toy_scan_add(context));
    for (int i = 0; i < N * M; i++) x[i] = 1;
    for (int i = 0; i < M; i++) state[i] = (float)(10 * i);
    return 0;
}

static int teardown(void **unused) {
    (void)unused;
    ejk_context_destroy(context);
    return 0;
}

static void roles_say_what_a_field_is(void **unused) {
    (void)unused;
    static const bool wanted[][3] = {/* input, output, required */
                                     {true, false, false}, {true, false, true},
                                     {false, true, false}, {false, true, true},
                                     {true, true, false},  {true, true, true}};
    for (int role = 0; role <= EJK_REQUIRED_INOUT; role++) {
        const ejk_field field = {.role = (ejk_field_role)role};
        assert_int_equal(ejk_field_is_input(&field), wanted[role][0]);
        assert_int_equal(ejk_field_is_output(&field), wanted[role][1]);
        assert_int_equal(ejk_field_is_required(&field), wanted[role][2]);
    }
    assert_false(ejk_field_is_input(NULL) || ejk_field_is_output(NULL) ||
                 ejk_field_is_required(NULL));
}

static void a_call_goes_on_from_its_state(void **unused) {
    (void)unused;
    const toy_scan_args args = toy_scan_call(x, state, y, N, M);
    for (int call = 1; call <= 3; call++) {
        EXPECT_OK(ejk_call(context, &toy_scan_kernel, &args));
        for (int k = 0; k < M; k++) {
            assert_true(state[k] == (float)(10 * k + call * N));
            assert_true(y[(N - 1) * M + k] == state[k]);
        }
    }
}

static void a_required_state_is_asked_for(void **unused) {
    (void)unused;
    toy_scan_args args = toy_scan_call(x, state, y, N, M);
    args.state = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "state: missing", ejk_call(context, &toy_scan_kernel, &args));
    char *help;
    EXPECT_OK(ejk_record_help(&toy_scan_args_record, &help));
    assert_non_null(strstr(strstr(help, "--state "), "in, out  required"));
    assert_non_null(strstr(strstr(help, "--last "), "in, out  not kept"));
    ejk_free(help);
}

static void a_state_overlaps_nothing_but_itself(void **unused) {
    (void)unused;
    toy_scan_args args = toy_scan_call(x, y, y, N, M);
    EXPECT_FAIL(INVALID_LAYOUT, "state overlaps y", ejk_call(context, &toy_scan_kernel, &args));
    args = toy_scan_call(x, x + M, y, N, M);
    EXPECT_FAIL(INVALID_LAYOUT, "state overlaps x", ejk_call(context, &toy_scan_kernel, &args));
    args = toy_scan_call(x, state, y, N, M);
    args.last = args.state;
    EXPECT_FAIL(INVALID_LAYOUT, "state overlaps last", ejk_call(context, &toy_scan_kernel, &args));
    args = toy_scan_call(x, y, y + M, 1, M); /* side by side is not upon each other */
    EXPECT_OK(ejk_call(context, &toy_scan_kernel, &args));
    for (int k = 0; k < M; k++) assert_true(x[k] == 1);
}

static void keys_of_calls_name_the_state(void **unused) {
    (void)unused;
    const toy_scan_args args = toy_scan_call(x, state, y, N, M);
    char *spec;
    EXPECT_OK(ejk_call_spec(&toy_scan_kernel, &args, NULL, NULL, &spec));
    assert_non_null(strstr(spec, "[3,4]"));
    assert_non_null(strstr(spec, "[4]"));
    ejk_free(spec);
}

static void texts_fill_the_state(void **unused) {
    (void)unused;
    ejk_problem *problem;
    EXPECT_OK(ejk_problem_parse(context, "toy_scan:n=2,m=8,with=last", &problem));
    EXPECT_OK(ejk_problem_allocate(problem, 5));
    const toy_scan_args *args = ejk_problem_args(problem);
    for (int k = 0; k < 8; k++) {
        assert_true(((const float *)args->state.data)[k] != 0);
        assert_true(((const float *)args->last.data)[k] != 0);
        assert_true(((const float *)args->y.data)[k] == 0);
    }
    char *text;
    EXPECT_OK(ejk_problem_to_text(&toy_scan_kernel, args, &text));
    assert_string_equal(text, "toy_scan:n=2,m=8,with=last");
    ejk_free(text);
    ejk_problem_destroy(problem);
}

static void states_are_put_back(void **unused) {
    (void)unused;
    float row[3 * M];
    for (int i = 0; i < 3 * M; i++) row[i] = (float)i;
    toy_scan_args args = toy_scan_call(x, row, y, N, M);
    args.state.strides[0] = 2;
    args.state.shape[0] = M;
    args.last = ejk_tensor_1d(row + 2 * M, EJK_DTYPE_F32, M);
    ejk_states *kept = NULL;
    EXPECT_OK(ejk_states_save(&toy_scan_args_record, &args, &kept));
    for (int i = 0; i < 3 * M; i++) row[i] = -1;
    EXPECT_OK(ejk_states_restore(kept));
    for (int i = 0; i < 2 * M; i++) assert_true(row[i] == (i % 2 == 0 ? (float)i : -1));
    for (int i = 2 * M; i < 3 * M; i++) assert_true(row[i] == (float)i);
    ejk_states_destroy(kept);
    args.last.data = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "last", ejk_states_save(&toy_scan_args_record, &args, &kept));
    EXPECT_FAIL(INVALID_ARGUMENT, "args is NULL",
                ejk_states_save(&toy_scan_args_record, NULL, &kept));
    EXPECT_FAIL(INVALID_ARGUMENT, "states is NULL", ejk_states_restore(NULL));
    ejk_states_destroy(NULL);
}

/* The engine compares second runs with the first: they agree only if the state was put back, unpoisoned. */
static void tuning_runs_on_the_same_state(void **unused) {
    (void)unused;
    const toy_scan_args args = toy_scan_call(x, state, y, N, M);
    toy_config configs[2] = {{.params.rows = ejk_int(8)}, {.params.rows = ejk_int(32)}}, best;
    const ejk_autotune_options options = {/* of one run a sample */
                                          .configs = configs,
                                          .config_count = 2,
                                          .tuner = {.time_s = 0.2, .sample_s = ejk_float(0)}};
    ejk_tune_report *report;
    toy_scan_most = 0;
    EXPECT_OK(ejk_autotune(context, &toy_scan_kernel, &args, &options, &best, &report, NULL));
    assert_true(toy_scan_most == (float)(10 * (M - 1)));
    assert_int_equal(report->count, 3);
    for (int i = 0; i < 3; i++)
        assert_int_not_equal(report->candidates[i].verdict, EJK_TUNE_VERDICT_DISAGREES);
    ejk_tune_report_destroy(report);
    for (int k = 0; k < M; k++) assert_true(state[k] == (float)(10 * k) && y[k] == y[k]);
    toy_scan_args bare = toy_scan_call(NULL, NULL, NULL, 64, 256); /* a recorded call has no data */
    bare.last = ejk_tensor_1d(NULL, EJK_DTYPE_F32, 256);
    EXPECT_OK(ejk_autotune(context, &toy_scan_kernel, &bare, &options, &best, NULL, NULL));
}

static int32_t cotangents, gradients;

static ejk_status count_tensors(const ejk_hook_call *call) {
    cotangents = call->cotangent_count;
    gradients = call->gradient_count;
    return EJK_OK;
}

static void gradients_take_it_as_an_input(void **unused) {
    (void)unused;
    static const ejk_hook hooks[] = {{.name = "vjp", .call = count_tensors}};
    ejk_kernel kernel = toy_scan_kernel;
    kernel.hooks = hooks;
    kernel.hook_count = 1;
    kernel.op_id = "toy_scan_hooked";
    kernel.algorithm = "toy_scan";
    EXPECT_OK(ejk_context_add_kernel(context, &kernel));
    const toy_scan_args args = toy_scan_call(x, state, y, N, M);
    float slopes[2 * N * M];
    const ejk_tensor d_y = ejk_tensor_2d(slopes, EJK_DTYPE_F32, N, M);
    const ejk_tensor d_inputs[] = {ejk_tensor_2d(slopes + N * M, EJK_DTYPE_F32, N, M),
                                   ejk_tensor_1d(slopes, EJK_DTYPE_F32, M)};
    ejk_executor *executor;
    EXPECT_OK(ejk_executor_create(context, NULL, &executor));
    ejk_vjp_call vjp = {
        .cotangents = &d_y, .cotangent_count = 1, .gradients = d_inputs, .gradient_count = 2};
    EXPECT_OK(ejk_executor_vjp(executor, &kernel, &args, &vjp, NULL));
    assert_int_equal(cotangents, 1);
    assert_int_equal(gradients, 2);
    vjp.gradient_count = 1;
    EXPECT_FAIL(INVALID_ARGUMENT, "expected 2",
                ejk_executor_vjp(executor, &kernel, &args, &vjp, NULL));
    ejk_executor_destroy(executor);
}

static void batches_give_each_element_its_state(void **unused) {
    (void)unused;
    float states[2 * M] = {0}, results[2 * N * M], inputs[2 * N * M];
    for (int i = 0; i < 2 * N * M; i++) inputs[i] = (float)(1 + i / (N * M));
    const int64_t shape[] = {2, N, M};
    toy_scan_args args = {.x = ejk_tensor_contiguous(inputs, EJK_DTYPE_F32, 3, shape),
                          .state = ejk_tensor_2d(states, EJK_DTYPE_F32, 2, M),
                          .y = ejk_tensor_contiguous(results, EJK_DTYPE_F32, 3, shape)};
    ejk_executor *executor;
    EXPECT_OK(ejk_executor_create(context, NULL, &executor));
    EXPECT_OK(ejk_vmap_with_config(executor, &toy_scan_kernel, &args, NULL, NULL));
    for (int i = 0; i < 2 * M; i++) assert_true(states[i] == (float)(N * (1 + i / M)));
    const ejk_batch_axis whole = {.field = "state", .whole = true};
    args.state = ejk_tensor_1d(states, EJK_DTYPE_F32, M);
    EXPECT_FAIL(INVALID_ARGUMENT, "state is a result and not mapped",
                ejk_vmap_with_config(executor, &toy_scan_kernel, &args,
                                     &(ejk_batch_axes){&whole, 1}, NULL));
    ejk_executor_destroy(executor);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(roles_say_what_a_field_is),     TEST(a_call_goes_on_from_its_state),
        TEST(a_required_state_is_asked_for), TEST(a_state_overlaps_nothing_but_itself),
        TEST(keys_of_calls_name_the_state),  TEST(texts_fill_the_state),
        TEST(states_are_put_back),           TEST(tuning_runs_on_the_same_state),
        TEST(gradients_take_it_as_an_input), TEST(batches_give_each_element_its_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
