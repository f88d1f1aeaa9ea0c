/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine chooses and what it says of the rest, for candidates by script on a clock by script. */
#include "support/expect.h"
#include "support/tune_world.h"

#include <math.h>
#include <stdio.h>

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

static void expect_verdict(const ejk_tune_report *report, int32_t index, ejk_tune_verdict wanted) {
    const ejk_tune_candidate *c = &report->candidates[index];
    if (c->verdict != wanted)
        fail_msg("candidate %d: %s (%s), expected %s", index, ejk_tune_verdict_name(c->verdict),
                 c->sentence, ejk_tune_verdict_name(wanted));
}

static void expect_sentence(const ejk_tune_report *report, int32_t index, const char *words) {
    if (strstr(report->candidates[index].sentence, words) == NULL)
        fail_msg("candidate %d: \"%s\" does not say \"%s\"", index,
                 report->candidates[index].sentence, words);
}

#define VERDICT(report, index, verdict)                                                            \
    expect_verdict((report), (index), EJK_TUNE_VERDICT_##verdict)

/* ---- Choices --------------------------------------------------------------------------------------- */

static void the_clearly_faster_wins(void **state) {
    (void)state;
    tune_world w = {.count = 3,
                    .script = {{.seconds = 4 * MS}, {.seconds = 2 * MS}, {.seconds = 8 * MS}}};
    ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
    assert_int_equal(r->chosen, 1);
    VERDICT(r, 0, SLOWER);
    VERDICT(r, 1, WON);
    VERDICT(r, 2, SLOWER);
    EXPECT_NEAR(r->ratio, 0.5, 1e-9);
    EXPECT_NEAR(r->noise, 0, 1e-9);
    EXPECT_NEAR(r->candidates[1].median_s, 2 * MS, 1e-9);
    EXPECT_NEAR(r->candidates[0].median_s, 4 * MS, 1e-9);
    assert_true(r->pairs >= 7 && r->pairs % 2 == 1);
    assert_false(r->out_of_time || r->cancelled);
    assert_string_equal(r->candidates[2].description, "{\"block\":2}");
    assert_string_equal(r->candidates[1].sentence, "");
    expect_sentence(r, 2, "dropped after round 3");
    assert_int_equal(r->candidates[2].samples, 3);
    /* Its result was looked at after its first run, when it was warm, and after its last. */
    assert_int_equal(w.checks[1], 3);
    assert_int_equal(w.checks[2], 2);
    assert_int_equal(w.keeps, 1);
    ejk_tune_report_destroy(r);
}

static void any_candidate_may_be_the_default(void **state) {
    (void)state;
    tune_world w = {.count = 3,
                    .script = {{.seconds = 4 * MS}, {.seconds = 3 * MS}, {.seconds = 2 * MS}}};
    ejk_tune_report *r = tuned(&w, 2, tune_world_options(&w));
    assert_int_equal(r->chosen, 2);
    VERDICT(r, 2, KEPT);
    assert_true(isnan(r->ratio));
    assert_int_equal(r->pairs, 0);
    ejk_tune_report_destroy(r);
}

static void a_lead_within_one_percent_is_none(void **state) {
    (void)state;
    tune_world w = {.count = 2, .script = {{.seconds = 4 * MS}, {.seconds = 3.98 * MS}}};
    ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
    assert_int_equal(r->chosen, 0);
    VERDICT(r, 0, KEPT);
    VERDICT(r, 1, UNPROVEN);
    EXPECT_NEAR(r->ratio, 0.995, 1e-9);
    expect_sentence(r, 1, "0.995");
    ejk_tune_report_destroy(r);
}

static void a_lead_that_is_steady_but_small_is_none(void **state) {
    (void)state;
    tune_world w = {.count = 2, .script = {{.seconds = 4 * MS}, {.seconds = 3.92 * MS}}};
    ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
    assert_int_equal(r->chosen, 0);
    VERDICT(r, 1, UNPROVEN);
    EXPECT_NEAR(r->ratio, 0.98, 1e-9);
    ejk_tune_report_destroy(r);
    w = (tune_world){.count = 2, .script = {{.seconds = 4 * MS}, {.seconds = 3.8 * MS}}};
    r = tuned(&w, 0, tune_world_options(&w));
    assert_int_equal(r->chosen, 1);
    ejk_tune_report_destroy(r);
}

/* It leads in the first pairs only, as where a neighbour met the default alone. */
static void a_lead_has_to_be_there_in_every_third(void **state) {
    (void)state;
    for (int from = 0; from <= 21; from += 7) {
        tune_world w = {.count = 2, .script = {{.seconds = 4 * MS}, {.seconds = 3 * MS}}};
        ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
        const int32_t before = w.runs[1] - r->pairs - 2; /* two checks of the winner's last run */
        ejk_tune_report_destroy(r);
        w = (tune_world){
            .count = 2,
            .script = {{.seconds = 4 * MS},
                       {.seconds = 3 * MS, .later_from = before + from, .later = 4 * MS}}};
        r = tuned(&w, 0, tune_world_options(&w));
        assert_int_equal(r->pairs, 21);
        /* With two thirds won the median is as good as with three. */
        if (from >= 14) EXPECT_NEAR(r->ratio, 0.75, 1e-9);
        assert_int_equal(r->chosen, from == 21 ? 1 : 0);
        if (from == 14) expect_sentence(r, 1, "1.000 in the worst third");
        ejk_tune_report_destroy(r);
    }
}

/* Runs of a microsecond: 21 pairs of them are over before a neighbour's turn is. */
static void the_guard_takes_its_time(void **state) {
    (void)state;
    tune_world w = {.count = 2, .script = {{.seconds = 1e-6}, {.seconds = 0.5e-6}}};
    ejk_tuner_options options = tune_world_options(&w);
    options.sample_s = (ejk_opt_float){0};
    ejk_tune_report *r = tuned(&w, 0, options);
    assert_int_equal(r->chosen, 1);
    assert_int_equal(r->pairs, 21);
    assert_in_range((int)(1e3 * r->elapsed_s), 2 * 21 * 10, 600);
    ejk_tune_report_destroy(r);
    /* Of half a second no more than half goes there. */
    w = (tune_world){.count = 2, .script = {{.seconds = 1e-6}, {.seconds = 0.5e-6}}};
    options.time_s = 0.5;
    r = tuned(&w, 0, options);
    assert_int_equal(r->chosen, 1);
    assert_in_range((int)(1e3 * r->elapsed_s), 150, 300);
    ejk_tune_report_destroy(r);
}

/* A lead of 3 % where single runs differ by up to 60 %: it may be luck, and 21 pairs do not tell. */
static void a_lead_within_the_noise_is_none(void **state) {
    (void)state;
    tune_world w = {
        .count = 2,
        .script = {{.seconds = 4 * MS, .noise = 0.6}, {.seconds = 3.88 * MS, .noise = 0.6}}};
    w.random.state = 3;
    ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
    assert_int_equal(r->chosen, 0);
    assert_true(isnan(r->ratio) || r->noise > 0.03);
    ejk_tune_report_destroy(r);
}

static void noise_does_not_hide_a_real_lead(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        tune_world w = {.count = 4};
        for (int i = 0; i < 4; i++) w.script[i] = (tune_script){.seconds = 4 * MS, .noise = 0.3};
        w.script[2].seconds = 2.4 * MS;
        w.random.state = seed;
        ejk_tuner_options options = tune_world_options(&w);
        options.seed = seed;
        ejk_tune_report *r = tuned(&w, 0, options);
        assert_int_equal(r->chosen, 2);
        EXPECT_NEAR(r->ratio, 0.6, 0.15);
        assert_true(r->noise > 0);
        assert_int_equal(r->seed, seed);
        ejk_tune_report_destroy(r);
    }
}

