/* SPDX-License-Identifier: Apache-2.0 */
/* What may lie where a cache on disk should be, and what may become of it: no call fails, and events tell. */
#include "support/cache_case.h"
#include "support/child.h"
#include "support/expect.h"

#include <dirent.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS = 200 };

static int setup(void **state) {
    (void)state;
    folder_make();
    events_clear();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    folder_remove();
    return 0;
}

/* ---- Files ------------------------------------------------------------------------------------------------ */

static char *read_file(const char *path, size_t *size) {
    static char content[1 << 20];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    *size = fread(content, 1, sizeof content, file);
    fclose(file);
    return content;
}

static void write_file(const char *path, const void *content, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(content, 1, size, file), size);
    fclose(file);
}

static void sql(const char *path, const char *statements) {
    sqlite3 *db;
    char *words = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, statements, NULL, NULL, &words) != SQLITE_OK) fail_msg("%s", words);
    sqlite3_close(db);
}

static void name_row(int row, char name[24]) {
    snprintf(name, 24, "row-%04d", row * 37 % ROWS);
}

/* A file of ours with ROWS rows, all of them in the file itself. */
static void make_file(const char *path) {
    char name[24];
    ejk_persistent_cache *cache = cache_open(path);
    for (int i = 0; i < ROWS; i++) {
        name_row(i, name);
        EXPECT_OK(cache_put(cache, name, i));
    }
    ejk_persistent_cache_close(cache);
    assert_int_equal(events.count, 0);
}

static int count_files(const char *part) {
    int count = 0;
    DIR *folder = opendir(in_folder(""));
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder));)
        count += strstr(entry->d_name, part) != NULL;
    closedir(folder);
    return count;
}

/* Every call works on what is there; answers how many of the rows are still to be had. None is wrong. */
static int use(ejk_persistent_cache *cache) {
    char name[24];
    int there = 0;
    for (int i = 0; i < ROWS; i++) {
        name_row(i, name);
        int number = cache_get(cache, name);
        if (number != -1) assert_int_equal(number, i);
        there += number == i;
    }
    int64_t size;
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "new-%d", i);
        EXPECT_OK(cache_put(cache, name, i));
        assert_int_equal(cache_get(cache, name), i);
    }
    EXPECT_OK(ejk_persistent_cache_size(cache, &size));
    assert_true(size >= 5);
    return there;
}

static int open_and_use(const char *path) {
    ejk_persistent_cache *cache = cache_open(path);
    int there = use(cache);
    ejk_persistent_cache_close(cache);
    return there;
}

/* The file was left alone, and what is stored is kept in memory. */
static void expect_degraded(const char *path, const char *reason) {
    ejk_persistent_cache *cache = cache_open(path);
    assert_true(ejk_persistent_cache_is_memory_only(cache));
    use(cache);
    ejk_persistent_cache_close(cache);
    if (events.count != 1 || events_of("cache_degraded") != 1 ||
        !strstr(events_fields("cache_degraded"), reason))
        fail_msg("expected \"%s\", got %s", reason, events.text);
    events_clear();
}

/* ---- Ours, and damaged ------------------------------------------------------------------------------------ */

static void test_cut_files(void **state) {
    (void)state;
    size_t size;
    int cuts = 0;
    const char *path = in_folder("whole.db");
    make_file(path);
    static char whole[1 << 20];
    const char *content = read_file(path, &size);
    memcpy(whole, content, size);
    assert_true(size > 20000);
    for (int i = 0; i < 40; i++) {
        /* Inside the header, at the ends of pages, and anywhere. */
        size_t cut = i < 12   ? (size_t)i * 9 + 1
                     : i < 20 ? (size_t)(i - 11) * 4096
                              : size * (size_t)(i - 19) / 21;
        if (cut >= size) continue;
        events_clear();
        write_file(in_folder("cut.db"), whole, cut);
        int there = open_and_use(in_folder("cut.db"));
        if (events_of("cache_set_aside") != 1 || events_of("cache_degraded") != 0)
            fail_msg("cut at %zu of %zu, %d: %s", cut, size, there, events.text);
        assert_int_equal(count_files("cut.db.corrupt-"), ++cuts);
        char wanted[32];
        snprintf(wanted, sizeof wanted, "\"salvaged\":%d}", there);
        assert_non_null(strstr(events_fields("cache_set_aside"), wanted));
        /* The new one stays. */
        events_clear();
        assert_int_equal(open_and_use(in_folder("cut.db")), there);
        assert_int_equal(events.count, 0);
    }
}

