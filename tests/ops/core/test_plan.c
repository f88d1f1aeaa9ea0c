/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: made once, executed often, refused when a call is another one. */
#include "ops/core/core.h"
#include "support/expect.h"
#include "support/sample_record.h"
#include "support/toy.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 5, M = 3, COUNT = N * M };

static float x[COUNT], y[COUNT], z[COUNT];
static ejk_context *context;

static int setup(void **state) {
    (void)state;
    context = toy_context(NULL);
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(i + 1);
        y[i] = z[i] = -1;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

static ejk_plan *plan_of(const toy_args *args) {
    ejk_plan *plan = NULL;
    EXPECT_OK(ejk_plan_create(context, &toy_kernel, args, &plan));
    return plan;
}

static void expect_doubled(const float *result) {
    for (int i = 0; i < COUNT; i++) assert_true(result[i] == 2 * x[i]);
}

static void expect_untouched(void) {
    for (int i = 0; i < COUNT; i++) assert_true(y[i] == -1 && z[i] == -1);
}

static void test_life(void **state) {
    (void)state;
    toy_args args = toy_call(NULL, NULL, N, M); /* pointers come later */
    ejk_plan *plan = plan_of(&args);
    assert_ptr_equal(ejk_plan_kernel(plan), &toy_kernel);
    assert_string_equal(ejk_plan_implementation(plan)->name, "f32/plain");
    assert_int_equal(ejk_plan_workers(plan), 1);
    assert_int_equal(ejk_plan_workspace(plan), TOY_WORKSPACE);
    assert_true(ejk_plan_cost(plan).flops == 2 * COUNT && ejk_plan_cost(plan).bytes == 8 * COUNT);
    args = toy_call(x, y, N, M);
    EXPECT_OK(ejk_plan_execute(plan, &args, NULL, 0));
    expect_doubled(y);
    args = toy_call(x, z, N, M);
    EXPECT_OK(ejk_plan_execute(plan, &args, NULL, 0));
    expect_doubled(z);
    ejk_plan_destroy(plan);
    ejk_plan_destroy(NULL);
}

static void test_null_arguments(void **state) {
    (void)state;
    toy_args args = toy_call(x, y, N, M);
    ejk_plan *plan = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "context", ejk_plan_create(NULL, &toy_kernel, &args, &plan));
    EXPECT_FAIL(INVALID_ARGUMENT, "kernel", ejk_plan_create(context, NULL, &args, &plan));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_plan_create(context, &toy_kernel, NULL, &plan));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_plan_create(context, &toy_kernel, &args, NULL));
    assert_null(plan);
    EXPECT_FAIL(INVALID_ARGUMENT, "plan", ejk_plan_execute(NULL, &args, NULL, 0));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_call(context, &toy_kernel, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "kernel", ejk_call(context, NULL, &args));
    EXPECT_FAIL(INVALID_ARGUMENT, "context", ejk_call(NULL, &toy_kernel, &args));
    plan = plan_of(&args);
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_plan_execute(plan, NULL, NULL, 0));
    args.x.data = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "x has elements", ejk_plan_execute(plan, &args, NULL, 0));
    ejk_plan_destroy(plan);
    assert_null(ejk_plan_kernel(NULL));
    assert_null(ejk_plan_implementation(NULL));
    assert_int_equal(ejk_plan_workspace(NULL), 0);
    expect_untouched();
}

static const void *workspace_seen;
static void note_workspace(const ejk_run *run) {
    workspace_seen = run->workspace;
}

static void test_workspace(void **state) {
    (void)state;
    alignas(64) char memory[TOY_WORKSPACE + 64];
    toy_args args = toy_call(x, y, N, M);
    ejk_plan *plan = plan_of(&args);
    toy_during = note_workspace;
    EXPECT_FAIL(WORKSPACE_TOO_SMALL, "191",
                ejk_plan_execute(plan, &args, memory, TOY_WORKSPACE - 1));
    EXPECT_FAIL(INVALID_LAYOUT, "aligned to 64",
                ejk_plan_execute(plan, &args, memory + 32, TOY_WORKSPACE));
    expect_untouched();
    EXPECT_OK(ejk_plan_execute(plan, &args, memory, TOY_WORKSPACE));
    assert_ptr_equal(workspace_seen, memory);
    expect_doubled(y);
    ejk_plan_destroy(plan);
}

