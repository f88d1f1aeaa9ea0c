/* SPDX-License-Identifier: Apache-2.0 */
/* Calls by way of the context: plans found again, given up, used by many threads at once. */
#include "support/child.h"
#include "support/expect.h"
#include "support/toy.h"

#include "ops/core/core.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef COUNTS_ALLOCATIONS
#define COUNTS_ALLOCATIONS 1
#endif

#if COUNTS_ALLOCATIONS
/* In front of the C library's own: every allocation of the process is counted. */
static atomic_int allocations;
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
    allocations++;
    return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
    allocations++;
    return __libc_calloc(count, size);
}
void *realloc(void *old, size_t size) {
    allocations++;
    return __libc_realloc(old, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
    allocations++;
    return __libc_memalign(alignment, size);
}
int posix_memalign(void **out, size_t alignment, size_t size) {
    allocations++;
    *out = __libc_memalign(alignment, size);
    return *out == NULL;
}
#endif

enum { MOST = 300 };

static ejk_context *context;
static atomic_int events;

static void count_event(void *user, const char *event, const char *fields) {
    assert_ptr_equal(user, &events);
    if (strcmp(event, "heuristics") == 0) return; /* the choice before each plan */
    assert_string_equal(event, "plan_created");
    assert_non_null(strstr(fields, "\"op\":\"toy\""));
    events++;
}

static int setup(void **state) {
    (void)state;
    events = 0;
    context =
        toy_context(&(ejk_context_options){.on_event = count_event, .on_event_user = &events});
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

/* A call whose signature is its own for each of `which`, by the shape or by a value. True if it is right. */
static bool call_one(int which) {
    float x[2 * MOST], y[2 * MOST];
    int64_t length = which % 2 ? which + 1 : 8;
    for (int64_t i = 0; i < length; i++) {
        x[i] = (float)(i + which);
        y[i] = -1;
    }
    toy_args args = toy_call(x, y, length, 1);
    if (which % 2 == 0) args.shift = ejk_int(which);
    if (ejk_call(context, &toy_kernel, &args) != EJK_OK) return false;
    for (int64_t i = 0; i < length; i++)
        if (y[i] != 2 * x[i] + (float)args.shift.value) return false;
    return true;
}

static void test_plans_are_found_again(void **state) {
    (void)state;
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 40; i++) assert_true(call_one(i));
    assert_int_equal(events, 40);
}

static void test_more_signatures_than_slots(void **state) {
    (void)state;
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < MOST; i++) assert_true(call_one(i));
    assert_true(events > MOST); /* some had to give way and were made again */
}

/* One that is used again and again stays, whatever else comes and goes. */
static void test_what_is_used_stays(void **state) {
    (void)state;
    int made = 0;
    for (int i = 1; i < MOST; i++) {
        assert_true(call_one(i));
        int before = events;
        assert_true(call_one(0));
        made += events - before;
    }
    assert_int_equal(made, 1);
}

static void *call_all(void *argument) {
    int start = *(const int *)argument;
    for (int i = 0; i < 4 * MOST; i++)
        if (!call_one((start + i * 7) % MOST)) return argument;
    return NULL;
}

