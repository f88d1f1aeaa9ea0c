/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's state. tune.c calls the three phases, which tune_try.c, _rounds.c and _guard.c hold. */
#ifndef EJKI_EXECUTION_TUNE_H
#define EJKI_EXECUTION_TUNE_H

#include "base/base.h"
#include "ops/execution/measure.h"

#include <ejkernel/tuning.h>

/* Whatever is this much slower than the default once warm will not win. */
#define EJKI_HOPELESS 10.0
/* A lead below this is none, however quiet the machine. */
#define EJKI_LEAST_LEAD 0.01
/* The fewest pairs that the guard decides by. */
#define EJKI_LEAST_PAIRS 7
/* Quartiles speak from this many samples on. */
#define EJKI_TELLING_ROUNDS 3

/* What the engine knows of a candidate beyond the report. */
typedef struct ejki_contender {
    bool alive;    /* in the race */
    int64_t calls; /* that make a sample */
    double
        median; /* seconds of a call: of its warm-up as long as it has no samples; NaN = unknown */
    double *samples; /* seconds of a call, one a round, sorted */
} ejki_contender;

typedef struct ejki_tuning {
    const ejk_tune_problem *problem;
    const ejk_tuner_options *options;
    int32_t warmup, iters, max_rounds, limit;
    double budget_s, sample_s;
    double start;
    ejk_tune_report *report;
    ejki_contender *contenders;
    int32_t *order; /* of the contenders in a round */
    uint64_t random;
    ejk_tune_phase phase;
    int32_t tried, done; /* done: rounds or pairs, as the phase has it */
} ejki_tuning;

static inline ejk_tune_candidate *ejki_candidate(const ejki_tuning *t, int32_t index) {
    return &t->report->candidates[index];
}

static inline bool ejki_is_default(const ejki_tuning *t, int32_t index) {
    return index == t->problem->default_index;
}

/* How many candidates a problem has, and which is its default. */
ejk_status ejki_tune_check_counts(const ejk_tune_problem *problem);

double ejki_elapsed(const ejki_tuning *t);

/* The caller's flag: 0, 1 = finish, 2 = stop. */
int ejki_cancelled(const ejki_tuning *t);

ejki_subject ejki_subject_of(const ejki_tuning *t, int32_t index);

double ejki_sample_quantile(const ejki_tuning *t, int32_t index, double part);

/* The least median of all that are alive, the first on ties; the default if nothing is below it. */
int32_t ejki_best(const ejki_tuning *t);
int32_t ejki_survivors(const ejki_tuning *t);

void ejki_report_progress(const ejki_tuning *t);

/* Takes a candidate out, with the sentence that says why. OUT_OF_MEMORY only. */
ejk_status ejki_take_out(ejki_tuning *t, int32_t index, ejk_tune_verdict verdict,
                         const char *format, ...) EJKI_PRINTF(4, 5);

/*
 * What follows from a failure of `action` ("run", "check", …): of the default it is passed on; any other
 * candidate is taken out, and OK answered unless there was no memory to do so.
 */
ejk_status ejki_failed(ejki_tuning *t, int32_t index, const char *action, ejk_status status);

/* Asks whether the last run's result agrees; takes the candidate out if not. MISMATCH of the default. */
ejk_status ejki_check(ejki_tuning *t, int32_t index);

/* Seconds that so many pairs of a candidate and the default will take. */
double ejki_guard_cost(const ejki_tuning *t, int32_t index, int32_t pairs);

/* The phases. A failure ends the tuning; candidates' own failures are none. */
ejk_status ejki_try_all(ejki_tuning *t);
ejk_status ejki_play_rounds(ejki_tuning *t);
ejk_status ejki_guard(ejki_tuning *t);

#endif
