/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations as JSON: the documented file, what stands beside it, and texts from anywhere. */
#include "ops/config/persistent.h"
#include "support/cache_case.h"
#include "support/expect.h"

#include <stdio.h>

static ejk_persistent_cache *cache;

static int setup(void **state) {
    (void)state;
    folder_make();
    events_clear();
    cache = cache_open(in_folder("configs.db"));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ejk_persistent_cache_close(cache);
    folder_remove();
    return 0;
}

static void expect_export(const ejk_config_filter *filter, const char *wanted) {
    char *text = NULL;
    EXPECT_OK(ejk_persistent_cache_export_json(cache, filter, &text));
    assert_string_equal(text, wanted);
    ejk_free(text);
}

static void expect_import(const char *text, int added, int replaced, int kept, int rejected) {
    ejk_config_import counts = {-1, -1, -1, -1};
    EXPECT_OK(ejk_persistent_cache_import_json(cache, text, &counts));
    if (counts.added == added && counts.replaced == replaced && counts.kept == kept &&
        counts.rejected == rejected)
        return;
    fail_msg("%d added, %d replaced, %d kept, %d rejected; %s", (int)counts.added,
             (int)counts.replaced, (int)counts.kept, (int)counts.rejected, events.text);
}

static void put(const ejk_config_key *key, const char *config, int64_t unix_time) {
    const ejk_config_entry entry = {.config = (char *)(uintptr_t)config,
                                    .measurement.unix_time = unix_time};
    EXPECT_OK(ejk_persistent_cache_put(cache, key, &entry));
}

static void expect_config(const ejk_config_key *key, const char *config) {
    ejk_config_entry entry;
    bool found = false;
    EXPECT_OK(ejk_persistent_cache_get(cache, key, &entry, &found));
    assert_true(found);
    assert_string_equal(entry.config, config);
    ejk_config_entry_release(&entry);
}

/* The file of the documented system after one put. */
static const char golden[] = "{\"d|v|k@v0|abc\": {\"b\": 4}}";

static void test_the_documented_file(void **state) {
    (void)state;
    const ejk_config_key key = {.device = "d|v", .op_id = "k@v0", .call_key = "abc"};
    expect_export(NULL, "{}");
    put(&key, "{\"b\":4}", 0);
    expect_export(NULL, golden);
    EXPECT_OK(ejk_persistent_cache_clear(cache));
    expect_import(golden, 1, 0, 0, 0);
    expect_config(&key, "{\"b\":4}");
    expect_export(NULL, golden);
    expect_import(golden, 0, 1, 0, 0);
    EXPECT_OK(ejk_persistent_cache_import_json(cache, "{}", NULL));
    assert_int_equal(events.count, 0);
}

/* A device's text has a | of its own; a configuration may be any JSON. */
static void test_keys_are_split_from_their_end(void **state) {
    (void)state;
    expect_import("{\"cpu|intel 6.143.8; amx; 2 cores|flash_attention@v0|d608a3419d9e5423\":"
                  "{\"z\":[1,2.5,null],\"a\":\"\\u00e9\"}, \"||x\": 7}",
                  2, 0, 0, 0);
    expect_config(&(ejk_config_key){.device = "cpu|intel 6.143.8; amx; 2 cores",
                                    .op_id = "flash_attention@v0",
                                    .call_key = "d608a3419d9e5423"},
                  "{\"a\":\"\\u00E9\",\"z\":[1,2.5,null]}");
    expect_config(&(ejk_config_key){.call_key = "x"}, "7");
    expect_export(&(ejk_config_filter){.op_id = "flash_attention"},
                  "{\"cpu|intel 6.143.8; amx; 2 cores|flash_attention@v0|d608a3419d9e5423\": "
                  "{\"a\": \"\\u00E9\", \"z\": [1, 2.5, null]}}");
}

