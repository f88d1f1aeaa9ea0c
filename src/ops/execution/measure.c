/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/execution/measure.h"
#include "base/base.h"

#include <ejkernel/device.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A sample of calls that the clock does not see ends here. */
#define MOST_CALLS (INT64_C(1) << 20)

double ejki_clock_now(const ejk_clock *clock) {
    return clock->now != NULL ? clock->now(clock->user) : ejk_now();
}

double ejki_clock_since(const ejk_clock *clock, double start) {
    double seconds = ejki_clock_now(clock) - start;
    return seconds > 0 ? seconds : 0;
}

static ejk_status restore(const ejki_subject *subject) {
    return subject->restore != NULL ? subject->restore(subject->user, subject->index) : EJK_OK;
}

static ejk_status run_on(const ejki_subject *subject, int64_t calls) {
    for (int64_t i = 0; i < calls; i++) EJKI_TRY(subject->run(subject->user, subject->index));
    return EJK_OK;
}

ejk_status ejki_run_calls(const ejki_subject *subject, int64_t calls) {
    if (calls > 0) EJKI_TRY(restore(subject));
    return run_on(subject, calls);
}

ejk_status ejki_time_calls(const ejki_subject *subject, int64_t calls, double *seconds) {
    EJKI_TRY(restore(subject));
    if (subject->time) {
        EJKI_TRY(subject->time(subject->user, subject->index, calls, seconds));
        *seconds /= (double)calls;
        return EJK_OK;
    }
    double start = ejki_clock_now(&subject->clock);
    EJKI_TRY(run_on(subject, calls));
    *seconds = ejki_clock_since(&subject->clock, start) / (double)calls;
    return EJK_OK;
}

int64_t ejki_calls_lasting(double sample_s, double each) {
    double needed = each > 0 ? ceil(sample_s / each) : MOST_CALLS;
    return (int64_t)fmax(1, fmin(needed, MOST_CALLS));
}

ejk_status ejki_calibrate(const ejki_subject *subject, double sample_s, int64_t *calls,
                          double *seconds) {
    int64_t count = 1;
    double each;
    for (;;) {
        EJKI_TRY(ejki_time_calls(subject, count, &each));
        if (each * (double)count >= sample_s || count >= MOST_CALLS) break;
        /* At most tenfold at once: the first calls are the slowest, or the clock has not moved yet. */
        int64_t needed = ejki_calls_lasting(1.1 * sample_s, each);
        count = ejki_max(count + 1, ejki_min(needed, 10 * count));
    }
    *calls = count;
    *seconds = each;
    return EJK_OK;
}

ejk_status ejki_sample_option(const ejk_opt_float *option, double *out) {
    double value = option->set ? option->value : EJKI_SAMPLE_S;
    if (!(value >= 0) || isinf(value))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "sample_s: %g given, expected a finite number of seconds ≥ 0", value);
    *out = value;
    return EJK_OK;
}

ejk_status ejki_count_option(const ejk_opt_int *option, const char *name, int64_t fallback,
                             int32_t least, int32_t *out) {
    int64_t value = option->set ? option->value : fallback;
    if (value < least || value > INT32_MAX)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: %lld given, expected %d to %d", name,
                         (long long)value, (int)least, INT32_MAX);
    *out = (int32_t)value;
    return EJK_OK;
}

ejk_status ejki_plain_option(int32_t option, const char *name, int32_t fallback, int32_t *out) {
    if (option < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: %d given, expected ≥ 1, or 0 for %d",
                         name, (int)option, (int)fallback);
    *out = option > 0 ? option : fallback;
    return EJK_OK;
}

void ejki_mean_std(const double *values, int64_t count, double *mean, double *std) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) sum += values[i];
    *mean = count > 0 ? sum / (double)count : 0;
    for (int64_t i = 0; i < count; i++) squares += (values[i] - *mean) * (values[i] - *mean);
    *std = count > 0 ? sqrt(squares / (double)count) : 0;
}

void ejki_shuffle(uint64_t *state, int32_t *order, int32_t count, int32_t picked) {
    for (int32_t i = 0; i < picked; i++) {
        int64_t other = i + ejki_random_below(state, count - i);
        int32_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

char *ejki_hide_sentence(void) {
    char *hidden = strdup(ejk_last_error());
    (void)ejki_fail(EJK_OK, "%s", "");
    return hidden;
}

void ejki_show_sentence(char *hidden, ejk_status status) {
    if (status == EJK_OK) (void)ejki_fail(EJK_OK, "%s", hidden != NULL ? hidden : "");
    free(hidden);
}

const char *ejki_sentence_of(ejk_status status) {
    return *ejk_last_error() != '\0' ? ejk_last_error() : ejk_status_message(status);
}
