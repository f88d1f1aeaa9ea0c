/* SPDX-License-Identifier: Apache-2.0 */
/* Plain functions with hyperparameters: which values are tried, which win, what is remembered. */
#include "base/base.h"
#include "support/expect.h"

#include <ejkernel/tuning.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * A function of a block size and an algorithm, on a clock of its own: what a call takes is looked up by the
 * combination, plus what the script of its calls says.
 */
enum { BLOCKS = 3, ALGORITHMS = 2, COMBINATIONS = BLOCKS * ALGORITHMS };

typedef struct toy_function {
    double seconds[COMBINATIONS];
    double script[COMBINATIONS][16]; /* on top, per call; 16 calls and more take the last */
    int32_t fails_from[COMBINATIONS],
        fails_to[COMBINATIONS]; /* calls that fail, from 1; 0 = none */
    bool wrong[COMBINATIONS];
    int32_t calls[COMBINATIONS];
    int32_t last; /* combination of the last call */
    int32_t firsts, checks;
    double now;
} toy_function;

static const ejk_hyper_value block_values[BLOCKS] = {
    {EJK_HYPER_INT, 64, 0, NULL}, {EJK_HYPER_INT, 128, 0, NULL}, {EJK_HYPER_INT, 256, 0, NULL}};
static const ejk_hyper_value algorithm_values[ALGORITHMS] = {{EJK_HYPER_TEXT, 0, 0, "plain"},
                                                             {EJK_HYPER_TEXT, 0, 0, "split"}};
static const ejk_hyperparam params[2] = {{"block", block_values, BLOCKS},
                                         {"algorithm", algorithm_values, ALGORITHMS}};

static int32_t combination_of(const ejk_hyper_value *values) {
    int32_t block = values[0].integer == 64 ? 0 : values[0].integer == 128 ? 1 : 2;
    return block * ALGORITHMS + (strcmp(values[1].text, "split") == 0);
}

static ejk_status run(void *user, void *args, const ejk_hyper_value *values) {
    toy_function *f = user;
    int32_t c = combination_of(values), call = f->calls[c]++;
    f->now += f->seconds[c] + f->script[c][call < 16 ? call : 15];
    f->last = c;
    if (args != NULL) ++*(int32_t *)args;
    if (f->fails_from[c] == 0 || call + 1 < f->fails_from[c] || call + 1 > f->fails_to[c])
        return EJK_OK;
    return ejki_fail(EJK_STATUS_UNAVAILABLE, "combination %d has no luck", (int)c);
}

static ejk_status check(void *user, void *args, bool first, bool *agrees) {
    toy_function *f = user;
    (void)args;
    f->firsts += first;
    f->checks++;
    *agrees = !f->wrong[f->last];
    return EJK_OK;
}

static double now(void *user) {
    return ((toy_function *)user)->now;
}

static ejk_hyper_function function_of(toy_function *f) {
    return (ejk_hyper_function){.run = run, .user = f, .hyperparams = params, .count = 2};
}

static ejk_fn_autotuner tuner_of(toy_function *f) {
    return (ejk_fn_autotuner){.seed = 5, .clock = {now, f}};
}

/* Combination 3 (128, "split") is the fastest. */
static toy_function sound(void) {
    return (toy_function){.seconds = {6, 5, 4, 1, 3, 2}};
}

static ejk_fn_tuning *tuned(ejk_fn_autotuner tuner, ejk_hyper_function function) {
    ejk_fn_tuning *tuning = NULL;
    EXPECT_OK(ejk_fn_autotuner_tune(&tuner, &function, NULL, &tuning));
    return tuning;
}

/* ---- Tuning ----------------------------------------------------------------------------------------------- */

