/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons of tensors: what counts as close, what is reported, and the documented error ratio. */
#include "support/expect.h"
#include "support/random.h"

#include <ejkernel/numeric.h>
#include <math.h>
#include <stdlib.h>

static ejk_tensor f64s(double *values, int64_t count) {
    return ejk_tensor_1d(values, EJK_DTYPE_F64, count);
}

#define N ((double)NAN)
#define I ((double)INFINITY)

static void within_the_documented_tolerance(void **state) {
    (void)state;
    double expected[] = {1, 1000, 0, -1}, actual[] = {1 + 1e-5, 1000 - 0.01, 1e-8, -1 - 1e-5};
    ejk_tensor a = f64s(actual, 4), e = f64s(expected, 4);
    ejk_allclose_report report;
    EXPECT_OK(ejk_assert_allclose(&a, &e, NULL, &report));
    assert_int_equal(report.count, 4);
    assert_int_equal(report.mismatches, 0);
    assert_int_equal(report.worst[0], 1);
    assert_int_equal(report.worst[1], -1);
    EXPECT_NEAR(report.worst_difference, 0.01, 1e-12);
    assert_int_equal(report.first_mismatch[0], -1);
    assert_false(report.dtypes_differ);
    actual[2] = 1.1e-8;
    EXPECT_FAIL(MISMATCH, "1 of 4 elements", ejk_assert_allclose(&a, &e, NULL, NULL));
    /* Relative to what is expected, not to what is there. */
    double small[] = {1}, large[] = {2};
    ejk_tensor s = f64s(small, 1), l = f64s(large, 1);
    ejk_allclose_options half = {.rtol = ejk_float(0.5), .atol = ejk_float(0)};
    EXPECT_OK(ejk_assert_allclose(&s, &l, &half, NULL));
    EXPECT_FAIL(MISMATCH, "atol 0 + rtol 0.5", ejk_assert_allclose(&l, &s, &half, NULL));
}

static void the_worst_element_is_named(void **state) {
    (void)state;
    float expected[2][3] = {{1, 2, 3}, {4, 5, 6}}, actual[2][3] = {{1, 2.5f, 3}, {4, 5, 8}};
    ejk_tensor a = ejk_tensor_2d(actual, EJK_DTYPE_F32, 2, 3);
    ejk_tensor e = ejk_tensor_2d(expected, EJK_DTYPE_F32, 2, 3);
    ejk_allclose_report report;
    EXPECT_FAIL(MISMATCH,
                "2 of 6 elements differ by more than atol 1e-08 + rtol 1e-05: worst at [1, 2], "
                "actual 8, expected 6, difference 2",
                ejk_assert_allclose(&a, &e, NULL, &report));
    assert_int_equal(report.mismatches, 2);
    assert_int_equal(report.worst[0], 1);
    assert_int_equal(report.worst[1], 2);
    assert_int_equal(report.worst[2], -1);
    assert_true(report.worst_actual == 8 && report.worst_expected == 6);
    assert_true(report.worst_difference == 2);
    assert_int_equal(report.first_mismatch[0], 0);
    assert_int_equal(report.first_mismatch[1], 1);
    /* The same from columns. */
    float columns[3][2] = {{1, 4}, {2.5f, 5}, {3, 8}};
    ejk_tensor c = ejk_tensor_2d(columns, EJK_DTYPE_F32, 3, 2);
    a = ejk_tensor_transpose(c, 0, 1);
    EXPECT_FAIL(MISMATCH, "worst at [1, 2], actual 8", ejk_assert_allclose(&a, &e, NULL, NULL));
}