/* One bit of the file is wrong, at places spread over all of it. */
static void test_flipped_bits(void **state) {
    (void)state;
    size_t size;
    unsigned random = 99;
    int all = 0, told = 0;
    const char *path = in_folder("whole.db");
    make_file(path);
    static char whole[1 << 20];
    const char *content = read_file(path, &size);
    memcpy(whole, content, size);
    for (int i = 0; i < 200; i++) {
        random = random * 1664525u + 1013904223u;
        /* A third of them in the header and the page of the schema. */
        size_t at = i % 3 ? (random >> 4) % size : (random >> 4) % (i % 2 ? 100 : 4096);
        char bit = (char)(1 << random % 8);
        whole[at] = (char)(whole[at] ^ bit);
        events_clear();
        write_file(in_folder("flipped.db"), whole, size);
        whole[at] = (char)(whole[at] ^ bit);
        ejk_persistent_cache *cache = cache_open(in_folder("flipped.db"));
        int there = use(cache);
        all += there;
        told += events.count > 0;
        ejk_persistent_report report;
        EXPECT_OK(ejk_persistent_cache_verify(cache, &report));
        /* What is missing was told of, unless its key is wrong: then a look at the whole finds it. */
        if (there < ROWS && events.count == 0 && report.sound)
            fail_msg("bit %d of byte %zu", bit, at);
        ejk_persistent_cache_close(cache);
        for (const char *part[] = {"", "-wal", "-shm"}, **p = part; p < part + 3; p++) {
            char name[32];
            snprintf(name, sizeof name, "flipped.db%s", *p);
            unlink(in_folder(name));
        }
    }
    printf("%d of 200 flipped bits were told of, %d of %d rows were there\n", told, all,
           200 * ROWS);
    assert_true(told > 20);
    assert_true(all > 200 * ROWS / 2);
}

static void test_an_empty_file_is_begun(void **state) {
    (void)state;
    write_file(in_folder("empty.db"), "", 0);
    assert_int_equal(open_and_use(in_folder("empty.db")), 0);
    assert_int_equal(events.count, 0);
    ejk_persistent_cache *cache = cache_open(in_folder("empty.db"));
    assert_int_equal(cache_get(cache, "new-3"), 3);
    ejk_persistent_cache_close(cache);
}

/* The row that is damaged is lost, those on other pages are not. */
static void test_damage_that_is_met_later(void **state) {
    (void)state;
    size_t size;
    const char *path = in_folder("later.db");
    make_file(path);
    ejk_persistent_cache *cache = cache_open(path), *other = cache_open(path);
    /* What somebody else stores makes a connection forget the pages that it has read. */
    EXPECT_OK(cache_put(other, "zzz", 0));
    char *content = read_file(path, &size);
    memset(content + size / 2 / 4096 * 4096, 0x5a, 4096);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fwrite(content, 1, size, file), size);
    fclose(file);
    int there = use(cache);
    assert_in_range(there, ROWS / 2, ROWS - 1);
    assert_int_equal(events_of("cache_set_aside"), 1);
    assert_false(ejk_persistent_cache_is_memory_only(cache));
    ejk_persistent_report report;
    EXPECT_OK(ejk_persistent_cache_verify(cache, &report));
    assert_true(report.sound);
    assert_int_equal(report.rows, there + 6);
    assert_int_equal(cache_get(other, "new-4"), 4);
    assert_int_equal(events_of("cache_set_aside"), 1);
    ejk_persistent_cache_close(other);
    ejk_persistent_cache_close(cache);
}

/* A table of the right name and number, but not ours. */
static void test_a_table_that_does_not_fit(void **state) {
    (void)state;
    sql(in_folder("odd.db"), "PRAGMA application_id = 1701473123; PRAGMA user_version = 1;"
                             "CREATE TABLE configs (device TEXT, op_id TEXT)");
    open_and_use(in_folder("odd.db"));
    assert_int_equal(events_of("cache_set_aside"), 1);
    assert_int_equal(events.count, 1);
}

