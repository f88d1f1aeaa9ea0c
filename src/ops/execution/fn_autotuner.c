/* SPDX-License-Identifier: Apache-2.0 */
/* The strategy of plain functions: every combination of hyperparameters is warmed up, then timed in all rounds. */
#include "ops/execution/hyper.h"
#include "ops/execution/tune.h"

#include <math.h>
#include <stdlib.h>

/* What uneven times count beside the mean. */
#define STD_WEIGHT 0.1

/* A function with its arguments; candidates are combinations[0 …]. */
typedef struct trial {
    const ejk_hyper_function *function;
    void *args;
    int32_t *combinations;
    bool compared; /* a first result is kept */
    ejki_fn_tuning *found;
} trial;

static ejk_status run(void *user, int32_t index) {
    const trial *own = user;
    const ejk_hyper_function *f = own->function;
    ejk_hyper_value values[EJK_MAX_HYPERPARAMS];
    ejki_hyper_values(f->hyperparams, f->count, own->combinations[index], values);
    return f->run(f->user, own->args, values);
}

static ejk_status check(void *user, int32_t index, bool *agrees, double *difference) {
    trial *own = user;
    const ejk_hyper_function *f = own->function;
    *difference = 0;
    EJKI_TRY(f->check(f->user, own->args, !own->compared, agrees));
    if (!*agrees)
        return ejki_fail(EJK_STATUS_MISMATCH, "the result of combination %d %s",
                         (int)own->combinations[index],
                         own->compared ? "differs from the first one's" : "is refused");
    own->compared = true;
    return EJK_OK;
}

static ejk_status warm_up(ejki_tuning *t, int32_t index) {
    bool agrees;
    if (t->problem->check == NULL) return ejki_run_candidate(t, index, t->warmup);
    EJKI_TRY(ejki_run_candidate(t, index, 1));
    EJKI_TRY(ejki_check(t, index, &agrees));
    return ejki_run_candidate(t, index, t->warmup - 1);
}

static ejk_status enter(ejki_tuning *t, int32_t index) {
    const ejk_status status = warm_up(t, index);
    return status == EJK_OK ? ejki_admit(t, index) : ejki_note_failure(t, index, "run", status);
}

/* Without the fastest and the slowest, if more than two are there. Sorts the samples. */
static void score(const ejki_tuning *t, int32_t index, ejk_timing_result *result) {
    double *samples = t->contenders[index].samples;
    const int32_t count = ejki_candidate(t, index)->samples, trimmed = count > 2 ? 1 : 0;
    result->t_mean = result->t_std = INFINITY;
    if (count == 0) return;
    (void)ejki_quantile(samples, count, 0);
    ejki_mean_std(samples + trimmed, count - 2 * trimmed, &result->t_mean, &result->t_std);
}

static int by_score(const void *left, const void *right) {
    const ejk_timing_result *a = left, *b = right;
    double x = a->t_mean + STD_WEIGHT * a->t_std, y = b->t_mean + STD_WEIGHT * b->t_std;
    if (x != y) return x < y ? -1 : 1;
    /* Values lie in the order of combinations. */
    return (a->hyperparams > b->hyperparams) - (a->hyperparams < b->hyperparams);
}

static ejk_status open_results(const ejki_tuning *t, ejki_fn_tuning *found) {
    const trial *own = t->own;
    const size_t count = (size_t)t->problem->count, params = (size_t)own->function->count;
    atomic_init(&found->owners, 1);
    found->results = calloc(count, sizeof *found->results);
    found->values = calloc(count * params + 1, sizeof *found->values);
    if (found->results == NULL || found->values == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %zu results could not be had",
                         count);
    found->base = (ejk_fn_tuning){found->results, t->problem->count, own->function->count};
    return ejki_hyper_copy(own->function, &found->params);
}

static ejk_status conclude(ejki_tuning *t) {
    trial *own = t->own;
    ejki_fn_tuning *found = own->found = calloc(1, sizeof *found);
    if (found == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for the results could not be had");
    EJKI_TRY(open_results(t, found));
    const int32_t params = own->function->count;
    for (int32_t i = 0; i < t->problem->count; i++) {
        ejk_hyper_value *values = found->values + (size_t)i * (size_t)params;
        ejki_hyper_values(found->params, params, own->combinations[i], values);
        found->results[i].hyperparams = values;
        score(t, i, &found->results[i]);
    }
    qsort(found->results, (size_t)t->problem->count, sizeof *found->results, by_score);
    if (!isfinite(found->results[0].t_mean)) return ejki_none_succeeded(t, "combinations");
    const int64_t place = found->results[0].hyperparams - found->values;
    found->best = own->combinations[params > 0 ? place / params : 0];
    return EJK_OK;
}

static int by_number(const void *a, const void *b) {
    return (*(const int32_t *)a > *(const int32_t *)b) -
           (*(const int32_t *)a < *(const int32_t *)b);
}

/* The combinations to try: all, or a random part in their own order. */
static ejk_status pick(const ejki_fn_settings *settings, uint64_t *random, int32_t **out) {
    const int32_t all = settings->combinations, count = settings->sample;
    int32_t *numbers = calloc((size_t)all, sizeof *numbers);
    if (numbers == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %d combinations could not be had",
                         (int)all);
    for (int32_t i = 0; i < all; i++) numbers[i] = i;
    if (count < all) {
        ejki_shuffle(random, numbers, all, count);
        qsort(numbers, (size_t)count, sizeof *numbers, by_number);
    }
    *out = numbers;
    return EJK_OK;
}

ejk_status ejki_fn_tune(const ejki_fn_settings *settings, const ejk_hyper_function *function,
                        void *args, ejki_fn_tuning **out) {
    static const ejki_strategy strategy = {
        .enter = enter, .failed = ejki_note_failure, .conclude = conclude};
    trial own = {.function = function, .args = args};
    const ejk_tune_problem problem = {.count = settings->sample,
                                      .run = run,
                                      .check = function->check != NULL ? check : NULL,
                                      .user = &own};
    const ejk_tuner_options options = {.clock = settings->clock};
    ejki_tuning t = {.strategy = &strategy,
                     .problem = &problem,
                     .warmup = settings->warmup,
                     .max_rounds = settings->rounds,
                     .calls = settings->calls,
                     .options = &options,
                     .random = settings->seed,
                     .own = &own};
    EJKI_TRY(pick(settings, &t.random, &own.combinations));
    const ejk_status status = ejki_tuning_run(&t, NULL);
    free(own.combinations);
    if (status == EJK_OK)
        *out = own.found;
    else if (own.found != NULL)
        ejk_fn_tuning_destroy(&own.found->base);
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
    free(whole->params);
    free(whole->results);
    free(whole->values);
    free(whole);
}
