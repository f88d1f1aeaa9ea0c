/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds. Clocks change by tens of percent within a second, so candidates are not timed one after the other:
 * each round takes a sample of every one that is left, in a new order, and a median compares rounds that all
 * have lived through.
 */
#include "ops/execution/tune.h"

#include <math.h>

static double sample_cost(const ejki_tuning *t, int32_t index) {
    return t->contenders[index].median * (double)t->contenders[index].calls;
}

double ejki_guard_cost(const ejki_tuning *t, int32_t index, int32_t pairs) {
    return pairs * (sample_cost(t, index) + sample_cost(t, t->problem->default_index));
}

/* Room is left to compare the best with the default. */
static bool time_is_over(const ejki_tuning *t) {
    double guard = ejki_guard_cost(t, ejki_best(t), EJKI_LEAST_PAIRS);
    return ejki_elapsed(t) + guard >= t->budget_s;
}

static ejk_status take_sample(ejki_tuning *t, int32_t index) {
    ejki_contender *contender = &t->contenders[index];
    ejk_tune_candidate *candidate = ejki_candidate(t, index);
    ejki_subject subject = ejki_subject_of(t, index);
    double seconds;
    ejk_status status = ejki_time_calls(&subject, contender->calls, &seconds);
    if (status != EJK_OK) return ejki_failed(t, index, "run", status);
    contender->samples[candidate->samples++] = seconds;
    contender->median = ejki_sample_quantile(t, index, 0.5);
    return EJK_OK;
}

/* One sample of each; *whole is false if time or the caller ended it before. */
static ejk_status play(ejki_tuning *t, bool *whole) {
    int32_t count = 0;
    for (int32_t i = 0; i < t->problem->count; i++)
        if (t->contenders[i].alive) t->order[count++] = i;
    ejki_shuffle(&t->random, t->order, count, count);
    *whole = false;
    for (int32_t i = 0; i < count; i++) {
        if (ejki_cancelled(t)) return EJK_OK;
        if (time_is_over(t)) {
            t->report->out_of_time = t->report->out_of_time || t->report->rounds < t->iters;
            return EJK_OK;
        }
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
    int32_t left = ejki_survivors(t);
    return left <= 1 || (left == 2 && t->report->rounds >= t->iters);
}

ejk_status ejki_play_rounds(ejki_tuning *t) {
    t->phase = EJK_TUNE_PHASE_ROUNDS;
    while (t->report->rounds < t->max_rounds && !is_decided(t)) {
        bool whole;
        EJKI_TRY(play(t, &whole));
        if (!whole) return EJK_OK;
        t->done = ++t->report->rounds;
        if (t->report->rounds >= EJKI_TELLING_ROUNDS) EJKI_TRY(drop_losers(t));
        ejki_report_progress(t);
    }
    return EJK_OK;
}