/* What a file brings along is not run. */
static void test_triggers_are_not_run(void **state) {
    (void)state;
    const char *path = in_folder("trigger.db");
    make_file(path);
    sql(path, "CREATE TRIGGER t AFTER INSERT ON configs BEGIN DELETE FROM configs; END");
    ejk_persistent_cache *cache = cache_open(path);
    assert_int_equal(use(cache), ROWS);
    assert_int_equal(use(cache), ROWS);
    ejk_persistent_cache_close(cache);
}

/* ---- Not ours -------------------------------------------------------------------------------------------- */

static void test_a_folder(void **state) {
    (void)state;
    assert_int_equal(mkdir(in_folder("folder.db"), 0700), 0);
    expect_degraded(in_folder("folder.db"), "it is a folder");
}

static void test_a_text(void **state) {
    (void)state;
    static const char text[] = "Dear diary,\nthis is a text of some length, and none of a cache's "
                               "business. It goes on long enough for a header of a database.\n";
    size_t size;
    write_file(in_folder("text.db"), text, sizeof text);
    expect_degraded(in_folder("text.db"), "it is no database");
    assert_memory_equal(read_file(in_folder("text.db"), &size), text, sizeof text);
    assert_int_equal(size, sizeof text);
    write_file(in_folder("short.db"), "hi", 2);
    expect_degraded(in_folder("short.db"), "it is no database");
    /* A file where a folder should be. */
    expect_degraded(in_folder("text.db/configs"), "Not a directory");
    assert_int_equal(count_files("corrupt-"), 0);
}

static void test_a_pipe(void **state) {
    (void)state;
    assert_int_equal(mkfifo(in_folder("pipe.db"), 0600), 0);
    expect_degraded(in_folder("pipe.db"), "no regular file");
}

static void test_databases_of_others(void **state) {
    (void)state;
    size_t before, after;
    static char content[1 << 20];
    const char *path = in_folder("other.db");
    sql(path, "CREATE TABLE configs (key TEXT, config TEXT); INSERT INTO configs VALUES (1, 2)");
    memcpy(content, read_file(path, &before), sizeof content);
    expect_degraded(path, "a database of another program (application_id 0)");
    sql(path, "PRAGMA application_id = 77");
    expect_degraded(path, "a database of another program (application_id 77)");
    sql(path, "PRAGMA application_id = 0");
    assert_int_equal(before, 8192);
    read_file(path, &after);
    assert_int_equal(before, after);
    /* And in pieces: still not ours. */
    content[100] = 'x';
    write_file(in_folder("pieces.db"), content, 4096);
    expect_degraded(in_folder("pieces.db"), "(a file of another program)");
    assert_int_equal(count_files("corrupt-"), 0);
}

static void test_a_schema_from_the_future(void **state) {
    (void)state;
    const char *path = in_folder("future.db");
    make_file(path);
    sql(path, "PRAGMA user_version = 2");
    expect_degraded(path, "its schema is version 2; this library knows versions up to 1");
    sql(path, "PRAGMA user_version = 1");
    assert_int_equal(open_and_use(path), ROWS); /* nothing was done to it */
    assert_int_equal(events.count, 0);
}

/* ---- No room, no right ------------------------------------------------------------------------------------ */

static void test_folders_that_cannot_be_written(void **state) {
    (void)state;
    expect_degraded("/proc/self/ejkernel/configs.db", "its folder cannot be made");
    expect_degraded("/proc/self/configs.db", "its lock cannot be had");
    expect_degraded("/dev/null/configs.db", "its lock cannot be had: Not a directory");
    expect_degraded("/dev/full/x/configs.db", "its folder cannot be made: Not a directory");
    char longest[900];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    expect_degraded(in_folder(longest), ": File name too long");
}

