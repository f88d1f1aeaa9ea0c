/* SPDX-License-Identifier: Apache-2.0 */
/* The cache on disk: what is stored comes back, where its file is, what its rows are, older schemas. */
#include "ops/config/fixed_since.h"
#include "ops/config/persistent.h"
#include "support/cache_case.h"
#include "support/child.h"
#include "support/expect.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static ejk_persistent_cache *cache;

static int setup(void **state) {
    (void)state;
    folder_make();
    events_clear();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ejk_persistent_cache_close(cache);
    cache = NULL;
    folder_remove();
    return 0;
}

static void reopen(void) {
    ejk_persistent_cache_close(cache);
    cache = cache_open(in_folder("configs.db"));
}

static int64_t size(void) {
    int64_t rows = -1;
    EXPECT_OK(ejk_persistent_cache_size(cache, &rows));
    return rows;
}

/* Runs statements on the file while no cache has it open. */
static void sql(const char *statements) {
    sqlite3 *db;
    char *words = NULL;
    ejk_persistent_cache_close(cache);
    cache = NULL;
    assert_int_equal(sqlite3_open(in_folder("configs.db"), &db), SQLITE_OK);
    if (sqlite3_exec(db, statements, NULL, NULL, &words) != SQLITE_OK) fail_msg("%s", words);
    sqlite3_close(db);
}

/* ---- Storing ------------------------------------------------------------------------------------------- */

static void test_entries_stay(void **state) {
    (void)state;
    const ejk_config_key key = {"cpu|intel 6.143.8; amx; 2 cores",
                                "flash_attention@v0",
                                "d608a3419d9e5423",
                                "bthd",
                                4,
                                EJK_BACKWARD};
    const ejk_config_entry entry = {.config = (char[]){"{\"block_q\":64,\"x\":0.1}"},
                                    .implementation = "f32/avx512/tile",
                                    .implementation_version = 3,
                                    .library_version = "0.0.9",
                                    .measurement = {1.25e-3, 2e-5, 0.1, 1700000000, 50}};
    ejk_config_entry got;
    bool found = true;
    reopen();
    EXPECT_OK(ejk_persistent_cache_get(cache, &key, &got, &found));
    assert_false(found);
    EXPECT_OK(ejk_persistent_cache_put(cache, &key, &entry));
    for (int round = 0; round < 2; round++) {
        EXPECT_OK(ejk_persistent_cache_get(cache, &key, &got, &found));
        assert_true(found && ejk_persistent_cache_contains(cache, &key));
        assert_string_equal(got.config, entry.config);
        assert_string_equal(got.implementation, "f32/avx512/tile");
        assert_int_equal(got.implementation_version, 3);
        assert_string_equal(got.library_version, "0.0.9");
        assert_memory_equal(&got.measurement.median_s, &entry.measurement.median_s,
                            3 * sizeof(double));
        assert_int_equal(got.measurement.unix_time, 1700000000);
        assert_int_equal(got.measurement.repetitions, 50);
        ejk_config_entry_release(&got);
        reopen();
    }
    assert_int_equal(size(), 1);
    assert_false(ejk_persistent_cache_is_memory_only(cache));
    assert_int_equal(events.count, 0);
}

