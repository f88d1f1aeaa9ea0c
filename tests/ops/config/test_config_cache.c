/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of configurations in memory: what is put is got, who gives way, many threads at once. */
#include "ops/config/entry.h"
#include "support/expect.h"

#include <ejkernel/config.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static ejk_config_cache *cache;

static void make(int64_t capacity) {
    EXPECT_OK(ejk_config_cache_create(capacity, &cache));
}

static int teardown(void **state) {
    (void)state;
    ejk_config_cache_destroy(cache);
    cache = NULL;
    return 0;
}

static ejk_config_key key_of(const char *text) {
    return (ejk_config_key){.call_key = text};
}

static void put(const char *call_key, const char *config) {
    ejk_config_key key = key_of(call_key);
    ejk_config_entry entry = {.config = (char *)(uintptr_t)config};
    EXPECT_OK(ejk_config_cache_put(cache, &key, &entry));
}

/* What is kept under a key has this text; NULL: nothing is. */
static void expect_config(const ejk_config_key *key, const char *config) {
    ejk_config_entry entry = {.implementation_version = 77};
    bool found = !config;
    EXPECT_OK(ejk_config_cache_get(cache, key, &entry, &found));
    assert_int_equal(found, config != NULL);
    assert_int_equal(ejk_config_cache_contains(cache, key), config != NULL);
    if (!config) {
        assert_null(entry.config);
        assert_int_equal(entry.implementation_version, 77);
        return;
    }
    assert_string_equal(entry.config, config);
    ejk_config_entry_release(&entry);
    assert_null(entry.config);
}

static void expect_text(const char *call_key, const char *config) {
    ejk_config_key key = key_of(call_key);
    expect_config(&key, config);
}

/* The interface of the guide: one text as the key, one as the configuration. */
static void test_one_text_is_a_key(void **state) {
    (void)state;
    make(0);
    expect_text("shape 4x8", NULL);
    put("shape 4x8", "{\"block_size\":128}");
    expect_text("shape 4x8", "{\"block_size\":128}");
    expect_text("shape 4x9", NULL);
    put("shape 4x8", "{\"block_size\":64}");
    expect_text("shape 4x8", "{\"block_size\":64}");
    assert_int_equal(ejk_config_cache_size(cache), 1);
}

static void test_every_part_of_a_key_counts(void **state) {
    (void)state;
    make(0);
    const ejk_config_key keys[] = {
        {"d|v", "k@v0", "abc", "", 0, EJK_FORWARD},   {"d|w", "k@v0", "abc", "", 0, EJK_FORWARD},
        {"d|v", "k@v1", "abc", "", 0, EJK_FORWARD},   {"d|v", "k@v0", "abd", "", 0, EJK_FORWARD},
        {"d|v", "k@v0", "abc", "t", 0, EJK_FORWARD},  {"d|v", "k@v0", "abc", "", 4, EJK_FORWARD},
        {"d|v", "k@v0", "abc", "", 0, EJK_BACKWARD},  {"d|vk", "@v0", "abc", "", 0, EJK_FORWARD},
        {"d|v", "k@v0a", "bc", NULL, 0, EJK_FORWARD}, {NULL, NULL, "abc", NULL, 0, EJK_FORWARD},
    };
    enum { KEYS = sizeof keys / sizeof *keys };
    char text[24];
    for (int i = 0; i < KEYS; i++) {
        snprintf(text, sizeof text, "{\"b\":%d}", i);
        EXPECT_OK(ejk_config_cache_put(cache, &keys[i], &(ejk_config_entry){.config = text}));
    }
    assert_int_equal(ejk_config_cache_size(cache), KEYS);
    for (int i = 0; i < KEYS; i++) {
        snprintf(text, sizeof text, "{\"b\":%d}", i);
        expect_config(&keys[i], text);
    }
    /* Whatever their hashes are. */
    for (int i = 0; i < KEYS * KEYS; i++) {
        ejk_config_key a, b;
        EXPECT_OK(ejki_config_key_check(&keys[i / KEYS], &a));
        EXPECT_OK(ejki_config_key_check(&keys[i % KEYS], &b));
        assert_int_equal(ejki_config_key_equal(&a, &b), i / KEYS == i % KEYS);
    }
    /* NULL is "". */
    expect_config(&(ejk_config_key){"", "", "abc", "", 0, EJK_FORWARD}, "{\"b\":9}");
}

