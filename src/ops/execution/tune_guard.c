/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard. Of many candidates with equal times one has the lowest median by luck, so the rounds prove
 * nothing about their own winner. It is measured anew, in pairs with the default that follow each other
 * closely and change their order: what the machine does meanwhile meets both, and the ratio of a pair keeps
 * what is theirs. It has to be below 1 by more than the noise of its median.
 */
#include "ops/execution/tune.h"

#include <math.h>

enum { MOST_PAIRS = 21 };
/* Beyond what is left of the budget the comparison may take this part of it. */
#define OVERTIME 0.5

/* How many pairs the time allows, odd; 0 = too few to say anything. */
static int32_t pairs_in_time(const ejki_tuning *t, int32_t index) {
    double left = t->budget_s - ejki_elapsed(t);
    double pair = ejki_guard_cost(t, index, 1);
    if (!(pair > 0)) return MOST_PAIRS;
    if (EJKI_LEAST_PAIRS * pair > fmax(left, 0) + OVERTIME * t->budget_s) return 0;
    if (t->report->cancelled) return EJKI_LEAST_PAIRS;
    double pairs = fmin(fmax(left / pair, EJKI_LEAST_PAIRS), MOST_PAIRS);
    return ((int32_t)pairs - 1) / 2 * 2 + 1;
}

/* A sample of the default or the candidate. OK with a NaN: the candidate failed and is out. */
static ejk_status sample(ejki_tuning *t, int32_t index, double *seconds) {
    ejki_subject subject = ejki_subject_of(t, index);
    *seconds = NAN;
    ejk_status status = ejki_time_calls(&subject, t->contenders[index].calls, seconds);
    return status == EJK_OK ? EJK_OK : ejki_failed(t, index, "run", status);
}

static ejk_status compare_pair(ejki_tuning *t, int32_t index, bool turned, double *ratio) {
    const int32_t order[2] = {turned ? index : t->problem->default_index,
                              turned ? t->problem->default_index : index};
    double seconds[2];
    for (int i = 0; i < 2; i++) {
        EJKI_TRY(sample(t, order[i], &seconds[i]));
        if (isnan(seconds[i])) return EJK_OK;
    }
    double mine = seconds[turned ? 0 : 1], defaults = seconds[turned ? 1 : 0];
    *ratio = defaults > 0 ? mine / defaults : 1; /* a clock that saw nothing proves nothing */
    return EJK_OK;
}

/*
 * Twice the standard error of the median, that of a normal distribution: 1.2533 σ/√n, with σ from the
 * quartiles (1.349 σ apart), which a few disturbed pairs do not move.
 */
static double noise_of(double *ratios, int32_t pairs) {
    double quartiles = ejki_quantile(ratios, pairs, 0.75) - ejki_quantile(ratios, pairs, 0.25);
    return 2 * 1.2533 * quartiles / 1.349 / sqrt(pairs);
}

/* Measures the pairs; *compared is false if the candidate fell out or the caller stopped everything. */
static ejk_status compare(ejki_tuning *t, int32_t index, int32_t pairs, bool *compared) {
    double ratios[MOST_PAIRS];
    *compared = false;
    for (t->done = 0; t->done < pairs;) {
        if (ejki_cancelled(t) > 1) return EJK_OK;
        EJKI_TRY(compare_pair(t, index, t->done % 2 == 1, &ratios[t->done]));
        if (!t->contenders[index].alive) return EJK_OK;
        t->done++;
        ejki_report_progress(t);
    }
    t->report->pairs = pairs;
    t->report->ratio = ejki_quantile(ratios, pairs, 0.5);
    t->report->noise = noise_of(ratios, pairs);
    *compared = true;
    return EJK_OK;
}

/* One more run whose result is checked: the first may have been right by chance. */
static ejk_status check_again(ejki_tuning *t, int32_t index) {
    double seconds;
    EJKI_TRY(sample(t, index, &seconds));
    return t->contenders[index].alive ? ejki_check(t, index) : EJK_OK;
}

static ejk_status judge(ejki_tuning *t, int32_t index) {
    int32_t pairs = ejki_cancelled(t) > 1 ? 0 : pairs_in_time(t, index);
    bool compared = false;
    if (pairs > 0) EJKI_TRY(compare(t, index, pairs, &compared));
    if (!t->contenders[index].alive) return EJK_OK;
    if (!compared)
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_UNPROVEN,
                             "led, but there was no time to compare it with the default");
    const double ratio = t->report->ratio, noise = t->report->noise;
    if (!(ratio < 1 - fmax(EJKI_LEAST_LEAD, noise)))
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_UNPROVEN,
                             "took %.3f of the default's time in %d pairs with a noise of %.3f: "
                             "not faster beyond doubt",
                             ratio, (int)pairs, noise);
    EJKI_TRY(check_again(t, index));
    if (t->contenders[index].alive) t->report->chosen = index;
    return EJK_OK;
}

/* Those that rounds dropped: what they were slower than was broken. Their medians stand. */
static void revive(ejki_tuning *t) {
    for (int32_t i = 0; i < t->problem->count; i++) {
        ejk_tune_candidate *candidate = ejki_candidate(t, i);
        if (candidate->verdict != EJK_TUNE_VERDICT_SLOWER) continue;
        *(char *)candidate->sentence = '\0';
        candidate->verdict = EJK_TUNE_VERDICT_NOT_REACHED;
        t->contenders[i].alive = true;
    }
}

/* The next best gets its chance only where the best turned out to be broken. */
ejk_status ejki_guard(ejki_tuning *t) {
    t->phase = EJK_TUNE_PHASE_GUARD;
    for (;;) {
        int32_t best = ejki_best(t);
        if (ejki_is_default(t, best)) return EJK_OK;
        t->report->ratio = t->report->noise = NAN;
        t->report->pairs = 0;
        EJKI_TRY(judge(t, best));
        if (t->contenders[best].alive) return EJK_OK;
        if (ejki_candidate(t, best)->verdict == EJK_TUNE_VERDICT_UNPROVEN) return EJK_OK;
        revive(t);
    }
}
