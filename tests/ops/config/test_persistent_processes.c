/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache on disk used by many processes at once, some of which are killed. EJK_TEST_FULL=1 runs 16 processes
 * of 4 threads over 10,000 keys and 50 killed rounds; without it the same goes on in a smaller measure.
 */
#include "support/cache_case.h"
#include "support/expect.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool is_full;

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

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- Writers --------------------------------------------------------------------------------------------- */

enum { THREADS = 4 };

/* Of all keys, the first half is stored by one thread each, the rest by one thread of every process. */
struct stress {
    int processes, keys;
    ejk_persistent_cache *cache;
    int process, thread;
    int faults;
};

/* A value says three times what it is of: a torn one would contradict itself or its key. */
static void make_entry(int number, int writer, char text[96], ejk_config_entry *entry) {
    snprintf(text, 96, "{\"key\":%d,\"writer\":%d,\"sum\":%d}", number, writer, number + writer);
    *entry = (ejk_config_entry){
        .config = text, .implementation_version = number, .measurement.repetitions = writer};
}

static bool is_whole(const ejk_config_entry *entry, int number) {
    int key = -1, writer = -1, sum = -1;
    return sscanf(entry->config, "{\"key\":%d,\"writer\":%d,\"sum\":%d}", &key, &writer, &sum) ==
               3 &&
           key == number && sum == number + writer && entry->implementation_version == number &&
           entry->measurement.repetitions == writer;
}

static void name_key(int number, char name[32], ejk_config_key *key) {
    snprintf(name, 32, "%08x", (unsigned)number * 2654435761u);
    *key = (ejk_config_key){.device = "cpu|test", .op_id = "stress@v1", .call_key = name};
}

/* 1: there and whole, 0: not there, -1: anything else. */
static int look(ejk_persistent_cache *cache, int number) {
    char name[32];
    ejk_config_key key;
    ejk_config_entry entry;
    bool found;
    name_key(number, name, &key);
    if (ejk_persistent_cache_get(cache, &key, &entry, &found) != EJK_OK) return -1;
    if (!found) return 0;
    bool whole = is_whole(&entry, number);
    ejk_config_entry_release(&entry);
    return whole ? 1 : -1;
}

static bool store(ejk_persistent_cache *cache, int number, int writer) {
    char name[32], text[96];
    ejk_config_key key;
    ejk_config_entry entry;
    name_key(number, name, &key);
    make_entry(number, writer, text, &entry);
    return ejk_persistent_cache_put(cache, &key, &entry) == EJK_OK;
}

static void *write_share(void *stress_) {
    struct stress *stress = stress_;
    int writers = stress->processes * THREADS, own = stress->process * THREADS + stress->thread;
    int half = stress->keys / 2;
    for (int i = 0; i < stress->keys; i++) {
        /* Everybody comes by in another order. */
        int number = (i + own * 131) % stress->keys;
        bool mine = number < half ? number % writers == own : number % THREADS == stress->thread;
        if (mine) {
            if (!store(stress->cache, number, own)) stress->faults++;
            if (look(stress->cache, number) != 1) stress->faults++;
        } else if (number % 8 == own % 8 && look(stress->cache, number) < 0) {
            stress->faults++;
        }
    }
    return NULL;
}

/* One process: all that went wrong in it, and events, which there should be none of. */
static int run_process(struct stress stress) {
    struct stress shares[THREADS];
    pthread_t threads[THREADS];
    stress.cache = cache_open(in_folder("stress.db"));
    for (int i = 0; i < THREADS; i++) {
        shares[i] = stress;
        shares[i].thread = i;
        if (pthread_create(&threads[i], NULL, write_share, &shares[i]) != 0) return 100;
    }
    int faults = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        faults += shares[i].faults;
    }
    if (faults || events.count) printf("%d faults, events: %s\n", faults, events.text);
    ejk_persistent_cache_close(stress.cache);
    return faults + events.count > 99 ? 99 : faults + events.count;
}