static void test_what_the_document_has_no_place_for(void **state) {
    (void)state;
    const ejk_config_entry entry = {.config = (char[]){"{\"b\":4}"},
                                    .implementation = "f32/avx512/tile",
                                    .implementation_version = 3,
                                    .library_version = "0.0.9",
                                    .measurement = {0.5, 0.25, 2, 1700000000, 50}};
    EXPECT_OK(ejk_persistent_cache_put(
        cache, &(ejk_config_key){"d|v", "k@v0", "abc", "bthd", 4, EJK_BACKWARD}, &entry));
    char wanted[800];
    snprintf(wanted, sizeof wanted,
             "{\"$ejkernel\": {\"entries\": [{\"call_key\": \"abc\", \"config\": {\"b\": 4}, "
             "\"device\": \"d|v\", \"direction\": \"backward\", \"implementation\": "
             "\"f32/avx512/tile\", \"implementation_version\": 3, \"layout\": \"bthd\", "
             "\"library_version\": \"0.0.9\", \"measurement\": {\"median_s\": 0.5, "
             "\"reference_s\": 2.0, \"repetitions\": 50, \"spread_s\": 0.25, \"unix_time\": "
             "1700000000}, \"op_id\": \"k@v0\", \"threads\": 4}], \"form\": 1, \"library\": "
             "\"%s\"}, \"d|v|k@v0|abc\": {\"b\": 4}}",
             ejk_version());
    expect_export(NULL, wanted);
}

/* Rows of every kind, also such whose documented keys are the same, come back as they were. */
static void test_everything_comes_back(void **state) {
    (void)state;
    const ejk_config_key keys[] = {
        {"d|v", "k@v0", "1", "", 0, EJK_FORWARD},      {"d|v", "k@v0", "2", "", 0, EJK_FORWARD},
        {"d|v", "k@v0", "2", "", 0, EJK_BACKWARD},     {"d|v", "k@v0", "3", "t", 0, EJK_FORWARD},
        {"d|v", "k@v0", "4", "", 8, EJK_FORWARD},      {"d|v", "k@v0", "5", "", 0, EJK_BACKWARD},
        {"d|v", "k@v0", "2", "t", 3, EJK_FORWARD},     {"a|b", "c", "d", "", 0, EJK_FORWARD},
        {"a", "b|c", "d", "", 0, EJK_FORWARD},         {"a", "b", "c|d", "", 0, EJK_FORWARD},
        {NULL, NULL, "$ejkernel", "", 0, EJK_FORWARD},
    };
    enum { KEYS = sizeof keys / sizeof *keys };
    char text[24], *first = NULL, *second = NULL;
    for (int i = 0; i < KEYS; i++) {
        snprintf(text, sizeof text, "%d", i);
        put(&keys[i], text, i == 1 ? 1700000000 : 0);
    }
    EXPECT_OK(ejk_persistent_cache_export_json(cache, NULL, &first));
    EXPECT_OK(ejk_persistent_cache_clear(cache));
    expect_import(first, KEYS, 0, 0, 0);
    for (int i = 0; i < KEYS; i++) {
        snprintf(text, sizeof text, "%d", i);
        expect_config(&keys[i], text);
    }
    EXPECT_OK(ejk_persistent_cache_export_json(cache, NULL, &second));
    assert_string_equal(first, second);
    ejk_free(first);
    ejk_free(second);
    assert_int_equal(events.count, 0);
}

static void test_what_was_measured_later_stays(void **state) {
    (void)state;
    const ejk_config_key key = {.device = "d|v", .op_id = "k@v0", .call_key = "abc"};
    static const ejki_fixed_since fixed[] = {{"k", "99.0", "wrong"}, {NULL, NULL, NULL}};
    char *old = NULL;
    put(&key, "1", 1000);
    EXPECT_OK(ejk_persistent_cache_export_json(cache, NULL, &old));
    put(&key, "2", 2000);
    expect_import(old, 0, 0, 1, 0);
    expect_import(golden, 0, 0, 1, 0);
    expect_config(&key, "2");
    put(&key, "3", 500);
    expect_import(old, 0, 1, 0, 0);
    expect_config(&key, "1");
    put(&key, "4", 9000);
    ejki_persistent_set_fixed(cache, fixed); /* then it was measured for nothing */
    expect_import(old, 0, 1, 0, 0);
    ejk_free(old);
}

/* ---- Texts from anywhere ------------------------------------------------------------------------------------ */

