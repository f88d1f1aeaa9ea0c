/* SPDX-License-Identifier: Apache-2.0 */
/* An executor's parts, and plans of its calls. */
#ifndef EJKI_OPS_EXECUTION_EXECUTOR_H
#define EJKI_OPS_EXECUTION_EXECUTOR_H

#include <ejkernel/executor.h>

#include "ops/core/context.h"
#include "ops/core/request.h"

struct ejk_executor {
    ejk_context *context;       /* shares its user's threads and registry; its own plans */
    ejk_config_chooser chooser; /* the one given; without functions: heuristics */
    ejk_config_selector_chain *selector;
    ejk_stamp stamp;
    char *stamp_prefix;
    ejk_profiler *profiler;
    ejk_recording *recording;
    /* What belongs to it; NULL where it was given. */
    ejk_recording *own_recording;
    ejk_config_selector_chain *own_chain;
    ejk_tuner *own_tuner;
    ejk_persistent_cache *own_persistent;
};

/* The plan of a call; `hook` is NULL for the call itself, or "fwd_with_residuals" or "vjp". */
ejk_status ejki_executor_plan(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                              const ejk_call_options *options, const char *hook, ejk_plan **out);

/* Which recorded calls are to be tuned, how, and who hears of it: as ejk_autotune_recorded() has them. */
typedef struct ejki_autotune_series {
    ejk_executor *executor;
    ejk_recording *recording;
    const ejk_autotune_options *options;
    int32_t repetition_count;
    bool (*wanted)(void *wanted_user, const ejk_recorded_invocation *call); /* NULL = all */
    void *wanted_user;
    void (*told)(void *user, const ejk_tuned_call *call);
    void (*skipped)(void *user, const char *problem, const char *sentence);
    void *user;
} ejki_autotune_series;

/* Tunes them. `out` may be NULL. */
ejk_status ejki_autotune_series_run(const ejki_autotune_series *what, ejk_autotuning_result **out);

/* An executor with the same chooser that offers its calls one thread. */
ejk_status ejki_executor_single(const ejk_executor *executor, ejk_executor **out);

#endif