static int wait_for(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) != child)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_processes_and_threads_at_once(void **state) {
    (void)state;
    enum { MOST = 16 };
    struct stress stress = {.processes = is_full ? MOST : 4, .keys = is_full ? 10000 : 800};
    pid_t children[MOST];
    double start = now_s();
    fflush(stdout);
    for (int i = 0; i < stress.processes; i++) {
        stress.process = i;
        children[i] = fork();
        if (children[i] == 0) _exit(run_process(stress));
        assert_true(children[i] > 0);
    }
    for (int i = 0; i < stress.processes; i++) assert_int_equal(wait_for(children[i]), 0);
    int puts = stress.keys / 2 + stress.keys / 2 * stress.processes;
    printf("%d processes of %d threads, %d keys: %d puts in %.1f s\n", stress.processes, THREADS,
           stress.keys, puts, now_s() - start);

    ejk_persistent_cache *cache = cache_open(in_folder("stress.db"));
    ejk_persistent_report report;
    EXPECT_OK(ejk_persistent_cache_verify(cache, &report));
    assert_true(report.sound);
    assert_int_equal(report.rows, stress.keys);
    for (int i = 0; i < stress.keys; i++) assert_int_equal(look(cache, i), 1);
    assert_int_equal(events.count, 0);
    ejk_persistent_cache_close(cache);
}

/* ---- Killed writers ---------------------------------------------------------------------------------------- */

/* Stores keys without end, and says so in a pipe whenever one was stored. */
static void write_until_killed(int writer, int first, int report) {
    ejk_persistent_cache *cache = cache_open(in_folder("killed.db"));
    for (int number = first;; number++)
        if (!store(cache, number, writer) || write(report, &number, sizeof number) < 0) _exit(1);
}

enum { WRITERS = 4 };

/* Lets writers run for a while and kills them; counts what each has reported. */
static void run_and_kill(const int first[WRITERS], int stored[WRITERS], unsigned pause_us) {
    pid_t children[WRITERS];
    int pipes[WRITERS][2];
    fflush(stdout);
    for (int i = 0; i < WRITERS; i++) {
        assert_int_equal(pipe(pipes[i]), 0);
        children[i] = fork();
        if (children[i] == 0) write_until_killed(i, first[i], pipes[i][1]);
        assert_true(children[i] > 0);
        close(pipes[i][1]);
    }
    usleep(pause_us);
    for (int i = 0; i < WRITERS; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < WRITERS; i++) {
        int number;
        stored[i] = 0;
        while (read(pipes[i][0], &number, sizeof number) == sizeof number)
            assert_int_equal(number, first[i] + stored[i]++);
        close(pipes[i][0]);
        assert_int_equal(wait_for(children[i]), -1); /* it did not end by itself */
    }
}

static void test_killed_writers_lose_nothing(void **state) {
    (void)state;
    enum { SPAN = 10000000 };
    int rounds = is_full ? 50 : 6, all = 0, next[WRITERS], stored[WRITERS];
    unsigned random = 12345;
    for (int i = 0; i < WRITERS; i++) next[i] = i * SPAN;
    for (int round = 0; round < rounds; round++) {
        random = random * 1103515245u + 12345u;
        run_and_kill(next, stored, 2000 + (random >> 8) % (round % 3 ? 60000 : 300000));
        ejk_persistent_cache *cache = cache_open(in_folder("killed.db"));
        assert_false(ejk_persistent_cache_is_memory_only(cache));
        ejk_persistent_report report;
        EXPECT_OK(ejk_persistent_cache_verify(cache, &report));
        assert_true(report.sound);
        for (int i = 0; i < WRITERS; i++) {
            next[i] += stored[i];
            all += stored[i];
            for (int number = i * SPAN; number < next[i]; number++)
                assert_int_equal(look(cache, number), 1);
            /* One that was stored may not have been reported any more. */
            if (look(cache, next[i]) == 1) next[i]++, all++;
        }
        assert_int_equal(report.rows, all);
        ejk_persistent_cache_close(cache);
    }
    assert_true(all > rounds);
    assert_int_equal(events.count, 0);
    printf("%d rounds of killed writers, %d rows\n", rounds, all);
}

/* Nor do those that are killed while they begin a file. */
static void test_killed_while_opening(void **state) {
    (void)state;
    unsigned random = 777;
    for (int round = 0; round < (is_full ? 50 : 8); round++) {
        pid_t children[WRITERS];
        char name[32];
        snprintf(name, sizeof name, "begun-%d.db", round);
        fflush(stdout);
        for (int i = 0; i < WRITERS; i++) {
            children[i] = fork();
            if (children[i] == 0) {
                ejk_persistent_cache *own = cache_open(in_folder(name));
                for (int number = 0;; number++) (void)cache_put(own, name, number);
            }
        }
        random = random * 1103515245u + 12345u;
        usleep((random >> 8) % 40000);
        for (int i = 0; i < WRITERS; i++) kill(children[i], SIGKILL);
        for (int i = 0; i < WRITERS; i++) assert_int_equal(wait_for(children[i]), -1);
        ejk_persistent_cache *cache = cache_open(in_folder(name));
        EXPECT_OK(cache_put(cache, "after", 1));
        assert_int_equal(cache_get(cache, "after"), 1);
        assert_false(ejk_persistent_cache_is_memory_only(cache));
        ejk_persistent_cache_close(cache);
    }
    assert_int_equal(events.count, 0);
}