static bool reads_without_writing(const void *argument) {
    /* Root may write anywhere; somebody else may not. */
    if (geteuid() == 0 && (chmod(in_folder(""), 0755) != 0 || setuid(65534) != 0)) return false;
    (void)argument;
    if (access(in_folder("shipped/configs.db"), R_OK) != 0) return false;
    ejk_persistent_cache *cache = cache_open(in_folder("shipped"));
    bool right = ejk_persistent_cache_is_memory_only(cache) && use(cache) == ROWS;
    right = right && events.count == 1 && events_of("cache_degraded") == 1 &&
            strstr(events_fields("cache_degraded"), "Permission denied") != NULL;
    ejk_persistent_cache_close(cache);
    return right;
}

/* What an application ships is read, and what is measured on top of it is kept in memory. */
static void test_rows_of_a_file_that_cannot_be_written(void **state) {
    (void)state;
    make_file(in_folder("shipped"));
    assert_int_equal(unlink(in_folder("shipped/configs.db-lock")), 0);
    assert_int_equal(chmod(in_folder("shipped/configs.db"), 0444), 0);
    assert_int_equal(chmod(in_folder("shipped"), 0555), 0);
    assert_true(holds_in_child(reads_without_writing, NULL));
    assert_int_equal(chmod(in_folder("shipped"), 0755), 0);
}

static bool fills_the_disk(const void *argument) {
    const struct rlimit limit = {*(const rlim_t *)argument, *(const rlim_t *)argument};
    char name[24];
    ejk_persistent_cache *cache = cache_open(in_folder("full.db"));
    bool right = true;
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "early-%d", i);
        right = right && cache_put(cache, name, i) == EJK_OK;
    }
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 2000 && right; i++) {
        snprintf(name, sizeof name, "late-%d", i);
        right = cache_put(cache, name, i) == EJK_OK && cache_get(cache, name) == i;
    }
    for (int i = 0; i < 20 && right; i++) {
        snprintf(name, sizeof name, "early-%d", i);
        right = cache_get(cache, name) == i;
    }
    right = right && cache_get(cache, "late-7") == 7 && cache_get(cache, "late-1999") == 1999 &&
            ejk_persistent_cache_is_memory_only(cache) && events.count == 1 &&
            events_of("cache_degraded") == 1;
    if (!right) printf("%s\n%s", events.text, ejk_last_error());
    ejk_persistent_cache_close(cache);
    return right;
}

static void test_a_full_disk(void **state) {
    (void)state;
    static const rlim_t limits[] = {0, 60000, 300000};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        assert_true(holds_in_child(fills_the_disk, &limits[i]));
        /* What had been stored before is in the file, and it is sound. */
        ejk_persistent_cache *cache = cache_open(in_folder("full.db"));
        assert_int_equal(cache_get(cache, "early-19"), 19);
        ejk_persistent_report report;
        EXPECT_OK(ejk_persistent_cache_verify(cache, &report));
        assert_true(report.sound);
        EXPECT_OK(ejk_persistent_cache_clear(cache));
        ejk_persistent_cache_close(cache);
    }
    assert_int_equal(events.count, 0);
}

static bool opens_on_a_full_disk(const void *argument) {
    const struct rlimit limit = {0, 0};
    (void)argument;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    ejk_persistent_cache *cache = cache_open(in_folder("none.db"));
    bool right = cache_put(cache, "a", 1) == EJK_OK && cache_get(cache, "a") == 1 &&
                 ejk_persistent_cache_is_memory_only(cache) && events_of("cache_degraded") == 1;
    ejk_persistent_cache_close(cache);
    return right;
}

static void test_a_disk_that_was_full_before(void **state) {
    (void)state;
    assert_true(holds_in_child(opens_on_a_full_disk, NULL));
    assert_int_equal(open_and_use(in_folder("none.db")), 0);
    assert_int_equal(events.count, 0);
}

/* ---- By reading alone ------------------------------------------------------------------------------------- */

static ejk_persistent_report verify_file(const char *path) {
    const ejk_persistent_options options = {
        .path = path, .on_event = events_add, .on_event_user = &events};
    ejk_persistent_report report = {.rows = -1};
    EXPECT_OK(ejk_persistent_file_verify(&options, &report));
    return report;
}