static void test_texts_that_are_no_document(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"", "JSON line 1"},
        {"{\"d|v|k@v0|abc\": {\"b\": 4}", "JSON line 1"},
        {"[]", "text is a JSON array; expected an object"},
        {"7", "JSON line 1"},
        {"{\"a|b|c\":1,\"a|b|c\":2}", "duplicate object key"},
        {"{\"a|b|c\":1} {}", "JSON line 1"},
        {"{\"a|b|\xff\":1}", "JSON line 1"},
        {"{\"a|b|c\":1,\"$ejkernel\":{\"form\":2,\"entries\":[]}}", "has form 2; expected form 1"},
        {"{\"a|b|c\":1,\"$ejkernel\":{\"form\":1,\"entries\":{}}}", "has form 1 and no list"},
        {"{\"a|b|c\":1,\"$ejkernel\":3}", "has form 0; expected form 1"},
    };
    ejk_config_import counts = {7, 7, 7, 7};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_FAIL(MALFORMED, wrong[i].words,
                    ejk_persistent_cache_import_json(cache, wrong[i].text, &counts));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL",
                ejk_persistent_cache_import_json(NULL, "{}", &counts));
    EXPECT_FAIL(INVALID_ARGUMENT, "text is NULL",
                ejk_persistent_cache_import_json(cache, NULL, &counts));
    char *text = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL",
                ejk_persistent_cache_export_json(NULL, NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL",
                ejk_persistent_cache_export_json(cache, NULL, NULL));
    assert_true(counts.added == 7 && counts.rejected == 7 && !text);
    expect_export(NULL, "{}");
}

/* One entry that makes no sense does not keep the others out. */
static void test_entries_that_make_no_sense(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "\"no bars\": 1",
        "\"one|bar\": 1",
        "\"d|v|\": 1",
        "\"$ejkernel\":{\"form\":1,\"entries\":[7]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{}]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{\"call_key\":\"c\"}]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{\"config\":1}]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{\"call_key\":5,\"config\":1}]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{\"call_key\":\"c\",\"config\":1,\"threads\":-1}]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{\"call_key\":\"c\",\"config\":1,\"threads\":"
        "4294967296}]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{\"call_key\":\"c\",\"config\":1,\"direction\":"
        "\"up\"}]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{\"call_key\":\"c\",\"config\":1,"
        "\"library_version\":\"0.0.0.0.0.0.0.0.0.0.0\"}]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{\"call_key\":\"c\",\"config\":1,"
        "\"measurement\":[]}]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{\"call_key\":\"c\",\"config\":1,"
        "\"measurement\":{\"median_s\":\"soon\"}}]}",
        "\"$ejkernel\":{\"form\":1,\"entries\":[{\"call_key\":\"c\",\"config\":1,"
        "\"measurement\":{\"median_s\":-1}}]}",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[400];
        events_clear();
        EXPECT_OK(ejk_persistent_cache_clear(cache));
        snprintf(text, sizeof text, "{\"d|v|k@v0|good\": {\"n\": 1}, %s}", wrong[i]);
        expect_import(text, 1, 0, 0, 1);
        assert_int_equal(cache_get(cache, "good"), 1);
        assert_int_equal(events_of("cache_row_rejected"), 1);
        assert_int_equal(events.count, 1);
    }
}

static void test_a_configuration_that_is_too_long(void **state) {
    (void)state;
    static char text[EJK_CONFIG_SIZE + 100];
    memset(text, 'x', sizeof text - 1);
    memcpy(text, "{\"d|v|k@v0|long\":\"", 18);
    memcpy(text + sizeof text - 3, "\"}", 3);
    expect_import(text, 0, 0, 0, 1);
    assert_non_null(
        strstr(events_fields("cache_row_rejected"), "entry.config has no closing zero"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_documented_file),
        TEST(keys_are_split_from_their_end),
        TEST(what_the_document_has_no_place_for),
        TEST(everything_comes_back),
        TEST(what_was_measured_later_stays),
        TEST(texts_that_are_no_document),
        TEST(entries_that_make_no_sense),
        TEST(a_configuration_that_is_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
