/* SPDX-License-Identifier: Apache-2.0 */
/* What surrounds a choice: the tuner of a chain, a kernel's own keys, and what a chooser is told of a call. */
#include "support/expect.h"
#include "support/toy.h"

#include <stdio.h>

static ejk_context *context;
static ejk_tuner *tuner;
static ejk_config_selector_chain *chain;
static ejk_executor *executor;
static float x[64], y[64];
static int runs, vjp_runs;

static void count_run(const ejk_run *run) {
    (void)run;
    runs++;
}

/* The gradient of the toy: its factor times the cotangent. */
static ejk_status backward(const ejk_hook_call *call) {
    const toy_args *args = call->args;
    const ejk_tensor *ct = &call->cotangents[0], *dx = &call->gradients[0];
    vjp_runs++;
    for (int64_t i = 0; dx->dtype && i < ejk_tensor_count(dx); i++)
        ((float *)dx->data)[i] = (float)(((const float *)ct->data)[i] * args->factor);
    return EJK_OK;
}

static const ejk_hook hooks[] = {{.name = "vjp", .call = backward}};

static ejk_kernel differentiable_toy(void) {
    ejk_kernel kernel = toy_kernel;
    kernel.heuristic_cfg = NULL; /* it expects the toy itself */
    kernel.hooks = hooks;
    kernel.hook_count = 1;
    return kernel;
}

static void open_with(const ejk_autotune_policy *policy) {
    context = toy_context(&(ejk_context_options){.threads = 1});
    toy_advice = ejk_int(24);
    toy_during = count_run;
    runs = vjp_runs = 0;
    EXPECT_OK(ejk_tuner_create(&(ejk_tuner_options){.warmup = ejk_int(4),
                                                    .iters = 6,
                                                    .max_rounds = 6,
                                                    .max_candidates = 2,
                                                    .sample_s = ejk_float(0)},
                               &tuner));
    const ejk_config_tuner measures = ejk_tuner_config_tuner(tuner);
    EXPECT_OK(ejk_config_selector_chain_create(
        &(ejk_config_selector_options){.policy = *policy, .tuner = &measures}, &chain));
    EXPECT_OK(ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor));
}

static int close_all(void **state) {
    (void)state;
    ejk_executor_destroy(executor);
    ejk_config_selector_chain_destroy(chain);
    ejk_tuner_destroy(tuner);
    ejk_context_destroy(context);
    return 0;
}

static ejk_choice_step step_of(const ejk_kernel *kernel, const toy_args *args) {
    ejk_choice_step step;
    toy_config config;
    EXPECT_OK(ejk_executor_choose_config(executor, kernel, args, NULL, &config, &step));
    return step;
}

static void a_tuner_measures_once(void **state) {
    (void)state;
    open_with(&(ejk_autotune_policy){.allow_autotune = EJK_TRUE});
    const toy_args args = toy_call(x, y, 8, 8);
    assert_int_equal(step_of(&toy_kernel, &args), EJK_CHOICE_AUTOTUNE);
    assert_true(runs >= 10); /* four to warm up and six rounds, of the default at least */
    const int before = runs;
    assert_int_equal(step_of(&toy_kernel, &args), EJK_CHOICE_MEMORY);
    assert_int_equal(runs, before);
    /* Results go to the tuner's own memory. */
    for (int i = 0; i < 64; i++) assert_true(y[i] == 0);
    ejk_tuner_destroy(NULL);
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_tuner_create(NULL, NULL));
}

static void the_backward_pass_is_measured_if_the_policy_says_so(void **state) {
    (void)state;
    ejk_autotune_policy policy = {.allow_autotune = EJK_TRUE};
    const ejk_kernel kernel = differentiable_toy();
    const toy_args args = toy_call(x, y, 8, 8);
    open_with(&policy);
    assert_int_equal(step_of(&kernel, &args), EJK_CHOICE_AUTOTUNE);
    assert_int_equal(vjp_runs, 0);
    close_all(NULL);
    policy.validate_backward = EJK_TRUE;
    open_with(&policy);
    assert_int_equal(step_of(&kernel, &args), EJK_CHOICE_AUTOTUNE);
    assert_true(vjp_runs > 0);
    assert_true(runs > 0);
}