static void nan_and_infinity(void **state) {
    (void)state;
    double actual[] = {N, 1, N, I, -I, I, 7, N}, expected[] = {N, N, 3, I, I, 5, 9, I};
    ejk_tensor a = f64s(actual, 8), e = f64s(expected, 8);
    ejk_allclose_report report;
    EXPECT_FAIL(MISMATCH,
                "NaN does not fit at 3, first at [1]; infinity does not fit at 2, first at [4]",
                ejk_assert_allclose(&a, &e, NULL, &report));
    assert_int_equal(report.mismatches, 6);
    assert_int_equal(report.nan_mismatches, 3);
    assert_int_equal(report.infinite_mismatches, 2);
    assert_int_equal(report.actual_nans, 3);
    assert_int_equal(report.expected_nans, 2);
    assert_int_equal(report.actual_infinities, 3);
    assert_int_equal(report.expected_infinities, 3);
    assert_int_equal(report.first_nan[0], 1);
    assert_int_equal(report.first_infinite[0], 4);
    assert_int_equal(report.worst[0], 1);
    assert_true(isnan(report.worst_expected) && isnan(report.worst_difference));

    ejk_tensor first = f64s(actual, 1), same = f64s(expected, 1);
    EXPECT_OK(ejk_assert_allclose(&first, &same, NULL, &report));
    assert_int_equal(report.worst[0], -1);
    ejk_allclose_options strict = {.equal_nan = EJK_FALSE};
    EXPECT_FAIL(MISMATCH, "first at [0]", ejk_assert_allclose(&first, &same, &strict, NULL));
    /* An infinite tolerance makes no infinity close. */
    ejk_allclose_options all = {.atol = ejk_float(I)};
    ejk_tensor x = f64s(actual + 3, 4), y = f64s(expected + 3, 4);
    EXPECT_FAIL(MISMATCH, "2 of 4", ejk_assert_allclose(&x, &y, &all, NULL));
    ejk_tensor u = f64s(actual + 6, 1), v = f64s(expected + 6, 1);
    EXPECT_OK(ejk_assert_allclose(&u, &v, &all, NULL));
}

static void element_types(void **state) {
    (void)state;
    float f[] = {1, 2};
    double d[] = {1, 2};
    ejk_tensor a = ejk_tensor_1d(f, EJK_DTYPE_F32, 2), e = f64s(d, 2);
    ejk_allclose_report report;
    EXPECT_OK(ejk_assert_allclose(&a, &e, NULL, &report));
    assert_true(report.dtypes_differ);
    assert_int_equal(report.actual_dtype, EJK_DTYPE_F32);
    assert_int_equal(report.expected_dtype, EJK_DTYPE_F64);
    d[0] = 3;
    EXPECT_FAIL(MISMATCH, "actual is float32, expected float64",
                ejk_assert_allclose(&a, &e, NULL, NULL));

    const ejk_dtype types[] = {EJK_DTYPE_F64, EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16,
                               EJK_DTYPE_I64, EJK_DTYPE_I32, EJK_DTYPE_I16,  EJK_DTYPE_I8,
                               EJK_DTYPE_U8,  EJK_DTYPE_BOOL};
    double numbers[] = {1, 0, 1, 1, 0, 1}, others[] = {1, 0, 1, 1, 1, 1};
    ejk_tensor source = ejk_tensor_2d(numbers, EJK_DTYPE_F64, 2, 3);
    ejk_tensor off = ejk_tensor_2d(others, EJK_DTYPE_F64, 2, 3);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        double room[16];
        ejk_tensor x = ejk_tensor_2d(room, types[i], 2, 3);
        x.strides[0] = 8;
        x.strides[1] = 2;
        EXPECT_OK(ejk_tensor_copy(&source, &x));
        EXPECT_OK(ejk_assert_allclose(&x, &source, NULL, NULL));
        EXPECT_FAIL(MISMATCH, "worst at [1, 1], actual 0, expected 1",
                    ejk_assert_allclose(&x, &off, NULL, NULL));
    }
}