/* Rows in the log count, whoever has it open. */
static void test_sound_files_verify(void **state) {
    (void)state;
    const char *path = in_folder("sound.db");
    make_file(path);
    ejk_persistent_report report = verify_file(path);
    assert_true(report.sound);
    assert_int_equal(report.rows, ROWS);
    ejk_persistent_cache *cache = cache_open(path);
    EXPECT_OK(cache_put(cache, "zzz", 0));
    report = verify_file(path);
    assert_true(report.sound);
    assert_int_equal(report.rows, ROWS + 1);
    assert_int_equal(cache_get(cache, "zzz"), 0);
    ejk_persistent_cache_close(cache);
    sql(in_folder("old.db"), "PRAGMA application_id = 1701473123;"
                             "CREATE TABLE configs (key TEXT PRIMARY KEY, config TEXT);"
                             "INSERT INTO configs VALUES ('cpu|a@v0|b', '{}')");
    report = verify_file(in_folder("old.db"));
    assert_true(report.sound);
    assert_int_equal(report.rows, 1);
    write_file(in_folder("empty.db"), "", 0);
    report = verify_file(in_folder("empty.db"));
    assert_true(report.sound);
    assert_int_equal(report.rows, 0);
    assert_int_equal(events.count, 0);
}

/* Damage is told, and left to those who open the file. */
static void test_damage_is_left_alone(void **state) {
    (void)state;
    static char content[1 << 20];
    size_t size, after;
    const char *path = in_folder("damaged.db");
    make_file(path);
    memcpy(content, read_file(path, &size), sizeof content);
    memset(content + size / 2 / 4096 * 4096, 0x5a, 4096);
    write_file(path, content, size);
    const int files = count_files("damaged.db");
    assert_false(verify_file(path).sound);
    assert_int_equal(events_of("cache_damaged"), 1);
    assert_memory_equal(read_file(path, &after), content, size);
    assert_int_equal(after, size);
    assert_int_equal(count_files("damaged.db"), files);
    write_file(path, "Dear diary", 10);
    assert_false(verify_file(path).sound);
    assert_non_null(strstr(events_fields("cache_damaged"), "it is no database"));
    sql(in_folder("odd.db"), "PRAGMA application_id = 1701473123; PRAGMA user_version = 1;"
                             "CREATE TABLE configs (device TEXT, op_id TEXT)");
    assert_false(verify_file(in_folder("odd.db")).sound);
}

static void test_what_cannot_be_read(void **state) {
    (void)state;
    ejk_persistent_report report = {.rows = 77};
    ejk_persistent_options options = {.path = in_folder("none/none.db")};
    EXPECT_FAIL(IO, "cannot be read: No such file", ejk_persistent_file_verify(&options, &report));
    assert_int_equal(count_files("none"), 0);
    assert_int_equal(mkfifo(in_folder("pipe.db"), 0600), 0);
    options.path = in_folder("pipe.db");
    EXPECT_FAIL(IO, "no regular file", ejk_persistent_file_verify(&options, &report));
    sql(in_folder("later.db"), "PRAGMA application_id = 1701473123; PRAGMA user_version = 2");
    options.path = in_folder("later.db");
    EXPECT_FAIL(IO, "its schema is version 2", ejk_persistent_file_verify(&options, &report));
    sql(in_folder("other.db"), "CREATE TABLE letters (text TEXT)");
    options.path = in_folder("other.db");
    EXPECT_FAIL(IO, "of another program", ejk_persistent_file_verify(&options, &report));
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_persistent_file_verify(&options, NULL));
    options.busy_ms = -1;
    EXPECT_FAIL(INVALID_ARGUMENT, "busy_ms", ejk_persistent_file_verify(&options, &report));
    assert_int_equal(report.rows, 77);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(cut_files),
        TEST(flipped_bits),
        TEST(an_empty_file_is_begun),
        TEST(damage_that_is_met_later),
        TEST(a_table_that_does_not_fit),
        TEST(triggers_are_not_run),
        TEST(a_folder),
        TEST(a_text),
        TEST(a_pipe),
        TEST(databases_of_others),
        TEST(a_schema_from_the_future),
        TEST(folders_that_cannot_be_written),
        TEST(rows_of_a_file_that_cannot_be_written),
        TEST(a_full_disk),
        TEST(a_disk_that_was_full_before),
        TEST(sound_files_verify),
        TEST(damage_is_left_alone),
        TEST(what_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