/* The lowest of twelve equal medians leads by luck; the guard has to see that, but for a few of 200. */
static void equals_rarely_displace_the_default(void **state) {
    (void)state;
    int displaced = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        tune_world w = {.count = 12};
        for (int i = 0; i < 12; i++) w.script[i] = (tune_script){.seconds = 4 * MS, .noise = 0.2};
        w.random.state = seed;
        ejk_tuner_options options = tune_world_options(&w);
        options.seed = seed;
        ejk_tune_report *r = tuned(&w, 0, options);
        displaced += r->chosen != 0;
        ejk_tune_report_destroy(r);
    }
    if (displaced > 10) fail_msg("%d of 200 defaults were displaced by an equal", displaced);
}

static void ties_go_to_the_default_then_to_the_first(void **state) {
    (void)state;
    tune_world same = {.count = 3,
                       .script = {{.seconds = 4 * MS}, {.seconds = 4 * MS}, {.seconds = 4 * MS}}};
    ejk_tune_report *r = tuned(&same, 1, tune_world_options(&same));
    assert_int_equal(r->chosen, 1);
    VERDICT(r, 0, SLOWER);
    ejk_tune_report_destroy(r);

    tune_world two = {
        .count = 4,
        .script = {
            {.seconds = 4 * MS}, {.seconds = 3 * MS}, {.seconds = 2 * MS}, {.seconds = 2 * MS}}};
    r = tuned(&two, 0, tune_world_options(&two));
    assert_int_equal(r->chosen, 2);
    VERDICT(r, 3, SLOWER);
    ejk_tune_report_destroy(r);
}