static void integers_are_exact(void **state) {
    (void)state;
    int64_t a[] = {INT64_C(9007199254740993), INT64_MIN},
            b[] = {INT64_C(9007199254740992), INT64_MAX};
    ejk_allclose_options exact = {.rtol = ejk_float(0), .atol = ejk_float(0)};
    ejk_tensor x = ejk_tensor_1d(a, EJK_DTYPE_I64, 2), y = ejk_tensor_1d(b, EJK_DTYPE_I64, 2);
    ejk_allclose_report report;
    EXPECT_FAIL(MISMATCH, "2 of 2", ejk_assert_allclose(&x, &y, &exact, &report));
    assert_true(report.worst_difference == 0x1p64);
    assert_int_equal(report.worst[0], 1);
    b[1] = INT64_MIN;
    EXPECT_FAIL(MISMATCH, "difference 1", ejk_assert_allclose(&x, &y, &exact, NULL));
}

static void refusals(void **state) {
    (void)state;
    double values[6] = {0};
    ejk_tensor a = f64s(values, 3), b = f64s(values, 4),
               c = ejk_tensor_2d(values, EJK_DTYPE_F64, 3, 1);
    ejk_allclose_report report, untouched;
    memset(&report, 0x5a, sizeof report);
    memcpy(&untouched, &report, sizeof report);
    EXPECT_FAIL(INVALID_SHAPE, "actual has length 3 on axis 0",
                ejk_assert_allclose(&a, &b, NULL, &report));
    EXPECT_FAIL(INVALID_SHAPE, "actual has rank 1", ejk_assert_allclose(&a, &c, NULL, &report));
    ejk_allclose_options options = {.rtol = ejk_float(-1)};
    EXPECT_FAIL(INVALID_ARGUMENT, "rtol is -1", ejk_assert_allclose(&a, &a, &options, &report));
    options = (ejk_allclose_options){.atol = ejk_float(N)};
    EXPECT_FAIL(INVALID_ARGUMENT, "atol", ejk_assert_allclose(&a, &a, &options, &report));
    EXPECT_FAIL(INVALID_ARGUMENT, "expected is NULL", ejk_assert_allclose(&a, NULL, NULL, &report));
    b.device_type = EJK_DEVICE_CUDA;
    EXPECT_FAIL(UNAVAILABLE, "actual", ejk_assert_allclose(&b, &a, NULL, &report));
    assert_memory_equal(&report, &untouched, sizeof report);

    ejk_tensor empty = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 0, 4);
    EXPECT_OK(ejk_assert_allclose(&empty, &empty, NULL, &report));
    assert_int_equal(report.count, 0);
    ejk_tensor one = ejk_tensor_contiguous(values, EJK_DTYPE_F64, 0, NULL);
    double two = 2;
    ejk_tensor other = ejk_tensor_contiguous(&two, EJK_DTYPE_F64, 0, NULL);
    EXPECT_FAIL(MISMATCH, "worst at []", ejk_assert_allclose(&one, &other, NULL, NULL));
}

/* Large random tensors with faults put in, against one plain loop, alone and by threads. */
static void findings_do_not_depend_on_threads(void **state) {
    (void)state;
    enum { COUNT = 300000 };
    struct random r = {11};
    double *actual = malloc(COUNT * sizeof *actual), *expected = malloc(COUNT * sizeof *expected);
    int64_t mismatches = 0, worst = -1, first = -1;
    for (int64_t i = 0; i < COUNT; i++) {
        expected[i] = actual[i] = random_normal(&r);
        if (!random_chance(&r, 0.001)) continue;
        actual[i] += 0.1 + random_real(&r);
        mismatches++;
        if (first < 0) first = i;
        if (worst < 0 || fabs(actual[i] - expected[i]) > fabs(actual[worst] - expected[worst]))
            worst = i;
    }
    ejk_tensor a = ejk_tensor_2d(actual, EJK_DTYPE_F64, 3000, 100);
    ejk_tensor e = ejk_tensor_2d(expected, EJK_DTYPE_F64, 3000, 100);
    ejk_allclose_options options = {0};
    EXPECT_OK(ejk_threads_create(4, &options.threads));
    ejk_allclose_report alone, threaded;
    memset(&alone, 0, sizeof alone);
    memset(&threaded, 0, sizeof threaded);
    EXPECT_FAIL(MISMATCH, "of 300000", ejk_assert_allclose(&a, &e, NULL, &alone));
    EXPECT_FAIL(MISMATCH, "of 300000", ejk_assert_allclose(&a, &e, &options, &threaded));
    assert_int_equal(alone.mismatches, mismatches);
    assert_int_equal(alone.worst[0] * 100 + alone.worst[1], worst);
    assert_int_equal(alone.first_mismatch[0] * 100 + alone.first_mismatch[1], first);
    assert_int_equal(threaded.mismatches, mismatches);
    assert_memory_equal(threaded.worst, alone.worst, sizeof alone.worst);
    assert_memory_equal(threaded.first_mismatch, alone.first_mismatch, sizeof alone.worst);
    ejk_threads_destroy(options.threads);
    free(actual);
    free(expected);
}

