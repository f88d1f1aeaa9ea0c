/* SPDX-License-Identifier: Apache-2.0 */
/* Labels: written, taken apart, found in what JAX and XLA make of a program, and open in a thread. */
#include "support/child.h"
#include "support/expect.h"
#include "support/random.h"

#include <ejkernel/flash_attention.h>
#include <ejkernel/labels.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define KEY      "0123456789abcdef"
#define FLASH    "ejkernel_ops#flash_attention@v0:" KEY
#define RING     "ejkernel_ops#ring.attn-x@v1.2:fedcba9876543210"
#define DATA(it) EJK_SOURCE_DIR "/tests/data/labels/" it

/* The stamp of make_samples.py. */
#define STAMP                                                                                      \
    "ejkernel_ops:{\"args\":[{\"dtype\":\"float32\",\"shape\":[4,8]}],"                            \
    "\"cfg\":{\"platform\":\"a\\\"b\\\\}\"},\"kwargs\":{\"causal\":true},"                         \
    "\"op_id\":\"flash_attention\"}"

static const ejk_label_options with_stamps = {.json_stamps = true};

/* ---- Texts ----------------------------------------------------------------------------------------- */

static void labels_are_written(void **state) {
    (void)state;
    char *text = NULL;
    EXPECT_OK(ejk_label_ex("flash_attention@v0", KEY, NULL, &text));
    assert_string_equal(text, FLASH);
    ejk_free(text);
    EXPECT_OK(ejk_label_ex("a@v1-2", KEY, "mine/", &text));
    assert_string_equal(text, "mine/a@v1-2:" KEY);
    ejk_free(text);
    EXPECT_OK(ejk_hash_stamp(&ejk_flash_attention_kernel, KEY, NULL, &text));
    assert_string_equal(text, FLASH);
    ejk_free(text);
    EXPECT_OK(ejk_hash_stamp(&ejk_flash_attention_kernel, KEY, "me", &text));
    assert_string_equal(text, "me#flash_attention@v0:" KEY);
    ejk_free(text);
}