static void a_single_candidate_is_the_default(void **state) {
    (void)state;
    tune_world w = {.count = 1, .script = {{.seconds = 4 * MS}}};
    ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
    assert_int_equal(r->chosen, 0);
    VERDICT(r, 0, KEPT);
    EXPECT_NEAR(r->candidates[0].median_s, 4 * MS, 1e-9);
    assert_int_equal(r->candidates[0].samples, 0);
    assert_true(isnan(r->candidates[0].spread_s));
    ejk_tune_report_destroy(r);
}

/* ---- Candidates that must not win ------------------------------------------------------------------- */

static void liars_do_not_win(void **state) {
    (void)state;
    tune_world w = {.count = 5,
                    .script = {{.seconds = 4 * MS},
                               {.seconds = 1 * MS, .off = 0.5},
                               {.seconds = 1 * MS, .off = NAN},
                               {.seconds = 1 * MS, .off = INFINITY},
                               {.seconds = 1 * MS, .off = 1, .off_from = 1}}};
    ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
    assert_int_equal(r->chosen, 0);
    for (int32_t i = 1; i < 4; i++) {
        VERDICT(r, i, DISAGREES);
        assert_int_equal(w.runs[i], 1); /* not a run more than it took to find out */
    }
    VERDICT(r, 4, DISAGREES); /* right the first time only */
    assert_int_equal(w.runs[4], 2);
    EXPECT_NEAR(r->candidates[1].difference, 0.5, 0);
    assert_true(isnan(r->candidates[2].difference));
    expect_sentence(r, 1, "differs from the default's by 0.5");
    ejk_tune_report_destroy(r);
}

/* Right at first and wrong once it leads: the next best gets the place. */
static void late_liars_do_not_win(void **state) {
    (void)state;
    tune_world w = {.count = 3,
                    .script = {{.seconds = 4 * MS},
                               {.seconds = 1 * MS, .off = 0.5, .off_from = 4},
                               {.seconds = 2 * MS}}};
    ejk_tuner_options options = tune_world_options(&w);
    ejk_tune_report *r = tuned(&w, 0, options);
    VERDICT(r, 1, DISAGREES);
    /* The liar's times had dropped the runner-up from the race: it comes back. */
    VERDICT(r, 2, WON);
    assert_string_equal(r->candidates[2].sentence, "");
    assert_int_equal(r->candidates[2].samples, 3);
    assert_int_equal(r->chosen, 2);
    ejk_tune_report_destroy(r);

    tune_world close = {.count = 3,
                        .script = {{.seconds = 4 * MS},
                                   {.seconds = 2 * MS, .off = 0.5, .off_from = 4},
                                   {.seconds = 2.01 * MS}}};
    r = tuned(&close, 0, tune_world_options(&close));
    VERDICT(r, 1, DISAGREES);
    VERDICT(r, 2, WON);
    assert_int_equal(r->chosen, 2);
    EXPECT_NEAR(r->ratio, 2.01 / 4, 1e-9);
    ejk_tune_report_destroy(r);
}