static void test_every_part_of_a_key_counts(void **state) {
    (void)state;
    const ejk_config_key keys[] = {
        {"d|v", "k@v0", "abc", "", 0, EJK_FORWARD},  {"d|w", "k@v0", "abc", "", 0, EJK_FORWARD},
        {"d|v", "k@v1", "abc", "", 0, EJK_FORWARD},  {"d|v", "k@v0", "abd", "", 0, EJK_FORWARD},
        {"d|v", "k@v0", "abc", "t", 0, EJK_FORWARD}, {"d|v", "k@v0", "abc", "", 4, EJK_FORWARD},
        {"d|v", "k@v0", "abc", "", 0, EJK_BACKWARD}, {NULL, NULL, "abc", NULL, 0, EJK_FORWARD},
    };
    enum { KEYS = sizeof keys / sizeof *keys };
    char text[24];
    reopen();
    for (int i = 0; i < KEYS; i++) {
        snprintf(text, sizeof text, "%d", i);
        EXPECT_OK(ejk_persistent_cache_put(cache, &keys[i], &(ejk_config_entry){.config = text}));
    }
    for (int i = 0; i < KEYS; i++) {
        ejk_config_entry got;
        bool found = false;
        snprintf(text, sizeof text, "%d", i);
        EXPECT_OK(ejk_persistent_cache_get(cache, &keys[i], &got, &found));
        assert_true(found);
        assert_string_equal(got.config, text);
        assert_string_equal(got.library_version, ejk_version()); /* as none was given */
        ejk_config_entry_release(&got);
    }
    assert_int_equal(size(), KEYS);
}

static void test_entries_are_replaced_and_taken_out(void **state) {
    (void)state;
    const ejk_config_key key = {.device = "d|v", .op_id = "k@v0", .call_key = "a"};
    bool found = false;
    reopen();
    EXPECT_OK(cache_put(cache, "a", 1));
    EXPECT_OK(cache_put(cache, "b", 2));
    EXPECT_OK(cache_put(cache, "a", 3));
    assert_int_equal(cache_get(cache, "a"), 3);
    assert_int_equal(size(), 2);
    EXPECT_OK(ejk_persistent_cache_remove(cache, &key, &found));
    assert_true(found);
    EXPECT_OK(ejk_persistent_cache_remove(cache, &key, &found));
    assert_false(found);
    EXPECT_OK(ejk_persistent_cache_remove(cache, &key, NULL));
    assert_int_equal(cache_get(cache, "a"), -1);
    EXPECT_OK(ejk_persistent_cache_clear(cache));
    assert_int_equal(size(), 0);
    assert_int_equal(cache_get(cache, "b"), -1);
}

/* The largest that is allowed is also read back. */
static void test_the_largest_entry(void **state) {
    (void)state;
    static char config[EJK_CONFIG_SIZE], text[EJK_CONFIG_KEY_SIZE];
    memset(config, ' ', sizeof config - 1);
    config[0] = '1';
    memset(text, 'k', sizeof text - 1);
    const ejk_config_key key = {text, text, text, text, INT32_MAX, EJK_FORWARD};
    ejk_config_entry entry = {.config = config}, got;
    bool found = false;
    memset(entry.implementation, 'i', sizeof entry.implementation - 1);
    memset(entry.library_version, '9', sizeof entry.library_version - 1);
    reopen();
    EXPECT_OK(ejk_persistent_cache_put(cache, &key, &entry));
    EXPECT_OK(ejk_persistent_cache_get(cache, &key, &got, &found));
    assert_true(found);
    assert_string_equal(got.config, config);
    assert_string_equal(got.implementation, entry.implementation);
    ejk_config_entry_release(&got);
}

static void test_two_caches_of_one_file(void **state) {
    (void)state;
    reopen();
    ejk_persistent_cache *other = cache_open(in_folder("configs.db"));
    EXPECT_OK(cache_put(cache, "a", 1));
    assert_int_equal(cache_get(other, "a"), 1);
    EXPECT_OK(cache_put(other, "a", 2));
    assert_int_equal(cache_get(cache, "a"), 2);
    ejk_persistent_cache_close(other);
    EXPECT_OK(cache_put(cache, "b", 3));
    reopen();
    assert_int_equal(cache_get(cache, "a"), 2);
    assert_int_equal(cache_get(cache, "b"), 3);
}

struct seen {
    char text[256];
    int left;
};

static bool see(void *user, const ejk_config_key *key, const ejk_config_entry *entry) {
    struct seen *seen = user;
    size_t used = strlen(seen->text);
    snprintf(seen->text + used, sizeof seen->text - used, "%s/%s%s ", key->op_id, key->call_key,
             entry->config);
    EXPECT_OK(cache_put(cache, key->call_key, 9)); /* the cache may be used */
    return --seen->left > 0;
}

