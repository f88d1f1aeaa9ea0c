/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings: what is kept of calls, files of them, and tuning all that was recorded. */
#include "support/expect.h"
#include "support/toy.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ejk_context *context;
static float x[256], y[256];

static int setup(void **state) {
    (void)state;
    context = toy_context(&(ejk_context_options){.threads = 1});
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

/* Problems of a recording, one after the other. */
static char problems[2048];

static ejk_status list(void *user, const ejk_recorded_invocation *invocation) {
    (void)user;
    assert_string_equal(invocation->device, ejk_device_fingerprint());
    assert_string_equal(invocation->op_id_v, "toy@v0");
    assert_int_equal(strlen(invocation->call_key), 16);
    strcat(strcat(problems, invocation->problem), "\n");
    return EJK_OK;
}

static const char *all_of(ejk_recording *recording) {
    problems[0] = 0;
    EXPECT_OK(ejk_get_invocations(recording, NULL, list, NULL));
    return problems;
}

static void test_what_is_kept(void **state) {
    (void)state;
    ejk_recording *recording;
    EXPECT_OK(ejk_recording_create(&recording));
    toy_args args = toy_call(x, y, 2, 3);
    EXPECT_OK(ejk_record_invocation(recording, &toy_kernel, &args));
    EXPECT_OK(ejk_record_invocation(recording, &toy_kernel, &args));
    args.shift = ejk_int(4);
    EXPECT_OK(ejk_record_invocation(recording, &toy_kernel, &args));
    args = toy_call(x, y, 4, 3);
    EXPECT_OK(ejk_record_invocation(recording, &toy_kernel, &args));
    args.x.strides[0] = 8; /* another class of strides is another call */
    EXPECT_OK(ejk_record_invocation(recording, &toy_kernel, &args));
    assert_int_equal(ejk_recording_count(recording), 4);
    assert_non_null(strstr(all_of(recording), "shift=4"));
    EXPECT_OK(ejk_get_invocations(recording, "gpu|elsewhere", list, NULL));
    ejk_recording_clear(recording);
    assert_int_equal(ejk_recording_count(recording), 0);
    assert_string_equal(all_of(recording), "");
    EXPECT_FAIL(INVALID_ARGUMENT, "kernel", ejk_record_invocation(recording, NULL, &args));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_recording_create(NULL));
    ejk_recording_destroy(recording);
    ejk_recording_destroy(NULL);
}

static void test_files(void **state) {
    (void)state;
    char path[] = "ejk_recording_XXXXXX", kept[sizeof problems];
    close(mkstemp(path));
    ejk_recording *one, *two;
    EXPECT_OK(ejk_recording_create(&one));
    EXPECT_OK(ejk_recording_create(&two));
    for (int i = 1; i < 6; i++) {
        toy_args args = toy_call(x, y, i, 7);
        args.shift = ejk_int(-i);
        if (i % 2) args.y.strides[0] = 16;
        EXPECT_OK(ejk_record_invocation(one, &toy_kernel, &args));
    }
    EXPECT_OK(ejk_recording_save(one, path));
    EXPECT_OK(ejk_recording_load(two, context, path));
    strcpy(kept, all_of(one));
    assert_string_equal(all_of(two), kept);
    EXPECT_OK(ejk_recording_load(two, context, path)); /* the same again adds nothing */
    assert_int_equal(ejk_recording_count(two), 5);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("toy:n=1,m=2\nunheard_of:n=1\n", file);
    fclose(file);
    ejk_recording_clear(two);
    EXPECT_FAIL(UNKNOWN_NAME, "unheard_of", ejk_recording_load(two, context, path));
    assert_int_equal(ejk_recording_count(two), 0);
    unlink(path);
    EXPECT_FAIL(IO, path, ejk_recording_load(two, context, path));
    EXPECT_FAIL(IO, "/nowhere/at/all", ejk_recording_save(one, "/nowhere/at/all"));
    ejk_recording_destroy(one);
    ejk_recording_destroy(two);
}

static int told, skipped;

static void tell(void *user, const ejk_tuned_call *call) {
    (void)user;
    assert_non_null(strstr(call->problem, "toy:"));
    assert_int_equal(call->report->chosen >= 0, 1);
    told++;
}

static void pass_over(void *user, const char *problem, const char *sentence) {
    (void)user;
    assert_non_null(strstr(problem, "float64"));
    assert_non_null(strstr(sentence, "unavailable"));
    skipped++;
}

