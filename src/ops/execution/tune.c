/* SPDX-License-Identifier: Apache-2.0 */
/* The strategy of ejk_tune(): first runs within a budget of time, rounds until one leads, and the guard. */
#include "ops/execution/tune.h"

#include <math.h>

#define BUDGET_S    10.0
#define MOST_ROUNDS 10000
/* Whatever is this much slower than the default once warm will not win. */
#define HOPELESS 10.0

static ejk_status failed(ejki_tuning *t, int32_t index, const char *action, ejk_status status) {
    const char *words = ejki_sentence_of(status);
    if (ejki_is_default(t, index))
        return ejki_fail(status, "%s of the default, candidate %d, failed: %s", action, (int)index,
                         words);
    ejki_candidate(t, index)->status = status;
    EJKI_TRY(ejki_take_out(t, index, EJK_TUNE_VERDICT_FAILED, "%s failed: %s", action, words));
    return ejki_fail(EJK_OK, "%s", "");
}

ejk_status ejki_hold_against_default(ejki_tuning *t, int32_t index) {
    bool agrees;
    ejk_status status = ejki_check(t, index, &agrees);
    if (status != EJK_OK) return failed(t, index, "check", status);
    if (agrees) return EJK_OK;
    const double difference = ejki_candidate(t, index)->difference;
    if (ejki_is_default(t, index))
        return ejki_fail(EJK_STATUS_MISMATCH,
                         "candidate %d, the default, does not agree with its own first run "
                         "(difference %g), so nothing can be compared with it",
                         (int)index, difference);
    return ejki_take_out(t, index, EJK_TUNE_VERDICT_DISAGREES,
                         "its result differs from the default's by %g", difference);
}

/* ---- First runs ------------------------------------------------------------------------------------- */

/*
 * First runs tell whether a candidate works and is right, cost what is done only once (compiling, first touch of
 * memory), and show how many calls make a sample. The default goes first: its result and its time are what the
 * others are held against.
 */

/* What is left of the warm-up after the first run, and how many calls make a sample. */
static ejk_status warm_up(ejki_tuning *t, int32_t index) {
    ejki_contender *contender = &t->contenders[index];
    const ejki_subject subject = ejki_subject_of(t, index);
    ejk_status status = ejki_run_calls(&subject, t->warmup - 1);
    if (status == EJK_OK)
        status = ejki_calibrate(&subject, t->sample_s, &contender->calls, &contender->median);
    return status == EJK_OK ? EJK_OK : failed(t, index, "run", status);
}

static bool is_out(const ejki_tuning *t, int32_t index) {
    return ejki_candidate(t, index)->verdict != EJK_TUNE_VERDICT_NOT_REACHED;
}

/*
 * The result that all others are compared with is the first one. A second run has to agree with it, else
 * the comparison means nothing.
 */
static ejk_status try_default(ejki_tuning *t) {
    const ejk_tune_problem *problem = t->problem;
    const int32_t index = problem->default_index;
    EJKI_TRY(ejki_sample(t, index, 1, &ejki_candidate(t, index)->first_s));
    const ejk_status kept = problem->keep ? problem->keep(problem->user, index) : EJK_OK;
    if (kept != EJK_OK) return failed(t, index, "keep", kept);
    EJKI_TRY(warm_up(t, index));
    EJKI_TRY(ejki_hold_against_default(t, index));
    return ejki_admit(t, index);
}

static bool fits_memory(ejki_tuning *t, int32_t index, int64_t *bytes) {
    const ejk_tune_problem *problem = t->problem;
    *bytes = problem->memory_bytes != NULL ? problem->memory_bytes(problem->user, index) : 0;
    const int64_t most = t->options->memory_bytes;
    return most == 0 || *bytes <= most;
}

/* Its first run, against the default's and its share of the budget: it may have had to compile. */
static double first_limit(const ejki_tuning *t) {
    double share = t->budget_s / t->limit;
    double hopeless = HOPELESS * ejki_candidate(t, t->problem->default_index)->first_s;
    return share > hopeless ? share : hopeless;
}

