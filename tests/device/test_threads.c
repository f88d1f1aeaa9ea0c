/* SPDX-License-Identifier: Apache-2.0 */
/* Parallel loops: every index once, from anywhere, nested, shared, and where threads cannot be had. */
#define _GNU_SOURCE 1
#include <ejkernel/device.h>

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "support/child.h"

enum { MOST = 10000 };

static void count_hit(void *hits, int64_t index) {
    atomic_fetch_add(&((atomic_int *)hits)[index], 1);
}

static bool each_index_once(ejk_threads *threads, int64_t count) {
    atomic_int *hits = calloc(MOST + 1, sizeof *hits);
    if (!hits) return false;
    ejk_parallel_for(threads, count, count_hit, hits);
    bool once = true;
    for (int64_t i = 0; i <= MOST; i++) once = once && atomic_load(&hits[i]) == (i < count ? 1 : 0);
    free(hits);
    return once;
}

static ejk_threads *pool_of(int32_t count) {
    ejk_threads *threads = NULL;
    return ejk_threads_create(count, &threads) == EJK_OK ? threads : NULL;
}

static void every_index_comes_once(void **state) {
    (void)state;
    const int64_t counts[] = {0, -1, INT64_MIN, 1, 2, 3, 4, 5, 63, MOST};
    for (int32_t size = 0; size <= 5; size++) {
        ejk_threads *threads = size ? pool_of(size) : NULL;
        assert_int_equal(ejk_threads_count(threads), size ? size : 1);
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            assert_true(each_index_once(threads, counts[i]));
        ejk_threads_destroy(threads);
    }
}

/* Each task waits for all others: only threads that really run at once come through. */
struct meeting {
    atomic_int here;
    int expected;
    atomic_bool missed;
};

static void meet(void *meeting_, int64_t index) {
    (void)index;
    struct meeting *meeting = meeting_;
    double end = ejk_now() + 20;
    atomic_fetch_add(&meeting->here, 1);
    while (atomic_load(&meeting->here) < meeting->expected) {
        if (ejk_now() > end) atomic_store(&meeting->missed, true);
        if (atomic_load(&meeting->missed)) return;
        sched_yield();
    }
}

static bool run_at_once(ejk_threads *threads, int count) {
    struct meeting meeting = {.expected = count};
    ejk_parallel_for(threads, count, meet, &meeting);
    return !atomic_load(&meeting.missed);
}

static void a_pool_runs_at_once(void **state) {
    (void)state;
    ejk_threads *threads = pool_of(3);
    assert_true(run_at_once(threads, 3));
    ejk_threads_destroy(threads);
}

static bool a_child_runs_at_once(const void *threads_) {
    ejk_threads *const *threads = threads_;
    for (int i = 0; i < 2; i++)
        if (!run_at_once(threads[i], 3) || !each_index_once(threads[i], 100)) return false;
    return true;
}

/* Its own loops, those of a child of its own, and then its own again. */
static bool children_run_at_once(const void *threads_) {
    ejk_threads *const *threads = threads_;
    if (!a_child_runs_at_once(threads) || !holds_in_child(a_child_runs_at_once, threads) ||
        !a_child_runs_at_once(threads))
        return false;
    for (int i = 0; i < 2; i++) ejk_threads_destroy(threads[i]);
    return true;
}

static bool a_child_may_end_them_unused(const void *threads_) {
    ejk_threads *const *threads = threads_;
    for (int i = 0; i < 2; i++) ejk_threads_destroy(threads[i]);
    return true;
}

/* One pool has started before the fork, the other has not. */
static void pools_start_anew_after_a_fork(void **state) {
    (void)state;
    if (!THREADS_AFTER_FORK) skip();
    ejk_threads *threads[2] = {pool_of(3), pool_of(3)};
    assert_true(run_at_once(threads[0], 3));
    assert_true(holds_in_child(children_run_at_once, threads));
    assert_true(holds_in_child(a_child_may_end_them_unused, threads));
    assert_true(a_child_runs_at_once(threads));
    for (int i = 0; i < 2; i++) ejk_threads_destroy(threads[i]);
}

