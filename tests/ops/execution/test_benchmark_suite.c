/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms times configurations on a clock by script, and what their times come to. */
#include "base/base.h"
#include "support/expect.h"

#include <ejkernel/benchmark.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ALGORITHMS = 3, CONFIGS = 2 };

static const char *const algorithms[ALGORITHMS] = {"broken", "plain", "fast"};
static const char *const configs[CONFIGS] = {
    "{\"seq\": 100, \"dim\": 8, \"heads\": 2, \"batch\": 5}", "{\"rows\": 7}"};

typedef struct stage {
    double seconds[CONFIGS][ALGORITHMS];
    int32_t order[CONFIGS * ALGORITHMS], started; /* of first calls */
    int32_t calls[CONFIGS][ALGORITHMS], backward_calls;
    double now;
} stage;

/* "broken" never works, and "fast" not on the second configuration, where it says nothing. */
static ejk_status run(void *user, int32_t algorithm, int32_t config) {
    stage *s = user;
    if (s->calls[config][algorithm]++ == 0) s->order[s->started++] = config * 10 + algorithm;
    s->now += s->seconds[config][algorithm];
    if (algorithm == 0) return ejki_fail(EJK_STATUS_UNAVAILABLE, "not today");
    return algorithm == 2 && config == 1 ? EJK_STATUS_IO : EJK_OK;
}

static ejk_status run_backward(void *user, int32_t algorithm, int32_t config) {
    stage *s = user;
    s->backward_calls++;
    s->now += 3 * s->seconds[config][algorithm];
    return EJK_OK;
}

/* Of the first configuration; of the second nothing is known. */
static ejk_status cost(void *user, int32_t config, ejk_cost *out) {
    const stage *s = user;
    assert_int_equal(s->started, 0);
    if (config == 0) out->flops = 4.0 * 5 * 2 * 100 * 100 * 8;
    return EJK_OK;
}

static ejk_status no_cost(void *user, int32_t config, ejk_cost *out) {
    (void)user, (void)out;
    return config == 0 ? EJK_OK : ejki_fail(EJK_STATUS_UNAVAILABLE, "no cost of %d", (int)config);
}

static double now(void *user) {
    return ((stage *)user)->now;
}

static ejk_benchmark_suite suite_of(stage *s) {
    return (ejk_benchmark_suite){.algorithms = algorithms,
                                 .algorithm_count = ALGORITHMS,
                                 .configs = configs,
                                 .config_count = CONFIGS,
                                 .run = run,
                                 .cost = cost,
                                 .user = s,
                                 .sample_s = ejk_float(0),
                                 .clock = {now, s}};
}

static stage sound(void) {
    return (stage){.seconds = {{1e-3, 4e-3, 1e-3}, {1e-3, 8e-3, 1e-3}}};
}

static void every_pair_is_timed(void **state) {
    (void)state;
    stage s = sound();
    ejk_benchmark_suite suite = suite_of(&s);
    ejk_benchmark_results *all = NULL;
    EXPECT_OK(ejk_benchmark_suite_run(&suite, &all));
    assert_int_equal(all->count, 6);
    assert_int_equal(all->warmup, 5);
    assert_int_equal(all->iterations, 50);
    assert_int_equal(s.calls[0][1], 55);
    const int32_t order[] = {0, 1, 2, 10, 11, 12};
    assert_memory_equal(s.order, order, sizeof order);

    const ejk_benchmark_result *plain = &all->results[1], *broken = &all->results[0];
    assert_string_equal(plain->algorithm, "plain");
    assert_string_equal(plain->config, "{\"batch\":5,\"dim\":8,\"heads\":2,\"seq\":100}");
    assert_string_equal(plain->sentence, "");
    EXPECT_NEAR(plain->forward.mean_s, 4e-3, 1e-12);
    EXPECT_NEAR(plain->throughput_estimate, 4 * 5 * 2 * 1e4 * 8 / 4e-3 / 1e9, 1e-9);
    assert_false(plain->has_backward);
    assert_int_equal(broken->status, EJK_STATUS_UNAVAILABLE);
    assert_string_equal(broken->sentence, "not today");
    assert_true(isinf(broken->forward.median_s));
    assert_int_equal(s.calls[0][0], 1);
    /* No sentence of its own, and nobody else's. */
    assert_string_equal(all->results[5].sentence, ejk_status_message(EJK_STATUS_IO));
    EXPECT_NEAR(all->results[4].throughput_estimate, 0, 0);
    ejk_benchmark_results_destroy(all);
    ejk_benchmark_results_destroy(NULL);
    suite.cost = NULL;
    EXPECT_OK(ejk_benchmark_suite_run(&suite, &all));
    EXPECT_NEAR(all->results[1].throughput_estimate, 0, 0);
    ejk_benchmark_results_destroy(all);
    s = sound();
    suite.cost = no_cost;
    EXPECT_FAIL(UNAVAILABLE, "no cost of 1", ejk_benchmark_suite_run(&suite, &all));
    assert_int_equal(s.started, 0);
}