/* ---- One damaged file, many who find it --------------------------------------------------------------------- */

static void overwrite(const char *path, long at, const char *text) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    fclose(file);
}

static int find_damage(int own) {
    char name[32];
    ejk_persistent_cache *cache = cache_open(in_folder("damaged.db"));
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "p%d-%d", own, i);
        if (cache_put(cache, name, i) != EJK_OK) return 1;
    }
    bool memory_only = ejk_persistent_cache_is_memory_only(cache);
    ejk_persistent_cache_close(cache);
    return memory_only ? 2 : 10 + events_of("cache_set_aside");
}

/* One sets the file aside; what any of them stores is in the new one. */
static void test_a_damaged_file_is_set_aside_once(void **state) {
    (void)state;
    enum { PROCESSES = 8 };
    for (int round = 0; round < (is_full ? 20 : 4); round++) {
        pid_t children[PROCESSES];
        char name[32];
        ejk_persistent_cache *cache = cache_open(in_folder("damaged.db"));
        EXPECT_OK(cache_put(cache, "before", 1));
        ejk_persistent_cache_close(cache);
        overwrite(in_folder("damaged.db"), 0, "What is this, then?");
        events_clear();
        fflush(stdout);
        for (int i = 0; i < PROCESSES; i++) {
            children[i] = fork();
            if (children[i] == 0) _exit(find_damage(i));
        }
        int set_aside = 0;
        for (int i = 0; i < PROCESSES; i++) {
            int answer = wait_for(children[i]);
            assert_in_range(answer, 10, 11);
            set_aside += answer - 10;
        }
        assert_int_equal(set_aside, 1);
        cache = cache_open(in_folder("damaged.db"));
        for (int i = 0; i < PROCESSES * 20; i++) {
            snprintf(name, sizeof name, "p%d-%d", i / 20, i % 20);
            assert_int_equal(cache_get(cache, name), i % 20);
        }
        assert_int_equal(events.count, 0);
        ejk_persistent_cache_close(cache);
    }
}

/* Puts the file of a name, and what lies beside it, under another. */
static void move_file(const char *from, const char *to) {
    static const char *const parts[] = {"", "-wal", "-shm"};
    char old[32], new[32];
    for (int i = 0; i < 3; i++) {
        snprintf(old, sizeof old, "%s%s", from, parts[i]);
        snprintf(new, sizeof new, "%s%s", to, parts[i]);
        assert_int_equal(rename(in_folder(old), in_folder(new)), 0);
    }
}

/* Those who have an old file open store into the new one, and their end does it no harm. */
static void test_a_file_moved_while_it_is_in_use(void **state) {
    (void)state;
    ejk_persistent_cache *early = cache_open(in_folder("used.db"));
    ejk_persistent_cache *idle = cache_open(in_folder("used.db"));
    EXPECT_OK(cache_put(early, "early", 1));
    EXPECT_OK(cache_put(idle, "idle", 2));
    move_file("used.db", "moved.db");
    ejk_persistent_cache *late = cache_open(in_folder("used.db"));
    EXPECT_OK(cache_put(late, "late", 3));
    EXPECT_OK(cache_put(early, "again", 4));
    assert_int_equal(cache_get(late, "again"), 4);
    assert_int_equal(cache_get(early, "late"), 3);
    assert_int_equal(cache_get(early, "early"), -1);
    ejk_persistent_cache_close(idle); /* the last one that has the old file open */
    assert_int_equal(access(in_folder("used.db-wal"), F_OK), 0);
    ejk_persistent_cache *latest = cache_open(in_folder("used.db"));
    assert_int_equal(cache_get(latest, "late"), 3);
    assert_int_equal(cache_get(latest, "again"), 4);
    ejk_persistent_cache_close(latest);
    ejk_persistent_cache_close(early);
    ejk_persistent_cache_close(late);
    late = cache_open(in_folder("moved.db"));
    assert_int_equal(cache_get(late, "early"), 1);
    assert_int_equal(cache_get(late, "idle"), 2);
    assert_int_equal(cache_get(late, "again"), -1);
    ejk_persistent_cache_close(late);
    assert_int_equal(events.count, 0);
}

