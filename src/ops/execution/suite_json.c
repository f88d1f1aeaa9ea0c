/* SPDX-License-Identifier: Apache-2.0 */
/* What a suite's times come to. A NULL among the parts of a value makes it NULL, and is met where it is printed. */
#include "base/base.h"
#include "base/folder.h"
#include "ops/execution/json.h"
#include "ops/execution/measure.h"

#include <ejkernel/benchmark.h>
#include <ejkernel/record.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef ejk_benchmark_result result;

static const result *result_of(const ejk_benchmark_results *all, int32_t config,
                               int32_t algorithm) {
    return &all->results[(int64_t)config * all->algorithm_count + algorithm];
}

static json_t *milliseconds(double seconds) {
    return ejki_json_number(seconds * 1e3);
}

/* ---- Values over configurations ------------------------------------------------------------------------- */

/* What a result counts in a summary, against that of the baseline; NaN = it does not. */
typedef double (*value_fn)(const result *mine, const result *base);

static double time_ms(const result *mine, const result *base) {
    (void)base;
    return mine->status == EJK_OK ? mine->forward.mean_s * 1e3 : NAN;
}

static double gflops(const result *mine, const result *base) {
    (void)base;
    return mine->status == EJK_OK ? mine->throughput_estimate : NAN;
}

static double speedup(const result *mine, const result *base) {
    const bool both = mine->status == EJK_OK && base->status == EJK_OK;
    return both && mine->forward.mean_s > 0 ? base->forward.mean_s / mine->forward.mean_s : NAN;
}

/* Of all configurations where it counts. `values` has room for all. */
static int32_t gather(const ejk_benchmark_results *all, int32_t algorithm, int32_t base,
                      value_fn value, double *values) {
    int32_t count = 0;
    for (int32_t i = 0; i < all->config_count; i++) {
        values[count] = value(result_of(all, i, algorithm), result_of(all, i, base));
        count += !isnan(values[count]);
    }
    return count;
}

static double mean_of(const double *values, int32_t count) {
    double mean, std;
    ejki_mean_std(values, count, &mean, &std);
    return count > 0 ? mean : NAN;
}

/* Members "mean<suffix>" and so on; null of no values, which are sorted. */
static json_t *spread_of(double *values, int32_t count, const char *suffix) {
    static const struct {
        const char *name;
        double part;
    } quantiles[] = {{"median", 0.5}, {"min", 0}, {"max", 1}};
    json_t *o = json_object();
    char name[32];
    snprintf(name, sizeof name, "mean%s", suffix);
    bool whole = ejki_json_set(o, name, ejki_json_number(mean_of(values, count)));
    for (int i = 0; i < 3; i++) {
        const double value = count > 0 ? ejki_quantile(values, count, quantiles[i].part) : NAN;
        snprintf(name, sizeof name, "%s%s", quantiles[i].name, suffix);
        whole &= ejki_json_set(o, name, ejki_json_number(value));
    }
    return ejki_json_whole(o, whole);
}

static json_t *summaries(const ejk_benchmark_results *all, double *values) {
    json_t *o = json_object();
    bool whole = true;
    for (int32_t i = 0; i < all->algorithm_count; i++) {
        const double rate = mean_of(values, gather(all, i, i, gflops, values));
        const int32_t count = gather(all, i, i, time_ms, values);
        json_t *summary = spread_of(values, count, "_ms");
        whole &= ejki_json_set(summary, "mean_gflops", ejki_json_number(rate));
        whole &= ejki_json_set(summary, "num_configs", json_integer(count));
        whole &=
            ejki_json_set(summary, "success_rate", json_real((double)count / all->config_count));
        whole &= ejki_json_set(o, result_of(all, 0, i)->algorithm, summary);
    }
    return ejki_json_whole(o, whole);
}

/* Against the first algorithm that has a success. */
static json_t *comparisons(const ejk_benchmark_results *all, double *values) {
    json_t *o = json_object();
    bool whole = true;
    int32_t base = 0;
    while (base < all->algorithm_count && gather(all, base, base, time_ms, values) == 0) base++;
    for (int32_t i = 0; base < all->algorithm_count && i < all->algorithm_count; i++) {
        const int32_t count = i != base ? gather(all, i, base, speedup, values) : 0;
        if (count == 0) continue;
        char *name = ejki_compose("%s_vs_%s", result_of(all, 0, i)->algorithm,
                                  result_of(all, 0, base)->algorithm);
        json_t *spread = spread_of(values, count, "_speedup");
        whole &= ejki_json_set(o, name, spread);
        free(name);
    }
    return ejki_json_whole(o, whole);
}