static void labels_nobody_could_find_are_refused(void **state) {
    (void)state;
    char *text = NULL;
    const char *ids[] = {"", "flash", "flash@v", "@v0", "fl ash@v0", "flash@v0:", "f@v0@w", "f@0"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        EXPECT_FAIL(INVALID_ARGUMENT, "op_id: '", ejk_label_ex(ids[i], KEY, NULL, &text));
    const char *keys[] = {"", "0123456789abcde", KEY "0", "0123456789ABCDEF", "0123456789abcdeg"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        EXPECT_FAIL(INVALID_ARGUMENT, "call_hash: '", ejk_label_ex("f@v0", keys[i], NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "prefix: ''", ejk_label_ex("f@v0", KEY, "", &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_label_ex(NULL, KEY, NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_label_ex("f@v0", NULL, NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_label_ex("f@v0", KEY, NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "stamp_prefix",
                ejk_hash_stamp(&ejk_flash_attention_kernel, KEY, "", &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_hash_stamp(NULL, KEY, NULL, &text));
    assert_null(text);
}

static bool environment_gives_the_prefix(const void *argument) {
    (void)argument;
    char *text = NULL;
    setenv("EJKERNEL_OPS_PREFIX", "there:", 1);
    bool holds = ejk_label_ex("f@v0", KEY, NULL, &text) == EJK_OK &&
                 strcmp(text, "there:f@v0:" KEY) == 0 &&
                 strcmp(ejk_label_prefix("here#"), "here#") == 0;
    ejk_free(text);
    setenv("EJKERNEL_OPS_PREFIX", "", 1);
    return holds && strcmp(ejk_label_prefix(NULL), EJK_LABEL_PREFIX) == 0;
}

static void the_argument_precedes_the_environment(void **state) {
    (void)state;
    assert_true(holds_in_child(environment_gives_the_prefix, NULL));
}

static void assert_part(const char *text, size_t length, const char *wanted) {
    assert_int_equal(length, strlen(wanted));
    assert_memory_equal(text, wanted, length);
}

static void labels_are_taken_apart(void **state) {
    (void)state;
    ejk_label_parts parts;
    EXPECT_OK(ejk_parse_label(RING, NULL, &parts));
    assert_part(parts.prefix, parts.prefix_length, "ejkernel_ops#");
    assert_part(parts.op_id, parts.op_id_length, "ring.attn-x@v1.2");
    assert_part(parts.op_id, parts.name_length, "ring.attn-x");
    assert_part(parts.version, parts.version_length, "1.2");
    assert_string_equal(parts.key, "fedcba9876543210");
    EXPECT_OK(ejk_parse_label("x@y@v0:" KEY, "x", &parts));
    assert_part(parts.op_id, parts.op_id_length, "@y@v0");
    assert_part(parts.op_id, parts.name_length, "@y");

    const ejk_label_parts before = parts;
    EXPECT_FAIL(MALFORMED, "does not begin", ejk_parse_label(FLASH, "mine#", &parts));
    EXPECT_FAIL(MALFORMED, "does not begin", ejk_parse_label("", NULL, &parts));
    EXPECT_FAIL(MALFORMED, "@vversion", ejk_parse_label("ejkernel_ops#f:" KEY, NULL, &parts));
    EXPECT_FAIL(MALFORMED, "@vversion", ejk_parse_label("ejkernel_ops#f@v0", NULL, &parts));
    EXPECT_FAIL(MALFORMED, "hex digits", ejk_parse_label(FLASH "0", NULL, &parts));
    EXPECT_FAIL(MALFORMED, "hex digits", ejk_parse_label("ejkernel_ops#f@v0:0123", NULL, &parts));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_parse_label(NULL, NULL, &parts));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_parse_label(FLASH, NULL, NULL));
    assert_memory_equal(&parts, &before, sizeof parts);
}

static void json_stamps_hold_the_call(void **state) {
    (void)state;
    const int64_t shape[] = {4, 8};
    ejk_flash_attention_args args = {.query = ejk_tensor_contiguous(NULL, EJK_DTYPE_F32, 2, shape),
                                     .causal = true};
    ejk_flash_attention_config config = {.platform = "simd"};
    char *text = NULL;
    EXPECT_OK(ejk_json_stamp(&ejk_flash_attention_kernel, &args, NULL, NULL, &text));
    assert_string_equal(text, "ejkernel_ops:{\"args\":[{\"dtype\":\"float32\",\"shape\":[4,8]},"
                              "null,null],\"cfg\":null,\"kwargs\":{\"causal\":true},"
                              "\"op_id\":\"flash_attention\"}");
    ejk_free(text);
    EXPECT_OK(ejk_json_stamp(&ejk_flash_attention_kernel, &args, &config, "me", &text));
    assert_non_null(
        strstr(text, "\"cfg\":{\"backend\":null,\"bwd_params\":{\"blocksize_k\":null,"));
    assert_non_null(strstr(text, ",\"platform\":\"simd\"}"));
    assert_int_equal(strncmp(text, "me:{", 4), 0);

    ejk_labels *labels = NULL;
    ejk_label_options options = {.json_stamps = true, .stamp_prefix = "me"};
    EXPECT_OK(ejk_extract_labels_from_hlo_text_ex(text, strlen(text), &options, &labels));
    assert_int_equal(ejk_labels_count(labels), 1);
    assert_string_equal(ejk_labels_get(labels, 0)->text, text);
    ejk_labels_free(labels);
    ejk_free(text);

    text = NULL;
    ejk_kernel bare = ejk_flash_attention_kernel;
    bare.config = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "no configuration",
                ejk_json_stamp(&bare, &args, &config, NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "stamp_prefix", ejk_json_stamp(&bare, &args, NULL, "", &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_json_stamp(&bare, NULL, NULL, NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_json_stamp(&bare, &args, NULL, NULL, NULL));
    assert_null(text);
}

/* ---- Finding --------------------------------------------------------------------------------------- */

/* The file's labels are these, in this order, and each stands where it says. */
static void assert_file(const char *path, const ejk_label_options *options,
                        const char *const *wanted, int64_t count, int64_t cut) {
    ejk_labels *labels = NULL;
    EXPECT_OK(ejk_find_labels_in_lowered(path, options, &labels));
    assert_int_equal(ejk_labels_count(labels), count);
    assert_int_equal(ejk_labels_cut(labels), cut);
    char program[8192];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(program, 1, sizeof program, file);
    fclose(file);
    assert_true(size < sizeof program);
    for (int64_t i = 0; i < count; i++) {
        const ejk_label_match *match = ejk_labels_get(labels, i);
        assert_string_equal(match->text, wanted[i]);
        assert_int_equal(match->json, wanted[i][12] == ':');
        assert_int_equal(match->prefix_length, match->json ? 12 : 13);
        assert_true(match->offset + match->length <= size);
        if (!match->json) {
            assert_int_equal(match->length, strlen(match->text));
            assert_memory_equal(program + match->offset, match->text, match->length);
        } else {
            assert_memory_equal(program + match->offset, "ejkernel_ops:{", 14);
            assert_memory_equal(program + match->offset + match->length, "/cos\"", 5);
        }
    }
    assert_null(ejk_labels_get(labels, count));
    assert_null(ejk_labels_get(labels, -1));
    ejk_labels_free(labels);
}

static void labels_are_found_in_stablehlo(void **state) {
    (void)state;
    const char *const labels[] = {FLASH, FLASH, FLASH, RING}, *const all[] = {FLASH, FLASH, FLASH,
                                                                              RING, STAMP};
    assert_file(DATA("program.stablehlo.mlir"), NULL, labels, 4, 0);
    assert_file(DATA("program.stablehlo.mlir"), &with_stamps, all, 5, 0);
}

static void labels_are_found_in_hlo_where_xla_left_them(void **state) {
    (void)state;
    const char *const wanted[] = {STAMP, FLASH};
    assert_file(DATA("program.hlo.txt"), NULL, wanted + 1, 1, 3);
    assert_file(DATA("program.hlo.txt"), &with_stamps, wanted, 2, 3);
    assert_file(DATA("program.compiled.hlo.txt"), NULL, wanted + 1, 1, 3);
    assert_file(DATA("program.compiled.hlo.txt"), &with_stamps, wanted, 2, 3);
}

static void files_that_cannot_be_read_are_named(void **state) {
    (void)state;
    ejk_labels *labels = NULL;
    EXPECT_FAIL(IO, "nowhere.mlir",
                ejk_find_labels_in_lowered(DATA("nowhere.mlir"), NULL, &labels));
    EXPECT_FAIL(IO, "labels", ejk_find_labels_in_lowered(DATA(""), NULL, &labels));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_find_labels_in_lowered(NULL, NULL, &labels));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_find_labels_in_lowered("x", NULL, NULL));
    assert_null(labels);
}

/* "label|label" found in the text, or "" for none. */
static void assert_found(const char *text, const ejk_label_options *options, const char *wanted) {
    ejk_labels *labels = NULL;
    char found[512] = "";
    EXPECT_OK(ejk_extract_labels_from_hlo_text_ex(text, strlen(text), options, &labels));
    for (int64_t i = 0; i < ejk_labels_count(labels); i++) {
        if (i > 0) strcat(found, "|");
        strcat(found, ejk_labels_get(labels, i)->text);
    }
    assert_string_equal(found, wanted);
    ejk_labels_free(labels);
}

static void the_pattern_is_the_documented_one(void **state) {
    (void)state;
    assert_found("", NULL, "");
    assert_found(FLASH, NULL, FLASH);
    assert_found(FLASH "0", NULL, FLASH); /* the first 16 digits */
    assert_found(FLASH FLASH " " RING "/" FLASH, NULL, FLASH "|" FLASH "|" RING "|" FLASH);
    assert_found("ejkernel_ops#f:" KEY, NULL, "ejkernel_ops#f:" KEY); /* without a version */
    assert_found("ejkernel_ops#:" KEY, NULL, "");
    assert_found("ejkernel_ops#f@v0:0123456789abcde", NULL, "");
    assert_found("ejkernel_ops#f@v0:0123456789ABCDEF", NULL, "");
    assert_found("ejkernel_ops#f+g@v0:" KEY, NULL, "");
    assert_found("ejkernel_ops#ejkernel_ops#f@v0:" KEY, NULL, "ejkernel_ops#f@v0:" KEY);
    assert_found("ejkernel_op" FLASH, NULL, FLASH);
    assert_found("other#f@v0:" KEY, NULL, "");
}

static void other_prefixes_are_found_when_asked_for(void **state) {
    (void)state;
    const char *prefixes[] = {"other#", "oth", "a"};
    ejk_label_options options = {.prefixes = prefixes, .prefix_count = 3};
    assert_found("other#f@v0:" KEY " " FLASH " aaa@v0:" KEY, &options,
                 "other#f@v0:" KEY "|ash_attention@v0:" KEY "|aaa@v0:" KEY);
    assert_found("oth#f@v0:" KEY " other@v1:" KEY, &options, "other@v1:" KEY);
    options.prefix_count = 0;
    assert_found(FLASH, &options, "");

    ejk_labels *labels = NULL;
    options.prefix_count = 17;
    EXPECT_FAIL(INVALID_ARGUMENT, "prefix_count: 17",
                ejk_extract_labels_from_hlo_text_ex("", 0, &options, &labels));
    options.prefix_count = -1;
    EXPECT_FAIL(INVALID_ARGUMENT, "prefix_count: -1",
                ejk_extract_labels_from_hlo_text_ex("", 0, &options, &labels));
    options.prefix_count = 3;
    prefixes[1] = "";
    EXPECT_FAIL(INVALID_ARGUMENT, "prefixes: number 1",
                ejk_extract_labels_from_hlo_text_ex("", 0, &options, &labels));
    options = (ejk_label_options){.json_stamps = true, .stamp_prefix = ""};
    EXPECT_FAIL(INVALID_ARGUMENT, "stamp_prefix",
                ejk_extract_labels_from_hlo_text_ex("", 0, &options, &labels));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_extract_labels_from_hlo_text(NULL, 1, &labels));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_extract_labels_from_hlo_text("", 0, NULL));
    assert_null(labels);
    assert_int_equal(ejk_labels_count(NULL), 0);
    assert_int_equal(ejk_labels_cut(NULL), 0);
    assert_null(ejk_labels_get(NULL, 0));
    ejk_labels_free(NULL);
}

static void stamps_end_with_their_string(void **state) {
    (void)state;
    assert_found(STAMP, &with_stamps, STAMP);
    assert_found(STAMP, NULL, "");
    assert_found("ejkernel_ops:{}", &with_stamps, "ejkernel_ops:{}");
    assert_found("ejkernel_ops:{\\\"a\\\":\\\"}\\\"}", &with_stamps, "ejkernel_ops:{\"a\":\"}\"}");
    assert_found("ejkernel_ops:{\\22a\\22:\\22\\5C\\22\\22}", &with_stamps,
                 "ejkernel_ops:{\"a\":\"\\\"\"}");
    assert_found("\"ejkernel_ops:{\\\"a\\\":\" ejkernel_ops:{}", &with_stamps, "ejkernel_ops:{}");
    assert_found("ejkernel_ops:{\"a\":\n} " FLASH, &with_stamps, FLASH);
    assert_found("ejkernel_ops:{\"a\":\"ejkernel_ops:{}", &with_stamps, "");
    assert_found("ejkernel_ops:{\\", &with_stamps, "");
    assert_found("ejkernel_ops:{\"\\", &with_stamps, "");
    /* a label within a stamp is a label, too */
    assert_found("ejkernel_ops:{\"a\":\"" FLASH "\"}", &with_stamps,
                 "ejkernel_ops:{\"a\":\"" FLASH "\"}|" FLASH);
}

/* Texts that would take hours if any stretch of them were walked through once for each place in it. */
static void hostile_texts_take_linear_time(void **state) {
    (void)state;
    const char *const parts[] = {"a", "ejkernel_ops:{\"", "ejkernel_ops#", "a#",
                                 "ejkernel_ops#a@v0"};
    const char *const prefixes[] = {"a", "aa", "ejkernel_ops", "e", "#"};
    const ejk_label_options options = {
        .prefixes = prefixes, .prefix_count = 5, .json_stamps = true};
    size_t size = 1000000;
    char *text = malloc(size);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t length = strlen(parts[i]);
        for (size_t at = 0; at < size; at++) text[at] = parts[i][at % length];
        ejk_labels *labels = NULL;
        EXPECT_OK(ejk_extract_labels_from_hlo_text_ex(text, size, &options, &labels));
        assert_int_equal(ejk_labels_count(labels), 0);
        assert_true(ejk_labels_cut(labels) > 0);
        ejk_labels_free(labels);
    }
    free(text);
}

static const char *const pieces[] = {"ejkernel_ops#", "op",  "@v", "0", ":",    KEY,
                                     "0123",          "#",   "\"", "{", "\\\"", "\n",
                                     FLASH,           "\xff"};

/* What the documentation's pattern finds, looked for anew at every place. */
static size_t label_length(const char *text) {
    if (strncmp(text, "ejkernel_ops#", 13) != 0) return 0;
    size_t length =
        strspn(text + 13, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.@-");
    if (length == 0 || text[13 + length] != ':') return 0;
    return strspn(text + 14 + length, "0123456789abcdef") >= 16 ? 14 + length + 16 : 0;
}

static void random_texts_agree_with_the_pattern(void **state) {
    (void)state;
    struct random r = {44};
    int64_t total = 0;
    for (int round = 0; round < 20000; round++) {
        char text[512] = "";
        for (int i = (int)random_int(&r, 1, 12); i > 0; i--) strcat(text, RANDOM_OF(&r, pieces));
        ejk_labels *labels = NULL;
        EXPECT_OK(ejk_extract_labels_from_hlo_text(text, strlen(text), &labels));
        int64_t found = 0;
        for (size_t at = 0; text[at] != '\0'; at++) {
            size_t length = label_length(text + at);
            if (length == 0) continue;
            const ejk_label_match *match = ejk_labels_get(labels, found++);
            assert_non_null(match);
            assert_int_equal(match->offset, at);
            assert_int_equal(match->length, length);
            at += length - 1;
        }
        assert_int_equal(ejk_labels_count(labels), found);
        ejk_labels_free(labels);
        total += found;
    }
    assert_true(total > 5000);
}

/* ---- Named regions --------------------------------------------------------------------------------- */

static ejk_status look(void *user) {
    snprintf(user, EJK_NAME_SIZE, "%s", ejk_label_current());
    return EJK_STATUS_MISMATCH;
}

static ejk_status leave_open(void *user) {
    (void)user;
    EXPECT_OK(ejk_label_begin("forgotten"));
    EXPECT_OK(ejk_label_begin("forgotten as well"));
    return EJK_OK;
}

static ejk_status close_too_much(void *user) {
    (void)user;
    for (int i = 0; i < 100; i++) ejk_label_end();
    return EJK_OK;
}

static void regions_nest(void **state) {
    (void)state;
    char seen[EJK_NAME_SIZE] = "";
    assert_null(ejk_label_current());
    EXPECT_OK(ejk_label_begin("outer"));
    EXPECT_OK(ejk_label_begin("inner"));
    assert_string_equal(ejk_label_current(), "inner");
    assert_int_equal(ejk_label("my_attention", look, seen), EJK_STATUS_MISMATCH);
    assert_string_equal(seen, "my_attention");
    assert_string_equal(ejk_label_current(), "inner");
    EXPECT_OK(ejk_label("open", leave_open, NULL));
    assert_string_equal(ejk_label_current(), "inner");
    EXPECT_OK(ejk_label("closed", close_too_much, NULL));
    assert_string_equal(ejk_label_current(), "inner");
    ejk_label_end();
    assert_string_equal(ejk_label_current(), "outer");
    ejk_label_end();
    ejk_label_end();
    assert_null(ejk_label_current());
}

static void regions_have_limits(void **state) {
    (void)state;
    char name[EJK_NAME_SIZE + 1];
    memset(name, 'x', sizeof name - 1);
    name[EJK_NAME_SIZE] = '\0';
    EXPECT_FAIL(INVALID_ARGUMENT, "name: 'xxx", ejk_label_begin(name));
    EXPECT_FAIL(INVALID_ARGUMENT, "name: ''", ejk_label_begin(""));
    EXPECT_FAIL(INVALID_ARGUMENT, "name: ''", ejk_label_begin(NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "function", ejk_label("x", NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "name: ''", ejk_label("", close_too_much, NULL));
    assert_null(ejk_label_current());
    name[EJK_NAME_SIZE - 1] = '\0';
    for (int i = 0; i < EJK_MAX_LABELS; i++) EXPECT_OK(ejk_label_begin(name));
    EXPECT_FAIL(OVERFLOW, "16 regions", ejk_label_begin("one more"));
    assert_string_equal(ejk_label_current(), name);
    EXPECT_OK(close_too_much(NULL));
    assert_null(ejk_label_current());
}

static void *in_a_thread(void *argument) {
    const char *name = argument;
    if (ejk_label_current() != NULL) return NULL;
    for (int i = 0; i < 10000; i++) {
        if (ejk_label_begin(name) != EJK_OK || strcmp(ejk_label_current(), name) != 0) return NULL;
        ejk_label_end();
    }
    return argument;
}

static void each_thread_has_its_own(void **state) {
    (void)state;
    char names[3][8] = {"first", "second", "third"};
    pthread_t threads[3];
    EXPECT_OK(ejk_label_begin("here"));
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, in_a_thread, names[i]), 0);
    for (int i = 0; i < 3; i++) {
        void *answer = NULL;
        assert_int_equal(pthread_join(threads[i], &answer), 0);
        assert_ptr_equal(answer, names[i]);
    }
    assert_string_equal(ejk_label_current(), "here");
    ejk_label_end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_are_written),
        cmocka_unit_test(labels_nobody_could_find_are_refused),
        cmocka_unit_test(the_argument_precedes_the_environment),
        cmocka_unit_test(labels_are_taken_apart),
        cmocka_unit_test(json_stamps_hold_the_call),
        cmocka_unit_test(labels_are_found_in_stablehlo),
        cmocka_unit_test(labels_are_found_in_hlo_where_xla_left_them),
        cmocka_unit_test(files_that_cannot_be_read_are_named),
        cmocka_unit_test(the_pattern_is_the_documented_one),
        cmocka_unit_test(other_prefixes_are_found_when_asked_for),
        cmocka_unit_test(stamps_end_with_their_string),
        cmocka_unit_test(hostile_texts_take_linear_time),
        cmocka_unit_test(random_texts_agree_with_the_pattern),
        cmocka_unit_test(regions_nest),
        cmocka_unit_test(regions_have_limits),
        cmocka_unit_test(each_thread_has_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