static void expect_each(const ejk_config_filter *filter, int most, const char *text) {
    struct seen seen = {.left = most};
    EXPECT_OK(ejk_persistent_cache_each(cache, filter, see, &seen));
    assert_string_equal(seen.text, text);
}

static void test_entries_are_visited_in_order(void **state) {
    (void)state;
    static const char *const ops[] = {"a@v0", "a@v1", "ab@v0"};
    reopen();
    for (int i = 2; i >= 0; i--)
        EXPECT_OK(ejk_persistent_cache_put(
            cache, &(ejk_config_key){.device = i ? "x|y" : "d|v", .op_id = ops[i], .call_key = "1"},
            &(ejk_config_entry){.config = (char[]){"[]"}}));
    expect_each(&(ejk_config_filter){.op_id = "a"}, 9, "a@v0/1[] a@v1/1[] ");
    expect_each(&(ejk_config_filter){.op_id = "a@v1"}, 9, "a@v1/1[] ");
    expect_each(&(ejk_config_filter){.op_id = "a@v"}, 9, "");
    expect_each(&(ejk_config_filter){.device = "x|y"}, 9, "a@v1/1[] ab@v0/1[] ");
    expect_each(NULL, 2, "a@v0/1[] k@v0/1{\"n\":9} ");
}

/* ---- Where the file is ----------------------------------------------------------------------------------- */

static bool has_mode(const char *path, mode_t mode) {
    struct stat facts;
    return stat(path, &facts) == 0 && (facts.st_mode & 0777) == mode;
}

/* A path leads to a file, which is where it should be once something was put. */
static bool leads_to(const char *path, const char *file) {
    bool right;
    cache = cache_open(path);
    right = strcmp(ejk_persistent_cache_path(cache), file) == 0 &&
            cache_put(cache, "a", 1) == EJK_OK && has_mode(file, 0600) && events.count == 0;
    if (!right) printf("%s leads to %s\n%s", path, ejk_persistent_cache_path(cache), events.text);
    ejk_persistent_cache_close(cache);
    cache = NULL;
    fflush(stdout);
    return right;
}

static void test_paths(void **state) {
    (void)state;
    assert_true(leads_to(in_folder("one.db"), in_folder("one.db")));
    assert_true(leads_to(in_folder("two"), in_folder("two/configs.db")));
    assert_true(leads_to(in_folder("deep/er/x.db"), in_folder("deep/er/x.db")));
    assert_true(leads_to(in_folder("three.dbx/"), in_folder("three.dbx/configs.db")));
    assert_true(has_mode(in_folder("deep"), 0700) && has_mode(in_folder("deep/er"), 0700));
    assert_int_equal(symlink(in_folder("two"), in_folder("link")), 0);
    assert_true(leads_to(in_folder("link"), in_folder("two/configs.db")));
}

