/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine tells: progress, errors, the report as JSON. */
#include "support/expect.h"
#include "support/tune_world.h"

#include <jansson.h>
#include <math.h>

#define MS 1e-3

static ejk_tune_report *tuned(tune_world *w, int32_t default_index, ejk_tuner_options options) {
    ejk_tune_problem problem = tune_world_problem(w, default_index);
    ejk_tune_report *report = NULL;
    EXPECT_OK(ejk_tune(&problem, &options, &report));
    assert_non_null(report);
    assert_int_equal(report->count, w->count);
    assert_int_equal(report->default_index, default_index);
    return report;
}

/* ---- Progress ----------------------------------------------------------------------------------------- */

typedef struct watcher {
    int32_t calls[4];
    ejk_tune_progress last;
    double elapsed;
} watcher;

static void watch(void *user, const ejk_tune_progress *progress) {
    watcher *seen = user;
    seen->calls[progress->phase]++;
    assert_true(progress->elapsed_s >= seen->elapsed);
    assert_true(progress->phase >= seen->last.phase);
    assert_true(progress->survivors >= 1);
    seen->elapsed = progress->elapsed_s;
    seen->last = *progress;
}

static void progress_is_told(void **state) {
    (void)state;
    tune_world w = {
        .count = 3,
        .script = {{.seconds = 4 * MS}, {.seconds = 2 * MS}, {.seconds = 1 * MS, .off = 1}}};
    watcher seen = {.last.candidates = 0};
    ejk_tuner_options options = tune_world_options(&w);
    options.progress = watch;
    options.progress_user = &seen;
    ejk_tune_report *r = tuned(&w, 0, options);
    assert_int_equal(seen.calls[EJK_TUNE_PHASE_TRY], 3);
    assert_int_equal(seen.calls[EJK_TUNE_PHASE_ROUNDS], r->rounds);
    assert_int_equal(seen.calls[EJK_TUNE_PHASE_GUARD], r->pairs);
    assert_int_equal(seen.calls[EJK_TUNE_PHASE_DONE], 1);
    assert_int_equal(seen.last.best, 1);
    assert_int_equal(seen.last.candidates, 3);
    assert_int_equal(seen.last.tried, 3);
    assert_int_equal(seen.last.survivors, 2);
    EXPECT_NEAR(seen.last.best_median_s, 2 * MS, 1e-9);
    EXPECT_NEAR(seen.last.default_median_s, 4 * MS, 1e-9);
    EXPECT_NEAR(seen.last.budget_s, 10, 0);
    ejk_tune_report_destroy(r);
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

#define EXPECT_REFUSED(status, words, problem, options)                                            \
    do {                                                                                           \
        ejk_tune_report *untouched_ = (ejk_tune_report *)&w;                                       \
        EXPECT_FAIL(status, words, ejk_tune((problem), (options), &untouched_));                   \
        assert_ptr_equal(untouched_, &w);                                                          \
    } while (0)

static void a_default_that_fails_is_an_error(void **state) {
    (void)state;
    const tune_script broken[] = {
        {.seconds = 4 * MS, .fails = true},
        {.seconds = 4 * MS, .fails = true, .fails_from = 1},
        {.seconds = 4 * MS, .fails = true, .fails_from = 3},
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        tune_world w = {.count = 2, .script = {{.seconds = 4 * MS}, broken[i]}};
        ejk_tune_problem problem = tune_world_problem(&w, 1);
        ejk_tuner_options options = tune_world_options(&w);
        EXPECT_REFUSED(UNAVAILABLE, "run of the default, candidate 1, failed: candidate 1 has no",
                       &problem, &options);
    }
    tune_world w = {
        .count = 2,
        .script = {{.seconds = 4 * MS, .off = 0.5, .off_from = 1}, {.seconds = 4 * MS}}};
    ejk_tune_problem problem = tune_world_problem(&w, 0);
    ejk_tuner_options options = tune_world_options(&w);
    EXPECT_REFUSED(MISMATCH, "does not agree with its own first run", &problem, &options);
    w.script[0] = (tune_script){.seconds = 4 * MS, .check_fails = true};
    EXPECT_REFUSED(IO, "check of the default", &problem, &options);
}

static void all_failing_is_the_defaults_error(void **state) {
    (void)state;
    tune_world w = {.count = 3};
    for (int i = 0; i < 3; i++) w.script[i] = (tune_script){.seconds = 4 * MS, .fails = true};
    ejk_tune_problem problem = tune_world_problem(&w, 1);
    ejk_tuner_options options = tune_world_options(&w);
    EXPECT_REFUSED(UNAVAILABLE, "candidate 1 has no luck", &problem, &options);
}

static void arguments_are_checked(void **state) {
    (void)state;
    tune_world w = {.count = 2, .script = {{.seconds = 4 * MS}, {.seconds = 4 * MS}}};
    const ejk_tune_problem sound = tune_world_problem(&w, 0);
    ejk_tune_problem p = sound;
    p.run = NULL;
    EXPECT_REFUSED(INVALID_ARGUMENT, "run or check is NULL", &p, NULL);
    p = sound;
    p.check = NULL;
    EXPECT_REFUSED(INVALID_ARGUMENT, "run or check is NULL", &p, NULL);
    p = sound;
    p.count = 0;
    EXPECT_REFUSED(INVALID_ARGUMENT, "count is 0", &p, NULL);
    p.count = EJK_TUNE_MOST_CANDIDATES + 1;
    EXPECT_REFUSED(INVALID_ARGUMENT, "count is 4097", &p, NULL);
    p = sound;
    p.default_index = 2;
    EXPECT_REFUSED(INVALID_ARGUMENT, "default_index is 2", &p, NULL);
    p.default_index = -1;
    EXPECT_REFUSED(INVALID_ARGUMENT, "default_index is -1", &p, NULL);
    EXPECT_REFUSED(INVALID_ARGUMENT, "problem or out", NULL, NULL);

    const struct {
        ejk_tuner_options options;
        const char *words;
    } wrong[] = {
        {{.warmup = {-1, true}}, "warmup: -1"},
        {{.iters = -1}, "iters: -1"},
        {{.max_rounds = -1}, "max_rounds: -1"},
        {{.max_rounds = 10001}, "max_rounds, or iters: 10001"},
        {{.max_candidates = -1}, "max_candidates: -1"},
        {{.time_s = -1}, "time_s: -1"},
        {{.time_s = NAN}, "time_s: "},
        {{.time_s = INFINITY}, "time_s: inf"},
        {{.memory_bytes = -1}, "memory_bytes: -1"},
        {{.sample_s = {-1, true}}, "sample_s: -1"},
        {{.sample_s = {NAN, true}}, "sample_s: "},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_REFUSED(INVALID_ARGUMENT, wrong[i].words, &sound, &wrong[i].options);
    assert_int_equal(w.all_runs, 0);
    ejk_tune_report_destroy(NULL);
}

/* ---- The report as JSON ---------------------------------------------------------------------------------- */

static void the_report_is_json(void **state) {
    (void)state;
    tune_world w = {
        .count = 3,
        .script = {{.seconds = 4 * MS}, {.seconds = 2 * MS}, {.seconds = 1 * MS, .off = NAN}}};
    ejk_tuner_options options = tune_world_options(&w);
    options.seed = UINT64_MAX;
    ejk_tune_report *r = tuned(&w, 0, options);
    char *text = NULL;
    EXPECT_OK(ejk_tune_report_to_json(r, EJK_JSON_INDENT, &text));
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    assert_int_equal(json_integer_value(json_object_get(json, "chosen")), 1);
    EXPECT_NEAR(json_real_value(json_object_get(json, "ratio")), 0.5, 1e-9);
    assert_string_equal(json_string_value(json_object_get(json, "seed")), "18446744073709551615");
    json_t *list = json_object_get(json, "candidates"), *last = json_array_get(list, 2);
    assert_int_equal(json_array_size(list), 3);
    assert_string_equal(json_string_value(json_object_get(last, "verdict")), "disagrees");
    assert_string_equal(json_string_value(json_object_get(last, "description")), "{\"block\":2}");
    assert_true(json_is_null(json_object_get(last, "difference")));
    assert_true(json_is_null(json_object_get(last, "median_s")));
    json_decref(json);
    ejk_free(text);
    char *untouched = "untouched", *out = untouched;
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_tune_report_to_json(NULL, 0, &out));
    assert_ptr_equal(out, untouched);
    ejk_tune_report_destroy(r);
    assert_string_equal(ejk_tune_verdict_name((ejk_tune_verdict)99), "unknown");
    assert_string_equal(ejk_tune_phase_name((ejk_tune_phase)99), "unknown");
    assert_string_equal(ejk_tune_phase_name(EJK_TUNE_PHASE_GUARD), "guard");
}

static const char *describe_badly(void *user, int32_t index) {
    (void)user;
    return index == 0 ? NULL : "na\xefve";
}

static void texts_that_are_not_utf8_are_readable(void **state) {
    (void)state;
    tune_world w = {.count = 2, .script = {{.seconds = 4 * MS}, {.seconds = 2 * MS}}};
    ejk_tune_problem problem = tune_world_problem(&w, 0);
    problem.describe = describe_badly;
    ejk_tuner_options options = tune_world_options(&w);
    ejk_tune_report *r = NULL;
    EXPECT_OK(ejk_tune(&problem, &options, &r));
    assert_string_equal(r->candidates[0].description, "");
    char *text = NULL;
    EXPECT_OK(ejk_tune_report_to_json(r, 0, &text));
    assert_non_null(strstr(text, "\"na?ve\""));
    ejk_free(text);
    ejk_tune_report_destroy(r);
}

static void a_choice_rests_on_a_comparison(void **state) {
    (void)state;
    ejk_tune_report r = {.count = 2, .rounds = 3};
    assert_true(ejk_tune_report_is_settled(&r));
    r.cancelled = true; /* the default stays because the others had no chance */
    assert_false(ejk_tune_report_is_settled(&r));
    r.chosen = 1; /* that was proven */
    assert_true(ejk_tune_report_is_settled(&r));
    r = (ejk_tune_report){.count = 2, .out_of_time = true};
    assert_false(ejk_tune_report_is_settled(&r));
    r.count = 1; /* nothing to compare with */
    assert_true(ejk_tune_report_is_settled(&r));
    assert_false(ejk_tune_report_is_settled(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progress_is_told),
        cmocka_unit_test(a_default_that_fails_is_an_error),
        cmocka_unit_test(all_failing_is_the_defaults_error),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(the_report_is_json),
        cmocka_unit_test(a_choice_rests_on_a_comparison),
        cmocka_unit_test(texts_that_are_not_utf8_are_readable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