/* ---- The error ratio ------------------------------------------------------------------------------- */

static void errors_of_whole_tensors(void **state) {
    (void)state;
    double reference[] = {3, 4, 0, 0}, value[] = {3, 4, 1, -2}, got = -1;
    ejk_tensor a = f64s(reference, 4), b = f64s(value, 4), c = f64s(value, 3);
    EXPECT_OK(ejk_get_abs_err(&a, &b, NULL, &got));
    assert_true(got == 2);
    EXPECT_OK(ejk_get_err_ratio(&a, &b, NULL, &got));
    EXPECT_NEAR(got, 0.4472135936, 1e-9); /* sqrt(5 / 4) / (sqrt(25 / 4) + 1e-8) */
    EXPECT_FAIL(INVALID_SHAPE, "value", ejk_get_abs_err(&a, &c, NULL, &got));
    EXPECT_FAIL(INVALID_SHAPE, "value", ejk_get_err_ratio(&a, &c, NULL, &got));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_get_abs_err(&a, &b, NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_get_err_ratio(&a, &b, NULL, NULL));
    value[1] = N;
    EXPECT_OK(ejk_get_abs_err(&a, &b, NULL, &got));
    assert_true(isnan(got));
    ejk_tensor empty = f64s(NULL, 0);
    EXPECT_OK(ejk_get_abs_err(&empty, &empty, NULL, &got));
    assert_true(got == 0);
    EXPECT_OK(ejk_get_err_ratio(&empty, &empty, NULL, &got));
    assert_true(got == 0);
}