static void backward_is_timed_apart(void **state) {
    (void)state;
    stage s = sound();
    ejk_benchmark_suite suite = suite_of(&s);
    suite.run_backward = run_backward;
    suite.warmup = ejk_int(1);
    suite.iterations = 2;
    ejk_benchmark_results *all = NULL;
    EXPECT_OK(ejk_benchmark_suite_run(&suite, &all));
    assert_true(all->results[1].has_backward);
    EXPECT_NEAR(all->results[1].forward.mean_s, 4e-3, 1e-12);
    EXPECT_NEAR(all->results[1].backward.mean_s, 12e-3, 1e-12);
    assert_true(isinf(all->results[0].backward.mean_s));
    assert_int_equal(s.backward_calls, 3 * 3); /* of the three pairs that work */
    ejk_benchmark_results_destroy(all);
}

static const json_t *member(const json_t *json, const char *path) {
    char name[64];
    for (const char *rest = path; json != NULL && *rest != '\0';) {
        size_t length = strcspn(rest, "/");
        snprintf(name, sizeof name, "%.*s", (int)length, rest);
        json = json_object_get(json, name);
        rest += length + (rest[length] == '/');
    }
    if (json == NULL) fail_msg("%s is not there", path);
    return json;
}

static double number(const json_t *json, const char *path) {
    return json_number_value(member(json, path));
}

static void times_are_summed_up(void **state) {
    (void)state;
    stage s = sound();
    ejk_benchmark_suite suite = suite_of(&s);
    ejk_benchmark_results *all = NULL;
    EXPECT_OK(ejk_benchmark_suite_run(&suite, &all));
    char *text = NULL;
    EXPECT_OK(ejk_benchmark_results_to_json(all, 0, &text));
    json_t *json = json_loads(text, 0, NULL);
    EXPECT_NEAR(number(json, "metadata/num_algorithms"), 3, 0);
    EXPECT_NEAR(number(json, "metadata/iterations"), 50, 0);
    const json_t *a = member(json, "analysis");
    EXPECT_NEAR(number(a, "summary/plain/mean_ms"), 6, 1e-9);
    EXPECT_NEAR(number(a, "summary/plain/median_ms"), 6, 1e-9);
    EXPECT_NEAR(number(a, "summary/plain/min_ms"), 4, 1e-9);
    EXPECT_NEAR(number(a, "summary/plain/max_ms"), 8, 1e-9);
    EXPECT_NEAR(number(a, "summary/plain/success_rate"), 1, 0);
    EXPECT_NEAR(number(a, "summary/fast/success_rate"), 0.5, 0);
    EXPECT_NEAR(number(a, "summary/fast/num_configs"), 1, 0);
    EXPECT_NEAR(number(a, "summary/fast/mean_gflops"), 3.2, 1e-9);
    assert_true(json_is_null(member(a, "summary/broken/mean_ms")));
    /* "broken" has no success, so "plain" is what others are held against. */
    EXPECT_NEAR(number(a, "comparisons/fast_vs_plain/mean_speedup"), 4, 1e-9);
    assert_int_equal(json_object_size(member(a, "comparisons")), 1);
    const json_t *second = member(a, "by_config/{\"rows\":7}");
    assert_string_equal(json_string_value(member(second, "fastest")), "plain");
    EXPECT_NEAR(number(second, "fastest_time_ms"), 8, 1e-9);
    EXPECT_NEAR(number(second, "config/rows"), 7, 0);
    assert_int_equal(json_array_size(member(second, "results")), 3);
    const json_t *raw = member(a, "raw_results");
    assert_int_equal(json_array_size(raw), 6);
    assert_true(json_is_null(member(json_array_get(raw, 0), "mean_ms")));
    EXPECT_NEAR(number(json_array_get(raw, 2), "mean_ms"), 1, 1e-9);
    json_decref(json);
    ejk_free(text);
    ejk_benchmark_results_destroy(all);
}

