/* SPDX-License-Identifier: Apache-2.0 */
/* The strategy of ejk_tune(): first runs within a budget of time, rounds until one leads, and the guard. */
#define _GNU_SOURCE 1
#include "ops/execution/tune.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define BUDGET_S    10.0
#define MOST_ROUNDS 10000
/* Whatever is this much slower than the default once warm will not win. */
#define HOPELESS 10.0
/* The part of the budget after which no further candidate is tried, so that rounds remain. */
#define TRYING_PART 0.6
/* Quartiles speak from this many samples on. */
#define TELLING_ROUNDS 3

/* ---- What its parts share --------------------------------------------------------------------------- */

double ejki_elapsed(const ejki_tuning *t) {
    return ejki_clock_since(&t->clock, ejki_tuner_of(t)->start);
}

int ejki_cancelled(const ejki_tuning *t) {
    const volatile int *flag = ejki_tuner_of(t)->options->cancel;
    int value = flag != NULL ? __atomic_load_n(flag, __ATOMIC_RELAXED) : 0;
    if (value > 0) t->report->cancelled = true;
    return value;
}

int32_t ejki_best(const ejki_tuning *t) {
    int32_t best = t->problem->default_index;
    for (int32_t i = 0; i < t->problem->count; i++)
        if (t->contenders[i].alive && t->contenders[i].median < t->contenders[best].median)
            best = i;
    return best;
}

static int32_t survivors(const ejki_tuning *t) {
    int32_t count = 0;
    for (int32_t i = 0; i < t->problem->count; i++) count += t->contenders[i].alive;
    return count;
}

void ejki_report_progress(const ejki_tuning *t) {
    const ejki_tuner_run *own = ejki_tuner_of(t);
    if (own->options->progress == NULL) return;
    int32_t best = ejki_best(t);
    ejk_tune_progress progress = {
        .phase = t->phase,
        .candidates = t->problem->count,
        .tried = t->tried,
        .survivors = survivors(t),
        .round = t->done,
        .best = best,
        .best_median_s = t->contenders[best].median,
        .default_median_s = t->contenders[t->problem->default_index].median,
        .elapsed_s = ejki_elapsed(t),
        .budget_s = own->budget_s,
    };
    own->options->progress(own->options->progress_user, &progress);
}

ejk_status ejki_take_out(ejki_tuning *t, int32_t index, ejk_tune_verdict verdict,
                         const char *format, ...) {
    char *sentence = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&sentence, format, arguments);
    va_end(arguments);
    if (length < 0)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for the report could not be had");
    ejk_tune_candidate *candidate = ejki_candidate(t, index);
    free((char *)candidate->sentence);
    candidate->sentence = sentence;
    candidate->verdict = verdict;
    t->contenders[index].alive = false;
    return EJK_OK;
}