static void test_signature(void **state) {
    (void)state;
    toy_args args = toy_call(x, y, N, M), other = args;
    args.factor = 0;
    ejk_plan *plan = plan_of(&args);
    other = args;
    other.x = ejk_tensor_2d(x, EJK_DTYPE_F32, N - 1, M);
    EXPECT_FAIL(INVALID_ARGUMENT, "x is not what", ejk_plan_execute(plan, &other, NULL, 0));
    EXPECT_FAIL(INVALID_ARGUMENT, "\"shape\":[4,3]", ejk_plan_execute(plan, &other, NULL, 0));
    other = args;
    other.y.strides[0]++;
    EXPECT_FAIL(INVALID_ARGUMENT, "y is not what", ejk_plan_execute(plan, &other, NULL, 0));
    other = args;
    other.z = args.y;
    EXPECT_FAIL(INVALID_ARGUMENT, "z is not what", ejk_plan_execute(plan, &other, NULL, 0));
    other = args;
    other.factor = 1.5;
    EXPECT_FAIL(INVALID_ARGUMENT, "factor", ejk_plan_execute(plan, &other, NULL, 0));
    EXPECT_FAIL(INVALID_ARGUMENT, "1.5", ejk_plan_execute(plan, &other, NULL, 0));
    other = args;
    other.shift = ejk_int(0);
    EXPECT_FAIL(INVALID_ARGUMENT, "shift", ejk_plan_execute(plan, &other, NULL, 0));
    other = args;
    other.flag = EJK_TRUE;
    EXPECT_FAIL(INVALID_ARGUMENT, "flag", ejk_plan_execute(plan, &other, NULL, 0));
    other = args;
    strcpy(other.platform, "reference");
    EXPECT_FAIL(INVALID_ARGUMENT, "platform", ejk_plan_execute(plan, &other, NULL, 0));
    other = args;
    other.cfg.params.columns = ejk_int(1);
    EXPECT_FAIL(INVALID_ARGUMENT, "columns", ejk_plan_execute(plan, &other, NULL, 0));
    expect_untouched();
    ejk_plan_destroy(plan);
}

/* On every tier: a call fits its plan's blocks of bytes if and only if their records agree. */
static void test_every_byte_of_a_signature(void **state) {
    (void)state;
    static const ejk_isa tiers[] = {EJK_ISA_SCALAR, EJK_ISA_AVX2, EJK_ISA_AVX512};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        if (tiers[i] != EJK_ISA_SCALAR && !ejk_cpu()->tiers[tiers[i]]) continue;
        ejk_context *capped = toy_context(&(ejk_context_options){.isa = ejk_isa_name(tiers[i])});
        toy_args args = toy_call(x, y, N, M), other;
        args.shift = ejk_int(3);
        strcpy(args.cfg.platform, "reference");
        ejk_plan *plan = NULL;
        EXPECT_OK(ejk_plan_create(capped, &toy_kernel, &args, &plan));
        assert_true(ejki_plan_fits_exactly(plan, &args));
        int differences = 0;
        for (size_t byte = 0; byte < sizeof args; byte++) {
            other = args;
            ((unsigned char *)&other)[byte] ^= 1;
            const bool same = ejk_record_same_signature(&toy_args_record, &args, &other);
            if (ejki_plan_fits_exactly(plan, &other) != same)
                fail_msg("%s: byte %zu", ejk_isa_name(tiers[i]), byte);
            differences += !same;
        }
        assert_true(differences > 100);
        ejk_plan_destroy(plan);
        ejk_context_destroy(capped);
    }
}

/* The same of a record with every kind of field. A flipped sign of zero is left to the record. */
static void test_every_kind_in_a_signature(void **state) {
    (void)state;
    sample args = full_sample(), other;
    ejki_signature signature;
    args.softmax_scale.value = 2;
    EXPECT_OK(ejki_signature_create(&sample_record, &args, EJK_ISA_SCALAR, &signature));
    assert_true(signature.fits(&signature, &args));
    for (size_t byte = 0; byte < sizeof args; byte++) {
        other = args;
        ((unsigned char *)&other)[byte] ^= 1;
        if (signature.fits(&signature, &other) !=
            ejk_record_same_signature(&sample_record, &args, &other))
            fail_msg("byte %zu", byte);
    }
    free(signature.blocks);
}