static void results_are_saved_into_new_folders(void **state) {
    (void)state;
    char folder[] = "ejk_suite_XXXXXX", path[64], inner[64];
    assert_non_null(mkdtemp(folder));
    snprintf(inner, sizeof inner, "%s/a", folder);
    snprintf(path, sizeof path, "%s/a/out.json", folder);
    stage s = sound();
    ejk_benchmark_suite suite = suite_of(&s);
    ejk_benchmark_results *all = NULL;
    EXPECT_OK(ejk_benchmark_suite_run(&suite, &all));
    EXPECT_OK(ejk_benchmark_results_save(all, path));
    json_t *json = json_load_file(path, 0, NULL);
    assert_non_null(json);
    EXPECT_NEAR(number(json, "metadata/num_configs"), 2, 0);
    json_decref(json);
    EXPECT_FAIL(IO, inner, ejk_benchmark_results_save(all, inner)); /* a folder */
    char below[80];
    snprintf(below, sizeof below, "%s/x", path);
    EXPECT_FAIL(IO, below, ejk_benchmark_results_save(all, below)); /* a file as a folder */
    EXPECT_FAIL(INVALID_ARGUMENT, "path", ejk_benchmark_results_save(all, ""));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_benchmark_results_save(NULL, path));
    ejk_benchmark_results_destroy(all);
    unlink(path);
    rmdir(inner);
    rmdir(folder);
}

static void arguments_are_checked(void **state) {
    (void)state;
    stage s = sound();
    const ejk_benchmark_suite good = suite_of(&s);
    static const char *const twice[] = {"a", "a"}, *const missing[] = {NULL},
                             *const odd[] = {"\xef"};
    static const char *const list[] = {"[1]"}, *const broken[] = {"{"};
    static ejk_benchmark_results untouched;
    ejk_benchmark_results *out = &untouched;
#define REFUSED(status, words, ...)                                                                \
    do {                                                                                           \
        ejk_benchmark_suite x = good;                                                              \
        __VA_ARGS__;                                                                               \
        EXPECT_FAIL(status, words, ejk_benchmark_suite_run(&x, &out));                             \
    } while (0)
    REFUSED(INVALID_ARGUMENT, "run is NULL", x.run = NULL);
    REFUSED(INVALID_ARGUMENT, "algorithms: 0 given", x.algorithm_count = 0);
    REFUSED(INVALID_ARGUMENT, "algorithms: 3 given as NULL", x.algorithms = NULL);
    REFUSED(INVALID_ARGUMENT, "is given twice", x.algorithms = twice, x.algorithm_count = 2);
    REFUSED(INVALID_ARGUMENT, "algorithms[0] is NULL", x.algorithms = missing,
            x.algorithm_count = 1);
    REFUSED(INVALID_ARGUMENT, "not UTF-8", x.algorithms = odd, x.algorithm_count = 1);
    REFUSED(INVALID_ARGUMENT, "configs: -1", x.config_count = -1);
    REFUSED(MALFORMED, "configs[0]: \"[1]\"", x.configs = list, x.config_count = 1);
    REFUSED(MALFORMED, "configs[0]: \"{\"", x.configs = broken, x.config_count = 1);
    REFUSED(INVALID_ARGUMENT, "warmup: -1", x.warmup = ejk_int(-1));
    REFUSED(INVALID_ARGUMENT, "iterations: -1", x.iterations = -1);
    REFUSED(INVALID_ARGUMENT, "sample_s: -1", x.sample_s = ejk_float(-1));
#undef REFUSED
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_benchmark_suite_run(NULL, &out));
    assert_ptr_equal(out, &untouched);
    assert_int_equal(s.started, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_is_timed),
        cmocka_unit_test(backward_is_timed_apart),
        cmocka_unit_test(times_are_summed_up),
        cmocka_unit_test(results_are_saved_into_new_folders),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
