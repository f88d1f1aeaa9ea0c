/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds. Clocks change by tens of percent within a second, so candidates are not timed one after the other:
 * each round takes a sample of every one that is left, in a new order, and what is compared are rounds that all
 * have lived through.
 */
#include "ops/execution/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    return (ejki_subject){p->run, p->user, index, t->clock, p->time, p->restore};
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

static ejk_status take_sample(ejki_tuning *t, int32_t index) {
    const ejki_contender *contender = &t->contenders[index];
    const ejki_subject subject = ejki_subject_of(t, index);
    double seconds;
    ejk_status status = ejki_time_calls(&subject, contender->calls, &seconds);
    if (status != EJK_OK) return t->strategy->failed(t, index, "run", status);
    contender->samples[ejki_candidate(t, index)->samples++] = seconds;
    if (t->strategy->sampled != NULL) t->strategy->sampled(t, index);
    return EJK_OK;
}

ejk_status ejki_check(ejki_tuning *t, int32_t index, bool *agrees) {
    double difference = NAN;
    *agrees = false;
    if (t->problem->restore != NULL) { /* the last run was not the first one */
        const ejki_subject subject = ejki_subject_of(t, index);
        EJKI_TRY(ejki_run_calls(&subject, 1));
    }
    EJKI_TRY(t->problem->check(t->problem->user, index, agrees, &difference));
    ejki_candidate(t, index)->difference = difference;
    *agrees = *agrees && !isnan(difference);
    return EJK_OK;
}

ejk_status ejki_note_failure(ejki_tuning *t, int32_t index, const char *action, ejk_status status) {
    (void)action;
    ejk_tune_candidate *candidate = ejki_candidate(t, index);
    if (candidate->status != EJK_OK) return EJK_OK;
    free((char *)candidate->sentence);
    candidate->status = status;
    candidate->sentence = strdup(ejki_sentence_of(status));
    if (candidate->sentence != NULL) return ejki_fail(EJK_OK, "%s", "");
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for the report could not be had");
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
    for (int32_t i = 0; i < problem->count; i++) {
        t->contenders[i] = (ejki_contender){.calls = t->calls, .median = NAN};
        EJKI_TRY(describe(problem, ejki_candidate(t, i), i));
    }
    return EJK_OK;
}

void ejki_tuning_close(ejki_tuning *t) {
    for (int32_t i = 0; t->contenders != NULL && i < t->problem->count; i++)
        free(t->contenders[i].samples);
    free(t->contenders);
    free(t->order);
    ejk_tune_report_destroy(t->report);
}

static void tell(const ejki_tuning *t) {
    if (t->strategy->progress != NULL) t->strategy->progress(t);
}

static ejk_status enter_all(ejki_tuning *t) {
    const ejki_strategy *strategy = t->strategy;
    for (int32_t i = 0; i < t->problem->count; i++) {
        const int32_t index = i == 0 ? t->first : i <= t->first ? i - 1 : i;
        if (i > 0 && strategy->may_enter != NULL && !strategy->may_enter(t)) return EJK_OK;
        EJKI_TRY(strategy->enter(t, index));
        t->tried++;
        tell(t);
    }
    return EJK_OK;
}

/* One sample of each; *whole is false if the strategy ended it before. */
static ejk_status play(ejki_tuning *t, bool *whole) {
    int32_t count = 0;
    for (int32_t i = 0; i < t->problem->count; i++)
        if (t->contenders[i].alive) t->order[count++] = i;
    ejki_shuffle(&t->random, t->order, count, count);
    *whole = false;
    for (int32_t i = 0; i < count; i++) {
        if (t->strategy->may_sample != NULL && !t->strategy->may_sample(t)) return EJK_OK;
        EJKI_TRY(take_sample(t, t->order[i]));
    }
    *whole = true;
    return EJK_OK;
}

static ejk_status play_rounds(ejki_tuning *t) {
    const ejki_strategy *strategy = t->strategy;
    t->phase = EJK_TUNE_PHASE_ROUNDS;
    while (t->report->rounds < t->max_rounds &&
           !(strategy->is_decided != NULL && strategy->is_decided(t))) {
        bool whole;
        EJKI_TRY(play(t, &whole));
        if (!whole) return EJK_OK;
        t->done = ++t->report->rounds;
        if (strategy->end_round != NULL) EJKI_TRY(strategy->end_round(t));
        tell(t);
    }
    return EJK_OK;
}

ejk_status ejki_tuning_run(ejki_tuning *t) {
    char *sentence = ejki_hide_sentence();
    ejk_status status = open_tuning(t);
    if (status == EJK_OK) status = enter_all(t);
    if (status == EJK_OK) status = play_rounds(t);
    if (status == EJK_OK) status = t->strategy->conclude(t);
    ejki_show_sentence(sentence, status);
    return status;
}