static void results_come_by_score(void **state) {
    (void)state;
    toy_function f = sound();
    ejk_fn_tuning *t = tuned(tuner_of(&f), function_of(&f));
    assert_int_equal(t->count, COMBINATIONS);
    assert_int_equal(t->hyperparam_count, 2);
    const int32_t order[] = {3, 5, 4, 2, 1, 0};
    for (int i = 0; i < COMBINATIONS; i++) {
        assert_int_equal(combination_of(t->results[i].hyperparams), order[i]);
        EXPECT_NEAR(t->results[i].t_mean, i + 1, 1e-9);
        EXPECT_NEAR(t->results[i].t_std, 0, 1e-6);
        assert_int_equal(f.calls[i], 2 + 5 * 3); /* the documented defaults */
    }
    assert_int_equal(t->results[0].hyperparams[0].integer, 128);
    assert_string_equal(t->results[0].hyperparams[1].text, "split");
    assert_ptr_not_equal(t->results[0].hyperparams[1].text, algorithm_values[1].text);
    ejk_fn_tuning_destroy(t);
    ejk_fn_tuning_destroy(NULL);
}

/* Rounds of one call: 5 values, of which the lowest and the highest are left out. */
static void the_extremes_are_left_out(void **state) {
    (void)state;
    toy_function f = {.seconds = {100, 100, 100, 10, 100, 100},
                      .script[3] = {0, 0, 90, 2, 0, 4, -9}};
    ejk_fn_autotuner tuner = tuner_of(&f);
    tuner.calls_per_round = 1;
    ejk_fn_tuning *t = tuned(tuner, function_of(&f));
    const ejk_timing_result *best = &t->results[0];
    EXPECT_NEAR(best->t_mean, 12, 1e-9); /* of 100 12 10 14 1: 12 10 14 */
    EXPECT_NEAR(best->t_std, sqrt(8.0 / 3), 1e-9);
    ejk_fn_tuning_destroy(t);

    /* Of two rounds nothing is left out. */
    toy_function g = {.seconds = {100, 100, 100, 10, 100, 100}, .script[3] = {0, 0, 4, 2}};
    tuner = tuner_of(&g);
    tuner.calls_per_round = 1;
    tuner.timing_rounds = 2;
    t = tuned(tuner, function_of(&g));
    EXPECT_NEAR(t->results[0].t_mean, 13, 1e-9);
    EXPECT_NEAR(t->results[0].t_std, 1, 1e-9);
    ejk_fn_tuning_destroy(t);
}

/* A mean of 11 with a deviation of 2 scores 11.2, behind a steady 11.1 and before a steady 11.3. */
static void uneven_times_count_a_tenth(void **state) {
    (void)state;
    toy_function f = {.seconds = {11.3, 10, 11.1, 50, 50, 50}, .script[1] = {0, 0, -1, 3}};
    ejk_fn_autotuner tuner = tuner_of(&f);
    tuner.calls_per_round = 1;
    tuner.timing_rounds = 2;
    ejk_fn_tuning *t = tuned(tuner, function_of(&f));
    const int32_t order[] = {2, 1, 0};
    for (int i = 0; i < 3; i++)
        assert_int_equal(combination_of(t->results[i].hyperparams), order[i]);
    EXPECT_NEAR(t->results[1].t_mean, 11, 1e-9);
    EXPECT_NEAR(t->results[1].t_std, 2, 1e-9);
    ejk_fn_tuning_destroy(t);
}

static void ties_go_to_the_earlier_combination(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        toy_function f = {.seconds = {4, 2, 2, 2, 4, 2}};
        ejk_fn_autotuner tuner = tuner_of(&f);
        tuner.seed = seed;
        ejk_fn_tuning *t = tuned(tuner, function_of(&f));
        const int32_t order[] = {1, 2, 3, 5, 0, 4};
        for (int i = 0; i < COMBINATIONS; i++)
            assert_int_equal(combination_of(t->results[i].hyperparams), order[i]);
        ejk_fn_tuning_destroy(t);
    }
}