static bool defaults_are_right(const void *argument) {
    (void)argument;
    setenv("HOME", in_folder("home"), 1);
    unsetenv("EJKERNEL_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
    bool right = leads_to("~/mine", in_folder("home/mine/configs.db")) &&
                 leads_to(NULL, in_folder("home/.cache/ejkernel/configs.db"));
    setenv("XDG_CACHE_HOME", "relative/is/ignored", 1);
    right = right && leads_to(NULL, in_folder("home/.cache/ejkernel/configs.db"));
    setenv("XDG_CACHE_HOME", in_folder("xdg"), 1);
    right = right && leads_to(NULL, in_folder("xdg/ejkernel/configs.db"));
    setenv("EJKERNEL_CACHE_DIR", "", 1);
    right = right && leads_to(NULL, in_folder("xdg/ejkernel/configs.db"));
    setenv("EJKERNEL_CACHE_DIR", in_folder("own"), 1);
    right = right && leads_to(NULL, in_folder("own/configs.db"));
    setenv("EJKERNEL_CACHE_DIR", "~/env/my.db", 1);
    right = right && leads_to(NULL, in_folder("home/env/my.db"));
    right =
        right && chdir(getenv("HOME")) == 0 && leads_to("here", in_folder("home/here/configs.db"));
    /* A relative path is that of the folder at the time of opening. */
    cache = cache_open("here");
    right = right && chdir("/") == 0 && cache_put(cache, "a", 2) == EJK_OK;
    ejk_persistent_cache_close(cache);
    cache = cache_open(in_folder("home/here"));
    return right && cache_get(cache, "a") == 2;
}

static void test_default_paths(void **state) {
    (void)state;
    fflush(stdout);
    assert_true(holds_in_child(defaults_are_right, NULL));
}

static void test_a_deleted_folder_is_made_again(void **state) {
    (void)state;
    cache = cache_open(in_folder("gone/configs.db"));
    EXPECT_OK(cache_put(cache, "a", 1));
    static const char *const parts[] = {"", "-wal", "-shm", "-lock"};
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "gone/configs.db%s", parts[i]);
        assert_int_equal(unlink(in_folder(name)), 0);
    }
    assert_int_equal(rmdir(in_folder("gone")), 0);
    assert_int_equal(cache_get(cache, "a"), -1);
    EXPECT_OK(cache_put(cache, "a", 2));
    assert_int_equal(cache_get(cache, "a"), 2);
    ejk_persistent_cache_close(cache);
    cache = cache_open(in_folder("gone"));
    assert_int_equal(cache_get(cache, "a"), 2);
    assert_int_equal(events.count, 0);
}

/* ---- Rows ------------------------------------------------------------------------------------------------ */

/* Each of these makes a row that is no longer what was put. */
static void test_rows_that_make_no_sense_are_misses(void **state) {
    (void)state;
    static const char *const changes[] = {
        "config = '{\"n\":8}'", /* sense, but not what was measured */
        "config = '{\"n\":'",
        "config = NULL",
        "config = x'7b7d'",
        "config = 5",
        "config = '{\"n\":1}' || char(0) || 'x'",
        "config = hex(zeroblob(40000))",
        "config = CAST(x'22ff22' AS TEXT)",
        "implementation = 'other'",
        "implementation = hex(zeroblob(64))",
        "implementation_version = 1",
        "implementation_version = -1",
        "implementation_version = 99999999999",
        "library_version = '9'",
        "median_s = 1",
        "median_s = 'soon'",
        "median_s = 9e999",
        "spread_s = -1",
        "reference_s = x'00'",
        "unix_time = 1.5",
        "repetitions = 1",
        "checksum = checksum + 1",
        "checksum = 'right'",
        "call_key = 'b', threads = 0",
        "threads = 7",
    };
    char statement[1024];
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        reopen();
        EXPECT_OK(cache_put(cache, "a", 1));
        EXPECT_OK(cache_put(cache, "other", 2));
        /* Without the table's types, as if somebody had written the file byte by byte. */
        snprintf(statement, sizeof statement,
                 "CREATE TEMP TABLE own AS SELECT sql FROM sqlite_schema WHERE name = 'configs';"
                 "PRAGMA writable_schema = ON;"
                 "UPDATE sqlite_schema SET sql = replace(replace(replace(replace(sql, ' NOT NULL',"
                 " ''), ' TEXT', ''), ' INTEGER', ''), ' REAL', '') WHERE name = 'configs';"
                 "PRAGMA writable_schema = RESET;"
                 "UPDATE configs SET %s WHERE call_key = 'a';"
                 "PRAGMA writable_schema = ON;"
                 "UPDATE sqlite_schema SET sql = (SELECT sql FROM own) WHERE name = 'configs'",
                 changes[i]);
        sql(statement);
        reopen();
        ejk_persistent_report report;
        assert_int_equal(cache_get(cache, "a"), -1);
        assert_int_equal(cache_get(cache, "other"), 2);
        EXPECT_OK(ejk_persistent_cache_verify(cache, &report));
        /* What breaks the table's own rules is damage to the file; it depends on SQLite's version. */
        int lost = events_of("cache_set_aside");
        if (report.rejected != 1 - lost || report.rows != 2 - lost || report.sound != (lost == 1))
            fail_msg("%s: %d of %d rows rejected", changes[i], (int)report.rejected,
                     (int)report.rows);
        assert_true(lost || events_of("cache_row_rejected") >= 1);
        assert_true(lost || strstr(events_fields("cache_row_rejected"), "\"op_id\":\"k@v0\""));
        assert_int_equal(events_of("cache_degraded"), 0);
        ejk_persistent_cache_close(cache);
        cache = NULL;
        assert_int_equal(unlink(in_folder("configs.db")), 0);
        events_clear();
    }
}