static void failures_are_kept_with_their_reason(void **state) {
    (void)state;
    tune_world w = {.count = 6,
                    .script = {{.seconds = 4 * MS},
                               {.seconds = 1 * MS, .fails = true},
                               {.seconds = 1 * MS, .fails = true, .silent = true},
                               {.seconds = 1 * MS, .check_fails = true},
                               {.seconds = 1 * MS, .fails = true, .fails_from = 1},
                               {.seconds = 1 * MS, .fails = true, .fails_from = 4}}};
    ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
    assert_int_equal(r->chosen, 0);
    for (int32_t i = 1; i < 6; i++) VERDICT(r, i, FAILED);
    assert_int_equal(r->candidates[1].status, EJK_STATUS_UNAVAILABLE);
    expect_sentence(r, 1, "run failed: candidate 1 has no luck");
    expect_sentence(r, 2, ejk_status_message(EJK_STATUS_UNAVAILABLE));
    assert_int_equal(r->candidates[3].status, EJK_STATUS_IO);
    expect_sentence(r, 3, "check failed: candidate 3 cannot be checked");
    assert_int_equal(r->candidates[0].status, EJK_OK);
    ejk_tune_report_destroy(r);
}

/* It fails in the guard, after the rounds: the next best is compared instead. */
static void a_leader_that_fails_is_replaced(void **state) {
    (void)state;
    tune_world w = {.count = 3,
                    .script = {{.seconds = 4 * MS},
                               {.seconds = 2 * MS, .fails = true, .fails_from = 33},
                               {.seconds = 2.01 * MS}}};
    ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
    VERDICT(r, 1, FAILED);
    assert_int_equal(r->candidates[1].samples, 30);
    assert_int_equal(r->chosen, 2);
    ejk_tune_report_destroy(r);
}

static void a_success_leaves_the_last_sentence_alone(void **state) {
    (void)state;
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_tune(NULL, NULL, NULL));
    char before[256];
    snprintf(before, sizeof before, "%s", ejk_last_error());
    tune_world w = {.count = 2,
                    .script = {{.seconds = 4 * MS}, {.seconds = 1 * MS, .fails = true}}};
    ejk_tune_report_destroy(tuned(&w, 0, tune_world_options(&w)));
    assert_string_equal(ejk_last_error(), before);
}

static void hopeless_candidates_end_early(void **state) {
    (void)state;
    tune_world w = {.count = 4,
                    .script = {{.seconds = 4 * MS},
                               {.seconds = 1 * MS, .first = 9}, /* above its share of 2.5 s */
                               {.seconds = 41 * MS}, /* more than ten times the default, warm */
                               {.seconds = 2 * MS, .first = 0.5}}}; /* compiles: allowed */
    ejk_tune_report *r = tuned(
        &w, 0,
        (ejk_tuner_options){.sample_s = ejk_float(0), .time_s = 40, .clock = tune_world_clock(&w)});
    VERDICT(r, 1, WON);
    ejk_tune_report_destroy(r);

    tune_world shorter = w;
    memset(shorter.runs, 0, sizeof shorter.runs);
    shorter.now = 0;
    r = tuned(&shorter, 0, tune_world_options(&shorter));
    VERDICT(r, 1, TOO_SLOW);
    expect_sentence(r, 1, "its first run took 9 s, allowed were 2.5 s");
    assert_int_equal(shorter.runs[1], 1);
    EXPECT_NEAR(r->candidates[1].first_s, 9.001, 1e-9);
    assert_true(isnan(r->candidates[1].median_s));
    /* What hung took the others' time too, and that is said. */
    VERDICT(r, 2, NOT_REACHED);
    VERDICT(r, 3, NOT_REACHED);
    assert_true(r->out_of_time);
    assert_int_equal(r->chosen, 0);
    ejk_tune_report_destroy(r);

    tune_world slow = {
        .count = 3,
        .script = {{.seconds = 4 * MS}, {.seconds = 41 * MS}, {.seconds = 2 * MS, .first = 0.5}}};
    r = tuned(&slow, 0, tune_world_options(&slow));
    VERDICT(r, 1, TOO_SLOW);
    expect_sentence(r, 1, "a warm run took 0.041 s");
    VERDICT(r, 2, WON);
    ejk_tune_report_destroy(r);
}