static void failures_do_not_win(void **state) {
    (void)state;
    toy_function f = sound();
    f.fails_from[3] = f.fails_to[3] = 2;       /* in its warm-up */
    f.fails_from[5] = 4, f.fails_to[5] = 1000; /* in every round */
    f.fails_from[4] = f.fails_to[4] = 4;       /* in one round, which is left out */
    ejk_fn_tuning *t = tuned(tuner_of(&f), function_of(&f));
    assert_int_equal(combination_of(t->results[0].hyperparams), 4);
    EXPECT_NEAR(t->results[0].t_mean, 3, 1e-9);
    for (int i = 4; i < 6; i++) assert_true(isinf(t->results[i].t_mean));
    assert_int_equal(combination_of(t->results[4].hyperparams), 3);
    assert_int_equal(f.calls[3], 2);
    ejk_fn_tuning_destroy(t);
}

static void liars_do_not_win(void **state) {
    (void)state;
    toy_function f = sound();
    f.wrong[3] = true;
    ejk_hyper_function function = function_of(&f);
    function.check = check;
    ejk_fn_autotuner tuner = tuner_of(&f);
    tuner.timing_warmup_iterations = ejk_int(0); /* the result is looked at all the same */
    ejk_fn_tuning *t = tuned(tuner, function);
    assert_int_equal(combination_of(t->results[0].hyperparams), 5);
    assert_int_equal(combination_of(t->results[5].hyperparams), 3);
    assert_true(isinf(t->results[5].t_mean));
    assert_int_equal(f.calls[3], 1);
    assert_int_equal(f.firsts, 1);
    assert_int_equal(f.checks, COMBINATIONS);
    ejk_fn_tuning_destroy(t);
}

static void a_random_part_is_tried(void **state) {
    (void)state;
    int32_t seen[COMBINATIONS] = {0};
    for (uint64_t seed = 0; seed < 40; seed++) {
        toy_function f = sound();
        ejk_fn_autotuner tuner = tuner_of(&f);
        tuner.seed = seed;
        tuner.sample_num = ejk_int(2);
        ejk_fn_tuning *t = tuned(tuner, function_of(&f));
        assert_int_equal(t->count, 2);
        int32_t a = combination_of(t->results[0].hyperparams);
        int32_t b = combination_of(t->results[1].hyperparams);
        assert_int_not_equal(a, b);
        seen[a]++, seen[b]++;
        toy_function g = sound(); /* the same seed picks the same */
        tuner.clock.user = &g;
        ejk_fn_tuning *again = tuned(tuner, function_of(&g));
        assert_int_equal(combination_of(again->results[0].hyperparams), a);
        ejk_fn_tuning_destroy(again);
        ejk_fn_tuning_destroy(t);
    }
    for (int i = 0; i < COMBINATIONS; i++) assert_true(seen[i] > 0);
    toy_function f = sound();
    ejk_fn_autotuner tuner = tuner_of(&f);
    tuner.sample_num = ejk_int(INT64_MAX);
    ejk_fn_tuning *t = tuned(tuner, function_of(&f));
    assert_int_equal(t->count, COMBINATIONS);
    ejk_fn_tuning_destroy(t);
}

static ejk_status count_call(void *user, void *args, const ejk_hyper_value *values) {
    (void)args, (void)values;
    atomic_fetch_add((atomic_int *)user, 1);
    return EJK_OK;
}

static void a_function_without_hyperparameters_has_one_combination(void **state) {
    (void)state;
    atomic_int calls = 0;
    ejk_hyper_function function = {.run = count_call, .user = &calls};
    ejk_fn_tuning *t = NULL;
    EXPECT_OK(ejk_fn_autotuner_tune(NULL, &function, NULL, &t));
    assert_int_equal(t->count, 1);
    assert_int_equal(t->hyperparam_count, 0);
    assert_int_equal(atomic_load(&calls), 17);
    ejk_fn_tuning_destroy(t);
}

static void values_of_every_kind_arrive(void **state) {
    (void)state;
    ejk_hyper_value i = ejk_hyper_int(-3), f = ejk_hyper_float(0.5), t = ejk_hyper_text("a");
    assert_int_equal(i.kind, EJK_HYPER_INT);
    assert_int_equal(i.integer, -3);
    assert_int_equal(f.kind, EJK_HYPER_FLOAT);
    EXPECT_NEAR(f.number, 0.5, 0);
    assert_int_equal(t.kind, EJK_HYPER_TEXT);
    assert_string_equal(t.text, "a");
}