static const ejki_fixed_since fixed[] = {
    {"other", "9.0.0", "another operation"},
    {"k", "0.10.0", "sums of long rows were wrong"},
    {NULL, NULL, NULL},
};

static void test_versions_are_compared(void **state) {
    (void)state;
    assert_ptr_equal(ejki_outdated(fixed, "k", "0.9.9"), &fixed[1]);
    assert_ptr_equal(ejki_outdated(fixed, "k@v3", "0.9"), &fixed[1]);
    assert_ptr_equal(ejki_outdated(fixed, "k@v3", ""), &fixed[1]);
    assert_ptr_equal(ejki_outdated(fixed, "k@v3", "nonsense"), &fixed[1]);
    assert_null(ejki_outdated(fixed, "k@v3", "0.10.0"));
    assert_null(ejki_outdated(fixed, "k@v3", "0.10.1"));
    assert_null(ejki_outdated(fixed, "k@v3", "1"));
    assert_null(ejki_outdated(fixed, "kk@v3", "0.1"));
    assert_null(ejki_outdated(fixed, "", "0.1"));
    assert_null(ejki_outdated(ejki_fixed_since_list, "k@v3", ""));
}

static void test_rows_of_a_faulty_library_are_misses(void **state) {
    (void)state;
    const ejk_config_key key = {.device = "d|v", .op_id = "k@v0", .call_key = "new"};
    const ejk_config_entry good = {.config = (char[]){"{\"n\":5}"}, .library_version = "0.10.0"};
    ejk_persistent_report report;
    reopen();
    EXPECT_OK(cache_put(cache, "old", 1)); /* of this library: 0.1 */
    EXPECT_OK(ejk_persistent_cache_put(cache, &key, &good));
    ejki_persistent_set_fixed(cache, fixed);
    assert_int_equal(cache_get(cache, "old"), -1);
    assert_int_equal(events_of("cache_row_stale"), 1);
    char wanted[256];
    snprintf(wanted, sizeof wanted,
             "{\"device\":\"d|v\",\"op_id\":\"k@v0\",\"call_key\":\"old\",\"library_version\":"
             "\"%s\",\"reason\":\"sums of long rows were wrong\"}",
             ejk_version());
    assert_string_equal(events_fields("cache_row_stale"), wanted);
    assert_int_equal(cache_get(cache, "new"), 5);
    EXPECT_OK(ejk_persistent_cache_verify(cache, &report));
    assert_int_equal(report.rows, 2);
    assert_int_equal(report.stale, 1);
    assert_true(report.sound && report.rejected == 0);
}

/* ---- Older schemas --------------------------------------------------------------------------------------- */

static const char version_0[] =
    "PRAGMA application_id = 1701473123;"
    "CREATE TABLE configs (key TEXT PRIMARY KEY, config TEXT);"
    "INSERT INTO configs VALUES ('d|v|k@v0|abc', '{\"n\":4}'),"
    " ('cpu|intel 6.143.8; amx; 2 cores|k@v0|def', '{}'), ('d|v|k@v0|bad', '{\"n\":'),"
    " ('no key', '1'), (NULL, '1'), ('d|v|k@v0|null', NULL);";