static ejk_status try_other(ejki_tuning *t, int32_t index) {
    int64_t bytes;
    if (!fits_memory(t, index, &bytes))
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_OVER_MEMORY,
                             "takes %lld bytes, allowed are %lld", (long long)bytes,
                             (long long)t->options->memory_bytes);
    EJKI_TRY(ejki_sample(t, index, 1, &ejki_candidate(t, index)->first_s));
    const double first = ejki_candidate(t, index)->first_s;
    if (first > first_limit(t))
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_TOO_SLOW,
                             "its first run took %.3g s, allowed were %.3g s", first,
                             first_limit(t));
    if (!is_out(t, index)) EJKI_TRY(ejki_hold_against_default(t, index));
    if (!is_out(t, index)) EJKI_TRY(warm_up(t, index));
    /* Once more: what adds to its output, or leans on fresh memory, is right the first time only. */
    if (!is_out(t, index)) EJKI_TRY(ejki_hold_against_default(t, index));
    if (is_out(t, index)) return EJK_OK;
    double least = t->contenders[t->problem->default_index].median;
    if (t->contenders[index].median > HOPELESS * least)
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_TOO_SLOW,
                             "a warm run took %.3g s, the default's %.3g s",
                             t->contenders[index].median, least);
    return ejki_admit(t, index);
}

static ejk_status enter(ejki_tuning *t, int32_t index) {
    return ejki_is_default(t, index) ? try_default(t) : try_other(t, index);
}

/* ---- The end ---------------------------------------------------------------------------------------- */

/* The verdicts of those that are still in the race, and everybody's times. */
static ejk_status conclude(ejki_tuning *t) {
    ejk_tune_report *report = t->report;
    report->chosen = report->default_index = t->problem->default_index;
    report->budget_s = t->budget_s;
    report->seed = t->options->seed;
    EJKI_TRY(ejki_guard(t));
    for (int32_t i = 0; i < t->problem->count; i++) {
        ejk_tune_candidate *candidate = ejki_candidate(t, i);
        candidate->median_s = t->contenders[i].median;
        if (candidate->samples > 0)
            candidate->spread_s =
                ejki_sample_quantile(t, i, 0.75) - ejki_sample_quantile(t, i, 0.25);
        if (!t->contenders[i].alive) continue;
        if (i != report->chosen)
            candidate->verdict = EJK_TUNE_VERDICT_SLOWER;
        else
            candidate->verdict =
                ejki_is_default(t, i) ? EJK_TUNE_VERDICT_KEPT : EJK_TUNE_VERDICT_WON;
    }
    t->phase = EJK_TUNE_PHASE_DONE;
    ejki_report_progress(t);
    report->elapsed_s = ejki_elapsed(t);
    return EJK_OK;
}

/* ---- The call --------------------------------------------------------------------------------------- */

static ejk_status read_options(ejki_tuning *t) {
    const ejk_tuner_options *o = t->options;
    EJKI_TRY(ejki_count_option(&o->warmup, "warmup", 1, 0, &t->warmup));
    EJKI_TRY(ejki_plain_option(o->iters, "iters", EJKI_TELLING_ROUNDS, &t->iters));
    EJKI_TRY(ejki_plain_option(o->max_rounds, "max_rounds", 30, &t->max_rounds));
    EJKI_TRY(ejki_plain_option(o->max_candidates, "max_candidates", t->problem->count, &t->limit));
    EJKI_TRY(ejki_sample_option(&o->sample_s, &t->sample_s));
    if (t->max_rounds < t->iters) t->max_rounds = t->iters;
    if (t->max_rounds > MOST_ROUNDS)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "max_rounds, or iters: %d given, expected at most %d", (int)t->max_rounds,
                         MOST_ROUNDS);
    if (!(o->time_s >= 0) || isinf(o->time_s))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "time_s: %g given, expected a finite number of seconds ≥ 0", o->time_s);
    if (o->memory_bytes < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "memory_bytes: %lld given, expected a number of bytes ≥ 0",
                         (long long)o->memory_bytes);
    t->budget_s = o->time_s > 0 ? o->time_s : BUDGET_S;
    return EJK_OK;
}

ejk_status ejk_tune(const ejk_tune_problem *problem, const ejk_tuner_options *options,
                    ejk_tune_report **out) {
    static const ejk_tuner_options defaults = {0};
    static const ejki_strategy strategy = {
        .enter = enter, .failed = failed, .conclude = conclude, .races = true};
    if (problem == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_tune: problem or out is NULL");
    if (problem->run == NULL || problem->check == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "problem: run or check is NULL, expected both functions");
    EJKI_TRY(ejki_tune_check_counts(problem));
    ejki_tuning t = {.strategy = &strategy,
                     .problem = problem,
                     .options = options != NULL ? options : &defaults,
                     .first = problem->default_index};
    EJKI_TRY(read_options(&t));
    t.random = t.options->seed;
    return ejki_tuning_run(&t, out);
}