/* ---- Errors ------------------------------------------------------------------------------------------------- */

static void all_failing_is_an_error(void **state) {
    (void)state;
    toy_function f = sound();
    for (int i = 0; i < COMBINATIONS; i++) f.fails_from[i] = 1, f.fails_to[i] = 1000;
    ejk_fn_autotuner tuner = tuner_of(&f);
    ejk_hyper_function function = function_of(&f);
    ejk_fn_tuning *untouched = (ejk_fn_tuning *)&f, *out = untouched;
    EXPECT_FAIL(UNAVAILABLE, "none of 6 combinations succeeded; the first failure: combination 0",
                ejk_fn_autotuner_tune(&tuner, &function, NULL, &out));
    f = sound();
    for (int i = 0; i < COMBINATIONS; i++) f.wrong[i] = true;
    function.check = check;
    EXPECT_FAIL(MISMATCH, "combination 0 is refused",
                ejk_fn_autotuner_tune(&tuner, &function, NULL, &out));
    assert_ptr_equal(out, untouched);
}

static void arguments_are_checked(void **state) {
    (void)state;
    toy_function f = sound();
    const ejk_hyper_function function = function_of(&f);
    ejk_fn_tuning *untouched = (ejk_fn_tuning *)&f, *out = untouched;
    const struct {
        ejk_fn_autotuner tuner;
        const char *words;
    } tuners[] = {
        {{.timing_warmup_iterations = {-1, true}}, "timing_warmup_iterations: -1"},
        {{.timing_rounds = -1}, "timing_rounds: -1"},
        {{.calls_per_round = -1}, "calls_per_round: -1"},
        {{.cache_size_limit = -1}, "cache_size_limit: -1"},
        {{.max_workers = {0, true}}, "max_workers: 0"},
        {{.sample_num = {-1, true}}, "sample_num: -1"},
        {{.sample_num = {0, true}}, "sample_num: 0"},
    };
    for (size_t i = 0; i < sizeof tuners / sizeof *tuners; i++)
        EXPECT_FAIL(INVALID_ARGUMENT, tuners[i].words,
                    ejk_fn_autotuner_tune(&tuners[i].tuner, &function, NULL, &out));

    static const ejk_hyper_value no_text = {EJK_HYPER_TEXT, 0, 0, NULL};
    static const ejk_hyper_value no_kind = {(ejk_hyper_kind)9, 0, 0, NULL};
    const ejk_hyperparam twice[2] = {params[0], params[0]};
    const struct {
        const ejk_hyperparam *params;
        int32_t count;
        const char *words;
    } spaces[] = {
        {NULL, 1, "1 given as NULL"},
        {params, -1, "-1 given"},
        {params, 17, "17 given"},
        {twice, 2, "block is given twice"},
        {&(ejk_hyperparam){NULL, block_values, 1}, 1, "number 0 has no name"},
        {&(ejk_hyperparam){"", block_values, 1}, 1, "number 0 has no name"},
        {&(ejk_hyperparam){"x", block_values, 0}, 1, "x has 0 values"},
        {&(ejk_hyperparam){"x", NULL, 3}, 1, "x has 0 values"},
        {&(ejk_hyperparam){"x", &no_text, 1}, 1, "value 0 of x has kind 2 without text"},
        {&(ejk_hyperparam){"x", &no_kind, 1}, 1, "value 0 of x has kind 9"},
    };
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        ejk_hyper_function wrong = function;
        wrong.hyperparams = spaces[i].params;
        wrong.count = spaces[i].count;
        EXPECT_FAIL(INVALID_ARGUMENT, spaces[i].words,
                    ejk_fn_autotuner_tune(NULL, &wrong, NULL, &out));
    }
    ejk_hyper_function wrong = function;
    wrong.run = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "run", ejk_fn_autotuner_tune(NULL, &wrong, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "function", ejk_fn_autotuner_tune(NULL, NULL, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_fn_autotuner_tune(NULL, &function, NULL, NULL));

    enum { MANY = 2000 };
    static ejk_hyper_value values[MANY];
    const ejk_hyperparam wide[2] = {{"a", values, MANY}, {"b", values, MANY}};
    wrong = function;
    wrong.hyperparams = wide;
    EXPECT_FAIL(OVERFLOW, "1048576", ejk_fn_autotuner_tune(NULL, &wrong, NULL, &out));
    assert_ptr_equal(out, untouched);
    assert_int_equal(f.calls[0], 0);
}

