/* SPDX-License-Identifier: Apache-2.0 */
/* Plain functions: every combination of hyperparameters is warmed up, then timed in rounds with the others. */
#include "ops/execution/hyper.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* What uneven times count beside the mean. */
#define STD_WEIGHT 0.1

/* A combination that is tried. */
typedef struct attempt {
    int32_t combination;
    double *rounds; /* seconds of a call, of the rounds that succeeded */
    int32_t count;
    bool out;
    double mean, std;
} attempt;

typedef struct trial {
    const ejki_fn_settings *settings;
    const ejk_hyper_function *function;
    void *args;
    attempt *attempts;
    double *rounds; /* of all attempts */
    int32_t *order;
    uint64_t random;
    bool compared; /* a first result is kept */
    ejk_status failure;
    char sentence[512]; /* of the first failure */
} trial;

/* A function and its arguments as a subject to be timed. */
typedef struct bound {
    const ejk_hyper_function *function;
    void *args;
    ejk_hyper_value values[EJK_MAX_HYPERPARAMS];
} bound;

static ejk_status run_bound(void *user, int32_t index) {
    const bound *b = user;
    (void)index;
    return b->function->run(b->function->user, b->args, b->values);
}

static void bind(const trial *t, const attempt *a, bound *b) {
    b->function = t->function;
    b->args = t->args;
    ejki_hyper_values(t->function->hyperparams, t->function->count, a->combination, b->values);
}

static void note_failure(trial *t, ejk_status status) {
    if (t->failure != EJK_OK) return;
    t->failure = status;
    snprintf(t->sentence, sizeof t->sentence, "%s", ejki_sentence_of(status));
}

static ejk_status check(trial *t, const attempt *a) {
    const ejk_hyper_function *f = t->function;
    if (f->check == NULL) return EJK_OK;
    bool agrees = false;
    EJKI_TRY(f->check(f->user, t->args, !t->compared, &agrees));
    if (!agrees)
        return ejki_fail(EJK_STATUS_MISMATCH, "the result of combination %d %s",
                         (int)a->combination,
                         t->compared ? "differs from the first one's" : "is refused");
    t->compared = true;
    return EJK_OK;
}

static ejk_status warm_up(trial *t, const attempt *a) {
    bound b;
    bind(t, a, &b);
    ejki_subject subject = {run_bound, &b, 0, t->settings->clock, NULL};
    int32_t left = t->settings->warmup;
    if (left > 0 || t->function->check != NULL) {
        EJKI_TRY(ejki_run_calls(&subject, 1));
        EJKI_TRY(check(t, a));
        left--;
    }
    return ejki_run_calls(&subject, left);
}

static void play_round(trial *t) {
    const int32_t count = t->settings->sample;
    ejki_shuffle(&t->random, t->order, count, count);
    for (int32_t i = 0; i < count; i++) {
        attempt *a = &t->attempts[t->order[i]];
        if (a->out) continue;
        bound b;
        bind(t, a, &b);
        ejki_subject subject = {run_bound, &b, 0, t->settings->clock, NULL};
        double seconds;
        ejk_status status = ejki_time_calls(&subject, t->settings->calls, &seconds);
        if (status == EJK_OK)
            a->rounds[a->count++] = seconds;
        else
            note_failure(t, status);
    }
}

/* Without the fastest and the slowest, if more than two are there. Sorts the rounds. */
static void score(attempt *a) {
    a->mean = a->std = INFINITY;
    if (a->out || a->count == 0) return;
    const int32_t trimmed = a->count > 2 ? 1 : 0;
    (void)ejki_quantile(a->rounds, a->count, 0);
    ejki_mean_std(a->rounds + trimmed, a->count - 2 * trimmed, &a->mean, &a->std);
}

static int by_score(const void *left, const void *right) {
    const attempt *a = left, *b = right;
    double x = a->mean + STD_WEIGHT * a->std, y = b->mean + STD_WEIGHT * b->std;
    if (x != y) return x < y ? -1 : 1;
    return (a->combination > b->combination) - (a->combination < b->combination);
}

static int by_number(const void *a, const void *b) {
    return (*(const int32_t *)a > *(const int32_t *)b) -
           (*(const int32_t *)a < *(const int32_t *)b);
}

/* The combinations to try: all, or a random part in their own order. */
static ejk_status pick(trial *t) {
    const int32_t all = t->settings->combinations, count = t->settings->sample;
    int32_t *numbers = calloc((size_t)all, sizeof *numbers);
    if (numbers == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %d combinations could not be had",
                         (int)all);
    for (int32_t i = 0; i < all; i++) numbers[i] = i;
    if (count < all) {
        ejki_shuffle(&t->random, numbers, all, count);
        qsort(numbers, (size_t)count, sizeof *numbers, by_number);
    }
    for (int32_t i = 0; i < count; i++) t->attempts[i].combination = numbers[i];
    free(numbers);
    return EJK_OK;
}

