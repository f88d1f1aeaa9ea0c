/* SPDX-License-Identifier: Apache-2.0 */
/* The strategy of #ejk_autotuner: each candidate is warmed up, timed once and checked before the next. */
#include "ops/execution/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The result that others are held against. */
static ejk_status keep_default(const ejki_tuning *t) {
    const ejk_tune_problem *problem = t->problem;
    if (problem->check == NULL) return EJK_OK;
    EJKI_TRY(ejki_run_candidate(t, problem->default_index, 1));
    return problem->keep != NULL ? problem->keep(problem->user, problem->default_index) : EJK_OK;
}

static ejk_status measure(ejki_tuning *t, int32_t index, double *seconds) {
    const ejki_subject subject = ejki_subject_of(t, index);
    bool agrees = true;
    EJKI_TRY(ejki_run_calls(&subject, t->warmup));
    EJKI_TRY(ejki_time_calls(&subject, t->calls, seconds));
    if (t->problem->check != NULL) EJKI_TRY(ejki_check(t, index, &agrees));
    if (agrees) return EJK_OK;
    return ejki_fail(EJK_STATUS_MISMATCH,
                     "candidate %d: its result differs from the default's by %g", (int)index,
                     ejki_candidate(t, index)->difference);
}

static ejk_status enter(ejki_tuning *t, int32_t index) {
    if (index == 0) EJKI_TRY(keep_default(t));
    double seconds = INFINITY;
    const ejk_status status = measure(t, index, &seconds);
    t->contenders[index].median = status == EJK_OK ? seconds : INFINITY;
    return status == EJK_OK ? EJK_OK : ejki_note_failure(t, index, "run", status);
}

static ejk_status conclude(ejki_tuning *t) {
    const int32_t count = t->problem->count;
    bool found = false;
    for (int32_t i = 0; i < count; i++) found = found || isfinite(t->contenders[i].median);
    if (!found) return ejki_none_succeeded(t, "candidates");
    ejk_measurement *measurements = calloc((size_t)count, sizeof *measurements);
    if (measurements == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %d measurements could not be had",
                         (int)count);
    for (int32_t i = 0; i < count; i++) {
        const char **text = &ejki_candidate(t, i)->description;
        measurements[i] = (ejk_measurement){i, *text, t->contenders[i].median};
        *text = NULL; /* the data's now */
    }
    *(ejk_autotune_data *)t->own = (ejk_autotune_data){measurements, count};
    return EJK_OK;
}

ejk_status ejk_autotuner_autotune(const ejk_autotuner *tuner, const ejk_tune_problem *problem,
                                  ejk_autotune_data *out) {
    static const ejk_autotuner defaults = {0};
    static const ejki_strategy strategy = {
        .enter = enter, .failed = ejki_note_failure, .conclude = conclude};
    if (problem == NULL || out == NULL || problem->run == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_autotuner_autotune: problem, its run or out is NULL");
    EJKI_TRY(ejki_tune_check_counts(problem));
    if (tuner == NULL) tuner = &defaults;
    int32_t calls;
    const ejk_tuner_options options = {.clock = tuner->clock};
    ejki_tuning t = {.strategy = &strategy, .problem = problem, .options = &options, .own = out};
    EJKI_TRY(ejki_count_option(&tuner->warmup, "warmup", 1, 0, &t.warmup));
    EJKI_TRY(ejki_plain_option(tuner->iters, "iters", 3, &calls));
    t.calls = calls;
    return ejki_tuning_run(&t, NULL);
}

ejk_status ejk_autotune_data_fastest_config(const ejk_autotune_data *data,
                                            const ejk_measurement **out) {
    if (data == NULL || out == NULL || data->count < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_autotune_data_fastest_config: data or out is NULL, or data holds no "
                         "measurement");
    const ejk_measurement *fastest = &data->measurements[0];
    for (int32_t i = 1; i < data->count; i++)
        if (data->measurements[i].seconds < fastest->seconds) fastest = &data->measurements[i];
    *out = fastest;
    return EJK_OK;
}

void ejk_autotune_data_close(ejk_autotune_data *data) {
    if (data == NULL) return;
    for (int32_t i = 0; i < data->count; i++) free((char *)data->measurements[i].config);
    free(data->measurements);
    *data = (ejk_autotune_data){0};
}
