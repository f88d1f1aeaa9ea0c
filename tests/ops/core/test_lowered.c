/* SPDX-License-Identifier: Apache-2.0 */
/* From the labels of a lowered program to the configurations known for them, and to tuned calls. */
#include "support/expect.h"
#include "support/toy.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KEY      "0123456789abcdef"
#define FLASH    "ejkernel_ops#flash_attention@v0:" KEY
#define RING     "ejkernel_ops#ring.attn-x@v1.2:fedcba9876543210"
#define DATA(it) EJK_SOURCE_DIR "/tests/data/labels/" it

/* A folder with room for a cache and a program, and the chain that has the cache. */
static char folder[64], cache_path[96], program_path[96];
static ejk_persistent_cache *disk;
static ejk_config_selector_chain *chain;

static int open_all(void **state) {
    (void)state;
    strcpy(folder, "ejk_lowered_XXXXXX");
    if (!mkdtemp(folder)) return 1;
    snprintf(cache_path, sizeof cache_path, "%s/configs.db", folder);
    snprintf(program_path, sizeof program_path, "%s/program.mlir", folder);
    EXPECT_OK(ejk_persistent_cache_open(&(ejk_persistent_options){.path = cache_path}, &disk));
    EXPECT_OK(ejk_config_selector_chain_create(&(ejk_config_selector_options){.persistent = disk},
                                               &chain));
    return 0;
}

static int close_all(void **state) {
    (void)state;
    ejk_config_selector_chain_destroy(chain);
    ejk_persistent_cache_close(disk);
    unlink(program_path);
    char path[128];
    static const char *const ends[] = {"", "-wal", "-shm", "-lock"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        snprintf(path, sizeof path, "%s%s", cache_path, ends[i]);
        unlink(path);
    }
    return rmdir(folder); /* what is left behind shows */
}

