/* SPDX-License-Identifier: Apache-2.0 */
/* Batches with a configuration chosen once: any axes, in turn and side by side, against single calls. */
#include "support/expect.h"
#include "support/toy.h"

#include <stdatomic.h>
#include <string.h>

enum { B = 5, N = 3, M = 4 };

static ejk_context *context;
static ejk_executor *executor;
static _Atomic(int) choices;

static ejk_status choose(void *self, const ejk_invocation *invocation, void *config,
                         ejk_choice_step *step) {
    (void)self;
    choices++;
    *step = EJK_CHOICE_HEURISTICS;
    return ejk_invocation_heuristics(invocation, config);
}

static int setup(void **state) {
    (void)state;
    static const ejk_config_chooser chooser = {.choose = choose};
    context = toy_context(&(ejk_context_options){.threads = 3});
    EXPECT_OK(
        ejk_executor_create(context, &(ejk_executor_options){.chooser = &chooser}, &executor));
    choices = 0;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ejk_executor_destroy(executor);
    ejk_context_destroy(context);
    return 0;
}

typedef ejk_status (*map_fn)(ejk_executor *, const ejk_kernel *, const void *,
                             const ejk_batch_axes *, const ejk_call_options *);
static const map_fn maps[] = {ejk_vmap_with_config, ejk_pmap_with_config};

static ejk_tensor cube(float *data, int64_t a, int64_t b, int64_t c) {
    return ejk_tensor_3d(data, EJK_DTYPE_F32, a, b, c);
}

static void test_first_axis(void **state) {
    (void)state;
    for (int m = 0; m < 2; m++) {
        float x[B * N * M], y[B * N * M];
        for (int i = 0; i < B * N * M; i++) x[i] = (float)(i * (m + 1));
        memset(y, 0, sizeof y);
        const toy_args args = {
            .x = cube(x, B, N, M), .y = cube(y, B, N, M), .factor = 3, .shift = ejk_int(1)};
        choices = 0;
        EXPECT_OK(maps[m](executor, &toy_kernel, &args, NULL, NULL));
        for (int i = 0; i < B * N * M; i++) assert_true(y[i] == 3 * x[i] + 1);
        assert_int_equal(choices, 1);
    }
}

/* The batch in the middle of x and at the end of y: y is read through a transposed view. */
static void test_other_axes(void **state) {
    (void)state;
    for (int m = 0; m < 2; m++) {
        float x[N * B * M], y[B * N * M];
        for (int i = 0; i < N * B * M; i++) x[i] = (float)i - 7;
        memset(y, 0, sizeof y);
        /* [N, M, B] with the last axis but one contiguous. */
        ejk_tensor out = cube(y, B, N, M);
        out = ejk_tensor_transpose(ejk_tensor_transpose(out, 0, 1), 1, 2);
        const toy_args args = {.x = cube(x, N, B, M), .y = out, .factor = 2};
        const ejk_batch_axis axes[] = {{.field = "x", .axis = 1}, {.field = "y", .axis = -1}};
        EXPECT_OK(maps[m](executor, &toy_kernel, &args, &(ejk_batch_axes){axes, 2}, NULL));
        for (int b = 0; b < B; b++)
            for (int n = 0; n < N; n++)
                for (int k = 0; k < M; k++)
                    assert_true(y[(b * N + n) * M + k] == 2 * x[(n * B + b) * M + k]);
    }
}

static void test_whole_inputs(void **state) {
    (void)state;
    for (int m = 0; m < 2; m++) {
        float x[N * M], y[B * N * M];
        for (int i = 0; i < N * M; i++) x[i] = (float)i;
        const toy_args args = {
            .x = ejk_tensor_2d(x, EJK_DTYPE_F32, N, M), .y = cube(y, B, N, M), .factor = 2};
        const ejk_batch_axis whole = {.field = "x", .whole = true};
        EXPECT_OK(maps[m](executor, &toy_kernel, &args, &(ejk_batch_axes){&whole, 1}, NULL));
        for (int i = 0; i < B * N * M; i++) assert_true(y[i] == 2 * x[i % (N * M)]);
    }
}

static void test_empty(void **state) {
    (void)state;
    float x[1] = {0}, y[1] = {7};
    const toy_args args = {.x = cube(x, 0, N, M), .y = cube(y, 0, N, M), .factor = 2};
    for (int m = 0; m < 2; m++) EXPECT_OK(maps[m](executor, &toy_kernel, &args, NULL, NULL));
    assert_true(y[0] == 7);
}

static void test_refusals(void **state) {
    (void)state;
    float x[B * N * M] = {0}, y[B * N * M];
    memset(y, 0x7f, sizeof y);
    const toy_args args = {.x = cube(x, B, N, M), .y = cube(y, B, N, M), .factor = 2};
    for (int m = 0; m < 2; m++) {
        ejk_batch_axis axis = {.field = "colour"};
        const ejk_batch_axes axes = {&axis, 1};
        EXPECT_FAIL(UNKNOWN_NAME, "colour", maps[m](executor, &toy_kernel, &args, &axes, NULL));
        axis.field = "factor";
        EXPECT_FAIL(UNKNOWN_NAME, "factor", maps[m](executor, &toy_kernel, &args, &axes, NULL));
        axis = (ejk_batch_axis){.field = "x", .axis = 3};
        EXPECT_FAIL(INVALID_SHAPE, "batch axis 3",
                    maps[m](executor, &toy_kernel, &args, &axes, NULL));
        axis.axis = -4;
        EXPECT_FAIL(INVALID_SHAPE, "batch axis -4",
                    maps[m](executor, &toy_kernel, &args, &axes, NULL));
        axis.axis = 1;
        EXPECT_FAIL(INVALID_SHAPE, "batch axis of length 5, expected 3",
                    maps[m](executor, &toy_kernel, &args, &axes, NULL));
        axis = (ejk_batch_axis){.field = "y", .whole = true};
        EXPECT_FAIL(INVALID_ARGUMENT, "y is a result",
                    maps[m](executor, &toy_kernel, &args, &axes, NULL));
        EXPECT_FAIL(INVALID_ARGUMENT, "kernel", maps[m](executor, NULL, &args, NULL, NULL));
        toy_args wrong = args;
        wrong.cfg.params.rows = ejk_int(7);
        EXPECT_FAIL(INVALID_ARGUMENT, "rows is 7",
                    maps[m](executor, &toy_kernel, &wrong, NULL, NULL));
    }
    for (size_t i = 0; i < sizeof y; i++) assert_int_equal(((unsigned char *)y)[i], 0x7f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_first_axis), TEST(test_other_axes), TEST(test_whole_inputs),
        TEST(test_empty),      TEST(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