/* What does not count must not keep a call from its plan. */
static void test_same_signature(void **state) {
    (void)state;
    toy_args args = toy_call(x, y, N, M);
    args.factor = 0;
    ejk_plan *plan = plan_of(&args);
    toy_args other;
    memset(&other, 0x5a, sizeof other); /* padding, unset values, what lies behind a rank */
    memcpy(&other.x, &args.x, sizeof other.x);
    memcpy(&other.y, &args.y, sizeof other.y);
    other.x.shape[5] = other.y.strides[7] = 77;
    other.z.dtype = EJK_DTYPE_UNSET;
    other.factor = -0.0;
    other.shift.set = other.cfg.params.rows.set = other.cfg.params.columns.set = false;
    other.flag = EJK_UNSET;
    other.platform[0] = other.cfg.platform[0] = other.cfg.backend[0] = '\0';
    EXPECT_OK(ejk_plan_execute(plan, &other, NULL, 0));
    assert_true(y[0] == 0 && y[COUNT - 1] == 0);
    ejk_plan_destroy(plan);
}

static void test_values_no_field_can_have(void **state) {
    (void)state;
    ejk_plan *plan = NULL;
    toy_args args = toy_call(x, y, N, M);
    memset(args.platform, 'a', sizeof args.platform);
    EXPECT_FAIL(INVALID_ARGUMENT, "platform", ejk_plan_create(context, &toy_kernel, &args, &plan));
    args = toy_call(x, y, N, M);
    memset(args.cfg.backend, 'a', sizeof args.cfg.backend);
    EXPECT_FAIL(INVALID_ARGUMENT, "backend", ejk_plan_create(context, &toy_kernel, &args, &plan));
    args = toy_call(x, y, N, M);
    args.flag = (ejk_opt_bool)3;
    EXPECT_FAIL(INVALID_ARGUMENT, "flag", ejk_plan_create(context, &toy_kernel, &args, &plan));
    args = toy_call(x, y, N, M);
    memset(&args.shift.set, 7, 1);
    EXPECT_FAIL(INVALID_ARGUMENT, "shift", ejk_plan_create(context, &toy_kernel, &args, &plan));
    assert_null(plan);
}

static void test_parameters(void **state) {
    (void)state;
    static const struct {
        ejk_opt_int given, advice;
        const char *text;
    } cases[] = {
        {{0, false},
         {0, false},
         "\"parameters\":{\"rows\":16},\"chosen_by\":{\"rows\":\"default\"}"},
        {{0, false}, {24, true}, "{\"rows\":24},\"chosen_by\":{\"rows\":\"heuristics\"}"},
        {{0, false}, {25, true}, "{\"rows\":16},\"chosen_by\":{\"rows\":\"default\"}"},
        {{64, true}, {24, true}, "{\"rows\":64},\"chosen_by\":{\"rows\":\"override\"}"},
    };
    toy_args args = toy_call(x, y, N, M);
    args.cfg.params.columns = ejk_int(-5); /* nobody takes it */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        args.cfg.params.rows = cases[i].given;
        toy_advice = cases[i].advice;
        ejk_plan *plan = plan_of(&args);
        char *text;
        EXPECT_OK(ejk_plan_describe(plan, &text));
        if (!strstr(text, cases[i].text)) fail_msg("%s in %s", cases[i].text, text);
        ejk_free(text);
        ejk_plan_destroy(plan);
    }
    static const int64_t refused[] = {0, 7, 20, 72, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ejk_plan *plan = NULL;
        char value[80];
        snprintf(value, sizeof value, "rows is %lld, expected 8 to 64 in steps of 8",
                 (long long)refused[i]);
        args.cfg.params.rows = ejk_int(refused[i]);
        EXPECT_FAIL(INVALID_ARGUMENT, value, ejk_plan_create(context, &toy_kernel, &args, &plan));
        EXPECT_FAIL(INVALID_ARGUMENT, value, ejk_call(context, &toy_kernel, &args));
    }
    expect_untouched();
}

static void test_selection(void **state) {
    (void)state;
    toy_args args = toy_call(x, y, N, M);
    strcpy(args.cfg.platform, "simd");
    EXPECT_FAIL(UNAVAILABLE, "these exist: reference", ejk_call(context, &toy_kernel, &args));
    strcpy(args.platform, "reference"); /* comes before that of cfg */
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    expect_doubled(y);
    strcpy(args.cfg.backend, "tpu");
    EXPECT_FAIL(UNAVAILABLE, "tpu", ejk_call(context, &toy_kernel, &args));
    strcpy(args.cfg.backend, "abacus");
    EXPECT_FAIL(UNKNOWN_NAME, "abacus", ejk_call(context, &toy_kernel, &args));
    double wide[2] = {1, 2}, result[2] = {-1, -1};
    args = (toy_args){.x = ejk_tensor_2d(wide, EJK_DTYPE_F64, 1, 2),
                      .y = ejk_tensor_2d(result, EJK_DTYPE_F64, 1, 2)};
    EXPECT_FAIL(UNAVAILABLE, "float64", ejk_call(context, &toy_kernel, &args));
    assert_true(result[0] == -1);
}

