/* SPDX-License-Identifier: Apache-2.0 */
/* Timing of functions and of candidates one after the other, on a clock by script; comparing tensors. */
#include "ops/execution/measure.h"
#include "support/expect.h"
#include "support/tune_world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MS 1e-3

/* ---- Functions ---------------------------------------------------------------------------------------- */

/* A function whose calls take what a list says, its last number for all that follow. */
typedef struct listed {
    const double *seconds;
    int32_t count, calls;
    int32_t fails_at; /* call, counted from 1; 0 = none */
    double now;
} listed;

static ejk_status call_listed(void *user) {
    listed *l = user;
    l->now += l->seconds[l->calls < l->count ? l->calls : l->count - 1];
    return ++l->calls == l->fails_at ? EJK_STATUS_IO : EJK_OK;
}

static double listed_now(void *user) {
    return ((listed *)user)->now;
}

static void samples_are_summarised(void **state) {
    (void)state;
    const double seconds[] = {9, 4, 1, 2, 5, 8};
    listed l = {.seconds = seconds, .count = 6};
    ejk_benchmark_options options = {.sample_s = ejk_float(0), .clock = {listed_now, &l}};
    ejk_benchmark_stats stats;
    EXPECT_OK(ejk_benchmark_ex(call_listed, &l, &options, &stats));
    assert_int_equal(l.calls, 6); /* one to warm up and five */
    assert_int_equal(stats.samples, 5);
    assert_int_equal(stats.calls_per_sample, 1);
    EXPECT_NEAR(stats.mean_s, 4, 1e-12);
    EXPECT_NEAR(stats.std_s, sqrt(6), 1e-12);
    EXPECT_NEAR(stats.median_s, 4, 0);
    EXPECT_NEAR(stats.min_s, 1, 0);
    EXPECT_NEAR(stats.max_s, 8, 0);
}

static void short_calls_fill_a_sample(void **state) {
    (void)state;
    const double seconds[] = {50e-6, 1e-6};
    listed l = {.seconds = seconds, .count = 2};
    ejk_benchmark_options options = {.warmup = ejk_int(3), .iters = 2, .clock = {listed_now, &l}};
    ejk_benchmark_stats stats;
    EXPECT_OK(ejk_benchmark_ex(call_listed, &l, &options, &stats));
    assert_in_range(stats.calls_per_sample, 200, 2000);
    EXPECT_NEAR(stats.mean_s, 1e-6, 1e-12);
    EXPECT_NEAR(stats.max_s, 1e-6, 1e-12);
}

/* A clock that stands still ends the search for a sample's length, and says nothing. */
static void a_clock_that_stands_still_is_survived(void **state) {
    (void)state;
    const double nothing = 0;
    listed l = {.seconds = &nothing, .count = 1};
    ejk_benchmark_options options = {.warmup = ejk_int(0), .iters = 1, .clock = {listed_now, &l}};
    ejk_benchmark_stats stats;
    EXPECT_OK(ejk_benchmark_ex(call_listed, &l, &options, &stats));
    EXPECT_NEAR(stats.median_s, 0, 0);
    assert_true(stats.calls_per_sample >= 1 << 20);
}

static ejk_status count_call(void *user) {
    ++*(int64_t *)user;
    return EJK_OK;
}

static void the_plain_form_uses_the_systems_clock(void **state) {
    (void)state;
    int64_t calls = 0;
    double seconds = -1;
    EXPECT_OK(ejk_benchmark(count_call, &calls, 3, &seconds));
    assert_true(calls > 3);
    assert_true(seconds >= 0);
}

static void failures_are_passed_on(void **state) {
    (void)state;
    const double seconds = 1;
    for (int at = 1; at <= 3; at++) {
        listed l = {.seconds = &seconds, .count = 1, .fails_at = at};
        ejk_benchmark_options options = {.clock = {listed_now, &l}};
        ejk_benchmark_stats stats = {.samples = 77};
        EXPECT_FAIL(IO, "", ejk_benchmark_ex(call_listed, &l, &options, &stats));
        assert_int_equal(stats.samples, 77);
        assert_int_equal(l.calls, at);
    }
}