/* ---- Results --------------------------------------------------------------------------------------------- */

static bool add_times(json_t *o, const ejk_benchmark_stats *stats, const char *suffix) {
    static const struct {
        const char *name;
        size_t offset;
    } members[] = {{"mean", offsetof(ejk_benchmark_stats, mean_s)},
                   {"std", offsetof(ejk_benchmark_stats, std_s)},
                   {"min", offsetof(ejk_benchmark_stats, min_s)},
                   {"max", offsetof(ejk_benchmark_stats, max_s)},
                   {"median", offsetof(ejk_benchmark_stats, median_s)}};
    bool whole = true;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const double *seconds = (const double *)((const char *)stats + members[i].offset);
        char name[32];
        snprintf(name, sizeof name, "%s_ms%s", members[i].name, suffix);
        whole &= ejki_json_set(o, name, milliseconds(*seconds));
    }
    return whole;
}

static json_t *raw_results(const ejk_benchmark_results *all, int32_t from, int32_t count) {
    json_t *list = json_array();
    bool whole = true;
    for (const result *r = all->results + from; r < all->results + from + count; r++) {
        json_t *o =
            json_pack("{s:o, s:o, s:s, s:o, s:o}", "algorithm", ejki_json_words(r->algorithm),
                      "config", json_loads(r->config, 0, NULL), "status",
                      ejk_status_name(r->status), "sentence", ejki_json_words(r->sentence),
                      "throughput_estimate", ejki_json_number(r->throughput_estimate));
        whole &= add_times(o, &r->forward, "");
        if (r->has_backward) whole &= add_times(o, &r->backward, "_bwd");
        whole &= json_array_append_new(list, o) == 0;
    }
    return ejki_json_whole(list, whole);
}

static json_t *by_config(const ejk_benchmark_results *all) {
    json_t *o = json_object();
    bool whole = true;
    for (int32_t i = 0; i < all->config_count; i++) {
        const result *first = result_of(all, i, 0), *fastest = first;
        for (const result *r = first; r < first + all->algorithm_count; r++)
            if (r->forward.mean_s < fastest->forward.mean_s) fastest = r;
        const bool none = fastest->status != EJK_OK;
        json_t *config =
            json_pack("{s:o, s:o, s:o, s:o}", "config", json_loads(first->config, 0, NULL),
                      "results", raw_results(all, i * all->algorithm_count, all->algorithm_count),
                      "fastest", none ? json_null() : ejki_json_words(fastest->algorithm),
                      "fastest_time_ms", milliseconds(fastest->forward.mean_s));
        whole &= ejki_json_set(o, first->config, config);
    }
    return ejki_json_whole(o, whole);
}

/* ---- The whole ------------------------------------------------------------------------------------------- */

ejk_status ejk_benchmark_results_to_json(const ejk_benchmark_results *all, int flags, char **out) {
    if (all == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_benchmark_results_to_json: results or out is NULL");
    double *values = calloc((size_t)all->config_count + 1, sizeof *values);
    if (values == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a summary could not be had");
    json_t *root =
        json_pack("{s:{s:i, s:i, s:i, s:i}, s:{s:o, s:o, s:o, s:o}}", "metadata", "num_algorithms",
                  (int)all->algorithm_count, "num_configs", (int)all->config_count, "warmup",
                  (int)all->warmup, "iterations", (int)all->iterations, "analysis", "summary",
                  summaries(all, values), "comparisons", comparisons(all, values), "by_config",
                  by_config(all), "raw_results", raw_results(all, 0, all->count));
    free(values);
    return ejki_json_print(root, true, flags, out);
}

static bool write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (file == NULL) return false;
    bool written = fputs(text, file) >= 0 && fputc('\n', file) != EOF;
    return (fclose(file) == 0) && written;
}

ejk_status ejk_benchmark_results_save(const ejk_benchmark_results *all, const char *path) {
    if (path == NULL) path = "benchmark_results.json";
    char *text;
    if (*path == '\0') return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "path: is empty");
    EJKI_TRY(ejk_benchmark_results_to_json(all, EJK_JSON_INDENT, &text));
    char *name = strdup(path);
    errno = name != NULL ? 0 : ENOMEM;
    bool saved = name != NULL && ejki_make_folders(name, 0777) && write_file(path, text);
    int reason = errno;
    free(name);
    free(text);
    if (saved) return EJK_OK;
    return ejki_fail(EJK_STATUS_IO, "%s: %s", path, strerror(reason));
}