static void test_an_entry_comes_back_whole(void **state) {
    (void)state;
    make(0);
    ejk_config_key key = key_of("k");
    ejk_config_entry entry = {.config = (char[]){"{\"b\":1}"},
                              .implementation = "f32/avx512/tile",
                              .implementation_version = 3,
                              .library_version = "0.2.0",
                              .measurement = {1e-3, 2e-5, 4e-3, 1700000000, 50}};
    ejk_config_entry got;
    bool found;
    EXPECT_OK(ejk_config_cache_put(cache, &key, &entry));
    memset(entry.config, 'x', 3); /* a copy was kept */
    EXPECT_OK(ejk_config_cache_get(cache, &key, &got, &found));
    assert_true(found);
    assert_string_equal(got.config, "{\"b\":1}");
    assert_string_equal(got.implementation, "f32/avx512/tile");
    assert_int_equal(got.implementation_version, 3);
    assert_string_equal(got.library_version, "0.2.0");
    assert_true(got.measurement.median_s == 1e-3 && got.measurement.spread_s == 2e-5 &&
                got.measurement.reference_s == 4e-3);
    assert_int_equal(got.measurement.unix_time, 1700000000);
    assert_int_equal(got.measurement.repetitions, 50);
    EXPECT_OK(ejk_config_cache_clear(cache));
    assert_string_equal(got.config, "{\"b\":1}"); /* and another copy handed out */
    ejk_config_entry_release(&got);
    ejk_config_entry_release(NULL);
}

/* ---- Order, room, changes ----------------------------------------------------------------------------- */

struct listing {
    char text[256];
    int left; /* visits until it is enough */
};

static bool list(void *user, const ejk_config_key *key, const ejk_config_entry *entry) {
    struct listing *listing = user;
    size_t used = strlen(listing->text);
    snprintf(listing->text + used, sizeof listing->text - used, "%s=%s ", key->call_key,
             entry->config);
    return --listing->left > 0;
}

static void expect_keys(int most, const char *text) {
    struct listing listing = {.left = most};
    EXPECT_OK(ejk_config_cache_keys(cache, list, &listing));
    assert_string_equal(listing.text, text);
}

static void test_keys_come_in_the_order_they_were_put(void **state) {
    (void)state;
    make(0);
    expect_keys(9, "");
    put("c", "1");
    put("a", "2");
    put("b", "3");
    expect_keys(9, "c=1 a=2 b=3 ");
    put("c", "4"); /* keeps its place */
    expect_keys(9, "c=4 a=2 b=3 ");
    expect_keys(2, "c=4 a=2 ");
    bool found = false;
    ejk_config_key key = key_of("a");
    EXPECT_OK(ejk_config_cache_remove(cache, &key, &found));
    assert_true(found);
    EXPECT_OK(ejk_config_cache_remove(cache, &key, &found));
    assert_false(found);
    EXPECT_OK(ejk_config_cache_remove(cache, &key, NULL));
    put("a", "5");
    expect_keys(9, "c=4 b=3 a=5 ");
    EXPECT_OK(ejk_config_cache_clear(cache));
    expect_keys(9, "");
    assert_int_equal(ejk_config_cache_size(cache), 0);
    expect_text("c", NULL);
}

static bool take_all_out(void *user, const ejk_config_key *key, const ejk_config_entry *entry) {
    bool found = false;
    EXPECT_OK(ejk_config_cache_remove(cache, key, &found));
    assert_true(found);
    put("new", "1");
    assert_int_equal(entry->config[0], '1'); /* still readable */
    ++*(int *)user;
    return true;
}

static void test_a_visitor_may_change_the_cache(void **state) {
    (void)state;
    make(0);
    char name[16];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "k%d", i);
        put(name, "1");
    }
    int visits = 0;
    EXPECT_OK(ejk_config_cache_keys(cache, take_all_out, &visits));
    assert_int_equal(visits, 100);
    expect_keys(9, "new=1 ");
}

static void test_the_oldest_gives_way(void **state) {
    (void)state;
    make(3);
    put("a", "1");
    put("b", "2");
    put("c", "3");
    put("a", "4"); /* no newer than it was */
    put("d", "5");
    expect_keys(9, "b=2 c=3 d=5 ");
    expect_text("a", NULL);
    /* Long after every slot of the table was used once. */
    char name[16];
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "k%d", i);
        put(name, "6");
        assert_int_equal(ejk_config_cache_size(cache), 3);
        expect_text(name, "6");
    }
    expect_keys(9, "k997=6 k998=6 k999=6 ");
}