static void arguments_are_checked(void **state) {
    (void)state;
    int64_t calls = 0;
    double seconds = -1;
    ejk_benchmark_stats stats;
    EXPECT_FAIL(INVALID_ARGUMENT, "fn or out", ejk_benchmark(NULL, NULL, 1, &seconds));
    EXPECT_FAIL(INVALID_ARGUMENT, "num_iters is 0", ejk_benchmark(count_call, &calls, 0, &seconds));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_benchmark(count_call, &calls, 1, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "fn or out", ejk_benchmark_ex(count_call, &calls, NULL, NULL));
    const ejk_benchmark_options wrong[] = {
        {.warmup = {-1, true}}, {.iters = -1}, {.sample_s = {INFINITY, true}}};
    const char *words[] = {"warmup: -1", "iters: -1", "sample_s: inf"};
    for (int i = 0; i < 3; i++)
        EXPECT_FAIL(INVALID_ARGUMENT, words[i],
                    ejk_benchmark_ex(count_call, &calls, &wrong[i], &stats));
    assert_int_equal(calls, 0);
    EXPECT_NEAR(seconds, -1, 0);
}

/* ---- Autotuner ------------------------------------------------------------------------------------------ */

static void candidates_are_measured_in_turn(void **state) {
    (void)state;
    tune_world w = {.count = 4,
                    .script = {{.seconds = 4 * MS, .first = 1},
                               {.seconds = 2 * MS, .first = 1},
                               {.seconds = 1 * MS, .fails = true},
                               {.seconds = 2 * MS, .first = 1}}};
    ejk_tune_problem problem = tune_world_problem(&w, 0);
    problem.check = NULL;
    ejk_autotuner tuner = {.clock = tune_world_clock(&w)};
    ejk_autotune_data data;
    EXPECT_OK(ejk_autotuner_autotune(&tuner, &problem, &data));
    assert_int_equal(data.count, 4);
    EXPECT_NEAR(data.measurements[0].seconds, 4 * MS, 1e-9);
    assert_true(isinf(data.measurements[2].seconds));
    assert_string_equal(data.measurements[3].config, "{\"block\":3}");
    assert_int_equal(w.runs[1], 1 + 3);
    assert_int_equal(w.keeps, 0);
    const ejk_measurement *fastest = NULL;
    EXPECT_OK(ejk_autotune_data_fastest_config(&data, &fastest));
    assert_int_equal(fastest->candidate, 1); /* the first of two equals */
    ejk_autotune_data_close(&data);
    assert_null(data.measurements);
    const ejk_measurement *untouched = fastest;
    EXPECT_FAIL(INVALID_ARGUMENT, "no measurement",
                ejk_autotune_data_fastest_config(&data, &fastest));
    assert_ptr_equal(fastest, untouched);
    ejk_autotune_data_close(&data);
    ejk_autotune_data_close(NULL);
}

static void liars_get_no_time(void **state) {
    (void)state;
    tune_world w = {.count = 3,
                    .script = {{.seconds = 4 * MS},
                               {.seconds = 1 * MS, .off = 0.5, .off_from = 2},
                               {.seconds = 1 * MS, .off = NAN}}};
    ejk_tune_problem problem = tune_world_problem(&w, 0);
    ejk_autotuner tuner = {.warmup = ejk_int(0), .iters = 5, .clock = tune_world_clock(&w)};
    ejk_autotune_data data;
    EXPECT_OK(ejk_autotuner_autotune(&tuner, &problem, &data));
    assert_int_equal(w.keeps, 1);
    assert_int_equal(w.runs[1], 5);
    EXPECT_NEAR(data.measurements[0].seconds, 4 * MS, 1e-9);
    assert_true(isinf(data.measurements[1].seconds));
    assert_true(isinf(data.measurements[2].seconds));
    ejk_autotune_data_close(&data);
}