static void too_much_memory_is_not_touched(void **state) {
    (void)state;
    tune_world w = {.count = 3,
                    .script = {{.seconds = 4 * MS},
                               {.seconds = 1 * MS, .bytes = 1001},
                               {.seconds = 2 * MS, .bytes = 1000}}};
    ejk_tuner_options options = tune_world_options(&w);
    options.memory_bytes = 1000;
    ejk_tune_report *r = tuned(&w, 0, options);
    VERDICT(r, 1, OVER_MEMORY);
    expect_sentence(r, 1, "1001 bytes, allowed are 1000");
    assert_int_equal(w.runs[1], 0);
    assert_int_equal(r->chosen, 2);
    ejk_tune_report_destroy(r);
}

/* ---- Budgets and cancelling -------------------------------------------------------------------------- */

static void the_budget_is_kept(void **state) {
    (void)state;
    tune_world w = {.count = 20};
    for (int i = 0; i < 20; i++) w.script[i] = (tune_script){.seconds = 100 * MS, .first = 50 * MS};
    w.script[1].seconds = 50 * MS;
    ejk_tuner_options options = tune_world_options(&w);
    options.time_s = 2;
    ejk_tune_report *r = tuned(&w, 0, options);
    assert_int_equal(r->chosen, 1);
    VERDICT(r, 1, WON);
    VERDICT(r, 19, NOT_REACHED);
    assert_int_equal(w.runs[19], 0);
    assert_true(r->out_of_time);
    assert_true(r->elapsed_s < 2 * 1.5 + 0.15);
    EXPECT_NEAR(r->budget_s, 2, 0);
    ejk_tune_report_destroy(r);
}

/* Runs of a second in a budget of two: seven pairs would take fourteen. */
static void without_time_for_the_guard_the_default_stays(void **state) {
    (void)state;
    tune_world w = {.count = 2, .script = {{.seconds = 1}, {.seconds = 0.5}}};
    ejk_tuner_options options = tune_world_options(&w);
    options.time_s = 2;
    options.warmup = ejk_int(0);
    ejk_tune_report *r = tuned(&w, 0, options);
    assert_int_equal(r->chosen, 0);
    assert_true(r->elapsed_s <= 4);
    assert_true(r->out_of_time);
    ejk_tune_report_destroy(r);

    tune_world lead = {.count = 2, .script = {{.seconds = 1}, {.seconds = 0.5}}};
    options = tune_world_options(&lead);
    options.time_s = 6;
    r = tuned(&lead, 0, options);
    VERDICT(r, 1, UNPROVEN);
    expect_sentence(r, 1, "no time");
    assert_int_equal(r->chosen, 0);
    ejk_tune_report_destroy(r);
}

static void only_the_first_candidates_are_tried(void **state) {
    (void)state;
    tune_world w = {
        .count = 4,
        .script = {
            {.seconds = 1 * MS}, {.seconds = 3 * MS}, {.seconds = 2 * MS}, {.seconds = 4 * MS}}};
    ejk_tuner_options options = tune_world_options(&w);
    options.max_candidates = 2;
    ejk_tune_report *r = tuned(&w, 3, options);
    assert_int_equal(r->chosen, 0);
    VERDICT(r, 1, NOT_REACHED);
    VERDICT(r, 2, NOT_REACHED);
    VERDICT(r, 3, SLOWER);
    assert_false(r->out_of_time);
    ejk_tune_report_destroy(r);
}

static void cancelling_keeps_what_was_found(void **state) {
    (void)state;
    /* While candidates are tried (run 7), and in the middle of the rounds (run 20). */
    const int32_t moments[] = {7, 20};
    for (int m = 0; m < 2; m++) {
        tune_world w = {.count = 5,
                        .script = {{.seconds = 4 * MS},
                                   {.seconds = 2 * MS},
                                   {.seconds = 3.9 * MS},
                                   {.seconds = 3.9 * MS},
                                   {.seconds = 3.9 * MS}},
                        .cancel_after = moments[m],
                        .cancel_value = 1};
        ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
        assert_int_equal(r->chosen, 1);
        VERDICT(r, 1, WON);
        assert_int_equal(r->pairs, 7);
        assert_true(r->cancelled);
        if (m == 0) VERDICT(r, 4, NOT_REACHED);
        ejk_tune_report_destroy(r);
    }
}