static void test_many_threads(void **state) {
    (void)state;
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    int starts[THREADS];
    for (int t = 0; t < THREADS; t++) {
        starts[t] = t * 3;
        assert_int_equal(pthread_create(&threads[t], NULL, call_all, &starts[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        void *wrong;
        pthread_join(threads[t], &wrong);
        assert_null(wrong);
    }
}

/* Every run starts the next call: at the end more calls are under way than plans can be kept. */
static int depth;
static void call_next(const ejk_run *run) {
    (void)run;
    if (depth < MOST - 1) assert_true(call_one(++depth));
}

static void test_all_slots_in_use(void **state) {
    (void)state;
    depth = 0;
    toy_during = call_next;
    assert_true(call_one(0));
    assert_int_equal(depth, MOST - 1);
    toy_during = NULL;
    for (int i = 0; i < MOST; i++) assert_true(call_one(i));
}

static void test_warm_calls_do_not_allocate(void **state) {
    (void)state;
#if COUNTS_ALLOCATIONS
    float x[12], y[12] = {0};
    for (int i = 0; i < 12; i++) x[i] = (float)i;
    toy_args args = toy_call(x, y, 4, 3), wide = toy_call(x, y, 3, 4);
    ejk_plan *plan;
    EXPECT_OK(ejk_plan_create(context, &toy_kernel, &args, &plan));
    int before = allocations;
    assert_true(before > 0); /* the counting works */
    for (int i = 0; i < 100; i++) EXPECT_OK(ejk_plan_execute(plan, &args, NULL, 0));
    assert_int_equal(allocations - before, 0);
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    EXPECT_OK(ejk_call(context, &toy_kernel, &wide)); /* may start the pool's threads */
    before = allocations;
    for (int i = 0; i < 100; i++) {
        EXPECT_OK(ejk_call(context, &toy_kernel, &args));
        EXPECT_OK(ejk_call(context, &toy_kernel, &wide));
    }
    assert_int_equal(allocations - before, 0);
    ejk_plan_destroy(plan);
#else
    skip();
#endif
}

/* The library's own kernels come first; the toy is the one after them. */
static int at_work;
static void note_workers(const ejk_run *run) {
    at_work = run->workers;
}

/* A call of 2 workers by a plan that is there already, and one whose plan is made. */
static bool calls_of_two_workers(const void *context_) {
    ejk_context *two = (ejk_context *)(uintptr_t)context_;
    for (int64_t n = 3; n <= 4; n++) {
        float x[16] = {1, 2, 3}, y[16] = {0};
        toy_args args = toy_call(x, y, n, 4);
        at_work = 0;
        if (ejk_call(two, &toy_kernel, &args) != EJK_OK || at_work != 2) return false;
        for (int i = 0; i < 4 * n; i++)
            if (y[i] != 2 * x[i]) return false;
    }
    return true;
}

static bool the_context_ends(const void *context_) {
    ejk_context_destroy((ejk_context *)(uintptr_t)context_);
    return true;
}

static bool a_child_calls_and_ends(const void *two) {
    return calls_of_two_workers(two) && the_context_ends(two);
}

/* Before the fork the context's threads have run: a child has none of them. */
static void test_calls_after_a_fork(void **state) {
    (void)state;
    if (!THREADS_AFTER_FORK) skip();
    ejk_context *two = toy_context(&(ejk_context_options){.threads = 2});
    toy_during = note_workers;
    assert_true(calls_of_two_workers(two));
    assert_true(holds_in_child(a_child_calls_and_ends, two));
    assert_true(holds_in_child(the_context_ends, two));
    assert_true(calls_of_two_workers(two));
    ejk_context_destroy(two);
    toy_during = NULL;
}

static int32_t last_kernel(void) {
    int32_t index = 0;
    while (ejk_context_kernel(context, index + 1)) index++;
    return index;
}

static void test_kernels_by_name(void **state) {
    (void)state;
    const ejk_kernel *found = NULL;
    EXPECT_OK(ejk_context_find_kernel(context, "toy", &found));
    assert_ptr_equal(found, &toy_kernel);
    EXPECT_OK(ejk_context_find_kernel(context, "flash_attention", &found));
    assert_ptr_equal(found, &ejk_flash_attention_kernel);
    assert_ptr_equal(ejk_context_kernel(context, 0), &ejk_attention_kernel);
    assert_ptr_equal(ejk_context_kernel(context, last_kernel()), &toy_kernel);
    assert_null(ejk_context_kernel(context, last_kernel() + 1));
    assert_null(ejk_context_kernel(context, -1));
    EXPECT_FAIL(UNAVAILABLE, "ring_attention is not in this version, these are: attention, ",
                ejk_context_find_kernel(context, "ring_attention", &found));
    EXPECT_FAIL(UNKNOWN_NAME, "'toys' is no operation; these exist: attention, ",
                ejk_context_find_kernel(context, "toys", &found));
    EXPECT_FAIL(INVALID_ARGUMENT, "op_id", ejk_context_find_kernel(context, NULL, &found));
    assert_ptr_equal(found, &ejk_flash_attention_kernel);
    EXPECT_FAIL(INVALID_ARGUMENT, "taken", ejk_context_add_kernel(context, &toy_kernel));
}

static void test_bad_kernels(void **state) {
    (void)state;
    const int32_t last = last_kernel();
    ejk_kernel kernel = toy_kernel;
    kernel.op_id = "";
    EXPECT_FAIL(INVALID_ARGUMENT, "op_id", ejk_context_add_kernel(context, &kernel));
    kernel = toy_kernel;
    kernel.op_id = "other";
    kernel.args = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_context_add_kernel(context, &kernel));
    kernel.args = toy_kernel.args;
    kernel.problem_size = EJK_MAX_PROBLEM_SIZE + 1;
    EXPECT_FAIL(INVALID_ARGUMENT, "4097", ejk_context_add_kernel(context, &kernel));
    kernel.problem_size = toy_kernel.problem_size;
    kernel.bind = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "bind", ejk_context_add_kernel(context, &kernel));
    kernel.bind = toy_kernel.bind;
    kernel.input_option_count = 1;
    EXPECT_FAIL(INVALID_ARGUMENT, "input_options", ejk_context_add_kernel(context, &kernel));
    kernel.input_option_count = 0;
    kernel.config_field = "x";
    EXPECT_FAIL(INVALID_ARGUMENT, "config_field", ejk_context_add_kernel(context, &kernel));
    kernel.config_field = "cfg";
    kernel.parameters_field = "backend";
    EXPECT_FAIL(INVALID_ARGUMENT, "parameters_field", ejk_context_add_kernel(context, &kernel));
    float x[1] = {1}, y[1] = {-1};
    toy_args args = toy_call(x, y, 1, 1);
    EXPECT_FAIL(INVALID_ARGUMENT, "parameters_field", ejk_call(context, &kernel, &args));
    assert_true(y[0] == -1);
    assert_int_equal(last_kernel(), last);
}

static void test_options(void **state) {
    (void)state;
    ejk_context *other = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "-1",
                ejk_context_create(&(ejk_context_options){.threads = -1}, &other));
    EXPECT_FAIL(UNKNOWN_NAME, "sse9",
                ejk_context_create(&(ejk_context_options){.isa = "sse9"}, &other));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_context_create(NULL, NULL));