static bool one_loop(const void *threads) {
    return each_index_once((ejk_threads *)(uintptr_t)threads, 8);
}

static void *start_pools(void *stop) {
    while (!atomic_load((atomic_bool *)stop)) {
        ejk_threads *threads = pool_of(3);
        each_index_once(threads, 8);
        ejk_threads_destroy(threads);
    }
    return NULL;
}

/* A child must not find the lock held by a thread that it does not have. */
static void forks_while_a_pool_starts(void **state) {
    (void)state;
    if (!THREADS_AFTER_FORK) skip();
    atomic_bool stop = false;
    pthread_t starter;
    ejk_threads *threads = pool_of(2);
    assert_int_equal(pthread_create(&starter, NULL, start_pools, &stop), 0);
    bool all = true;
    for (int i = 0; i < 50 && all; i++) all = holds_in_child(one_loop, threads);
    atomic_store(&stop, true);
    pthread_join(starter, NULL);
    ejk_threads_destroy(threads);
    assert_true(all);
}

static int threads_of_process(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    if (!folder) return -1;
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void *wait_for_gate(void *gate) {
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* Threads without any of ours. Taken while one runs: a sanitizer adds its own to the first one. */
static int threads_at_rest(void) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    pthread_mutex_lock(&gate);
    bool started = pthread_create(&thread, NULL, wait_for_gate, &gate) == 0;
    int count = threads_of_process() - 1;
    pthread_mutex_unlock(&gate);
    if (started) pthread_join(thread, NULL);
    return started ? count : -1;
}

/* A thread that has been joined may be listed for a moment more. */
static bool settles_at(int count) {
    for (double end = ejk_now() + 10; ejk_now() < end; sched_yield())
        if (threads_of_process() == count) return true;
    return false;
}

static bool threads_start_with_the_first_loop(const void *unused) {
    (void)unused;
    int before = threads_at_rest();
    ejk_threads *threads = pool_of(4);
    bool late = each_index_once(threads, 1) && settles_at(before);
    bool there = each_index_once(threads, 8) && settles_at(before + 3);
    ejk_threads_destroy(threads);
    return before > 0 && late && there && settles_at(before);
}

static void an_unused_pool_costs_nothing(void **state) {
    (void)state;
    assert_true(holds_in_child(threads_start_with_the_first_loop, NULL));
}

static bool loops_run_without_threads(const void *unused) {
    (void)unused;
    int before = threads_at_rest();
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    /* Beyond the address space: no thread can start. */
    pthread_attr_setstacksize(&attributes, (size_t)1 << 50);
    if (pthread_setattr_default_np(&attributes) != 0) return false;
    ejk_threads *threads = pool_of(4);
    bool once = each_index_once(threads, 100) && each_index_once(threads, 100);
    bool alone = settles_at(before);
    ejk_threads_destroy(threads);
    return once && alone;
}

static void without_threads_the_loop_runs_here(void **state) {
    (void)state;
    assert_true(holds_in_child(loops_run_without_threads, NULL));
}

struct nest {
    ejk_threads *inner;
    int depth;
    atomic_int *leaves;
};

static void descend(void *nest_, int64_t index) {
    (void)index;
    const struct nest *nest = nest_;
    if (nest->depth == 0) {
        atomic_fetch_add(nest->leaves, 1);
        return;
    }
    struct nest deeper = {nest->inner, nest->depth - 1, nest->leaves};
    ejk_parallel_for(nest->inner, 5, descend, &deeper);
}

static bool nested_loops_end(const void *unused) {
    (void)unused;
    ejk_threads *outer = pool_of(3), *other = pool_of(3);
    atomic_int leaves = 0;
    for (int round = 0; round < 20; round++) {
        ejk_parallel_for(outer, 5, descend, &(struct nest){outer, 2, &leaves});
        ejk_parallel_for(outer, 5, descend, &(struct nest){other, 2, &leaves});
    }
    bool after = each_index_once(outer, 100);
    ejk_threads_destroy(outer);
    ejk_threads_destroy(other);
    return after && leaves == 20 * 2 * 125;
}

static void nested_loops_run_on_their_task(void **state) {
    (void)state;
    assert_true(holds_in_child(nested_loops_end, NULL));
}

struct crossing {
    ejk_threads *outer, *inner;
    atomic_int leaves;
};

static void *cross(void *crossing_) {
    struct crossing *crossing = crossing_;
    for (int round = 0; round < 50; round++)
        ejk_parallel_for(crossing->outer, 4, descend,
                         &(struct nest){crossing->inner, 1, &crossing->leaves});
    return NULL;
}

static bool crossed_pools_end(const void *unused) {
    (void)unused;
    ejk_threads *a = pool_of(2), *b = pool_of(2);
    struct crossing both[2] = {{.outer = a, .inner = b}, {.outer = b, .inner = a}};
    pthread_t thread;
    if (pthread_create(&thread, NULL, cross, &both[0]) != 0) return false;
    cross(&both[1]);
    pthread_join(thread, NULL);
    ejk_threads_destroy(a);
    ejk_threads_destroy(b);
    return both[0].leaves == 50 * 4 * 5 && both[1].leaves == 50 * 4 * 5;
}

static void two_pools_may_nest_in_both_orders(void **state) {
    (void)state;
    assert_true(holds_in_child(crossed_pools_end, NULL));
}

static void *use_shared_pool(void *threads) {
    for (int round = 0; round < 10; round++)
        if (!each_index_once(threads, 100 + round)) return NULL;
    return threads;
}

static void applications_threads_share_a_pool(void **state) {
    (void)state;
    ejk_threads *threads = pool_of(3);
    pthread_t users[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&users[i], NULL, use_shared_pool, threads), 0);
    for (int i = 0; i < 4; i++) {
        void *answer;
        pthread_join(users[i], &answer);
        assert_ptr_equal(answer, threads);
    }
    ejk_threads_destroy(threads);
}

