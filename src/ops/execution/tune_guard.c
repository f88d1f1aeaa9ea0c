/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard. Of many candidates with equal times one has the lowest median by luck, so the rounds prove
 * nothing about their own winner. It is measured anew, in pairs with the default that follow each other
 * closely and change their order: what the machine does meanwhile meets both, and the ratio of a pair keeps
 * what is theirs. It has to be below 1 by more than the noise of its median, and so in every part of the
 * comparison: a machine that others use stays in one state for some tenths of a second, in which all pairs
 * err alike. For the same reason samples of fast functions are longer here than in the rounds.
 */
#include "ops/execution/tune.h"

#include <math.h>

enum { MOST_PAIRS = 21, PARTS = 3 };
/* A sample is made this long if the budget allows it. */
#define LONG_SAMPLE_S 10e-3
/* Less is not worth leaving the default for: where memory happens to lie changes times by as much. */
#define LEAST_GAIN 0.03
/* Beyond what is left of the budget the comparison may take this part of it. */
#define OVERTIME 0.5

/* More calls a sample, for which MOST_PAIRS take no more than half of what is left. */
static void lengthen_samples(ejki_tuning *t, int32_t index) {
    const double part = (t->budget_s - ejki_elapsed(t)) / (4 * MOST_PAIRS);
    const double length = t->sample_s > 0 ? fmin(part, LONG_SAMPLE_S) : 0;
    const int32_t both[2] = {index, t->problem->default_index};
    for (int i = 0; i < 2; i++) {
        ejki_contender *contender = &t->contenders[both[i]];
        if ((double)contender->calls * contender->median < length)
            contender->calls = ejki_calls_lasting(length, contender->median);
    }
}

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

static ejk_status compare_pair(ejki_tuning *t, int32_t index, bool turned, double *ratio) {
    const int32_t order[2] = {turned ? index : t->problem->default_index,
                              turned ? t->problem->default_index : index};
    double seconds[2];
    for (int i = 0; i < 2; i++) {
        EJKI_TRY(ejki_sample(t, order[i], t->contenders[order[i]].calls, &seconds[i]));
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

/* The highest of the medians of the parts, which are in the order of time; puts each part in order. */
static double worst_part_of(double *ratios, int32_t pairs) {
    double worst = 0;
    for (int32_t i = 0; i < PARTS; i++) {
        int32_t first = pairs * i / PARTS, end = pairs * (i + 1) / PARTS;
        worst = fmax(worst, ejki_quantile(ratios + first, end - first, 0.5));
    }
    return worst;
}

/* Measures the pairs; *worst stays NaN if the candidate fell out or the caller stopped everything. */
static ejk_status compare(ejki_tuning *t, int32_t index, int32_t pairs, double *worst) {
    double ratios[MOST_PAIRS];
    for (t->done = 0; t->done < pairs;) {
        if (ejki_cancelled(t) > 1) return EJK_OK;
        EJKI_TRY(compare_pair(t, index, t->done % 2 == 1, &ratios[t->done]));
        if (!t->contenders[index].alive) return EJK_OK;
        t->done++;
        ejki_report_progress(t);
    }
    t->report->pairs = pairs;
    *worst = worst_part_of(ratios, pairs);
    t->report->ratio = ejki_quantile(ratios, pairs, 0.5);
    t->report->noise = noise_of(ratios, pairs);
    return EJK_OK;
}

/* One more run whose result is checked: the first may have been right by chance. */
static ejk_status check_again(ejki_tuning *t, int32_t index) {
    double seconds;
    EJKI_TRY(ejki_sample(t, index, t->contenders[index].calls, &seconds));
    return t->contenders[index].alive ? ejki_hold_against_default(t, index) : EJK_OK;
}

static ejk_status judge(ejki_tuning *t, int32_t index) {
    lengthen_samples(t, index);
    int32_t pairs = ejki_cancelled(t) > 1 ? 0 : pairs_in_time(t, index);
    double worst = NAN;
    if (pairs > 0) EJKI_TRY(compare(t, index, pairs, &worst));
    if (!t->contenders[index].alive) return EJK_OK;
    if (isnan(worst))
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_UNPROVEN,
                             "led, but there was no time to compare it with the default");
    const double ratio = t->report->ratio, noise = t->report->noise;
    if (!(ratio < 1 - fmax(LEAST_GAIN, noise) && worst < 1 - EJKI_LEAST_LEAD))
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_UNPROVEN,
                             "took %.3f of the default's time in %d pairs with a noise of %.3f, "
                             "%.3f in the worst third of them: not faster beyond doubt",
                             ratio, (int)pairs, noise, worst);
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
    t->report->ratio = t->report->noise = NAN;
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