#if defined(__x86_64__)
    EXPECT_FAIL(UNAVAILABLE, "neon",
                ejk_context_create(&(ejk_context_options){.isa = "neon"}, &other));
#endif
    assert_null(other);
    EXPECT_OK(ejk_context_create(&(ejk_context_options){.isa = "scalar", .threads = 2}, &other));
    assert_int_equal(ejk_context_isa(other), EJK_ISA_SCALAR);
    assert_int_equal(ejk_threads_count(ejk_context_threads(other)), 2);
    ejk_context_destroy(other);
    ejk_context_destroy(NULL);
}

/* What this version has is not promised for a later one. */
static void test_later_operations(void **state) {
    (void)state;
    int32_t count;
    const char *const *later = ejki_later_operations(&count);
    const ejk_kernel *kernel;
    assert_true(count > 0);
    for (int32_t i = 0; i < count; i++)
        EXPECT_FAIL(UNAVAILABLE, "is not in this version",
                    ejk_context_find_kernel(context, later[i], &kernel));
    EXPECT_OK(ejk_context_find_kernel(context, "attention_merge", &kernel));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_plans_are_found_again),
        TEST(test_later_operations),
        TEST(test_more_signatures_than_slots),
        TEST(test_what_is_used_stays),
        TEST(test_many_threads),
        TEST(test_all_slots_in_use),
        TEST(test_calls_after_a_fork),
        TEST(test_warm_calls_do_not_allocate),
        TEST(test_kernels_by_name),
        TEST(test_bad_kernels),
        TEST(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