static void test_many_keys(void **state) {
    (void)state;
    make(0);
    enum { MANY = 5000 };
    char name[16], config[16];
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < MANY; i++) {
            snprintf(name, sizeof name, "k%d", i);
            snprintf(config, sizeof config, "%d", i + round);
            put(name, config);
        }
    for (int i = 0; i < MANY; i += 2) {
        bool found = false;
        snprintf(name, sizeof name, "k%d", i);
        ejk_config_key key = key_of(name);
        EXPECT_OK(ejk_config_cache_remove(cache, &key, &found));
        assert_true(found);
    }
    assert_int_equal(ejk_config_cache_size(cache), MANY / 2);
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "k%d", i);
        snprintf(config, sizeof config, "%d", i + 1);
        expect_text(name, i % 2 ? config : NULL);
    }
}

static void test_changes_are_counted(void **state) {
    (void)state;
    make(0);
    uint64_t last = ejk_config_cache_generation(cache);
    ejk_config_key key = key_of("a");
    put("a", "1");
    assert_true(ejk_config_cache_generation(cache) > last);
    last = ejk_config_cache_generation(cache);
    expect_text("a", "1");
    expect_keys(9, "a=1 ");
    assert_true(ejk_config_cache_generation(cache) == last);
    put("a", "1");
    assert_true(ejk_config_cache_generation(cache) > last);
    last = ejk_config_cache_generation(cache);
    EXPECT_OK(ejk_config_cache_remove(cache, &key, NULL));
    assert_true(ejk_config_cache_generation(cache) > last);
    last = ejk_config_cache_generation(cache);
    EXPECT_OK(ejk_config_cache_remove(cache, &key, NULL)); /* nothing to change */
    assert_true(ejk_config_cache_generation(cache) == last);
    EXPECT_OK(ejk_config_cache_clear(cache));
    assert_true(ejk_config_cache_generation(cache) > last);
}

/* ---- What is refused ---------------------------------------------------------------------------------- */

