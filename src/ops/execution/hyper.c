/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "ops/execution/hyper.h"

#include <stdlib.h>
#include <string.h>

ejk_hyper_value ejk_hyper_int(int64_t value) {
    return (ejk_hyper_value){.kind = EJK_HYPER_INT, .integer = value};
}

ejk_hyper_value ejk_hyper_float(double value) {
    return (ejk_hyper_value){.kind = EJK_HYPER_FLOAT, .number = value};
}

ejk_hyper_value ejk_hyper_text(const char *value) {
    return (ejk_hyper_value){.kind = EJK_HYPER_TEXT, .text = value};
}

/* ---- Checks ------------------------------------------------------------------------------------------- */

static ejk_status check_values(const ejk_hyperparam *param) {
    if (param->count < 1 || param->values == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "hyperparams: %s has %d values, expected at least one", param->name,
                         param->values != NULL ? (int)param->count : 0);
    for (int32_t i = 0; i < param->count; i++) {
        const ejk_hyper_value *value = &param->values[i];
        bool known = value->kind == EJK_HYPER_INT || value->kind == EJK_HYPER_FLOAT ||
                     value->kind == EJK_HYPER_TEXT;
        if (!known || (value->kind == EJK_HYPER_TEXT && value->text == NULL))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "hyperparams: value %d of %s has kind %d%s, expected an integer, a "
                             "number or a text",
                             (int)i, param->name, (int)value->kind, known ? " without text" : "");
    }
    return EJK_OK;
}

static ejk_status check_function(const ejk_hyper_function *function) {
    if (function == NULL || function->run == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "function: it, or its run, is NULL");
    if (function->count < 0 || function->count > EJK_MAX_HYPERPARAMS ||
        (function->count > 0 && function->hyperparams == NULL))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "hyperparams: %d given%s, expected 0 to %d",
                         (int)function->count, function->hyperparams == NULL ? " as NULL" : "",
                         EJK_MAX_HYPERPARAMS);
    for (int32_t i = 0; i < function->count; i++) {
        const ejk_hyperparam *param = &function->hyperparams[i];
        if (param->name == NULL || *param->name == '\0')
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "hyperparams: number %d has no name",
                             (int)i);
        for (int32_t j = 0; j < i; j++)
            if (strcmp(param->name, function->hyperparams[j].name) == 0)
                return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "hyperparams: %s is given twice",
                                 param->name);
        EJKI_TRY(check_values(param));
    }
    return EJK_OK;
}

static ejk_status count_combinations(const ejk_hyper_function *function, int32_t *out) {
    int64_t product = 1;
    for (int32_t i = 0; i < function->count; i++)
        if (!ejki_mul(product, function->hyperparams[i].count, &product) ||
            product > EJK_MOST_HYPER_SELECTIONS)
            return ejki_fail(EJK_STATUS_OVERFLOW,
                             "hyperparams: more than %d combinations of their values",
                             EJK_MOST_HYPER_SELECTIONS);
    *out = (int32_t)product;
    return EJK_OK;
}

ejk_status ejki_fn_settings_read(const ejk_fn_autotuner *tuner, const ejk_hyper_function *function,
                                 ejki_fn_settings *out) {
    static const ejk_fn_autotuner defaults = {0};
    if (tuner == NULL) tuner = &defaults;
    ejki_fn_settings s = {.seed = tuner->seed, .clock = tuner->clock};
    int32_t workers;
    EJKI_TRY(check_function(function));
    EJKI_TRY(count_combinations(function, &s.combinations));
    EJKI_TRY(ejki_count_option(&tuner->timing_warmup_iterations, "timing_warmup_iterations", 2, 0,
                               &s.warmup));
    EJKI_TRY(ejki_plain_option(tuner->timing_rounds, "timing_rounds", 5, &s.rounds));
    EJKI_TRY(ejki_plain_option(tuner->calls_per_round, "calls_per_round", 3, &s.calls));
    EJKI_TRY(ejki_plain_option(tuner->cache_size_limit, "cache_size_limit", 1000, &s.limit));
    EJKI_TRY(ejki_count_option(&tuner->max_workers, "max_workers", 32, 1, &workers));
    const ejk_opt_int wish = tuner->sample_num;
    if (wish.set && wish.value < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "sample_num: %lld given, expected ≥ 1",
                         (long long)wish.value);
    s.sample = wish.set ? (int32_t)ejki_min(wish.value, s.combinations) : s.combinations;
    *out = s;
    return EJK_OK;
}

/* ---- Copies --------------------------------------------------------------------------------------------- */

static const char *copy_text(char **end, const char *text) {
    const char *copy = *end;
    *end = stpcpy(*end, text) + 1;
    return copy;
}

/* One allocation: hyperparameters, values, texts. */
ejk_status ejki_hyper_copy(const ejk_hyper_function *function, ejk_hyperparam **out) {
    const size_t count = (size_t)function->count;
    size_t values = 0, bytes = 1;
    for (size_t i = 0; i < count; i++) {
        const ejk_hyperparam *param = &function->hyperparams[i];
        values += (size_t)param->count;
        bytes += strlen(param->name) + 1;
        for (int32_t j = 0; j < param->count; j++)
            if (param->values[j].kind == EJK_HYPER_TEXT) bytes += strlen(param->values[j].text) + 1;
    }
    ejk_hyperparam *params =
        malloc(count * sizeof *params + values * sizeof(ejk_hyper_value) + bytes);
    if (params == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                         "memory for %zu hyperparameters could not be had", count);
    ejk_hyper_value *value = (ejk_hyper_value *)(params + count);
    char *end = (char *)(value + values);
    for (size_t i = 0; i < count; i++) {
        const ejk_hyperparam *param = &function->hyperparams[i];
        params[i] = (ejk_hyperparam){copy_text(&end, param->name), value, param->count};
        for (int32_t j = 0; j < param->count; j++, value++) {
            const bool text = param->values[j].kind == EJK_HYPER_TEXT;
            *value = param->values[j];
            value->text = text ? copy_text(&end, value->text) : NULL;
        }
    }
    *out = params;
    return EJK_OK;
}

void ejki_hyper_values(const ejk_hyperparam *params, int32_t count, int32_t combination,
                       ejk_hyper_value *values) {
    for (int32_t i = count - 1; i >= 0; i--) {
        values[i] = params[i].values[combination % params[i].count];
        combination /= params[i].count;
    }
}