static void nothing_to_choose_from_is_an_error(void **state) {
    (void)state;
    tune_world w = {.count = 2,
                    .script = {{.seconds = 4 * MS, .fails = true},
                               {.seconds = 4 * MS, .fails = true, .fails_from = 2}}};
    ejk_tune_problem problem = tune_world_problem(&w, 0);
    problem.check = NULL;
    ejk_autotune_data data = {.count = 77};
    ejk_autotuner tuner = {.clock = tune_world_clock(&w)};
    EXPECT_FAIL(UNAVAILABLE, "none of 2 candidates succeeded; the first failure: candidate 0 has",
                ejk_autotuner_autotune(&tuner, &problem, &data));
    problem.count = 0;
    EXPECT_FAIL(INVALID_ARGUMENT, "count is 0", ejk_autotuner_autotune(NULL, &problem, &data));
    problem = tune_world_problem(&w, 0);
    problem.default_index = 5;
    EXPECT_FAIL(INVALID_ARGUMENT, "default_index is 5",
                ejk_autotuner_autotune(NULL, &problem, &data));
    problem = tune_world_problem(&w, 0);
    EXPECT_FAIL(UNAVAILABLE, "candidate 0", ejk_autotuner_autotune(NULL, &problem, &data));
    problem.run = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "run", ejk_autotuner_autotune(NULL, &problem, &data));
    assert_int_equal(data.count, 77);
}

/* ---- Results under their keys ----------------------------------------------------------------------------- */

static void results_travel_as_json(void **state) {
    (void)state;
    char key[] = "0123456789abcdef";
    const ejk_entry entries[] = {{"attention@v1", key, "{ \"kv\": 64, \"q\": 32 }"},
                                 {"attention@v1", "00", NULL},
                                 {"other@v2", "01", "7"}};
    ejk_autotuning_result *result = NULL, *again = NULL;
    EXPECT_OK(ejk_autotuning_result_create("cpu|some; avx2; 2 cores", entries, 3, &result));
    key[0] = 'x'; /* the copy does not see it */
    char *text = NULL, *second = NULL;
    EXPECT_OK(ejk_autotuning_result_to_json(result, 0, &text));
    assert_string_equal(text, "{\"device\":\"cpu|some; avx2; 2 cores\",\"entries\":["
                              "{\"call_key\":\"0123456789abcdef\",\"config\":{\"kv\":64,\"q\":32},"
                              "\"op_id_v\":\"attention@v1\"},"
                              "{\"call_key\":\"00\",\"config\":null,\"op_id_v\":\"attention@v1\"},"
                              "{\"call_key\":\"01\",\"config\":7,\"op_id_v\":\"other@v2\"}]}");
    EXPECT_OK(ejk_autotuning_result_from_json(text, &again));
    assert_int_equal(again->count, 3);
    assert_string_equal(again->entries[0].config, "{\"kv\":64,\"q\":32}");
    assert_null(again->entries[1].config);
    EXPECT_OK(ejk_autotuning_result_to_json(again, 0, &second));
    assert_string_equal(text, second);
    ejk_free(text);
    ejk_free(second);
    ejk_autotuning_result_destroy(result);
    ejk_autotuning_result_destroy(again);
    ejk_autotuning_result_destroy(NULL);
}