/* ---- Functions that tune themselves ----------------------------------------------------------------------------- */

static ejk_tuned_fn *wrapped(ejk_fn_autotuner tuner, ejk_hyper_function function) {
    ejk_tuned_fn *fn = NULL;
    EXPECT_OK(ejk_autotune_fn(&tuner, &function, &fn));
    return fn;
}

static void a_key_is_tuned_once(void **state) {
    (void)state;
    toy_function f = sound();
    ejk_tuned_fn *fn = wrapped(tuner_of(&f), function_of(&f));
    int32_t args = 0;
    EXPECT_OK(ejk_tuned_fn_call(fn, "2x128", &args));
    const int32_t tuning = COMBINATIONS * 17;
    assert_int_equal(args, tuning + 1);
    assert_int_equal(f.last, 3);
    EXPECT_OK(ejk_tuned_fn_call(fn, "2x128", &args));
    assert_int_equal(args, tuning + 2);
    assert_int_equal(f.last, 3);
    /* Another key, and other times: both choices are remembered. */
    f.seconds[0] = 0.5;
    EXPECT_OK(ejk_tuned_fn_call(fn, "2x64", &args));
    assert_int_equal(f.last, 0);
    EXPECT_OK(ejk_tuned_fn_call(fn, "2x128", &args));
    assert_int_equal(f.last, 3);
    assert_int_equal(args, 2 * tuning + 4);

    ejk_fn_tuning *results = NULL;
    EXPECT_OK(ejk_tuned_fn_timing_results(fn, &results));
    ejk_hyper_value best[2];
    EXPECT_OK(ejk_tuned_fn_optimal_hyperparams(fn, best));
    assert_int_equal(combination_of(best), 0);
    ejk_tuned_fn_destroy(fn);
    /* The results outlive what they came from. */
    assert_int_equal(combination_of(results->results[0].hyperparams), 0);
    assert_int_equal(results->count, COMBINATIONS);
    ejk_fn_tuning_destroy(results);
    ejk_tuned_fn_destroy(NULL);
}