/* ---- Results -------------------------------------------------------------------------------------------- */

static ejk_status build(const trial *t, ejki_fn_tuning **out) {
    const size_t count = (size_t)t->settings->sample, params = (size_t)t->function->count;
    ejki_fn_tuning *tuning = calloc(1, sizeof *tuning);
    if (tuning == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for the results could not be had");
    atomic_init(&tuning->owners, 1);
    tuning->results = calloc(count, sizeof *tuning->results);
    tuning->values = calloc(count * params + 1, sizeof *tuning->values);
    ejk_status status = ejki_hyper_space_copy(t->function, &tuning->space);
    if (status == EJK_OK && (tuning->results == NULL || tuning->values == NULL))
        status =
            ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %zu results could not be had", count);
    if (status != EJK_OK) {
        ejk_fn_tuning_destroy(&tuning->base);
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        const attempt *a = &t->attempts[i];
        ejk_hyper_value *values = tuning->values + i * params;
        ejki_hyper_values(tuning->space.params, tuning->space.count, a->combination, values);
        tuning->results[i] = (ejk_timing_result){values, a->mean, a->std};
    }
    tuning->best = t->attempts[0].combination;
    tuning->base = (ejk_fn_tuning){tuning->results, t->settings->sample, t->function->count};
    *out = tuning;
    return EJK_OK;
}

static ejk_status tune(trial *t, ejki_fn_tuning **out) {
    const int32_t count = t->settings->sample;
    for (int32_t i = 0; i < count; i++) {
        t->order[i] = i;
        t->attempts[i].rounds = t->rounds + (int64_t)i * t->settings->rounds;
    }
    EJKI_TRY(pick(t));
    for (int32_t i = 0; i < count; i++) {
        ejk_status status = warm_up(t, &t->attempts[i]);
        t->attempts[i].out = status != EJK_OK;
        if (status != EJK_OK) note_failure(t, status);
    }
    for (int32_t round = 0; round < t->settings->rounds; round++) play_round(t);
    for (int32_t i = 0; i < count; i++) score(&t->attempts[i]);
    qsort(t->attempts, (size_t)count, sizeof *t->attempts, by_score);
    if (isfinite(t->attempts[0].mean)) return build(t, out);
    const ejk_status failure = t->failure;
    if (failure == EJK_OK)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "clock: no combination took a finite time");
    return ejki_fail(failure, "none of %d combinations succeeded; the first failure: %s",
                     (int)count, t->sentence);
}

ejk_status ejki_fn_tune(const ejki_fn_settings *settings, const ejk_hyper_function *function,
                        void *args, ejki_fn_tuning **out) {
    const size_t count = (size_t)settings->sample;
    attempt *attempts = calloc(count, sizeof *attempts);
    double *rounds = calloc(count * (size_t)settings->rounds, sizeof *rounds);
    int32_t *order = calloc(count, sizeof *order);
    ejk_status status;
    if (attempts == NULL || rounds == NULL || order == NULL) {
        status = ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                           "memory for %d rounds of %zu combinations could not be had",
                           (int)settings->rounds, count);
    } else {
        trial t = {.settings = settings,
                   .function = function,
                   .args = args,
                   .attempts = attempts,
                   .rounds = rounds,
                   .order = order,
                   .random = settings->seed};
        char *sentence = ejki_hide_sentence();
        status = tune(&t, out);
        ejki_show_sentence(sentence, status);
    }
    free(attempts);
    free(rounds);
    free(order);
    return status;
}

ejk_status ejk_fn_autotuner_tune(const ejk_fn_autotuner *tuner, const ejk_hyper_function *function,
                                 void *args, ejk_fn_tuning **out) {
    if (out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_fn_autotuner_tune: out is NULL");
    ejki_fn_settings settings;
    EJKI_TRY(ejki_fn_settings_read(tuner, function, &settings));
    ejki_fn_tuning *tuning;
    EJKI_TRY(ejki_fn_tune(&settings, function, args, &tuning));
    *out = &tuning->base;
    return EJK_OK;
}

void ejk_fn_tuning_destroy(ejk_fn_tuning *tuning) {
    ejki_fn_tuning *whole = (ejki_fn_tuning *)tuning;
    if (whole == NULL || atomic_fetch_sub(&whole->owners, 1) > 1) return;
    ejki_hyper_space_close(&whole->space);
    free(whole->results);
    free(whole->values);
    free(whole);
}