static void backwards(void *calls, ejk_task_fn task, void *argument, int64_t count) {
    ++*(int *)calls;
    for (int64_t i = count - 1; i >= 0; i--) task(argument, i);
}

static void note_order(void *order_, int64_t index) {
    int64_t *order = order_;
    order[++order[0]] = index;
}

static void a_callers_loop_takes_the_place_of_a_pool(void **state) {
    (void)state;
    int calls = 0;
    ejk_threads *threads = NULL;
    assert_int_equal(ejk_threads_wrap(backwards, &calls, 2, &threads), EJK_OK);
    assert_int_equal(ejk_threads_count(threads), 2);
    int64_t order[4] = {0};
    ejk_parallel_for(threads, 3, note_order, order);
    assert_int_equal(order[1], 2);
    assert_int_equal(order[2], 1);
    assert_int_equal(order[3], 0);
    assert_int_equal(calls, 1);
    assert_true(each_index_once(threads, MOST));
    assert_int_equal(calls, 2);
    /* One task, or a loop inside a task, does not enter. */
    atomic_int leaves = 0;
    ejk_parallel_for(threads, 1, count_hit, &leaves);
    assert_int_equal(calls, 2);
    ejk_parallel_for(threads, 2, descend, &(struct nest){threads, 1, &leaves});
    assert_int_equal(calls, 3);
    assert_int_equal(leaves, 1 + 2 * 5);
    ejk_threads_destroy(threads);

    assert_int_equal(ejk_threads_wrap(backwards, &calls, 1, &threads), EJK_OK);
    assert_true(each_index_once(threads, 7));
    assert_int_equal(calls, 3);
    ejk_threads_destroy(threads);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    ejk_threads *untouched = (ejk_threads *)state, *out = untouched;
    const int32_t wrong[] = {-1, INT32_MIN, 1025, INT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char value[16];
        snprintf(value, sizeof value, "%d", wrong[i]);
        assert_int_equal(ejk_threads_create(wrong[i], &out), EJK_STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(ejk_last_error(), value));
        assert_int_equal(ejk_threads_wrap(backwards, NULL, wrong[i], &out),
                         EJK_STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(ejk_last_error(), value));
    }
    assert_int_equal(ejk_threads_wrap(backwards, NULL, 0, &out), EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(ejk_threads_wrap(NULL, NULL, 2, &out), EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(ejk_threads_create(2, NULL), EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(ejk_threads_wrap(backwards, NULL, 2, NULL), EJK_STATUS_INVALID_ARGUMENT);
    assert_ptr_equal(out, untouched);
    ejk_threads_destroy(NULL);
}

struct wish {
    const char *text;
    int32_t expected; /* 0: the CPU set's */
};

static int32_t cpus_of_set(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

static bool wish_is_answered(const void *wish_) {
    const struct wish *wish = wish_;
    setenv("EJKERNEL_NUM_THREADS", wish->text, 1);
    ejk_threads *threads = pool_of(0);
    int32_t expected = wish->expected ? wish->expected : cpus_of_set(),
            count = ejk_threads_count(threads);
    ejk_threads_destroy(threads);
    return ejk_threads_default() == expected && count == expected;
}

static void the_environment_sets_the_default(void **state) {
    (void)state;
    const struct wish wishes[] = {
        {"1", 1},       {"7", 7},       {"007", 7},
        {"1024", 1024}, {"1025", 1024}, {"99999999999999999999", 1024},
        {"", 0},        {"0", 0},       {"-3", 0},
        {"+3", 0},      {" 3", 0},      {"3 ", 0},
        {"3x", 0},      {"0x3", 0},     {"3.0", 0},
        {"three", 0},
    };
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++)
        if (!holds_in_child(wish_is_answered, &wishes[i])) fail_msg("at '%s'", wishes[i].text);
}

/* Keeps this process to the first of the CPUs that it may use. */
static bool stay_on_one_cpu(void) {
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return false;
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &all)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

static bool one_cpu_means_one_thread(const void *unused) {
    (void)unused;
    unsetenv("EJKERNEL_NUM_THREADS");
    cpu_set_t all;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return false;
    if (ejk_threads_default() != CPU_COUNT(&all)) return false;
    return stay_on_one_cpu() && ejk_threads_default() == 1;
}

static void the_default_follows_the_cpu_set(void **state) {
    (void)state;
    assert_true(holds_in_child(one_cpu_means_one_thread, NULL));
}

static bool threads_share_one_cpu(const void *unused) {
    (void)unused;
    ejk_threads *threads = stay_on_one_cpu() ? pool_of(3) : NULL;
    for (int i = 0; threads && i < 100; i++)
        if (!each_index_once(threads, 63)) return false;
    ejk_threads_destroy(threads);
    return threads != NULL;
}

static void more_threads_than_cpus_share_them(void **state) {
    (void)state;
    assert_true(holds_in_child(threads_share_one_cpu, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unused_pool_costs_nothing),
        cmocka_unit_test(without_threads_the_loop_runs_here),
        cmocka_unit_test(nested_loops_run_on_their_task),
        cmocka_unit_test(two_pools_may_nest_in_both_orders),
        cmocka_unit_test(the_environment_sets_the_default),
        cmocka_unit_test(the_default_follows_the_cpu_set),
        cmocka_unit_test(more_threads_than_cpus_share_them),
        cmocka_unit_test(every_index_comes_once),
        cmocka_unit_test(a_pool_runs_at_once),
        cmocka_unit_test(pools_start_anew_after_a_fork),
        cmocka_unit_test(forks_while_a_pool_starts),
        cmocka_unit_test(applications_threads_share_a_pool),
        cmocka_unit_test(a_callers_loop_takes_the_place_of_a_pool),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