static void write_program(const char *text) {
    FILE *file = fopen(program_path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* ---- Configurations --------------------------------------------------------------------------------- */

static ejk_config_key key_of(const char *op_id, const char *call_key) {
    return (ejk_config_key){
        .device = ejk_device_fingerprint(), .op_id = op_id, .call_key = call_key};
}

/* {"n":number}, which is enough to tell configurations apart. */
static void put(bool on_disk, ejk_config_key key, int number) {
    char text[32];
    snprintf(text, sizeof text, "{\"n\":%d}", number);
    const ejk_config_entry entry = {.config = text};
    if (on_disk)
        EXPECT_OK(ejk_persistent_cache_put(disk, &key, &entry));
    else
        EXPECT_OK(ejk_config_cache_put(ejk_config_selector_chain_cache(chain), &key, &entry));
}

/* The text's labels lead to these numbers, in this order; 0 is NULL, and below 0 one found on disk. */
static void expect_numbers(const char *text, const ejk_label_options *options, const int *wanted,
                           int64_t count) {
    ejk_labels *labels;
    ejk_label_configs *known;
    EXPECT_OK(ejk_extract_labels_from_hlo_text_ex(text, strlen(text), options, &labels));
    EXPECT_OK(ejk_labels_to_configs(labels, chain, &known));
    ejk_labels_free(labels); /* the list lives without them */
    assert_int_equal(known->count, count);
    for (int64_t i = 0; i < count; i++) {
        const ejk_label_config *c = &known->configs[i];
        char expected[32];
        if (!wanted[i]) {
            assert_null(c->config);
            continue;
        }
        snprintf(expected, sizeof expected, "{\"n\":%d}", abs(wanted[i]));
        assert_non_null(c->config);
        assert_string_equal(c->config, expected);
        assert_int_equal(c->step, wanted[i] < 0 ? EJK_CHOICE_PERSISTENT : EJK_CHOICE_MEMORY);
    }
    ejk_label_configs_destroy(known);
}

static void memory_comes_before_disk(void **state) {
    (void)state;
    put(false, key_of("flash_attention@v0", KEY), 1);
    put(true, key_of("flash_attention@v0", KEY), 2);
    put(true, key_of("ring.attn-x@v1.2", "fedcba9876543210"), 3);
    expect_numbers("a " FLASH " b " RING " c ejkernel_ops#other@v0:" KEY " " FLASH, NULL,
                   (const int[]){1, -3, 0, 1}, 4);
    /* Looking does not copy. */
    assert_int_equal(ejk_config_cache_size(ejk_config_selector_chain_cache(chain)), 1);
}

static void only_this_call_counts(void **state) {
    (void)state;
    ejk_config_key key = key_of("flash_attention@v0", KEY);
    key.device = "cpu|another";
    put(false, key, 1);
    put(true, key, 1);
    key = key_of("flash_attention@v0", KEY);
    key.direction = EJK_BACKWARD;
    put(false, key, 2);
    put(true, key, 2);
    put(false, key_of("flash_attention@v1", KEY), 3);
    put(true, key_of("flash_attention@v0", "0123456789abcdee"), 4);
    expect_numbers(FLASH, NULL, (const int[]){0}, 1);
}

/* One for every class of strides and number of threads, else the most threads, else the first. */
static void the_widest_is_meant(void **state) {
    (void)state;
    ejk_config_key key = key_of("flash_attention@v0", KEY);
    key.layout = "00112233445566ff";
    put(false, key, 1);
    key.layout = "00112233445566aa";
    put(false, key, 2);
    expect_numbers(FLASH, NULL, (const int[]){1}, 1);
    key.threads = 8;
    put(false, key, 3);
    key.threads = 4;
    put(false, key, 4);
    expect_numbers(FLASH, NULL, (const int[]){3}, 1);
    put(true, key_of("flash_attention@v0", KEY), 5);
    expect_numbers(FLASH, NULL, (const int[]){3}, 1);
    put(false, key_of("flash_attention@v0", KEY), 6);
    expect_numbers(FLASH, NULL, (const int[]){6}, 1);
}

static void what_is_no_label_is_passed_over(void **state) {
    (void)state;
    static const char *const prefixes[] = {"mine_", "ejkernel_ops#"};
    const ejk_label_options options = {prefixes, 2, .json_stamps = true};
    put(false, key_of("flash_attention@v0", KEY), 1);
    expect_numbers("ejkernel_ops#flash_attention:" KEY " " FLASH, NULL, (const int[]){1}, 1);
    expect_numbers("mine_flash_attention@v0:" KEY " ejkernel_ops:{\"op_id\":\"x\"} " FLASH,
                   &options, (const int[]){1, 1}, 2);
    expect_numbers("nothing", NULL, NULL, 0);
}

static void files_are_read(void **state) {
    (void)state;
    ejk_label_configs *known = NULL;
    put(true, key_of("ring.attn-x@v1.2", "fedcba9876543210"), 7);
    EXPECT_OK(ejk_labels_to_configs_ex(DATA("program.stablehlo.mlir"), NULL, chain, &known));
    assert_int_equal(known->count, 4);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(known->configs[i].label, FLASH);
        assert_null(known->configs[i].config);
    }
    assert_string_equal(known->configs[3].op_id, "ring.attn-x@v1.2");
    assert_string_equal(known->configs[3].call_key, "fedcba9876543210");
    assert_string_equal(known->configs[3].config, "{\"n\":7}");
    ejk_label_configs_destroy(known);
    ejk_label_configs_destroy(NULL);

    ejk_labels *labels;
    EXPECT_OK(ejk_extract_labels_from_hlo_text(FLASH, strlen(FLASH), &labels));
    known = NULL;
    EXPECT_FAIL(IO, "nowhere", ejk_labels_to_configs_ex(DATA("nowhere"), NULL, chain, &known));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_labels_to_configs_ex(NULL, NULL, chain, &known));
    EXPECT_FAIL(INVALID_ARGUMENT, "labels", ejk_labels_to_configs(NULL, chain, &known));
    EXPECT_FAIL(INVALID_ARGUMENT, "chain", ejk_labels_to_configs(labels, NULL, &known));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_labels_to_configs(labels, chain, NULL));
    assert_null(known);
    ejk_labels_free(labels);
}

/* ---- Tuning ----------------------------------------------------------------------------------------- */

static int told_count, skipped_count;
static char told_key[EJK_SHORT_HASH_SIZE], skipped_what[256];

static void told(void *user, const ejk_tuned_call *call) {
    assert_ptr_equal(user, &told_count);
    told_count++;
    snprintf(told_key, sizeof told_key, "%s", call->key->call_key);
    assert_non_null(call->report);
    assert_true(((const toy_config *)call->config)->params.rows.set);
}

static void skipped(void *user, const char *what, const char *sentence) {
    assert_ptr_equal(user, &told_count);
    skipped_count++;
    snprintf(skipped_what, sizeof skipped_what, "%s", what);
    assert_non_null(strstr(sentence, "recorded"));
}

static const ejk_autotune_options quick = {.tuner = {.iters = 1, .max_rounds = 1, .time_s = 30}};