static void stopping_keeps_the_default(void **state) {
    (void)state;
    /* While candidates are tried, in the rounds, in the guard. */
    const int32_t moments[] = {4, 7, 19};
    for (int m = 0; m < 3; m++) {
        tune_world w = {.count = 2,
                        .script = {{.seconds = 4 * MS}, {.seconds = 2 * MS}},
                        .cancel_after = moments[m],
                        .cancel_value = 2};
        ejk_tune_report *r = tuned(&w, 0, tune_world_options(&w));
        assert_int_equal(r->chosen, 0);
        VERDICT(r, 0, KEPT);
        VERDICT(r, 1, UNPROVEN);
        assert_true(r->cancelled);
        assert_true(w.all_runs <= moments[m] + 1);
        ejk_tune_report_destroy(r);
    }
}

static void short_calls_are_repeated_until_they_are_long(void **state) {
    (void)state;
    tune_world w = {.count = 2, .script = {{.seconds = 1e-6}, {.seconds = 0.5e-6}}};
    ejk_tuner_options options = {.clock = tune_world_clock(&w), .max_rounds = 3};
    ejk_tune_report *r = tuned(&w, 0, options);
    assert_int_equal(r->chosen, 1);
    EXPECT_NEAR(r->candidates[1].median_s, 0.5e-6, 1e-12);
    EXPECT_NEAR(r->candidates[0].median_s, 1e-6, 1e-12);
    assert_true(w.runs[0] > 200 * (3 + r->pairs));
    ejk_tune_report_destroy(r);
}

static void warm_up_and_rounds_are_as_many_as_asked(void **state) {
    (void)state;
    tune_world w = {.count = 3,
                    .script = {{.seconds = 4 * MS}, {.seconds = 4 * MS}, {.seconds = 4 * MS}}};
    ejk_tuner_options options = tune_world_options(&w);
    options.warmup = ejk_int(5);
    options.iters = 2;
    options.max_rounds = 1; /* never below iters */
    ejk_tune_report *r = tuned(&w, 0, options);
    assert_int_equal(r->rounds, 2);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r->candidates[i].samples, 2);
        assert_int_equal(w.runs[i], 5 + 1 + 2);
    }
    ejk_tune_report_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_clearly_faster_wins),
        cmocka_unit_test(any_candidate_may_be_the_default),
        cmocka_unit_test(a_lead_within_one_percent_is_none),
        cmocka_unit_test(a_lead_that_is_steady_but_small_is_none),
        cmocka_unit_test(a_lead_has_to_be_there_in_every_third),
        cmocka_unit_test(the_guard_takes_its_time),
        cmocka_unit_test(a_lead_within_the_noise_is_none),
        cmocka_unit_test(noise_does_not_hide_a_real_lead),
        cmocka_unit_test(equals_rarely_displace_the_default),
        cmocka_unit_test(ties_go_to_the_default_then_to_the_first),
        cmocka_unit_test(a_single_candidate_is_the_default),
        cmocka_unit_test(liars_do_not_win),
        cmocka_unit_test(late_liars_do_not_win),
        cmocka_unit_test(failures_are_kept_with_their_reason),
        cmocka_unit_test(a_leader_that_fails_is_replaced),
        cmocka_unit_test(a_success_leaves_the_last_sentence_alone),
        cmocka_unit_test(hopeless_candidates_end_early),
        cmocka_unit_test(too_much_memory_is_not_touched),
        cmocka_unit_test(the_budget_is_kept),
        cmocka_unit_test(without_time_for_the_guard_the_default_stays),
        cmocka_unit_test(only_the_first_candidates_are_tried),
        cmocka_unit_test(cancelling_keeps_what_was_found),
        cmocka_unit_test(stopping_keeps_the_default),
        cmocka_unit_test(short_calls_are_repeated_until_they_are_long),
        cmocka_unit_test(warm_up_and_rounds_are_as_many_as_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
