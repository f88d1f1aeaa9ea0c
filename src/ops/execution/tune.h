/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine behind every tuning: the order of first runs and of rounds, samples, checks, what fell out and why, the
 * budget. What one way of tuning does differently is a strategy: ejk_tune() (tune.c, tune_guard.c), #ejk_autotuner
 * (autotuner.c) and the hyperparameters of a function (fn_autotuner.c).
 */
#ifndef EJKI_EXECUTION_TUNE_H
#define EJKI_EXECUTION_TUNE_H

#include "base/base.h"
#include "ops/execution/measure.h"

#include <ejkernel/tuning.h>

/* What the engine knows of a candidate beyond the report. */
typedef struct ejki_contender {
    bool alive;      /* in the rounds */
    int64_t calls;   /* that make a sample */
    double median;   /* seconds of a call; in a race of its first runs until it has samples */
    double *samples; /* seconds of a call, one a round */
} ejki_contender;

typedef struct ejki_tuning ejki_tuning;

/* What one way of tuning does differently. A failure that these answer ends the tuning. */
typedef struct ejki_strategy {
    /* A candidate's first runs, which end with ejki_admit() if it is to be in the rounds. */
    ejk_status (*enter)(ejki_tuning *t, int32_t index);
    /* What follows from a candidate's failure of `action` ("run", "check", …): OK = the tuning goes on. */
    ejk_status (*failed)(ejki_tuning *t, int32_t index, const char *action, ejk_status status);
    ejk_status (*conclude)(ejki_tuning *t);
    /* Candidates race for the least median: within the budget, and those that lose fall out. */
    bool races;
} ejki_strategy;

struct ejki_tuning {
    const ejki_strategy *strategy;
    const ejk_tune_problem *problem;
    const ejk_tuner_options *options; /* the clock; in a race also what is not repeated here */
    int32_t first;                    /* the candidate that enters before the others */
    int32_t warmup, max_rounds;
    int64_t calls;        /* that make a sample, as long as a contender has no number of its own */
    int32_t iters, limit; /* of a race: rounds at least, candidates at most */
    double budget_s, sample_s; /* of a race */
    uint64_t random;           /* from which orders are drawn */
    void *own;                 /* the strategy's */

    /* The engine's. */
    ejk_tune_report *report;
    ejki_contender *contenders;
    int32_t *order; /* of the contenders in a round */
    double start;
    ejk_tune_phase phase;
    int32_t tried, done; /* done: rounds or pairs, as the phase has it */
};

static inline ejk_tune_candidate *ejki_candidate(const ejki_tuning *t, int32_t index) {
    return &t->report->candidates[index];
}

/* How many candidates a problem has, and which is its default. */
ejk_status ejki_tune_check_counts(const ejk_tune_problem *problem);

/* Runs it all. Without a failure, `out` gets the report; NULL: it is thrown away. */
ejk_status ejki_tuning_run(ejki_tuning *t, ejk_tune_report **out);

ejki_subject ejki_subject_of(const ejki_tuning *t, int32_t index);

/* Runs a candidate that often, untimed. */
ejk_status ejki_run_candidate(const ejki_tuning *t, int32_t index, int64_t calls);

/* Seconds of a call, the mean of that many. NaN: it failed, and the strategy lets the tuning go on. */
ejk_status ejki_sample(ejki_tuning *t, int32_t index, int64_t calls, double *seconds);

/* In the race from here on. OUT_OF_MEMORY only. */
ejk_status ejki_admit(ejki_tuning *t, int32_t index);

/* Asks whether the last run's result agrees. */
ejk_status ejki_check(ejki_tuning *t, int32_t index, bool *agrees);

/* Keeps status and sentence of a candidate's first failure: `failed` of strategies that only leave it out. */
ejk_status ejki_note_failure(ejki_tuning *t, int32_t index, const char *action, ejk_status status);

/* The error of a tuning none of whose `things` ("candidates") took a finite time. */
ejk_status ejki_none_succeeded(const ejki_tuning *t, const char *things);

/* ---- Races ---------------------------------------------------------------------------------------------- */

/* A lead below this is none, however quiet the machine. */
#define EJKI_LEAST_LEAD 0.01
/* The fewest pairs that the guard decides by. */
#define EJKI_LEAST_PAIRS 7
/* Quartiles speak from this many samples on. */
#define EJKI_TELLING_ROUNDS 3

static inline bool ejki_is_default(const ejki_tuning *t, int32_t index) {
    return index == t->problem->default_index;
}

/* Since the start. */
double ejki_elapsed(const ejki_tuning *t);

/* The caller's flag: 0, 1 = finish, 2 = stop. */
int ejki_cancelled(const ejki_tuning *t);

double ejki_sample_quantile(const ejki_tuning *t, int32_t index, double part);

/* The least median of all that are alive, the first on ties; the default if nothing is below it. */
int32_t ejki_best(const ejki_tuning *t);

void ejki_report_progress(const ejki_tuning *t);

/* Takes a candidate out, with the sentence that says why. OUT_OF_MEMORY only. */
ejk_status ejki_take_out(ejki_tuning *t, int32_t index, ejk_tune_verdict verdict,
                         const char *format, ...) EJKI_PRINTF(4, 5);

/* Takes the candidate out if the last run's result does not agree. MISMATCH of the default. */
ejk_status ejki_hold_against_default(ejki_tuning *t, int32_t index);

/* Seconds that so many pairs of a candidate and the default will take. */
double ejki_guard_cost(const ejki_tuning *t, int32_t index, int32_t pairs);

/* The comparison of the leader with the default, after the rounds. */
ejk_status ejki_guard(ejki_tuning *t);

#endif