static void close_by_ratio(void **state) {
    (void)state;
    double reference[] = {1, 1}, value[] = {1, 1 + 1e-7};
    ejk_tensor a = f64s(reference, 2), b = f64s(value, 2);
    ejk_assert_close_report report;
    EXPECT_OK(ejk_assert_close("dq", &a, &b, 0, NULL, &report));
    assert_false(report.warned);
    /* A ratio below 0.01, or an absolute error of at most 0.3, only warns. */
    value[1] = 1.01;
    EXPECT_OK(ejk_assert_close("dq", &a, &b, 0.001, NULL, &report));
    assert_true(report.warned);
    EXPECT_NEAR(report.abs_err, 0.01, 1e-12);
    EXPECT_NEAR(report.err_ratio, 0.0070710678, 1e-9);
    value[1] = 1.25;
    EXPECT_OK(ejk_assert_close("dq", &a, &b, 0.001, NULL, &report));
    assert_true(report.warned);
    EXPECT_OK(ejk_assert_close("dq", &a, &b, 0.5, NULL, &report));
    assert_false(report.warned);
    value[1] = 3;
    EXPECT_OK(ejk_assert_close("dq", &a, &b, 2, NULL, &report));
    EXPECT_FAIL(MISMATCH, "dq: value is off by 2",
                ejk_assert_close("dq", &a, &b, 1, NULL, &report));
    EXPECT_NEAR(report.err_ratio, 1.4142135, 1e-6);
    EXPECT_FAIL(MISMATCH, "value is off", ejk_assert_close(NULL, &a, &b, 1, NULL, NULL));
    ejk_assert_close_options options = {.warning = true};
    EXPECT_OK(ejk_assert_close("dq", &a, &b, 1, &options, &report));
    assert_true(report.warned);
    options = (ejk_assert_close_options){.err_atol = ejk_float(2)};
    EXPECT_OK(ejk_assert_close("dq", &a, &b, 1, &options, &report));
    assert_false(report.warned);
    value[0] = N;
    EXPECT_FAIL(MISMATCH, "nan", ejk_assert_close("dq", &a, &b, 1e9, NULL, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "ratio is -1", ejk_assert_close("dq", &a, &b, -1, NULL, NULL));
    options.err_atol = ejk_float(-1);
    EXPECT_FAIL(INVALID_ARGUMENT, "err_atol -1", ejk_assert_close("", &a, &b, 1, &options, NULL));
}

/* Sums are joined in the order of their parts: the same bits from any number of threads. */
static void errors_by_threads(void **state) {
    (void)state;
    enum { ROWS = 5, COLUMNS = 60000, COUNT = ROWS * COLUMNS };
    float *numbers = malloc(2 * COUNT * sizeof *numbers), *others = numbers + COUNT;
    struct random r = {71};
    for (int i = 0; i < COUNT; i++) {
        numbers[i] = (float)random_normal(&r);
        others[i] = numbers[i] + (float)random_normal(&r) * 1e-2f;
    }
    ejk_tensor a = ejk_tensor_2d(numbers, EJK_DTYPE_F32, ROWS, COLUMNS);
    ejk_tensor b = ejk_tensor_2d(others, EJK_DTYPE_F32, ROWS, COLUMNS);
    double wanted[2], got[2], squares[2] = {0}, largest = 0;
    for (int i = 0; i < COUNT; i++) {
        double difference = fabs((double)numbers[i] - (double)others[i]);
        largest = difference > largest ? difference : largest;
        squares[0] += difference * difference;
        squares[1] += (double)numbers[i] * (double)numbers[i];
    }
    EXPECT_OK(ejk_get_abs_err(&a, &b, NULL, &wanted[0]));
    EXPECT_OK(ejk_get_err_ratio(&a, &b, NULL, &wanted[1]));
    assert_true(wanted[0] == largest);
    EXPECT_NEAR(wanted[1], sqrt(squares[0]) / sqrt(squares[1]), 1e-9);
    for (int32_t count = 2; count <= 6; count += 2) {
        ejk_assert_close_options options = {0};
        ejk_assert_close_report report = {0};
        EXPECT_OK(ejk_threads_create(count, &options.threads));
        EXPECT_OK(ejk_get_abs_err(&a, &b, options.threads, &got[0]));
        EXPECT_OK(ejk_get_err_ratio(&a, &b, options.threads, &got[1]));
        assert_memory_equal(got, wanted, sizeof got);
        EXPECT_OK(ejk_assert_close("x", &a, &b, 1, &options, &report));
        assert_memory_equal(&report.err_ratio, &wanted[1], sizeof wanted[1]);
        /* A NaN in the last part is seen, whatever else is. */
        float kept = others[COUNT - 1];
        others[COUNT - 1] = NAN;
        EXPECT_OK(ejk_get_abs_err(&a, &b, options.threads, &got[0]));
        assert_true(isnan(got[0]));
        others[COUNT - 1] = kept;
        ejk_threads_destroy(options.threads);
    }
    free(numbers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_by_threads),
        cmocka_unit_test(within_the_documented_tolerance),
        cmocka_unit_test(the_worst_element_is_named),
        cmocka_unit_test(nan_and_infinity),
        cmocka_unit_test(element_types),
        cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(refusals),
        cmocka_unit_test(findings_do_not_depend_on_threads),
        cmocka_unit_test(errors_of_whole_tensors),
        cmocka_unit_test(close_by_ratio),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