static void test_description(void **state) {
    (void)state;
    toy_args args = toy_call(x, y, N, M);
    ejk_plan *plan = plan_of(&args);
    char *text;
    EXPECT_OK(ejk_plan_describe(plan, &text));
    assert_string_equal(
        text,
        "{\"op\":\"toy\",\"version\":\"0\",\"implementation\":\"f32/plain\","
        "\"platform\":\"reference\",\"backend\":\"cpu\",\"isa\":\"scalar\","
        "\"dtype\":\"float32\",\"implementation_version\":3,"
        "\"step\":\"heuristics\",\"parameters\":{\"rows\":16},\"chosen_by\":{\"rows\":\"default\"},"
        "\"workers\":1,\"workspace_bytes\":192,\"config\":{}}");
    ejk_free(text);
    ejk_plan_destroy(plan);
    EXPECT_FAIL(INVALID_ARGUMENT, "plan", ejk_plan_describe(NULL, &text));
}

/* What bindings are generated from: places of fields, and what is NULL as "". */
static void test_description_of_a_kernel(void **state) {
    (void)state;
    char *text = NULL, expected[128];
    EXPECT_OK(ejk_kernel_describe(&toy_kernel, &text));
    snprintf(expected, sizeof expected, "\"name\":\"y\",\"kind\":\"TENSOR\",\"role\":");
    if (!strstr(text, expected)) fail_msg("%s in %s", expected, text);
    snprintf(expected, sizeof expected, "\"offset\":%zu,\"size\":%zu", offsetof(toy_args, cfg),
             sizeof((toy_args *)NULL)->cfg);
    if (!strstr(text, expected)) fail_msg("%s in %s", expected, text);
    if (!strstr(text, "\"forward\":\"\"")) fail_msg("no forward in %s", text);
    ejk_free(text);
    EXPECT_FAIL(INVALID_ARGUMENT, "kernel", ejk_kernel_describe(NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_kernel_describe(&toy_kernel, NULL));
}

/* ---- Overlap ------------------------------------------------------------------------------------- */

static float buffer[256];

static ejk_tensor view(int64_t start, int64_t n, int64_t m, int64_t step) {
    ejk_tensor tensor = ejk_tensor_2d(buffer + start, EJK_DTYPE_F32, n, m);
    tensor.strides[0] = step;
    return tensor;
}

static void test_overlap(void **state) {
    (void)state;
    static const struct {
        const char *what;
        int64_t x, x_step, y, y_step;
        bool refused;
    } cases[] = {
        {"the same memory", 0, 4, 0, 4, true},
        {"one element shared", 0, 4, 19, 4, true},
        {"one after the other", 0, 4, 20, 4, false},
        {"one before the other", 20, 4, 0, 4, false},
        {"halves of one buffer", 0, 8, 4, 8, false},
        {"halves of one buffer, exchanged", 4, 8, 0, 8, false},
        {"slices that touch by one element", 0, 8, 3, 8, true},
        {"slices in rows far apart", 0, 8, 20, 8, false},
        {"slices in rows far apart that touch", 0, 8, 17, 8, true},
        {"one end of the row wraps into the next", 0, 8, 6, 8, true},
        {"rows of other length on the same grid", 0, 8, 4, 16, false},
        {"rows on no common grid", 0, 8, 4, 9, true},
        {"backwards", 132, -8, 100, 8, true},
        {"backwards, the other half", 128, -8, 100, 8, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        toy_args args = {.x = view(cases[i].x, 5, 4, cases[i].x_step),
                         .y = view(cases[i].y, 5, 4, cases[i].y_step)};
        ejk_status status = ejk_call(context, &toy_kernel, &args);
        if (status != (cases[i].refused ? EJK_STATUS_INVALID_LAYOUT : EJK_OK))
            fail_msg("%s: %s %s", cases[i].what, ejk_status_name(status), ejk_last_error());
        if (status != EJK_OK) assert_non_null(strstr(ejk_last_error(), "y overlaps x"));
    }
}

static void test_overlap_of_results(void **state) {
    (void)state;
    toy_args args = toy_call(x, y, N, M);
    args.z = args.y;
    EXPECT_FAIL(INVALID_LAYOUT, "y overlaps z", ejk_call(context, &toy_kernel, &args));
    args.z = ejk_tensor_2d(x, EJK_DTYPE_F32, N, M);
    EXPECT_FAIL(INVALID_LAYOUT, "z overlaps x", ejk_call(context, &toy_kernel, &args));
    expect_untouched();
    args.z = ejk_tensor_2d(z, EJK_DTYPE_F32, N, M);
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    expect_doubled(y);
    expect_doubled(z);
    args.y.strides[0] = 0;
    EXPECT_FAIL(INVALID_LAYOUT, "y is a result whose axis 0",
                ejk_call(context, &toy_kernel, &args));
    args.y.strides[0] = M - 1;
    EXPECT_FAIL(INVALID_LAYOUT, "y is a result whose axis 0",
                ejk_call(context, &toy_kernel, &args));
}

static int runs;
static void count_runs(const ejk_run *run) {
    (void)run;
    runs++;
}

static void test_nothing_to_do(void **state) {
    (void)state;
    toy_args args = toy_call(NULL, NULL, 0, M);
    toy_during = count_runs;
    runs = 0;
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    assert_int_equal(runs, 0);
    args = toy_call(x, y, N, M);
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    assert_int_equal(runs, 1);
}

/* ---- Threads --------------------------------------------------------------------------------------- */

enum { THREADS = 8 };

typedef struct thread_work {
    const ejk_plan *plan;
    float x[COUNT], y[COUNT];
    bool right;
} thread_work;

static void *execute_often(void *argument) {
    thread_work *work = argument;
    toy_args args = toy_call(work->x, work->y, N, M);
    work->right = true;
    for (int round = 0; round < 300; round++) {
        memset(work->y, 0, sizeof work->y);
        bool fine = ejk_plan_execute(work->plan, &args, NULL, 0) == EJK_OK;
        for (int i = 0; i < COUNT; i++) fine = fine && work->y[i] == 2 * work->x[i];
        work->right = work->right && fine;
    }
    return NULL;
}

static void test_one_plan_many_threads(void **state) {
    (void)state;
    toy_args args = toy_call(x, y, N, M);
    ejk_plan *plan = plan_of(&args);
    static thread_work work[THREADS];
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++) {
        work[t].plan = plan;
        for (int i = 0; i < COUNT; i++) work[t].x[i] = (float)(t * 100 + i);
        assert_int_equal(pthread_create(&threads[t], NULL, execute_often, &work[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        assert_true(work[t].right);
    }
    ejk_plan_destroy(plan);
}

static int loops;
static void loop_here(void *user, ejk_task_fn task, void *argument, int64_t count) {
    assert_ptr_equal(user, &loops);
    loops++;
    for (int64_t i = count; i-- > 0;) task(argument, i);
}

static void test_workers(void **state) {
    (void)state;
    ejk_context *own = toy_context(&(ejk_context_options){
        .threads = 3, .parallel_for = loop_here, .parallel_for_user = &loops});
    float wide_x[40], wide_y[40];
    for (int i = 0; i < 40; i++) wide_x[i] = (float)i;
    toy_args narrow = toy_call(x, y, N, M), wide = toy_call(wide_x, wide_y, 10, 4);
    loops = 0;
    EXPECT_OK(ejk_call(own, &toy_kernel, &narrow)); /* one worker: never enters the loop */
    assert_int_equal(loops, 0);
    ejk_plan *plan;
    EXPECT_OK(ejk_plan_create(own, &toy_kernel, &wide, &plan));
    assert_int_equal(ejk_plan_workers(plan), 3);
    EXPECT_OK(ejk_plan_execute(plan, &wide, NULL, 0));
    assert_int_equal(loops, 1);
    for (int i = 0; i < 40; i++) assert_true(wide_y[i] == 2 * wide_x[i]);
    ejk_plan_destroy(plan);
    ejk_context_destroy(own);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_life),
        TEST(test_null_arguments),
        TEST(test_workspace),
        TEST(test_signature),
        TEST(test_every_byte_of_a_signature),
        TEST(test_every_kind_in_a_signature),
        TEST(test_same_signature),
        TEST(test_values_no_field_can_have),
        TEST(test_parameters),
        TEST(test_selection),
        TEST(test_description),
        TEST(test_description_of_a_kernel),
        TEST(test_overlap),
        TEST(test_overlap_of_results),
        TEST(test_nothing_to_do),
        TEST(test_one_plan_many_threads),
        TEST(test_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
