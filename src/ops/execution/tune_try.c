/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First runs. They tell whether a candidate works and is right, cost what is done only once (compiling,
 * first touch of memory), and show how many calls make a sample. The default goes first: its result and its
 * time are what the others are held against.
 */
#include "ops/execution/tune.h"

#include <stdlib.h>

/* The part of the budget after which no further candidate is tried, so that rounds remain. */
#define TRYING_PART 0.6

static ejk_status time_first(ejki_tuning *t, int32_t index) {
    ejki_subject subject = ejki_subject_of(t, index);
    return ejki_time_calls(&subject, 1, &ejki_candidate(t, index)->first_s);
}

static ejk_status warm_up(ejki_tuning *t, int32_t index, int32_t runs) {
    ejki_contender *contender = &t->contenders[index];
    ejki_subject subject = ejki_subject_of(t, index);
    EJKI_TRY(ejki_run_calls(&subject, runs));
    return ejki_calibrate(&subject, t->sample_s, &contender->calls, &contender->median);
}

/* In the race from here on. */
static ejk_status admit(ejki_tuning *t, int32_t index) {
    ejki_contender *contender = &t->contenders[index];
    contender->samples = calloc((size_t)t->max_rounds, sizeof *contender->samples);
    if (contender->samples == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %d samples could not be had",
                         (int)t->max_rounds);
    contender->alive = true;
    return EJK_OK;
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
    status = warm_up(t, index, t->warmup - 1);
    if (status != EJK_OK) return ejki_failed(t, index, "run", status);
    EJKI_TRY(ejki_check(t, index));
    return admit(t, index);
}

static bool fits_memory(ejki_tuning *t, int32_t index, int64_t *bytes) {
    const ejk_tune_problem *problem = t->problem;
    *bytes = problem->memory_bytes != NULL ? problem->memory_bytes(problem->user, index) : 0;
    return t->options->memory_bytes == 0 || *bytes <= t->options->memory_bytes;
}

/* Its first run, against the default's and its share of the budget: it may have had to compile. */
static double first_limit(const ejki_tuning *t) {
    double share = t->budget_s / t->limit;
    double hopeless = EJKI_HOPELESS * ejki_candidate(t, t->problem->default_index)->first_s;
    return share > hopeless ? share : hopeless;
}

static ejk_status try_one(ejki_tuning *t, int32_t index) {
    int64_t bytes;
    if (!fits_memory(t, index, &bytes))
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_OVER_MEMORY,
                             "takes %lld bytes, allowed are %lld", (long long)bytes,
                             (long long)t->options->memory_bytes);
    ejk_status status = time_first(t, index);
    if (status != EJK_OK) return ejki_failed(t, index, "run", status);
    double first = ejki_candidate(t, index)->first_s;
    if (first > first_limit(t))
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_TOO_SLOW,
                             "its first run took %.3g s, allowed were %.3g s", first,
                             first_limit(t));
    EJKI_TRY(ejki_check(t, index));
    if (ejki_candidate(t, index)->verdict != EJK_TUNE_VERDICT_NOT_REACHED) return EJK_OK;
    status = warm_up(t, index, t->warmup - 1);
    if (status != EJK_OK) return ejki_failed(t, index, "run", status);
    /* Once more: what adds to its output, or leans on fresh memory, is right the first time only. */
    EJKI_TRY(ejki_check(t, index));
    if (ejki_candidate(t, index)->verdict != EJK_TUNE_VERDICT_NOT_REACHED) return EJK_OK;
    double least = t->contenders[t->problem->default_index].median;
    if (t->contenders[index].median > EJKI_HOPELESS * least)
        return ejki_take_out(t, index, EJK_TUNE_VERDICT_TOO_SLOW,
                             "a warm run took %.3g s, the default's %.3g s",
                             t->contenders[index].median, least);
    return admit(t, index);
}

ejk_status ejki_try_all(ejki_tuning *t) {
    EJKI_TRY(try_default(t));
    t->tried = 1;
    ejki_report_progress(t);
    for (int32_t i = 0; i < t->problem->count && t->tried < t->limit; i++) {
        if (ejki_is_default(t, i)) continue;
        if (ejki_cancelled(t)) break;
        t->report->out_of_time = ejki_elapsed(t) >= TRYING_PART * t->budget_s;
        if (t->report->out_of_time) break;
        EJKI_TRY(try_one(t, i));
        t->tried++;
        ejki_report_progress(t);
    }
    return EJK_OK;
}