/* A program that names the first of two recorded calls twice, and one that nobody recorded. */
static void recorded_calls_are_tuned(void **state) {
    (void)state;
    float x[64] = {0}, y[64];
    ejk_context *context = toy_context(&(ejk_context_options){.threads = 1});
    toy_advice = ejk_int(24);
    ejk_executor *executor;
    EXPECT_OK(ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor));
    ejk_recording *recording;
    EXPECT_OK(ejk_recording_create(&recording));
    toy_args named = toy_call(x, y, 4, 8), other = toy_call(x, y, 8, 8);
    EXPECT_OK(ejk_record_invocation(recording, &toy_kernel, &other));
    EXPECT_OK(ejk_record_invocation(recording, &toy_kernel, &named));
    char key[EJK_SHORT_HASH_SIZE], program[512];
    EXPECT_OK(ejk_call_key(&toy_kernel, &named, NULL, NULL, key));
    snprintf(program, sizeof program,
             "loc(\"ejkernel_ops#toy@v0:%s/a\")\nloc(\"" FLASH "\")\n"
             "loc(\"ejkernel_ops#toy@v0:%s/b\")\nloc(\"" FLASH "\")\n",
             key, key);
    write_program(program);

    const ejk_lowered_options options = {.recording = recording,
                                         .autotune = &quick,
                                         .told = told,
                                         .skipped = skipped,
                                         .user = &told_count};
    ejk_autotuning_result *result;
    told_count = skipped_count = 0;
    EXPECT_OK(ejk_autotune_lowered(executor, program_path, &options, &result));
    assert_int_equal(told_count, 1);
    assert_string_equal(told_key, key);
    assert_int_equal(skipped_count, 1);
    assert_string_equal(skipped_what, FLASH);
    assert_int_equal(result->count, 1);
    assert_string_equal(result->entries[0].op_id_v, "toy@v0");
    assert_string_equal(result->entries[0].call_key, key);

    /* What was tuned is now known for the label, in memory and on disk. */
    ejk_label_configs *known;
    int64_t rows;
    EXPECT_OK(ejk_labels_to_configs_ex(program_path, NULL, chain, &known));
    assert_int_equal(known->count, 4);
    assert_string_equal(known->configs[0].config, result->entries[0].config);
    assert_string_equal(known->configs[2].config, result->entries[0].config);
    assert_null(known->configs[1].config);
    EXPECT_OK(ejk_persistent_cache_size(disk, &rows));
    assert_int_equal(rows, 1);
    ejk_label_configs_destroy(known);
    ejk_autotuning_result_destroy(result);
    ejk_recording_destroy(recording);
    ejk_executor_destroy(executor);
    ejk_context_destroy(context);
}

static void what_is_missing_is_said(void **state) {
    (void)state;
    ejk_context *context = toy_context(&(ejk_context_options){.threads = 1});
    ejk_executor *executor, *bare;
    ejk_recording *recording;
    ejk_autotuning_result *result = NULL;
    EXPECT_OK(ejk_recording_create(&recording));
    EXPECT_OK(ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor));
    EXPECT_OK(ejk_executor_create(context, NULL, &bare));
    const ejk_lowered_options options = {.recording = recording};
    write_program(FLASH);
    EXPECT_FAIL(UNAVAILABLE, "no recording",
                ejk_autotune_lowered(executor, program_path, NULL, &result));
    EXPECT_FAIL(UNAVAILABLE, "no selector",
                ejk_autotune_lowered(bare, program_path, &options, &result));
    EXPECT_FAIL(IO, "nowhere", ejk_autotune_lowered(executor, DATA("nowhere"), &options, &result));
    EXPECT_FAIL(INVALID_ARGUMENT, "path", ejk_autotune_lowered(executor, NULL, &options, &result));
    EXPECT_FAIL(INVALID_ARGUMENT, "executor",
                ejk_autotune_lowered(NULL, program_path, &options, &result));
    assert_null(result);
    /* Nothing to tune is no failure, and without `out` and listeners nobody hears of it. */
    EXPECT_OK(ejk_autotune_lowered(executor, program_path, &options, NULL));
    EXPECT_OK(ejk_autotune_lowered(executor, program_path, &options, &result));
    assert_int_equal(result->count, 0);
    ejk_autotuning_result_destroy(result);
    ejk_recording_destroy(recording);
    ejk_executor_destroy(bare);
    ejk_executor_destroy(executor);
    ejk_context_destroy(context);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(memory_comes_before_disk), TEST(only_this_call_counts),
        TEST(the_widest_is_meant),      TEST(what_is_no_label_is_passed_over),
        TEST(files_are_read),           TEST(recorded_calls_are_tuned),
        TEST(what_is_missing_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
