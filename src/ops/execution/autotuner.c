/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "ops/execution/measure.h"
#include "ops/execution/tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first failure of a candidate, for the case that none succeeds. */
typedef struct first_failure {
    ejk_status status;
    char sentence[512];
} first_failure;

static ejk_status check_result(const ejk_tune_problem *problem, int32_t index) {
    bool agrees = false;
    double difference = NAN;
    if (problem->check == NULL) return EJK_OK;
    EJKI_TRY(problem->check(problem->user, index, &agrees, &difference));
    if (agrees && !isnan(difference)) return EJK_OK;
    return ejki_fail(EJK_STATUS_MISMATCH,
                     "candidate %d: its result differs from the default's by %g", (int)index,
                     difference);
}

static ejk_status measure(const ejk_tune_problem *problem, const ejk_clock *clock, int32_t warmup,
                          int32_t iters, int32_t index, double *seconds) {
    ejki_subject subject = {problem->run, problem->user, index, *clock, problem->time};
    EJKI_TRY(ejki_run_calls(&subject, warmup));
    EJKI_TRY(ejki_time_calls(&subject, iters, seconds));
    return check_result(problem, index);
}

/* The result that others are held against. */
static ejk_status keep_default(const ejk_tune_problem *problem) {
    if (problem->check == NULL) return EJK_OK;
    EJKI_TRY(problem->run(problem->user, problem->default_index));
    return problem->keep != NULL ? problem->keep(problem->user, problem->default_index) : EJK_OK;
}

static ejk_status open_data(const ejk_tune_problem *problem, ejk_autotune_data *data) {
    data->measurements = calloc((size_t)problem->count, sizeof *data->measurements);
    data->count = data->measurements != NULL ? problem->count : 0;
    bool whole = data->measurements != NULL;
    for (int32_t i = 0; whole && i < problem->count; i++) {
        const char *text = problem->describe ? problem->describe(problem->user, i) : NULL;
        data->measurements[i] = (ejk_measurement){i, strdup(text != NULL ? text : ""), INFINITY};
        whole = data->measurements[i].config != NULL;
    }
    if (whole) return EJK_OK;
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %d measurements could not be had",
                     (int)problem->count);
}

static ejk_status measure_all(const ejk_autotuner *tuner, const ejk_tune_problem *problem,
                              ejk_autotune_data *data) {
    int32_t warmup, iters;
    EJKI_TRY(ejki_count_option(&tuner->warmup, "warmup", 1, 0, &warmup));
    EJKI_TRY(ejki_plain_option(tuner->iters, "iters", 3, &iters));
    EJKI_TRY(open_data(problem, data));
    EJKI_TRY(keep_default(problem));
    first_failure failure = {.status = EJK_OK};
    bool found = false;
    for (int32_t i = 0; i < problem->count; i++) {
        double seconds = INFINITY;
        ejk_status status = measure(problem, &tuner->clock, warmup, iters, i, &seconds);
        if (status == EJK_OK) {
            data->measurements[i].seconds = seconds;
            found = found || isfinite(seconds);
        } else if (failure.status == EJK_OK) {
            failure.status = status;
            snprintf(failure.sentence, sizeof failure.sentence, "%s", ejki_sentence_of(status));
        }
    }
    if (found) return EJK_OK;
    if (failure.status == EJK_OK)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "clock: no candidate took a finite time");
    return ejki_fail(failure.status, "none of %d candidates succeeded; the first failure: %s",
                     (int)problem->count, failure.sentence);
}

ejk_status ejk_autotuner_autotune(const ejk_autotuner *tuner, const ejk_tune_problem *problem,
                                  ejk_autotune_data *out) {
    static const ejk_autotuner defaults = {0};
    if (problem == NULL || out == NULL || problem->run == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_autotuner_autotune: problem, its run or out is NULL");
    EJKI_TRY(ejki_tune_check_counts(problem));
    ejk_autotune_data data = {0};
    char *sentence = ejki_hide_sentence();
    ejk_status status = measure_all(tuner != NULL ? tuner : &defaults, problem, &data);
    ejki_show_sentence(sentence, status);
    if (status == EJK_OK)
        *out = data;
    else
        ejk_autotune_data_close(&data);
    return status;
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
