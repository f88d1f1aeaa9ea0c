/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms times configurations. */
#include "base/base.h"
#include "ops/execution/json.h"
#include "ops/execution/measure.h"

#include <ejkernel/benchmark.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A pair as a function to be timed. */
typedef struct pair {
    ejk_status (*run)(void *user, int32_t algorithm, int32_t config);
    void *user;
    int32_t algorithm, config;
} pair;

static ejk_status run_pair(void *user) {
    const pair *p = user;
    return p->run(p->user, p->algorithm, p->config);
}

/* ---- Checks ------------------------------------------------------------------------------------------- */

static ejk_status check_names(const char *const *names, int32_t count, const char *what) {
    if (names == NULL || count < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: %d given%s, expected at least one", what,
                         (int)count, names == NULL ? " as NULL" : "");
    for (int32_t i = 0; i < count; i++) {
        if (names[i] == NULL)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s[%d] is NULL", what, (int)i);
        json_t *text = json_string(names[i]);
        json_decref(text);
        if (text == NULL)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s[%d] is not UTF-8", what, (int)i);
        for (int32_t j = 0; j < i; j++)
            if (strcmp(names[i], names[j]) == 0)
                return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s[%d]: %.60s is given twice", what,
                                 (int)i, names[i]);
    }
    return EJK_OK;
}

static ejk_status check_suite(const ejk_benchmark_suite *suite, ejk_benchmark_results *all) {
    if (suite->run == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "suite: run is NULL");
    EJKI_TRY(check_names(suite->algorithms, suite->algorithm_count, "algorithms"));
    EJKI_TRY(check_names(suite->configs, suite->config_count, "configs"));
    EJKI_TRY(ejki_count_option(&suite->warmup, "warmup", 5, 0, &all->warmup));
    EJKI_TRY(ejki_plain_option(suite->iterations, "iterations", 50, &all->iterations));
    double sample_s;
    EJKI_TRY(ejki_sample_option(&suite->sample_s, &sample_s));
    int64_t count;
    if (!ejki_mul(suite->algorithm_count, suite->config_count, &count) || count > INT32_MAX)
        return ejki_fail(EJK_STATUS_OVERFLOW, "suite: %d algorithms on %d configurations",
                         (int)suite->algorithm_count, (int)suite->config_count);
    all->algorithm_count = suite->algorithm_count;
    all->config_count = suite->config_count;
    all->count = (int32_t)count;
    return EJK_OK;
}

/* The texts of a configuration's results; its operations stand in for their throughput until times are there. */
static ejk_status open_config(const ejk_benchmark_suite *suite, int32_t index,
                              ejk_benchmark_result *results) {
    json_error_t error;
    const char *text = suite->configs[index];
    json_t *config = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(config)) {
        json_decref(config);
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "configs[%d]: \"%.60s\" given, expected a JSON object%s%s", (int)index,
                         text, config == NULL ? ": " : "", config == NULL ? error.text : "");
    }
    ejk_cost cost = {0};
    ejk_status status = suite->cost ? suite->cost(suite->user, index, &cost) : EJK_OK;
    for (int32_t i = 0; status == EJK_OK && i < suite->algorithm_count; i++) {
        char *compact = NULL;
        status = ejki_json_print(json_incref(config), true, 0, &compact);
        results[i] = (ejk_benchmark_result){.algorithm = strdup(suite->algorithms[i]),
                                            .config = compact,
                                            .sentence = strdup(""),
                                            .throughput_estimate = cost.flops};
        if (results[i].algorithm == NULL || results[i].sentence == NULL)
            status = ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a result could not be had");
    }
    json_decref(config);
    return status;
}

/* ---- Runs --------------------------------------------------------------------------------------------- */

static ejk_benchmark_stats infinite(void) {
    return (ejk_benchmark_stats){.mean_s = INFINITY,
                                 .std_s = INFINITY,
                                 .median_s = INFINITY,
                                 .min_s = INFINITY,
                                 .max_s = INFINITY};
}

static ejk_status time_pair(const ejk_benchmark_suite *suite, int32_t algorithm, int32_t config,
                            ejk_benchmark_result *result) {
    ejk_benchmark_options options = {.warmup = suite->warmup.set ? suite->warmup : ejk_int(5),
                                     .iters = suite->iterations > 0 ? suite->iterations : 50,
                                     .sample_s = suite->sample_s,
                                     .clock = suite->clock};
    pair p = {suite->run, suite->user, algorithm, config};
    EJKI_TRY(ejk_benchmark_ex(run_pair, &p, &options, &result->forward));
    if (suite->run_backward == NULL) return EJK_OK;
    p.run = suite->run_backward;
    return ejk_benchmark_ex(run_pair, &p, &options, &result->backward);
}

static ejk_status measure(const ejk_benchmark_suite *suite, int32_t algorithm, int32_t config,
                          ejk_benchmark_result *result) {
    result->has_backward = suite->run_backward != NULL;
    result->status = time_pair(suite, algorithm, config, result);
    if (result->status != EJK_OK) {
        result->forward = infinite();
        if (result->has_backward) result->backward = infinite();
        free((char *)result->sentence);
        result->sentence = strdup(ejki_sentence_of(result->status));
        (void)ejki_fail(EJK_OK, "%s", "");
        if (result->sentence == NULL)
            return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a result could not be had");
    }
    const double mean_s = result->forward.mean_s;
    result->throughput_estimate = mean_s > 0 ? result->throughput_estimate / mean_s / 1e9 : 0;
    return EJK_OK;
}

/* All configurations are read first: a wrong one at the end would cost all that came before it. */
static ejk_status run_all(const ejk_benchmark_suite *suite, ejk_benchmark_results *all) {
    const int32_t count = suite->algorithm_count;
    all->results = calloc((size_t)all->count, sizeof *all->results);
    if (all->results == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %d results could not be had",
                         (int)all->count);
    for (int32_t i = 0; i < suite->config_count; i++)
        EJKI_TRY(open_config(suite, i, all->results + (int64_t)i * count));
    for (int32_t i = 0; i < all->count; i++)
        EJKI_TRY(measure(suite, i % count, i / count, &all->results[i]));
    return EJK_OK;
}

ejk_status ejk_benchmark_suite_run(const ejk_benchmark_suite *suite, ejk_benchmark_results **out) {
    if (suite == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_benchmark_suite_run: suite or out is NULL");
    ejk_benchmark_results facts = {0};
    EJKI_TRY(check_suite(suite, &facts));
    ejk_benchmark_results *all = malloc(sizeof *all);
    if (all == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for the results could not be had");
    *all = facts;
    char *sentence = ejki_hide_sentence();
    ejk_status status = run_all(suite, all);
    ejki_show_sentence(sentence, status);
    if (status == EJK_OK)
        *out = all;
    else
        ejk_benchmark_results_destroy(all);
    return status;
}

void ejk_benchmark_results_destroy(ejk_benchmark_results *all) {
    if (all == NULL) return;
    for (int32_t i = 0; all->results != NULL && i < all->count; i++) {
        free((char *)all->results[i].algorithm);
        free((char *)all->results[i].config);
        free((char *)all->results[i].sentence);
    }
    free(all->results);
    free(all);
}