ejk_status ejki_failed(ejki_tuning *t, int32_t index, const char *action, ejk_status status) {
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
    if (status != EJK_OK) return ejki_failed(t, index, "check", status);
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

double ejki_guard_cost(const ejki_tuning *t, int32_t index, int32_t pairs) {
    const ejki_contender *mine = &t->contenders[index];
    const ejki_contender *other = &t->contenders[t->problem->default_index];
    return pairs * (mine->median * (double)mine->calls + other->median * (double)other->calls);
}

/* ---- First runs ------------------------------------------------------------------------------------- */

/*
 * First runs tell whether a candidate works and is right, cost what is done only once (compiling, first touch of
 * memory), and show how many calls make a sample. The default goes first: its result and its time are what the
 * others are held against.
 */

static ejk_status time_first(ejki_tuning *t, int32_t index) {
    const ejki_subject subject = ejki_subject_of(t, index);
    return ejki_time_calls(&subject, 1, &ejki_candidate(t, index)->first_s);
}

/* What is left of the warm-up after the first run. */
static ejk_status warm_up(ejki_tuning *t, int32_t index) {
    ejki_contender *contender = &t->contenders[index];
    const ejki_subject subject = ejki_subject_of(t, index);
    EJKI_TRY(ejki_run_calls(&subject, t->warmup - 1));
    return ejki_calibrate(&subject, ejki_tuner_of(t)->sample_s, &contender->calls,
                          &contender->median);
}

/*
 * The result that all others are compared with is the first one. A second run has to agree with it, else
 * the comparison means nothing.
 */
static ejk_status try_default(ejki_tuning *t) {
    const ejk_tune_problem *problem = t->problem;
    const int32_t index = problem->default_index;
    ejk_status status = time_first(t, index);
    if (status != EJK_OK) return ejki_failed(t, index, "run", status);
    if (problem->keep != NULL) {
        status = problem->keep(problem->user, index);
        if (status != EJK_OK) return ejki_failed(t, index, "keep", status);
    }
    status = warm_up(t, index);
    if (status != EJK_OK) return ejki_failed(t, index, "run", status);
    EJKI_TRY(ejki_hold_against_default(t, index));
    return ejki_admit(t, index);
}

static bool fits_memory(ejki_tuning *t, int32_t index, int64_t *bytes) {
    const ejk_tune_problem *problem = t->problem;
    *bytes = problem->memory_bytes != NULL ? problem->memory_bytes(problem->user, index) : 0;
    const int64_t most = ejki_tuner_of(t)->options->memory_bytes;
    return most == 0 || *bytes <= most;
}

/* Its first run, against the default's and its share of the budget: it may have had to compile. */
static double first_limit(const ejki_tuning *t) {
    double share = ejki_tuner_of(t)->budget_s / ejki_tuner_of(t)->limit;
    double hopeless = HOPELESS * ejki_candidate(t, t->problem->default_index)->first_s;
    return share > hopeless ? share : hopeless;
}

static bool is_out(const ejki_tuning *t, int32_t index) {
    return ejki_candidate(t, index)->verdict != EJK_TUNE_VERDICT_NOT_REACHED;
}

static ejk_status try_other(ejki_tuning *t, int32_t index) {
    int64_t bytes;
    if (!fits_memory(t, index, &bytes))
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_OVER_MEMORY,
                             "takes %lld bytes, allowed are %lld", (long long)bytes,
                             (long long)ejki_tuner_of(t)->options->memory_bytes);
    ejk_status status = time_first(t, index);
    if (status != EJK_OK) return ejki_failed(t, index, "run", status);
    double first = ejki_candidate(t, index)->first_s;
    if (first > first_limit(t))
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_TOO_SLOW,
                             "its first run took %.3g s, allowed were %.3g s", first,
                             first_limit(t));
    EJKI_TRY(ejki_hold_against_default(t, index));
    if (is_out(t, index)) return EJK_OK;
    status = warm_up(t, index);
    if (status != EJK_OK) return ejki_failed(t, index, "run", status);
    /* Once more: what adds to its output, or leans on fresh memory, is right the first time only. */
    EJKI_TRY(ejki_hold_against_default(t, index));
    if (is_out(t, index)) return EJK_OK;
    double least = t->contenders[t->problem->default_index].median;
    if (t->contenders[index].median > HOPELESS * least)
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_TOO_SLOW,
                             "a warm run took %.3g s, the default's %.3g s",
                             t->contenders[index].median, least);
    return ejki_admit(t, index);
}

static ejk_status try_one(ejki_tuning *t, int32_t index) {
    return ejki_is_default(t, index) ? try_default(t) : try_other(t, index);
}

static bool may_try(ejki_tuning *t) {
    const ejki_tuner_run *own = ejki_tuner_of(t);
    if (t->tried >= own->limit || ejki_cancelled(t)) return false;
    t->report->out_of_time = ejki_elapsed(t) >= TRYING_PART * own->budget_s;
    return !t->report->out_of_time;
}

/* ---- Rounds ----------------------------------------------------------------------------------------- */

static double sample_quantile(const ejki_tuning *t, int32_t index, double part) {
    return ejki_quantile(t->contenders[index].samples, ejki_candidate(t, index)->samples, part);
}

static void sampled(ejki_tuning *t, int32_t index) {
    t->contenders[index].median = sample_quantile(t, index, 0.5);
}

/* As long as room is left to compare the best with the default. */
static bool may_sample(ejki_tuning *t) {
    const ejki_tuner_run *own = ejki_tuner_of(t);
    if (ejki_cancelled(t)) return false;
    const double guard = ejki_guard_cost(t, ejki_best(t), EJKI_LEAST_PAIRS);
    if (ejki_elapsed(t) + guard < own->budget_s) return true;
    t->report->out_of_time = t->report->out_of_time || t->report->rounds < own->iters;
    return false;
}

