/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning of plain functions: their hyperparameters and what a tuning keeps. */
#ifndef EJKI_EXECUTION_HYPER_H
#define EJKI_EXECUTION_HYPER_H

#include "base/base.h"
#include "ops/execution/measure.h"

#include <ejkernel/tuning.h>
#include <stdatomic.h>

/* A tuning with what its public part points to; `base` is first, so that one is the other. */
typedef struct ejki_fn_tuning {
    ejk_fn_tuning base;
    atomic_int owners;
    ejk_hyperparam *params; /* a copy, for the texts of values */
    ejk_timing_result *results;
    ejk_hyper_value *values; /* base.count times base.hyperparam_count */
    int32_t best;            /* combination of results[0] */
} ejki_fn_tuning;

/* An #ejk_fn_autotuner with its defaults filled in. */
typedef struct ejki_fn_settings {
    int32_t warmup, rounds, calls, limit;
    int32_t combinations, sample; /* in all, and tried */
    uint64_t seed;
    ejk_clock clock;
} ejki_fn_settings;

/* Checks function and options. */
ejk_status ejki_fn_settings_read(const ejk_fn_autotuner *tuner, const ejk_hyper_function *function,
                                 ejki_fn_settings *out);

/* A copy of a function's hyperparameters with all their texts, to be freed with free(). OUT_OF_MEMORY. */
ejk_status ejki_hyper_copy(const ejk_hyper_function *function, ejk_hyperparam **out);

/* The values of a combination: the last hyperparameter runs fastest. */
void ejki_hyper_values(const ejk_hyperparam *params, int32_t count, int32_t combination,
                       ejk_hyper_value *values);

ejk_status ejki_fn_tune(const ejki_fn_settings *settings, const ejk_hyper_function *function,
                        void *args, ejki_fn_tuning **out);

#endif
