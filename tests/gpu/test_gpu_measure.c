/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring and tuning on a real GPU. Times are printed, not judged; what is judged is that all candidates of a call
 * compute the same, and that choices are found again. Answers 77 where there is no GPU.
 */
#include "support/cache_case.h"
#include "support/expect.h"
#include "support/gpu_driver.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static ejk_context *context;

static int setup(void **state) {
    (void)state;
    folder_make();
    return ejk_context_create(NULL, &context) != EJK_OK;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    folder_remove();
    return 0;
}

static ejk_tensor tensor(ejk_dtype dtype, int64_t tokens, int64_t heads, int64_t dim) {
    const int64_t shape[] = {2, tokens, heads, dim};
    return ejk_device_tensor(NULL, 0, dtype, 4, shape);
}

static ejk_flash_attention_args call_of(ejk_dtype dtype, int64_t queries, int64_t keys) {
    return (ejk_flash_attention_args){.query = tensor(dtype, queries, 8, 64),
                                      .key = tensor(dtype, keys, 2, 64),
                                      .value = tensor(dtype, keys, 2, 64),
                                      .out = tensor(dtype, queries, 8, 64),
                                      .causal = true};
}

static void ceilings(void **state) {
    (void)state;
    static const ejk_dtype types[] = {EJK_DTYPE_BF16, EJK_DTYPE_F16, EJK_DTYPE_F32};
    ejk_gpu_ceiling found;
    double launch;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        EXPECT_OK(ejk_gpu_measure_peak(0, types[i], &found));
        print_message("%s: %.1f TFLOP/s alone, %.1f in a row\n", ejk_dtype_name(types[i]),
                      found.alone * 1e-12, found.in_a_row * 1e-12);
        assert_true(found.alone > 1e9 && found.in_a_row > 1e9);
        assert_true(found.alone < 1e16 && found.in_a_row < 1e16);
    }
    EXPECT_OK(ejk_gpu_measure_bandwidth(0, &found));
    EXPECT_OK(ejk_gpu_measure_launch(0, &launch));
    print_message("reading: %.0f GB/s alone, %.0f in a row; a launch %.2f us\n", found.alone * 1e-9,
                  found.in_a_row * 1e-9, launch * 1e6);
    assert_true(found.alone > 1e9 && found.alone < 1e14 && launch > 0);
}

static void costs_of_a_plan(void **state) {
    (void)state;
    ejk_flash_attention_args args = call_of(EJK_DTYPE_BF16, 16, 16);
    ejk_tensor *const all[] = {&args.query, &args.key, &args.value, &args.out};
    ejk_owned_tensor memory[4];
    ejk_host_cost host;
    ejk_first_use first;
    ejk_plan *plan;
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(ejk_device_tensor_create(0, all[i]->dtype, 4, all[i]->shape, &memory[i]));
        *all[i] = memory[i].tensor;
    }
    EXPECT_OK(ejk_plan_create(context, &ejk_flash_attention_kernel, &args, &plan));
    EXPECT_OK(ejk_plan_measure_host(plan, &args, &host));
    EXPECT_OK(ejk_plan_measure_first_use(context, &ejk_flash_attention_kernel, &args, &first));
    print_message(
        "a plan's execution %.2f us, %.2f us beyond %.2g launches; first use %.2f s, %.2f ms "
        "from the disk\n",
        host.plan_s * 1e6, host.beyond_s * 1e6, host.launches, first.compile_s, first.load_s * 1e3);
    assert_true(host.launches >= 1 && host.plan_s > host.beyond_s && first.kernels >= 1);
    assert_true(first.load_s > 0 && first.load_s < first.compile_s);
    EXPECT_OK(ejk_plan_execute(plan, &args, NULL, 0)); /* unloading took nothing that is in use */
    EXPECT_OK(ejk_device_synchronise(0, NULL));
    ejk_plan_destroy(plan);
    for (int i = 0; i < 4; i++) ejk_owned_tensor_close(&memory[i]);
}

/* A candidate may fail or be slow, but never compute something else. */
static void tune_once(const char *what, const ejk_flash_attention_args *args, ejk_tune_pass pass) {
    const ejk_autotune_options options = {.pass = pass, .tuner = {.time_s = 4, .max_rounds = 5}};
    ejk_tune_report *report;
    ejk_flash_attention_config best;
    EXPECT_OK(
        ejk_autotune(context, &ejk_flash_attention_kernel, args, &options, &best, &report, NULL));
    for (int32_t i = 0; i < report->count; i++) {
        const ejk_tune_candidate *each = &report->candidates[i];
        print_message("%s %2d%s %8.1f us, off by %.2g, %s %s\n", what, (int)i,
                      i == report->chosen ? "*" : " ", each->median_s * 1e6, each->difference,
                      ejk_tune_verdict_name(each->verdict), each->sentence);
        assert_int_not_equal(each->verdict, EJK_TUNE_VERDICT_DISAGREES);
        if (isnan(each->median_s)) continue;
        assert_true(each->median_s > 0 && each->difference < 3e-2);
    }
    ejk_tune_report_destroy(report);
}

static void candidates_agree(void **state) {
    (void)state;
    ejk_flash_attention_args args = call_of(EJK_DTYPE_BF16, 700, 700);
    tune_once("forward", &args, EJK_TUNE_FORWARD);
    tune_once("backward", &args, EJK_TUNE_BACKWARD);
    args = call_of(EJK_DTYPE_F16, 1, 4000);
    tune_once("decode", &args, EJK_TUNE_FORWARD);
    args = call_of(EJK_DTYPE_F32, 300, 300);
    tune_once("f32", &args, EJK_TUNE_FORWARD);
}

static void choices_are_found_again(void **state) {
    (void)state;
    const ejk_autotune_options options = {.tuner = {.time_s = 2, .max_rounds = 3}};
    const ejk_flash_attention_args args = call_of(EJK_DTYPE_BF16, 256, 256);
    const ejk_persistent_options where = {.path = in_folder("choices.db")};
    for (int pass = 0; pass < 2; pass++) {
        ejk_persistent_cache *file;
        ejk_config_selector_chain *chain;
        ejk_executor *executor;
        ejk_plan *plan;
        EXPECT_OK(ejk_persistent_cache_open(&where, &file));
        EXPECT_OK(ejk_config_selector_chain_create(
            &(ejk_config_selector_options){.persistent = file}, &chain));
        EXPECT_OK(
            ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor));
        if (pass == 0)
            EXPECT_OK(ejk_executor_autotune(executor, &ejk_flash_attention_kernel, &args, &options,
                                            NULL, NULL));
        EXPECT_OK(ejk_executor_compile(executor, &ejk_flash_attention_kernel, &args, NULL, &plan));
        assert_int_equal(ejk_plan_step(plan), pass ? EJK_CHOICE_PERSISTENT : EJK_CHOICE_MEMORY);
        ejk_plan_destroy(plan);
        ejk_executor_destroy(executor);
        ejk_config_selector_chain_destroy(chain);
        ejk_persistent_cache_close(file);
    }
}

int main(void) {
    if (!gpu_is_here()) return GPU_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ceilings),
        cmocka_unit_test(costs_of_a_plan),
        cmocka_unit_test(candidates_agree),
        cmocka_unit_test(choices_are_found_again),
    };
    return cmocka_run_group_tests_name("gpu_measure", tests, setup, teardown);
}