/* The same where the file was damaged, and one of its users finds out. */
static void test_a_file_set_aside_while_it_is_in_use(void **state) {
    (void)state;
    ejk_persistent_cache *early = cache_open(in_folder("used.db"));
    EXPECT_OK(cache_put(early, "early", 1));
    overwrite(in_folder("used.db"), 0, "What is this, then?");
    ejk_persistent_cache *late = cache_open(in_folder("used.db"));
    assert_int_equal(events_of("cache_set_aside"), 1);
    EXPECT_OK(cache_put(late, "late", 3));
    EXPECT_OK(cache_put(early, "again", 4));
    assert_int_equal(cache_get(early, "late"), 3);
    assert_int_equal(cache_get(late, "again"), 4);
    ejk_persistent_cache_close(early);
    ejk_persistent_cache_close(late);
    assert_int_equal(events.count, 1);
}

/* ---- Forks and waiting ------------------------------------------------------------------------------------ */

static int use_after_fork(ejk_persistent_cache *cache) {
    if (cache_put(cache, "child", 1) != EJK_OK || cache_get(cache, "child") != 1) return 1;
    if (!ejk_persistent_cache_is_memory_only(cache)) return 2;
    if (!strstr(events_fields("cache_degraded"), "fork")) return 3;
    ejk_persistent_cache_close(cache);
    return 0;
}

static void test_a_child_does_not_touch_its_parents_file(void **state) {
    (void)state;
    ejk_persistent_cache *cache = cache_open(in_folder("forked.db"));
    EXPECT_OK(cache_put(cache, "parent", 7));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(use_after_fork(cache));
    assert_int_equal(wait_for(child), 0);
    assert_int_equal(cache_get(cache, "parent"), 7);
    assert_int_equal(cache_get(cache, "child"), -1);
    EXPECT_OK(cache_put(cache, "parent", 8));
    ejk_persistent_cache_close(cache);
    cache = cache_open(in_folder("forked.db"));
    assert_int_equal(cache_get(cache, "parent"), 8);
    ejk_persistent_cache_close(cache);
    assert_int_equal(events.count, 0);
}

/* A process that stopped while it held the lock makes others wait, but not for ever. */
static int hold_lock(int ready, int done) {
    char byte = 0;
    int file = open(in_folder("held.db-lock"), O_RDWR | O_CREAT, 0600);
    if (file < 0 || flock(file, LOCK_EX) != 0) return 1;
    return write(ready, &byte, 1) == 1 && read(done, &byte, 1) == 1 ? 0 : 2;
}

static void test_waiting_has_an_end(void **state) {
    (void)state;
    int ready[2], done[2];
    char byte = 0;
    ejk_persistent_cache *cache, *late;
    const ejk_persistent_options options = {.path = in_folder("held.db"),
                                            .busy_ms = 50,
                                            .on_event = events_add,
                                            .on_event_user = &events};
    EXPECT_OK(ejk_persistent_cache_open(&options, &cache));
    EXPECT_OK(cache_put(cache, "a", 1));
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(done), 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(hold_lock(ready[1], done[0]));
    assert_int_equal(read(ready[0], &byte, 1), 1);
    EXPECT_FAIL(IO, "in use by others for more than 50 ms", cache_put(cache, "a", 2));
    assert_int_equal(cache_get(cache, "a"), 1); /* reading needs no lock */
    EXPECT_OK(ejk_persistent_cache_open(&options, &late));
    assert_true(ejk_persistent_cache_is_memory_only(late));
    assert_non_null(strstr(events_fields("cache_degraded"), "another process holds its lock"));
    assert_int_equal(cache_get(late, "a"), 1);
    ejk_persistent_cache_close(late);
    assert_int_equal(write(done[1], &byte, 1), 1);
    assert_int_equal(wait_for(child), 0);
    EXPECT_OK(cache_put(cache, "a", 3));
    assert_int_equal(cache_get(cache, "a"), 3);
    ejk_persistent_cache_close(cache);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(done[i]);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void) {
    const char *full = getenv("EJK_TEST_FULL");
    is_full = full && *full == '1';
    const struct CMUnitTest tests[] = {
        TEST(processes_and_threads_at_once),
        TEST(killed_writers_lose_nothing),
        TEST(killed_while_opening),
        TEST(a_damaged_file_is_set_aside_once),
        TEST(a_file_moved_while_it_is_in_use),
        TEST(a_file_set_aside_while_it_is_in_use),
        TEST(a_child_does_not_touch_its_parents_file),
        TEST(waiting_has_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
