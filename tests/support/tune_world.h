/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Candidates by script, on a clock of their own: a run moves the clock by what the script says and writes
 * the result it says, so that what a tuner decides is the same everywhere and always.
 */
#ifndef TESTS_TUNE_WORLD_H
#define TESTS_TUNE_WORLD_H

#include "support/random.h"

#include <ejkernel/tuning.h>

enum { WORLD_MOST = 32 };

typedef struct tune_script {
    double seconds;     /* of a run */
    double noise;       /* a run takes up to this part more, evenly spread */
    int32_t later_from; /* from this run on, counted from 0, it takes `later`; 0 = never */
    double later;
    double first;       /* what the first run takes on top */
    double off;         /* by how much the result is wrong, NaN allowed */
    int32_t off_from;   /* from this run on, counted from 0 */
    bool fails;         /* from run `fails_from` on */
    int32_t fails_from; /* counted from 0 */
    bool silent;        /* fails without a sentence of its own */
    bool check_fails;
    int64_t bytes;
} tune_script;

typedef struct tune_world {
    tune_script script[WORLD_MOST];
    double now, result, kept;
    struct random random;
    int32_t runs[WORLD_MOST], checks[WORLD_MOST], keeps;
    int32_t all_runs, cancel_after; /* sets `cancel` in that run of all, 0 = never */
    int cancel_value;
    int cancel;
    int32_t count;
} tune_world;

/* The problem that a world poses, with candidate `default_index` as the default. */
ejk_tune_problem tune_world_problem(tune_world *world, int32_t default_index);

/* The world's clock. */
ejk_clock tune_world_clock(tune_world *world);

/* Each sample is one run; the world's clock and its flag to cancel; ten seconds. */
ejk_tuner_options tune_world_options(tune_world *world);

#endif