static void wrong_results_are_refused(void **state) {
    (void)state;
    static ejk_autotuning_result untouched;
    ejk_autotuning_result *out = &untouched;
    const ejk_entry no_key = {"a@v1", NULL, NULL}, no_json = {"a@v1", "00", "{kv}"};
    EXPECT_FAIL(INVALID_ARGUMENT, "entries[0]: op_id_v or call_key is NULL",
                ejk_autotuning_result_create("cpu", &no_key, 1, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "entries[0]: config \"{kv}\"",
                ejk_autotuning_result_create("cpu", &no_json, 1, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_autotuning_result_create(NULL, NULL, 0, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "(-1)", ejk_autotuning_result_create("cpu", NULL, -1, &out));
    const struct {
        const char *json, *words;
    } wrong[] = {
        {"", "line 1"},
        {"[]", "json: "},
        {"{\"device\":1,\"entries\":[]}", "json: "},
        {"{\"device\":\"c\"}", "json: "},
        {"{\"device\":\"c\",\"entries\":{}}", "entries: expected an array"},
        {"{\"device\":\"c\",\"entries\":[],\"more\":1}", "json: "},
        {"{\"device\":\"c\",\"entries\":[7]}", "entries[0]: "},
        {"{\"device\":\"c\",\"entries\":[{\"op_id_v\":\"a\",\"call_key\":\"b\"}]}", "entries[0]: "},
        {"{\"device\":\"c\",\"entries\":[{\"op_id_v\":\"a\",\"call_key\":null,\"config\":1}]}",
         "entries[0]: "},
        {"{\"device\":\"c\",\"device\":\"d\",\"entries\":[]}", "duplicate"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_FAIL(MALFORMED, wrong[i].words,
                    ejk_autotuning_result_from_json(wrong[i].json, &out));
    assert_ptr_equal(out, &untouched);
    ejk_autotuning_result *odd = NULL;
    EXPECT_OK(ejk_autotuning_result_create("na\xefve", NULL, 0, &odd));
    char *text = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "UTF-8", ejk_autotuning_result_to_json(odd, 0, &text));
    assert_null(text);
    ejk_autotuning_result_destroy(odd);
}

/* ---- Tensors -------------------------------------------------------------------------------------------------- */

static double difference_of(const ejk_tensor *expected, const ejk_tensor *actual, double tolerance,
                            bool wanted) {
    bool agrees = !wanted;
    double difference = -1;
    EXPECT_OK(ejk_tensors_agree(expected, actual, tolerance, &agrees, &difference));
    if (agrees != wanted) fail_msg("difference %g, tolerance %g", difference, tolerance);
    return difference;
}

static void tensors_are_compared_by_norm(void **state) {
    (void)state;
    double e[4] = {3, 0, 4, 0}, a[4] = {3, 0.05, 4, 0};
    ejk_tensor expected = ejk_tensor_2d(e, EJK_DTYPE_F64, 2, 2);
    ejk_tensor actual = ejk_tensor_2d(a, EJK_DTYPE_F64, 2, 2);
    EXPECT_NEAR(difference_of(&expected, &actual, 0.02, true), 0.01, 1e-15);
    EXPECT_NEAR(difference_of(&expected, &actual, 0.005, false), 0.01, 1e-15);
    EXPECT_NEAR(difference_of(&expected, &expected, 0, true), 0, 0);

    double zeros[4] = {0}, small[4] = {0, 3e-9, 0, 4e-9};
    expected.data = zeros;
    actual.data = small;
    EXPECT_NEAR(difference_of(&expected, &actual, 1e-8, true), 5e-9, 1e-20);
    /* Squares that no double holds. */
    double huge[4] = {3e300, 0, 4e300, 0}, near_[4] = {3e300, 0, 4e300, 5e298};
    expected.data = huge;
    actual.data = near_;
    EXPECT_NEAR(difference_of(&expected, &actual, 0.02, true), 0.01, 1e-12);
    double tiny[4] = {1e-170, 0, 0, 0}, much[4] = {1e-3, 0, 0, 0};
    expected.data = tiny;
    actual.data = much;
    assert_true(difference_of(&expected, &actual, 0.5, false) > 1e100);
    double low[4] = {-1.7e308, 0, 0, 0}, high[4] = {1.7e308, 0, 0, 0};
    expected.data = low;
    actual.data = high;
    (void)difference_of(&expected, &actual, 1e6, false);
}

static void what_is_not_finite_must_stand_in_place(void **state) {
    (void)state;
    double e[4] = {1, NAN, INFINITY, -INFINITY}, a[4] = {1, NAN, INFINITY, -INFINITY};
    ejk_tensor expected = ejk_tensor_1d(e, EJK_DTYPE_F64, 4);
    ejk_tensor actual = ejk_tensor_1d(a, EJK_DTYPE_F64, 4);
    EXPECT_NEAR(difference_of(&expected, &actual, 0, true), 0, 0);
    const double wrong[4] = {NAN, 1, -INFINITY, 5};
    for (int i = 0; i < 4; i++) {
        double kept = a[i];
        a[i] = wrong[i];
        assert_true(isinf(difference_of(&expected, &actual, 1e300, false)));
        a[i] = kept;
    }
}

/* Whatever the number of threads: the same norms but for the order of sums, and nothing is passed over. */
static void threads_find_the_same(void **state) {
    (void)state;
    const int64_t count = 100003;
    ejk_threads *threads;
    ejk_owned_tensor e, a;
    EXPECT_OK(ejk_threads_create(3, &threads));
    EXPECT_OK(ejk_owned_tensor_create(EJK_DTYPE_F32, 1, &count, &e));
    EXPECT_OK(ejk_owned_tensor_create(EJK_DTYPE_F32, 1, &count, &a));
    float *expected = e.tensor.data, *actual = a.tensor.data;
    for (int64_t i = 0; i < count; i++) {
        expected[i] = (float)(i % 1009 - 500);
        actual[i] = expected[i] * (1 + 1e-3F * (float)(i % 7));
    }
    bool agrees = false;
    double difference = -1;
    const double alone = difference_of(&e.tensor, &a.tensor, 0.01, true);
    EXPECT_OK(ejki_tensors_agree(threads, &e.tensor, &a.tensor, 0.01, &agrees, &difference));
    assert_true(agrees);
    EXPECT_NEAR(difference, alone, 1e-12);
    EXPECT_OK(ejki_tensors_agree(threads, &e.tensor, &a.tensor, alone / 2, &agrees, &difference));
    assert_false(agrees);
    const int64_t places[] = {0, 1562, 1563, count / 2, count - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const float kept = actual[places[i]];
        actual[places[i]] = NAN;
        EXPECT_OK(ejki_tensors_agree(threads, &e.tensor, &a.tensor, 1, &agrees, &difference));
        assert_true(!agrees && isinf(difference));
        actual[places[i]] = kept;
    }
    ejk_owned_tensor_close(&e);
    ejk_owned_tensor_close(&a);
    ejk_threads_destroy(threads);
}

/* Every type against f64, rows longer than a stretch, and views with strides of all signs. */
static void all_types_and_strides_are_read(void **state) {
    (void)state;
    const ejk_dtype types[] = {EJK_DTYPE_F64, EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16,
                               EJK_DTYPE_I64, EJK_DTYPE_I32, EJK_DTYPE_I16,  EJK_DTYPE_I8};
    enum { ROWS = 3, COLUMNS = 1300 };
    const int64_t shape[2] = {ROWS, COLUMNS}, turned[2] = {COLUMNS, ROWS};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        ejk_owned_tensor e, a;
        EXPECT_OK(ejk_owned_tensor_create(EJK_DTYPE_F64, 2, shape, &e));
        EXPECT_OK(ejk_owned_tensor_create(types[i], 2, turned, &a));
        double *values = e.tensor.data;
        for (int64_t j = 0; j < (int64_t)ROWS * COLUMNS; j++) values[j] = (double)(j % 100 - 50);
        ejk_tensor view = ejk_tensor_transpose(a.tensor, 0, 1);
        EXPECT_OK(ejk_tensor_copy(&e.tensor, &view));
        EXPECT_NEAR(difference_of(&e.tensor, &view, 0, true), 0, 0);
        ejk_tensor backwards = view, expected = e.tensor;
        backwards.data = (char *)view.data + (ROWS - 1) * (int64_t)ejk_dtype_size(types[i]);
        backwards.strides[0] = -1;
        expected.data = values + (ROWS - 1) * (int64_t)COLUMNS;
        expected.strides[0] = -COLUMNS;
        EXPECT_NEAR(difference_of(&expected, &backwards, 0, true), 0, 0);
        values[COLUMNS + 1299] += 10; /* the last of the middle row */
        assert_true(difference_of(&e.tensor, &view, 1e-6, false) > 1e-3);
        ejk_owned_tensor_close(&e);
        ejk_owned_tensor_close(&a);
    }
}

static void tensors_that_do_not_compare_are_refused(void **state) {
    (void)state;
    double data[6] = {0};
    ejk_tensor x = ejk_tensor_2d(data, EJK_DTYPE_F64, 2, 3), y = x;
    bool agrees = true;
    double difference = 77;
    y.rank = 1;
    EXPECT_FAIL(INVALID_SHAPE, "actual: rank 1",
                ejk_tensors_agree(&x, &y, 0, &agrees, &difference));
    y = ejk_tensor_2d(data, EJK_DTYPE_F64, 3, 2);
    EXPECT_FAIL(INVALID_SHAPE, "axis 0 has length 3, expected 2",
                ejk_tensors_agree(&x, &y, 0, &agrees, &difference));
    y = x;
    y.device_type = EJK_DEVICE_CUDA;
    EXPECT_FAIL(UNAVAILABLE, "actual", ejk_tensors_agree(&x, &y, 0, &agrees, &difference));
    y = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_DTYPE, "actual", ejk_tensors_agree(&x, &y, 0, &agrees, &difference));
    EXPECT_FAIL(INVALID_ARGUMENT, "tolerance: -1",
                ejk_tensors_agree(&x, &x, -1, &agrees, &difference));
    EXPECT_FAIL(INVALID_ARGUMENT,
                "tolerance: ", ejk_tensors_agree(&x, &x, NAN, &agrees, &difference));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_tensors_agree(NULL, &x, 0, &agrees, &difference));
    assert_true(agrees);
    EXPECT_NEAR(difference, 77, 0);

    ejk_tensor empty = ejk_tensor_2d(NULL, EJK_DTYPE_F32, 0, 3);
    EXPECT_NEAR(difference_of(&empty, &empty, 0, true), 0, 0);
    double one = 2, other = 3;
    ejk_tensor scalar = ejk_tensor_contiguous(&one, EJK_DTYPE_F64, 0, NULL);
    ejk_tensor second = ejk_tensor_contiguous(&other, EJK_DTYPE_F64, 0, NULL);
    EXPECT_NEAR(difference_of(&scalar, &second, 0.1, false), 0.5, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_summarised),
        cmocka_unit_test(short_calls_fill_a_sample),
        cmocka_unit_test(a_clock_that_stands_still_is_survived),
        cmocka_unit_test(the_plain_form_uses_the_systems_clock),
        cmocka_unit_test(failures_are_passed_on),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(candidates_are_measured_in_turn),
        cmocka_unit_test(liars_get_no_time),
        cmocka_unit_test(nothing_to_choose_from_is_an_error),
        cmocka_unit_test(results_travel_as_json),
        cmocka_unit_test(wrong_results_are_refused),
        cmocka_unit_test(tensors_are_compared_by_norm),
        cmocka_unit_test(threads_find_the_same),
        cmocka_unit_test(what_is_not_finite_must_stand_in_place),
        cmocka_unit_test(all_types_and_strides_are_read),
        cmocka_unit_test(tensors_that_do_not_compare_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