static void test_tuning(void **state) {
    (void)state;
    ejk_config_selector_chain *chain;
    ejk_executor *executor;
    ejk_recording *recording;
    EXPECT_OK(ejk_config_selector_chain_create(NULL, &chain));
    setenv("EJKERNEL_OPS_RECORD", "1", 1);
    EXPECT_OK(ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor));
    unsetenv("EJKERNEL_OPS_RECORD");
    recording = ejk_executor_recording(executor);
    assert_non_null(recording);
    for (int round = 0; round < 3; round++)
        for (int i = 1; i < 4; i++) {
            const toy_args args = toy_call(x, y, i, 8);
            EXPECT_OK(ejk_executor_call(executor, &toy_kernel, &args, NULL));
        }
    assert_int_equal(ejk_recording_count(recording), 3);
    /* One that cannot be run here: there is no implementation for its type. */
    const toy_args wide = {.x = ejk_tensor_2d(NULL, EJK_DTYPE_F64, 2, 2),
                           .y = ejk_tensor_2d(NULL, EJK_DTYPE_F64, 2, 2)};
    EXPECT_OK(ejk_record_invocation(recording, &toy_kernel, &wide));
    const ejk_autotune_options options = {.tuner = {.time_s = 30}};
    ejk_autotuning_result *result;
    told = skipped = 0;
    EXPECT_OK(
        ejk_autotune_recorded(executor, recording, &options, 2, tell, pass_over, NULL, &result));
    assert_int_equal(told, 6);
    assert_int_equal(skipped, 1);
    assert_int_equal(result->count, 3);
    assert_string_equal(result->entries[0].op_id_v, "toy@v0");
    assert_int_equal(ejk_config_cache_size(ejk_config_selector_chain_cache(chain)), 3);
    /* The result as an overlay serves an executor that knows nothing. */
    ejk_config_cache *overlay;
    ejk_config_selector_chain *fresh;
    ejk_executor *other;
    toy_config config;
    ejk_choice_step step;
    const toy_args args = toy_call(x, y, 2, 8);
    EXPECT_OK(ejk_autotuning_result_as_overlay(result, &overlay));
    assert_int_equal(ejk_config_cache_size(overlay), 3);
    EXPECT_OK(ejk_config_selector_chain_create(NULL, &fresh));
    EXPECT_OK(ejk_executor_create(context, &(ejk_executor_options){.selector = fresh}, &other));
    ejk_overlay_scope scope;
    ejk_overlay_cache_begin(&scope, overlay);
    EXPECT_OK(ejk_executor_choose_config(other, &toy_kernel, &args, NULL, &config, &step));
    assert_int_equal(step, EJK_CHOICE_OVERLAY);
    ejk_overlay_cache_end(&scope);
    EXPECT_OK(ejk_executor_choose_config(other, &toy_kernel, &args, NULL, &config, &step));
    assert_int_equal(step, EJK_CHOICE_HEURISTICS);
    /* Without time to compare anything, and once cancelled, nothing is chosen. */
    static const volatile int now = 1;
    const ejk_autotune_options hasty[] = {{.tuner = {.time_s = 1e-9}}, {.tuner = {.cancel = &now}}};
    for (int i = 0; i < 2; i++) {
        ejk_autotuning_result *nothing;
        EXPECT_OK(
            ejk_autotune_recorded(other, recording, &hasty[i], 1, NULL, NULL, NULL, &nothing));
        assert_int_equal(nothing->count, 0);
        ejk_autotuning_result_destroy(nothing);
    }
    assert_int_equal(ejk_config_cache_size(ejk_config_selector_chain_cache(fresh)), 0);
    EXPECT_FAIL(INVALID_ARGUMENT, "repetition_count",
                ejk_autotune_recorded(executor, recording, NULL, -1, NULL, NULL, NULL, NULL));
    ejk_executor_destroy(other);
    ejk_config_selector_chain_destroy(fresh);
    ejk_config_cache_destroy(overlay);
    ejk_autotuning_result_destroy(result);
    ejk_executor_destroy(executor);
    ejk_config_selector_chain_destroy(chain);
}

static void *record_many(void *recording) {
    for (int i = 0; i < 300; i++) {
        const toy_args args = toy_call(NULL, NULL, 1 + i % 30, 8);
        if (ejk_record_invocation(recording, &toy_kernel, &args) != EJK_OK) return recording;
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    enum { THREADS = 4 };
    ejk_recording *recording;
    pthread_t threads[THREADS];
    EXPECT_OK(ejk_recording_create(&recording));
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, record_many, recording), 0);
    for (int t = 0; t < THREADS; t++) {
        void *wrong;
        pthread_join(threads[t], &wrong);
        assert_null(wrong);
    }
    assert_int_equal(ejk_recording_count(recording), 30);
    ejk_recording_destroy(recording);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_what_is_kept),
        TEST(test_files),
        TEST(test_tuning),
        TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