static void without_a_key_nothing_is_tuned(void **state) {
    (void)state;
    toy_function f = sound();
    ejk_tuned_fn *fn = wrapped(tuner_of(&f), function_of(&f));
    ejk_fn_tuning *results = NULL;
    ejk_hyper_value best[2];
    EXPECT_FAIL(INVALID_ARGUMENT, "nothing was tuned", ejk_tuned_fn_timing_results(fn, &results));
    EXPECT_FAIL(INVALID_ARGUMENT, "nothing was tuned", ejk_tuned_fn_optimal_hyperparams(fn, best));
    assert_null(results);
    int32_t args = 0;
    EXPECT_OK(ejk_tuned_fn_call(fn, NULL, &args));
    assert_int_equal(args, 1);
    assert_int_equal(f.last, 0);
    EXPECT_OK(ejk_tuned_fn_call(fn, "", &args)); /* the empty key is one like others */
    EXPECT_OK(ejk_tuned_fn_call(fn, NULL, &args));
    assert_int_equal(f.last, 3);
    EXPECT_FAIL(INVALID_ARGUMENT, "tuned", ejk_tuned_fn_call(NULL, "", NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "tuned or", ejk_tuned_fn_timing_results(fn, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "tuned or", ejk_tuned_fn_optimal_hyperparams(NULL, best));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_autotune_fn(NULL, NULL, NULL));
    ejk_tuned_fn_destroy(fn);
}

static void the_oldest_insertion_gives_way(void **state) {
    (void)state;
    toy_function f = sound();
    ejk_fn_autotuner tuner = tuner_of(&f);
    tuner.cache_size_limit = 2;
    tuner.cache_key = "toy:";
    ejk_tuned_fn *fn = wrapped(tuner, function_of(&f));
    const int32_t tuning = COMBINATIONS * 17;
    const struct {
        const char *key;
        bool tunes;
    } calls[] = {
        {"a", true},  {"b", true}, {"a", false}, {"c", true}, /* a gives way, used or not */
        {"b", false}, {"a", true}, {"c", false}, {"b", true}, {"na\xefve", true}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        int32_t args = 0;
        EXPECT_OK(ejk_tuned_fn_call(fn, calls[i].key, &args));
        assert_int_equal(args, 1 + (calls[i].tunes ? tuning : 0));
    }
    ejk_tuned_fn_destroy(fn);
}

static void a_failed_tuning_is_not_remembered(void **state) {
    (void)state;
    toy_function f = sound();
    for (int i = 0; i < COMBINATIONS; i++) f.fails_from[i] = f.fails_to[i] = 1;
    ejk_tuned_fn *fn = wrapped(tuner_of(&f), function_of(&f));
    EXPECT_FAIL(UNAVAILABLE, "none of 6", ejk_tuned_fn_call(fn, "k", NULL));
    EXPECT_OK(ejk_tuned_fn_call(fn, "k", NULL)); /* the first calls are over */
    assert_int_equal(f.last, 3);
    f.fails_from[3] = 1, f.fails_to[3] = 1000;
    EXPECT_FAIL(UNAVAILABLE, "combination 3 has no luck", ejk_tuned_fn_call(fn, "k", NULL));
    ejk_tuned_fn_destroy(fn);
}

/* ---- Threads ---------------------------------------------------------------------------------------- */

enum { THREADS = 4, CALLS = 200, KEYS = 3 };

typedef struct crowd {
    ejk_tuned_fn *fn;
    atomic_int failures;
} crowd;

static void *call_often(void *user) {
    crowd *c = user;
    for (int i = 0; i < CALLS; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i % KEYS);
        ejk_fn_tuning *results = NULL;
        if (ejk_tuned_fn_call(c->fn, key, NULL) != EJK_OK ||
            ejk_tuned_fn_timing_results(c->fn, &results) != EJK_OK)
            atomic_fetch_add(&c->failures, 1);
        ejk_fn_tuning_destroy(results);
    }
    return NULL;
}

static void threads_share_what_was_found(void **state) {
    (void)state;
    atomic_int calls = 0;
    ejk_hyper_function function = {
        .run = count_call, .user = &calls, .hyperparams = params, .count = 2};
    crowd c = {.fn = wrapped((ejk_fn_autotuner){.seed = 1}, function)};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &c), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&c.failures), 0);
    /* Each key was tuned once, whoever came first. */
    assert_int_equal(atomic_load(&calls), THREADS * CALLS + KEYS * COMBINATIONS * 17);
    ejk_tuned_fn_destroy(c.fn);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_come_by_score),
        cmocka_unit_test(the_extremes_are_left_out),
        cmocka_unit_test(uneven_times_count_a_tenth),
        cmocka_unit_test(ties_go_to_the_earlier_combination),
        cmocka_unit_test(failures_do_not_win),
        cmocka_unit_test(liars_do_not_win),
        cmocka_unit_test(a_random_part_is_tried),
        cmocka_unit_test(a_function_without_hyperparameters_has_one_combination),
        cmocka_unit_test(values_of_every_kind_arrive),
        cmocka_unit_test(all_failing_is_an_error),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(a_key_is_tuned_once),
        cmocka_unit_test(without_a_key_nothing_is_tuned),
        cmocka_unit_test(the_oldest_insertion_gives_way),
        cmocka_unit_test(a_failed_tuning_is_not_remembered),
        cmocka_unit_test(threads_share_what_was_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