static void test_wrong_keys(void **state) {
    (void)state;
    make(0);
    static char longest[EJK_CONFIG_KEY_SIZE], longer[EJK_CONFIG_KEY_SIZE + 1];
    memset(longest, 'k', sizeof longest - 1);
    memset(longer, 'k', sizeof longer - 1);
    const ejk_config_entry entry = {.config = (char[]){"1"}};
    const struct {
        ejk_config_key key;
        const char *words;
    } wrong[] = {
        {{.device = "d"}, "key.call_key is NULL"},
        {{.call_key = ""}, "key.call_key is \"\""},
        {{.call_key = longer}, "key.call_key has no closing zero within 1024 bytes"},
        {{.call_key = "\xff"}, "key.call_key has 1 bytes that are not UTF-8"},
        {{.call_key = "k", .device = "\xc3"}, "key.device"},
        {{.call_key = "k", .op_id = longer}, "key.op_id"},
        {{.call_key = "k", .layout = longer}, "key.layout"},
        {{.call_key = "k", .threads = -1}, "key.threads is -1"},
        {{.call_key = "k", .direction = (ejk_direction)2}, "key.direction is 2"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ejk_config_entry out = {.implementation_version = 5};
        bool found = true;
        const ejk_config_key *key = &wrong[i].key;
        EXPECT_FAIL(INVALID_ARGUMENT, wrong[i].words, ejk_config_cache_put(cache, key, &entry));
        EXPECT_FAIL(INVALID_ARGUMENT, wrong[i].words,
                    ejk_config_cache_get(cache, key, &out, &found));
        assert_true(found && out.implementation_version == 5);
        EXPECT_FAIL(INVALID_ARGUMENT, wrong[i].words, ejk_config_cache_remove(cache, key, &found));
        assert_true(found);
        assert_false(ejk_config_cache_contains(cache, key));
    }
    EXPECT_OK(ejk_config_cache_put(cache, &(ejk_config_key){.call_key = longest}, &entry));
    expect_text(longest, "1");
    assert_int_equal(ejk_config_cache_size(cache), 1);
}

static void test_wrong_entries(void **state) {
    (void)state;
    make(0);
    static char longer[EJK_CONFIG_SIZE + 1];
    memset(longer, ' ', EJK_CONFIG_SIZE);
    char one[] = "1";
    ejk_config_entry endless = {.config = one};
    memset(endless.implementation, 'x', sizeof endless.implementation);
    const struct {
        ejk_config_entry entry;
        ejk_status status;
        const char *words;
    } wrong[] = {
        {{.config = NULL}, EJK_STATUS_INVALID_ARGUMENT, "entry.config is NULL"},
        {{.config = longer}, EJK_STATUS_INVALID_ARGUMENT, "entry.config has no closing zero"},
        {{.config = (char[]){""}}, EJK_STATUS_MALFORMED, "entry.config: JSON line 1"},
        {{.config = (char[]){"{\"a\":1"}}, EJK_STATUS_MALFORMED, "entry.config: JSON"},
        {{.config = (char[]){"{\"a\":1,\"a\":2}"}}, EJK_STATUS_MALFORMED, "duplicate"},
        {{.config = (char[]){"[1e999]"}}, EJK_STATUS_MALFORMED, "entry.config: JSON"},
        {{.config = (char[]){"\"\xff\""}}, EJK_STATUS_MALFORMED, "entry.config: JSON"},
        {endless, EJK_STATUS_INVALID_ARGUMENT, "entry.implementation has no closing zero"},
        {{.config = one, .implementation = "\xff"},
         EJK_STATUS_INVALID_ARGUMENT,
         "entry.implementation has 1 bytes that are not UTF-8"},
        {{.config = one, .implementation_version = -1},
         EJK_STATUS_INVALID_ARGUMENT,
         "entry.implementation_version is -1"},
        {{.config = one, .measurement.median_s = (double)NAN},
         EJK_STATUS_INVALID_ARGUMENT,
         "entry.measurement.median_s is"},
        {{.config = one, .measurement.spread_s = (double)INFINITY},
         EJK_STATUS_INVALID_ARGUMENT,
         "entry.measurement.spread_s is inf"},
        {{.config = one, .measurement.reference_s = -1},
         EJK_STATUS_INVALID_ARGUMENT,
         "entry.measurement.reference_s is -1"},
        {{.config = one, .measurement.unix_time = -1},
         EJK_STATUS_INVALID_ARGUMENT,
         "entry.measurement.unix_time is -1"},
        {{.config = one, .measurement.repetitions = -2},
         EJK_STATUS_INVALID_ARGUMENT,
         "entry.measurement.repetitions is -2"},
    };
    ejk_config_key key = key_of("k");
    put("k", "{\"kept\":true}");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_status(wrong[i].status, ejk_config_cache_put(cache, &key, &wrong[i].entry),
                      wrong[i].words, "put", __FILE__, __LINE__);
    expect_text("k", "{\"kept\":true}");
}

static void test_missing_arguments(void **state) {
    (void)state;
    make(0);
    ejk_config_key key = key_of("k");
    ejk_config_entry entry = {.config = (char[]){"1"}};
    ejk_config_cache *none = NULL;
    bool found;
    EXPECT_FAIL(INVALID_ARGUMENT, "capacity is -1", ejk_config_cache_create(-1, &none));
    assert_null(none);
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_config_cache_create(0, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL", ejk_config_cache_put(NULL, &key, &entry));
    EXPECT_FAIL(INVALID_ARGUMENT, "key is NULL", ejk_config_cache_put(cache, NULL, &entry));
    EXPECT_FAIL(INVALID_ARGUMENT, "entry is NULL", ejk_config_cache_put(cache, &key, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL",
                ejk_config_cache_get(NULL, &key, &entry, &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "out is NULL", ejk_config_cache_get(cache, &key, NULL, &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "found is NULL", ejk_config_cache_get(cache, &key, &entry, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL", ejk_config_cache_remove(NULL, &key, &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL", ejk_config_cache_clear(NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "cache is NULL", ejk_config_cache_keys(NULL, list, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "visit is NULL", ejk_config_cache_keys(cache, NULL, NULL));
    assert_int_equal(ejk_config_cache_size(NULL), 0);
    assert_false(ejk_config_cache_contains(NULL, &key));
    ejk_config_cache_destroy(NULL);
}

/* ---- Many threads ------------------------------------------------------------------------------------- */

enum { WRITERS = 3, READERS = 4, SHARED = 40, ROUNDS = 1500 };

static atomic_bool writing;
static atomic_int wrong;

static void require(bool holds) {
    if (!holds) wrong++;
}

/* Every value of a key says twice which key it is of, and when it was put. */
static void describe(char text[64], int number, int round) {
    snprintf(text, 64, "{\"key\":%d,\"round\":%d,\"again\":%d}", number, round, number);
}

static void *write_all(void *argument) {
    int own = *(const int *)argument;
    char name[16], config[64];
    for (int round = 0; round < ROUNDS; round++) {
        int number = (round * 7 + own) % SHARED;
        snprintf(name, sizeof name, "k%d", number);
        describe(config, number, round);
        ejk_config_key key = key_of(name);
        require(ejk_config_cache_put(cache, &key, &(ejk_config_entry){.config = config}) == EJK_OK);
        if (round % 5 == 4) require(ejk_config_cache_remove(cache, &key, NULL) == EJK_OK);
        if (round % 500 == 499) require(ejk_config_cache_clear(cache) == EJK_OK);
    }
    return NULL;
}

static bool check_visit(void *user, const ejk_config_key *key, const ejk_config_entry *entry) {
    int number = -1, round = -1, again = -2;
    sscanf(entry->config, "{\"key\":%d,\"round\":%d,\"again\":%d}", &number, &round, &again);
    require(number == again && number == atoi(key->call_key + 1));
    ++*(int *)user;
    return true;
}

static void *read_all(void *argument) {
    int own = *(const int *)argument, visits = 0;
    char name[16];
    uint64_t last = 0;
    for (int i = own; writing; i++) {
        ejk_config_entry entry;
        bool found = false;
        snprintf(name, sizeof name, "k%d", i % SHARED);
        ejk_config_key key = key_of(name);
        uint64_t now = ejk_config_cache_generation(cache);
        require(now >= last);
        last = now;
        require(ejk_config_cache_get(cache, &key, &entry, &found) == EJK_OK);
        if (found) {
            check_visit(&visits, &key, &entry);
            ejk_config_entry_release(&entry);
        }
        if (i % 64 == 0) require(ejk_config_cache_keys(cache, check_visit, &visits) == EJK_OK);
    }
    return NULL;
}

static void run_threads(int64_t capacity) {
    pthread_t threads[WRITERS + READERS];
    int numbers[WRITERS + READERS];
    make(capacity);
    wrong = 0;
    writing = true;
    for (int i = 0; i < WRITERS + READERS; i++) {
        numbers[i] = i;
        assert_int_equal(
            pthread_create(&threads[i], NULL, i < WRITERS ? write_all : read_all, &numbers[i]), 0);
    }
    for (int i = 0; i < WRITERS + READERS; i++) {
        if (i == WRITERS) writing = false;
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(wrong, 0);
    int visits = 0;
    EXPECT_OK(ejk_config_cache_keys(cache, check_visit, &visits));
    assert_int_equal(visits, ejk_config_cache_size(cache));
    assert_true(capacity == 0 || visits <= capacity);
}

static void test_threads_without_bound(void **state) {
    (void)state;
    run_threads(0);
}

static void test_threads_with_bound(void **state) {
    (void)state;
    run_threads(7);
}

/* Nothing of what many threads put at once is missing afterwards. */
static void *put_own(void *argument) {
    int own = *(const int *)argument;
    char name[16];
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "t%d-%d", own, i);
        ejk_config_key key = key_of(name);
        require(ejk_config_cache_put(cache, &key, &(ejk_config_entry){.config = name + 1}) !=
                EJK_OK); /* "1-2" is no JSON */
        require(ejk_config_cache_put(cache, &key, &(ejk_config_entry){.config = (char[]){"3"}}) ==
                EJK_OK);
        require(ejk_config_cache_contains(cache, &key));
    }
    return NULL;
}

static void test_threads_with_keys_of_their_own(void **state) {
    (void)state;
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    int numbers[THREADS];
    make(0);
    wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, put_own, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(wrong, 0);
    assert_int_equal(ejk_config_cache_size(cache), THREADS * 500);
}

#define TEST(name) cmocka_unit_test_teardown(test_##name, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(one_text_is_a_key),
        TEST(every_part_of_a_key_counts),
        TEST(an_entry_comes_back_whole),
        TEST(keys_come_in_the_order_they_were_put),
        TEST(a_visitor_may_change_the_cache),
        TEST(the_oldest_gives_way),
        TEST(many_keys),
        TEST(changes_are_counted),
        TEST(wrong_keys),
        TEST(wrong_entries),
        TEST(missing_arguments),
        TEST(threads_without_bound),
        TEST(threads_with_bound),
        TEST(threads_with_keys_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