/* ---- Keys ------------------------------------------------------------------------------------------- */

static ejk_status build_key(const ejk_invocation *invocation, char *key, size_t size) {
    const toy_args *args = invocation->args;
    if (args->x.shape[0] == 2) return EJK_STATUS_UNAVAILABLE;
    snprintf(key, size, "%d rows or so", (int)(args->x.shape[0] / 4 * 4));
    return EJK_OK;
}

/* Calls of different shapes that a kernel counts as one find the same configuration. */
static void a_kernel_builds_its_own_keys(void **state) {
    (void)state;
    open_with(&(ejk_autotune_policy){.allow_autotune = EJK_TRUE});
    ejk_kernel kernel = differentiable_toy();
    kernel.key_builder = build_key;
    const toy_args eight = toy_call(x, y, 8, 4), nine = toy_call(x, y, 9, 4),
                   four = toy_call(x, y, 4, 4), two = toy_call(x, y, 2, 4);
    assert_int_equal(step_of(&kernel, &eight), EJK_CHOICE_AUTOTUNE);
    assert_int_equal(step_of(&kernel, &nine), EJK_CHOICE_MEMORY);
    assert_int_equal(step_of(&kernel, &four), EJK_CHOICE_AUTOTUNE);
    toy_config config;
    assert_int_equal(ejk_executor_choose_config(executor, &kernel, &two, NULL, &config, NULL),
                     EJK_STATUS_UNAVAILABLE);
}

/* ---- What a chooser is told ------------------------------------------------------------------------- */

static ejk_status choose(void *self, const ejk_invocation *invocation, void *config,
                         ejk_choice_step *step) {
    ejk_flash_attention_config *seen = self;
    *seen = (ejk_flash_attention_config){.platform = "none was given"};
    if (invocation->override_cfg)
        *seen = *(const ejk_flash_attention_config *)invocation->override_cfg;
    *step = EJK_CHOICE_HEURISTICS;
    return ejk_invocation_heuristics(invocation, config);
}

static void a_chooser_sees_the_explicit_configuration(void **state) {
    (void)state;
    ejk_flash_attention_config seen;
    const ejk_config_chooser chooser = {&seen, choose, NULL};
    EXPECT_OK(
        ejk_context_create(&(ejk_context_options){.threads = 1, .chooser = &chooser}, &context));
    ejk_flash_attention_args args = {.query = ejk_tensor_4d(x, EJK_DTYPE_F32, 1, 4, 1, 8)};
    args.key = args.value = args.query;
    args.out = ejk_tensor_4d(y, EJK_DTYPE_F32, 1, 4, 1, 8);
    EXPECT_OK(ejk_flash_attention(context, &args));
    assert_string_equal(seen.platform, "none was given");
    args.cfg = (ejk_flash_attention_config){.platform = "reference",
                                            .bwd_params.num_warps = ejk_int(2),
                                            .fwd_params.num_stages = ejk_int(3)};
    EXPECT_OK(ejk_flash_attention(context, &args));
    assert_string_equal(seen.platform, "reference");
    assert_int_equal(seen.fwd_params.num_stages.value, 3);
    assert_int_equal(seen.bwd_params.num_warps.value, 2);
    ejk_context_destroy(context);
}

#define TEST(name) cmocka_unit_test_teardown(name, close_all)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_tuner_measures_once),
        TEST(the_backward_pass_is_measured_if_the_policy_says_so),
        TEST(a_kernel_builds_its_own_keys),
        cmocka_unit_test(a_chooser_sees_the_explicit_configuration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