static void test_an_older_schema_is_brought_up_to_date(void **state) {
    (void)state;
    sql(version_0);
    reopen();
    char wanted[600];
    snprintf(wanted, sizeof wanted, "{\"path\":\"%s\",\"from\":0,\"to\":1,\"rows\":2}",
             in_folder("configs.db"));
    assert_string_equal(events_fields("cache_migrated"), wanted);
    assert_int_equal(events.count, 1);
    assert_int_equal(cache_get(cache, "abc"), 4);
    assert_true(ejk_persistent_cache_contains(
        cache, &(ejk_config_key){.device = "cpu|intel 6.143.8; amx; 2 cores",
                                 .op_id = "k@v0",
                                 .call_key = "def"}));
    assert_int_equal(size(), 2);
    reopen();
    assert_int_equal(cache_get(cache, "abc"), 4);
    assert_int_equal(events.count, 1);
}

/* ---- Arguments ------------------------------------------------------------------------------------------- */

static void test_wrong_arguments(void **state) {
    (void)state;
    const ejk_config_key key = {.call_key = "k"}, none = {.call_key = ""};
    ejk_config_entry entry = {.config = (char[]){"1"}}, bad = {.config = (char[]){"{"}};
    ejk_persistent_cache *out = NULL;
    ejk_persistent_report report = {.rows = 7};
    int64_t rows = 7;
    bool found = true;
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_persistent_cache_open(NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "options.path is \"\"",
                ejk_persistent_cache_open(&(ejk_persistent_options){.path = ""}, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "options.busy_ms is -1",
                ejk_persistent_cache_open(&(ejk_persistent_options){.busy_ms = -1}, &out));
    assert_null(out);
    reopen();
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL", ejk_persistent_cache_put(NULL, &key, &entry));
    EXPECT_FAIL(INVALID_ARGUMENT, "key is NULL", ejk_persistent_cache_put(cache, NULL, &entry));
    EXPECT_FAIL(INVALID_ARGUMENT, "entry is NULL", ejk_persistent_cache_put(cache, &key, NULL));
    EXPECT_FAIL(MALFORMED, "entry.config", ejk_persistent_cache_put(cache, &key, &bad));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL",
                ejk_persistent_cache_get(NULL, &key, &entry, &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL",
                ejk_persistent_cache_get(cache, &key, NULL, &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "found is NULL",
                ejk_persistent_cache_get(cache, &key, &entry, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "key.call_key is \"\"",
                ejk_persistent_cache_get(cache, &none, &entry, &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "key.call_key is \"\"",
                ejk_persistent_cache_remove(cache, &none, &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL", ejk_persistent_cache_remove(NULL, &key, &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL", ejk_persistent_cache_clear(NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL", ejk_persistent_cache_size(NULL, &rows));
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_persistent_cache_size(cache, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL", ejk_persistent_cache_verify(NULL, &report));
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_persistent_cache_verify(cache, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL",
                ejk_persistent_cache_each(NULL, NULL, see, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "visit is NULL",
                ejk_persistent_cache_each(cache, NULL, NULL, NULL));
    assert_true(found && rows == 7 && report.rows == 7 && entry.config[0] == '1');
    assert_false(ejk_persistent_cache_contains(NULL, &key));
    assert_false(ejk_persistent_cache_contains(cache, &none));
    assert_false(ejk_persistent_cache_is_memory_only(NULL));
    assert_string_equal(ejk_persistent_cache_path(NULL), "");
    assert_int_equal(size(), 0);
    ejk_persistent_cache_close(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(entries_stay),
        TEST(every_part_of_a_key_counts),
        TEST(entries_are_replaced_and_taken_out),
        TEST(the_largest_entry),
        TEST(two_caches_of_one_file),
        TEST(entries_are_visited_in_order),
        TEST(paths),
        TEST(default_paths),
        TEST(a_deleted_folder_is_made_again),
        TEST(rows_that_make_no_sense_are_misses),
        TEST(versions_are_compared),
        TEST(rows_of_a_faulty_library_are_misses),
        TEST(an_older_schema_is_brought_up_to_date),
        TEST(wrong_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
