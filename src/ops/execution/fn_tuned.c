/* SPDX-License-Identifier: Apache-2.0 */
/* A function that tunes itself: what was found best, by key. */
#define _GNU_SOURCE 1
#include "ops/execution/hyper.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ejk_tuned_fn {
    ejk_hyper_function function; /* its hyperparameters are `params` */
    ejk_hyperparam *params;
    ejki_fn_settings settings;
    char *prefix;
    pthread_mutex_t tuning; /* held while one tunes; taken before `lock` */
    pthread_mutex_t lock;   /* of the members below, held briefly */
    json_t *found;          /* key → combination, in the order of insertion */
    ejki_fn_tuning *last;   /* NULL = nothing was tuned yet */
};

ejk_status ejk_autotune_fn(const ejk_fn_autotuner *tuner, const ejk_hyper_function *function,
                           ejk_tuned_fn **out) {
    if (out == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_autotune_fn: out is NULL");
    ejki_fn_settings settings;
    EJKI_TRY(ejki_fn_settings_read(tuner, function, &settings));
    ejk_hyperparam *params;
    EJKI_TRY(ejki_hyper_copy(function, &params));
    ejk_tuned_fn *tuned = calloc(1, sizeof *tuned);
    char *prefix = strdup(tuner != NULL && tuner->cache_key != NULL ? tuner->cache_key : "");
    json_t *found = json_object();
    if (tuned == NULL || prefix == NULL || found == NULL) {
        free(params);
        json_decref(found);
        free(prefix);
        free(tuned);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a tuned function could not be had");
    }
    *tuned = (ejk_tuned_fn){.function = *function,
                            .params = params,
                            .settings = settings,
                            .prefix = prefix,
                            .found = found};
    tuned->function.hyperparams = params;
    pthread_mutex_init(&tuned->tuning, NULL);
    pthread_mutex_init(&tuned->lock, NULL);
    *out = tuned;
    return EJK_OK;
}

void ejk_tuned_fn_destroy(ejk_tuned_fn *tuned) {
    if (tuned == NULL) return;
    pthread_mutex_destroy(&tuned->lock);
    pthread_mutex_destroy(&tuned->tuning);
    if (tuned->last != NULL) ejk_fn_tuning_destroy(&tuned->last->base);
    free(tuned->params);
    json_decref(tuned->found);
    free(tuned->prefix);
    free(tuned);
}

/* ---- What is found, under the lock ------------------------------------------------------------------------ */

static bool look_up(ejk_tuned_fn *tuned, const char *key, int32_t *combination) {
    pthread_mutex_lock(&tuned->lock);
    const json_t *found = json_object_get(tuned->found, key);
    if (found != NULL) *combination = (int32_t)json_integer_value(found);
    pthread_mutex_unlock(&tuned->lock);
    return found != NULL;
}

/* The values found last, or the first of each hyperparameter. */
static int32_t last_best(ejk_tuned_fn *tuned) {
    pthread_mutex_lock(&tuned->lock);
    int32_t combination = tuned->last != NULL ? tuned->last->best : 0;
    pthread_mutex_unlock(&tuned->lock);
    return combination;
}

/* The last tuning, with one owner more; NULL if there is none. */
static ejki_fn_tuning *last_tuning(ejk_tuned_fn *tuned) {
    pthread_mutex_lock(&tuned->lock);
    ejki_fn_tuning *last = tuned->last;
    if (last != NULL) atomic_fetch_add(&last->owners, 1);
    pthread_mutex_unlock(&tuned->lock);
    return last;
}

/* Takes the tuning over. False if there was no memory for the key; the tuning is the last one all the same. */
static bool remember(ejk_tuned_fn *tuned, const char *key, ejki_fn_tuning *tuning) {
    pthread_mutex_lock(&tuned->lock);
    ejki_fn_tuning *before = tuned->last;
    tuned->last = tuning;
    bool kept = json_object_set_new_nocheck(tuned->found, key, json_integer(tuning->best)) == 0;
    if (json_object_size(tuned->found) > (size_t)tuned->settings.limit) {
        const char *oldest = json_object_iter_key(json_object_iter(tuned->found));
        json_object_del(tuned->found, oldest);
    }
    pthread_mutex_unlock(&tuned->lock);
    if (before != NULL) ejk_fn_tuning_destroy(&before->base);
    return kept;
}

/* ---- Calls -------------------------------------------------------------------------------------------------- */

/* Only one thread tunes; the others that come for the same key find it here. */
static ejk_status tune_under(ejk_tuned_fn *tuned, const char *key, void *args,
                             int32_t *combination) {
    if (look_up(tuned, key, combination)) return EJK_OK;
    ejki_fn_tuning *tuning;
    EJKI_TRY(ejki_fn_tune(&tuned->settings, &tuned->function, args, &tuning));
    *combination = tuning->best;
    if (remember(tuned, key, tuning)) return EJK_OK;
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a key of %zu bytes could not be had",
                     strlen(key));
}

static ejk_status find_or_tune(ejk_tuned_fn *tuned, const char *key, void *args,
                               int32_t *combination) {
    char *full;
    if (asprintf(&full, "%s%s", tuned->prefix, key) < 0)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a key of %zu bytes could not be had",
                         strlen(key));
    ejk_status status = EJK_OK;
    if (!look_up(tuned, full, combination)) {
        pthread_mutex_lock(&tuned->tuning);
        status = tune_under(tuned, full, args, combination);
        pthread_mutex_unlock(&tuned->tuning);
    }
    free(full);
    return status;
}

ejk_status ejk_tuned_fn_call(ejk_tuned_fn *tuned, const char *key, void *args) {
    if (tuned == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_tuned_fn_call: tuned is NULL");
    int32_t combination = 0;
    if (key != NULL)
        EJKI_TRY(find_or_tune(tuned, key, args, &combination));
    else
        combination = last_best(tuned);
    ejk_hyper_value values[EJK_MAX_HYPERPARAMS];
    ejki_hyper_values(tuned->params, tuned->function.count, combination, values);
    return tuned->function.run(tuned->function.user, args, values);
}

ejk_status ejk_tuned_fn_timing_results(ejk_tuned_fn *tuned, ejk_fn_tuning **out) {
    if (tuned == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_tuned_fn_timing_results: tuned or out is NULL");
    ejki_fn_tuning *last = last_tuning(tuned);
    if (last == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "tuned: nothing was tuned yet");
    *out = &last->base;
    return EJK_OK;
}

ejk_status ejk_tuned_fn_optimal_hyperparams(ejk_tuned_fn *tuned, ejk_hyper_value *values) {
    if (tuned == NULL || values == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_tuned_fn_optimal_hyperparams: tuned or values is NULL");
    ejki_fn_tuning *last = last_tuning(tuned);
    if (last == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "tuned: nothing was tuned yet");
    ejki_hyper_values(tuned->params, tuned->function.count, last->best, values);
    ejk_fn_tuning_destroy(&last->base);
    return EJK_OK;
}