static ejk_status drop_losers(ejki_tuning *t) {
    if (t->report->rounds < TELLING_ROUNDS) return EJK_OK;
    const int32_t best = ejki_best(t);
    const double bar = (1 + EJKI_LEAST_LEAD) * sample_quantile(t, best, 0.75);
    for (int32_t i = 0; i < t->problem->count; i++) {
        if (!t->contenders[i].alive || ejki_is_default(t, i)) continue;
        double lower = sample_quantile(t, i, 0.25);
        if (lower > bar)
            EJKI_TRY(ejki_take_out(t, i, EJK_TUNE_VERDICT_SLOWER,
                                   "dropped after round %d: its lower quartile of %.3g s lies "
                                   "above the upper one of candidate %d",
                                   (int)t->report->rounds, lower, (int)best));
    }
    return EJK_OK;
}

/* With one challenger left, comparing it with the default says more than another round. */
static bool is_decided(const ejki_tuning *t) {
    int32_t left = survivors(t);
    return left <= 1 || (left == 2 && t->report->rounds >= ejki_tuner_of(t)->iters);
}

/* ---- The end ---------------------------------------------------------------------------------------- */

/* The verdicts of those that are still in the race, and everybody's times. */
static ejk_status conclude(ejki_tuning *t) {
    ejk_tune_report *report = t->report;
    report->chosen = report->default_index = t->problem->default_index;
    report->budget_s = ejki_tuner_of(t)->budget_s;
    report->seed = ejki_tuner_of(t)->options->seed;
    EJKI_TRY(ejki_guard(t));
    for (int32_t i = 0; i < t->problem->count; i++) {
        ejk_tune_candidate *candidate = ejki_candidate(t, i);
        candidate->median_s = t->contenders[i].median;
        if (candidate->samples > 0)
            candidate->spread_s = sample_quantile(t, i, 0.75) - sample_quantile(t, i, 0.25);
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

static ejk_status read_options(ejki_tuning *t, ejki_tuner_run *own) {
    const ejk_tuner_options *o = own->options;
    EJKI_TRY(ejki_count_option(&o->warmup, "warmup", 1, 0, &t->warmup));
    EJKI_TRY(ejki_plain_option(o->iters, "iters", TELLING_ROUNDS, &own->iters));
    EJKI_TRY(ejki_plain_option(o->max_rounds, "max_rounds", 30, &t->max_rounds));
    EJKI_TRY(
        ejki_plain_option(o->max_candidates, "max_candidates", t->problem->count, &own->limit));
    EJKI_TRY(ejki_sample_option(&o->sample_s, &own->sample_s));
    if (t->max_rounds < own->iters) t->max_rounds = own->iters;
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
    own->budget_s = o->time_s > 0 ? o->time_s : BUDGET_S;
    return EJK_OK;
}

ejk_status ejk_tune(const ejk_tune_problem *problem, const ejk_tuner_options *options,
                    ejk_tune_report **out) {
    static const ejk_tuner_options defaults = {0};
    static const ejki_strategy strategy = {.enter = try_one,
                                           .failed = ejki_failed,
                                           .conclude = conclude,
                                           .sampled = sampled,
                                           .may_enter = may_try,
                                           .may_sample = may_sample,
                                           .is_decided = is_decided,
                                           .end_round = drop_losers,
                                           .progress = ejki_report_progress};
    if (problem == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_tune: problem or out is NULL");
    if (problem->run == NULL || problem->check == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "problem: run or check is NULL, expected both functions");
    EJKI_TRY(ejki_tune_check_counts(problem));
    if (options == NULL) options = &defaults;
    ejki_tuner_run own = {.options = options};
    ejki_tuning t = {.strategy = &strategy,
                     .problem = problem,
                     .first = problem->default_index,
                     .random = options->seed,
                     .clock = options->clock,
                     .own = &own};
    EJKI_TRY(read_options(&t, &own));
    own.start = ejki_clock_now(&t.clock);
    ejk_status status = ejki_tuning_run(&t);
    if (status == EJK_OK) {
        *out = t.report;
        t.report = NULL;
    }
    ejki_tuning_close(&t);
    return status;
}
