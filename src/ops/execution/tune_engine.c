/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds. Clocks change by tens of percent within a second, so candidates are not timed one after the other:
 * each round takes a sample of every one that is left, in a new order, and what is compared are rounds that all
 * have lived through.
 */
#define _GNU_SOURCE 1
#include "ops/execution/tune.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of the budget after which no further candidate is tried, so that rounds remain. */
#define TRYING_PART 0.6

ejk_status ejki_tune_check_counts(const ejk_tune_problem *problem) {
    if (problem->count < 1 || problem->count > EJK_TUNE_MOST_CANDIDATES)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "problem: count is %d, expected 1 to %d",
                         (int)problem->count, EJK_TUNE_MOST_CANDIDATES);
    if (problem->default_index < 0 || problem->default_index >= problem->count)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "problem: default_index is %d, expected 0 to %d",
                         (int)problem->default_index, (int)problem->count - 1);
    return EJK_OK;
}

ejki_subject ejki_subject_of(const ejki_tuning *t, int32_t index) {
    const ejk_tune_problem *p = t->problem;
    return (ejki_subject){p->run, p->user, index, t->options->clock, p->time, p->restore};
}

double ejki_elapsed(const ejki_tuning *t) {
    return ejki_clock_since(&t->options->clock, t->start);
}

int ejki_cancelled(const ejki_tuning *t) {
    const volatile int *flag = t->options->cancel;
    int value = flag != NULL ? __atomic_load_n(flag, __ATOMIC_RELAXED) : 0;
    if (value > 0) t->report->cancelled = true;
    return value;
}

double ejki_sample_quantile(const ejki_tuning *t, int32_t index, double part) {
    return ejki_quantile(t->contenders[index].samples, ejki_candidate(t, index)->samples, part);
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
    if (t->options->progress == NULL) return;
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
        .budget_s = t->budget_s,
    };
    t->options->progress(t->options->progress_user, &progress);
}

/* ---- One candidate ---------------------------------------------------------------------------------- */

ejk_status ejki_admit(ejki_tuning *t, int32_t index) {
    ejki_contender *contender = &t->contenders[index];
    contender->samples = calloc((size_t)t->max_rounds, sizeof *contender->samples);
    if (contender->samples == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %d samples could not be had",
                         (int)t->max_rounds);
    contender->alive = true;
    return EJK_OK;
}

ejk_status ejki_run_candidate(const ejki_tuning *t, int32_t index, int64_t calls) {
    const ejki_subject subject = ejki_subject_of(t, index);
    return ejki_run_calls(&subject, calls);
}

ejk_status ejki_sample(ejki_tuning *t, int32_t index, int64_t calls, double *seconds) {
    const ejki_subject subject = ejki_subject_of(t, index);
    const ejk_status status = ejki_time_calls(&subject, calls, seconds);
    if (status == EJK_OK) return EJK_OK;
    *seconds = NAN;
    return t->strategy->failed(t, index, "run", status);
}

static ejk_status take_sample(ejki_tuning *t, int32_t index) {
    ejki_contender *contender = &t->contenders[index];
    double seconds;
    EJKI_TRY(ejki_sample(t, index, contender->calls, &seconds));
    if (isnan(seconds)) return EJK_OK;
    contender->samples[ejki_candidate(t, index)->samples++] = seconds;
    if (t->strategy->races) contender->median = ejki_sample_quantile(t, index, 0.5);
    return EJK_OK;
}

ejk_status ejki_check(ejki_tuning *t, int32_t index, bool *agrees) {
    double difference = NAN;
    *agrees = false;
    if (t->problem->restore != NULL) /* the last run was not the first one */
        EJKI_TRY(ejki_run_candidate(t, index, 1));
    EJKI_TRY(t->problem->check(t->problem->user, index, agrees, &difference));
    ejki_candidate(t, index)->difference = difference;
    *agrees = *agrees && !isnan(difference);
    return EJK_OK;
}

/* Takes a text over; NULL = there was no memory for it. */
static ejk_status set_sentence(ejk_tune_candidate *candidate, char *sentence) {
    if (sentence == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for the report could not be had");
    free((char *)candidate->sentence);
    candidate->sentence = sentence;
    return EJK_OK;
}

ejk_status ejki_take_out(ejki_tuning *t, int32_t index, ejk_tune_verdict verdict,
                         const char *format, ...) {
    char *sentence = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&sentence, format, arguments);
    va_end(arguments);
    EJKI_TRY(set_sentence(ejki_candidate(t, index), length < 0 ? NULL : sentence));
    ejki_candidate(t, index)->verdict = verdict;
    t->contenders[index].alive = false;
    return EJK_OK;
}

ejk_status ejki_note_failure(ejki_tuning *t, int32_t index, const char *action, ejk_status status) {
    (void)action;
    ejk_tune_candidate *candidate = ejki_candidate(t, index);
    if (candidate->status != EJK_OK) return EJK_OK;
    candidate->status = status;
    EJKI_TRY(set_sentence(candidate, strdup(ejki_sentence_of(status))));
    return ejki_fail(EJK_OK, "%s", "");
}

ejk_status ejki_none_succeeded(const ejki_tuning *t, const char *things) {
    for (int32_t i = 0; i < t->problem->count; i++) {
        const ejk_tune_candidate *candidate = ejki_candidate(t, i);
        if (candidate->status != EJK_OK)
            return ejki_fail(candidate->status, "none of %d %s succeeded; the first failure: %s",
                             (int)t->problem->count, things, candidate->sentence);
    }
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "clock: none of %d %s took a finite time",
                     (int)t->problem->count, things);
}

