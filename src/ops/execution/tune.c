/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "ops/execution/tune.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET_S    10.0
#define MOST_ROUNDS 10000

/* ---- What the phases share -------------------------------------------------------------------------- */

double ejki_elapsed(const ejki_tuning *t) {
    return ejki_clock_since(&t->options->clock, t->start);
}

int ejki_cancelled(const ejki_tuning *t) {
    const volatile int *flag = t->options->cancel;
    int value = flag != NULL ? __atomic_load_n(flag, __ATOMIC_RELAXED) : 0;
    if (value > 0) t->report->cancelled = true;
    return value;
}

ejki_subject ejki_subject_of(const ejki_tuning *t, int32_t index) {
    return (ejki_subject){t->problem->run, t->problem->user, index, t->options->clock,
                          t->problem->time};
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

int32_t ejki_survivors(const ejki_tuning *t) {
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
        .survivors = ejki_survivors(t),
        .round = t->done,
        .best = best,
        .best_median_s = t->contenders[best].median,
        .default_median_s = t->contenders[t->problem->default_index].median,
        .elapsed_s = ejki_elapsed(t),
        .budget_s = t->budget_s,
    };
    t->options->progress(t->options->progress_user, &progress);
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

ejk_status ejki_check(ejki_tuning *t, int32_t index) {
    bool agrees = false;
    double difference = NAN;
    ejk_status status = t->problem->check(t->problem->user, index, &agrees, &difference);
    if (status != EJK_OK) return ejki_failed(t, index, "check", status);
    ejki_candidate(t, index)->difference = difference;
    if (agrees && !isnan(difference)) return EJK_OK;
    if (ejki_is_default(t, index))
        return ejki_fail(EJK_STATUS_MISMATCH,
                         "candidate %d, the default, does not agree with its own first run "
                         "(difference %g), so nothing can be compared with it",
                         (int)index, difference);
    return ejki_take_out(t, index, EJK_TUNE_VERDICT_DISAGREES,
                         "its result differs from the default's by %g", difference);
}

/* ---- The call --------------------------------------------------------------------------------------- */

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

static ejk_status check_problem(const ejk_tune_problem *problem) {
    if (problem->run == NULL || problem->check == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "problem: run or check is NULL, expected both functions");
    return ejki_tune_check_counts(problem);
}

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
    const int32_t count = t->problem->count;
    t->report = calloc(1, sizeof *t->report);
    t->contenders = calloc((size_t)count, sizeof *t->contenders);
    t->order = calloc((size_t)count, sizeof *t->order);
    if (t->report != NULL)
        t->report->candidates = calloc((size_t)count, sizeof(ejk_tune_candidate));
    if (t->report == NULL || t->contenders == NULL || t->order == NULL ||
        t->report->candidates == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %d candidates could not be had",
                         (int)count);
    t->report->count = count;
    t->report->chosen = t->report->default_index = t->problem->default_index;
    t->report->ratio = t->report->noise = NAN;
    t->report->budget_s = t->budget_s;
    t->report->seed = t->random = t->options->seed;
    for (int32_t i = 0; i < count; i++) {
        t->contenders[i].median = NAN;
        EJKI_TRY(describe(t->problem, ejki_candidate(t, i), i));
    }
    return EJK_OK;
}

static void close_tuning(ejki_tuning *t) {
    for (int32_t i = 0; t->contenders != NULL && i < t->problem->count; i++)
        free(t->contenders[i].samples);
    free(t->contenders);
    free(t->order);
    ejk_tune_report_destroy(t->report);
}

/* The verdicts of those that are still in the race, and everybody's times. */
static void conclude(ejki_tuning *t) {
    for (int32_t i = 0; i < t->problem->count; i++) {
        ejk_tune_candidate *candidate = ejki_candidate(t, i);
        candidate->median_s = t->contenders[i].median;
        if (candidate->samples > 0)
            candidate->spread_s =
                ejki_sample_quantile(t, i, 0.75) - ejki_sample_quantile(t, i, 0.25);
        if (!t->contenders[i].alive) continue;
        bool chosen = i == t->report->chosen;
        if (chosen && ejki_is_default(t, i))
            candidate->verdict = EJK_TUNE_VERDICT_KEPT;
        else
            candidate->verdict = chosen ? EJK_TUNE_VERDICT_WON : EJK_TUNE_VERDICT_SLOWER;
    }
    t->phase = EJK_TUNE_PHASE_DONE;
    ejki_report_progress(t);
    t->report->elapsed_s = ejki_elapsed(t);
}

static ejk_status tune(ejki_tuning *t) {
    EJKI_TRY(open_tuning(t));
    t->start = ejki_clock_now(&t->options->clock);
    EJKI_TRY(ejki_try_all(t));
    EJKI_TRY(ejki_play_rounds(t));
    EJKI_TRY(ejki_guard(t));
    conclude(t);
    return EJK_OK;
}

ejk_status ejk_tune(const ejk_tune_problem *problem, const ejk_tuner_options *options,
                    ejk_tune_report **out) {
    static const ejk_tuner_options defaults = {0};
    if (problem == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_tune: problem or out is NULL");
    EJKI_TRY(check_problem(problem));
    ejki_tuning t = {.problem = problem, .options = options != NULL ? options : &defaults};
    EJKI_TRY(read_options(&t));
    char *sentence = ejki_hide_sentence();
    ejk_status status = tune(&t);
    ejki_show_sentence(sentence, status);
    if (status == EJK_OK) {
        *out = t.report;
        t.report = NULL;
    }
    close_tuning(&t);
    return status;
}