/* ---- All of them ------------------------------------------------------------------------------------ */

static ejk_status describe(const ejk_tune_problem *problem, ejk_tune_candidate *candidate,
                           int32_t index) {
    const char *text = problem->describe ? problem->describe(problem->user, index) : NULL;
    candidate->difference = candidate->first_s = candidate->median_s = candidate->spread_s = NAN;
    candidate->description = strdup(text != NULL ? text : "");
    candidate->sentence = strdup("");
    if (candidate->description != NULL && candidate->sentence != NULL) return EJK_OK;
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for the report could not be had");
}

static ejk_status open_tuning(ejki_tuning *t) {
    const ejk_tune_problem *problem = t->problem;
    const size_t count = (size_t)problem->count;
    t->report = calloc(1, sizeof *t->report);
    t->contenders = calloc(count, sizeof *t->contenders);
    t->order = calloc(count, sizeof *t->order);
    if (t->report != NULL) t->report->candidates = calloc(count, sizeof *t->report->candidates);
    if (t->report == NULL || t->contenders == NULL || t->order == NULL ||
        t->report->candidates == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %zu candidates could not be had",
                         count);
    t->report->count = problem->count;
    t->start = ejki_clock_now(&t->options->clock);
    for (int32_t i = 0; i < problem->count; i++) {
        t->contenders[i] = (ejki_contender){.calls = t->calls, .median = NAN};
        EJKI_TRY(describe(problem, ejki_candidate(t, i), i));
    }
    return EJK_OK;
}

/* Part of a race's budget is for rounds. */
static bool may_enter(ejki_tuning *t) {
    if (!t->strategy->races || t->tried == 0) return true;
    if (t->tried >= t->limit || ejki_cancelled(t)) return false;
    t->report->out_of_time = ejki_elapsed(t) >= TRYING_PART * t->budget_s;
    return !t->report->out_of_time;
}

static ejk_status enter_all(ejki_tuning *t) {
    for (int32_t i = 0; i < t->problem->count && may_enter(t); i++) {
        const int32_t index = i == 0 ? t->first : i <= t->first ? i - 1 : i;
        EJKI_TRY(t->strategy->enter(t, index));
        t->tried++;
        ejki_report_progress(t);
    }
    return EJK_OK;
}

/* ---- Rounds ----------------------------------------------------------------------------------------- */

double ejki_guard_cost(const ejki_tuning *t, int32_t index, int32_t pairs) {
    const ejki_contender *mine = &t->contenders[index];
    const ejki_contender *other = &t->contenders[t->problem->default_index];
    return pairs * (mine->median * (double)mine->calls + other->median * (double)other->calls);
}

/* As long as room is left to compare the best with the default. */
static bool may_sample(ejki_tuning *t) {
    if (!t->strategy->races) return true;
    if (ejki_cancelled(t)) return false;
    const double guard = ejki_guard_cost(t, ejki_best(t), EJKI_LEAST_PAIRS);
    if (ejki_elapsed(t) + guard < t->budget_s) return true;
    t->report->out_of_time = t->report->out_of_time || t->report->rounds < t->iters;
    return false;
}

/* One sample of each; *whole is false if time or the caller ended it before. */
static ejk_status play(ejki_tuning *t, bool *whole) {
    int32_t count = 0;
    for (int32_t i = 0; i < t->problem->count; i++)
        if (t->contenders[i].alive) t->order[count++] = i;
    ejki_shuffle(&t->random, t->order, count, count);
    *whole = false;
    for (int32_t i = 0; i < count; i++) {
        if (!may_sample(t)) return EJK_OK;
        EJKI_TRY(take_sample(t, t->order[i]));
    }
    *whole = true;
    return EJK_OK;
}

static ejk_status drop_losers(ejki_tuning *t) {
    const int32_t best = ejki_best(t);
    const double bar = (1 + EJKI_LEAST_LEAD) * ejki_sample_quantile(t, best, 0.75);
    for (int32_t i = 0; i < t->problem->count; i++) {
        if (!t->contenders[i].alive || ejki_is_default(t, i)) continue;
        double lower = ejki_sample_quantile(t, i, 0.25);
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
    return left <= 1 || (left == 2 && t->report->rounds >= t->iters);
}

static ejk_status play_rounds(ejki_tuning *t) {
    const bool races = t->strategy->races;
    t->phase = EJK_TUNE_PHASE_ROUNDS;
    while (t->report->rounds < t->max_rounds && !(races && is_decided(t))) {
        bool whole;
        EJKI_TRY(play(t, &whole));
        if (!whole) return EJK_OK;
        t->done = ++t->report->rounds;
        if (races && t->done >= EJKI_TELLING_ROUNDS) EJKI_TRY(drop_losers(t));
        ejki_report_progress(t);
    }
    return EJK_OK;
}

ejk_status ejki_tuning_run(ejki_tuning *t, ejk_tune_report **out) {
    char *sentence = ejki_hide_sentence();
    ejk_status status = open_tuning(t);
    if (status == EJK_OK) status = enter_all(t);
    if (status == EJK_OK) status = play_rounds(t);
    if (status == EJK_OK) status = t->strategy->conclude(t);
    ejki_show_sentence(sentence, status);
    for (int32_t i = 0; t->contenders != NULL && i < t->problem->count; i++)
        free(t->contenders[i].samples);
    free(t->contenders);
    free(t->order);
    if (status == EJK_OK && out != NULL)
        *out = t->report;
    else
        ejk_tune_report_destroy(t->report);
    return status;
}
