/* SPDX-License-Identifier: Apache-2.0 */
/* What a suite's times come to. */
#include "base/base.h"
#include "ops/execution/json.h"

#include <ejkernel/benchmark.h>
#include <ejkernel/record.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MS_PER_S 1e3

static const ejk_benchmark_result *result_of(const ejk_benchmark_results *all, int32_t config,
                                             int32_t algorithm) {
    return &all->results[(int64_t)config * all->algorithm_count + algorithm];
}

static bool succeeded(const ejk_benchmark_result *result) {
    return result->status == EJK_OK;
}

/* Members "mean<suffix>" and so on of values, which are sorted; of none, null. */
static bool add_spread(json_t *object, const char *suffix, double *values, int32_t count) {
    const double missing = count > 0 ? 0 : NAN;
    double mean = 0;
    for (int32_t i = 0; i < count; i++) mean += values[i] / count;
    const struct {
        const char *name;
        double value;
    } members[] = {{"mean", mean},
                   {"median", ejki_quantile(values, count, 0.5)},
                   {"min", ejki_quantile(values, count, 0)},
                   {"max", ejki_quantile(values, count, 1)}};
    bool whole = true;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%s", members[i].name, suffix);
        whole &= ejki_json_set(object, name, ejki_json_number(members[i].value + missing));
    }
    return whole;
}

/* ---- Parts of the analysis ------------------------------------------------------------------------------ */

static json_t *summary_of(const ejk_benchmark_results *all, int32_t algorithm, double *scratch) {
    json_t *o = json_object();
    int32_t count = 0;
    double gflops = 0;
    for (int32_t i = 0; i < all->config_count; i++) {
        const ejk_benchmark_result *result = result_of(all, i, algorithm);
        if (!succeeded(result)) continue;
        scratch[count++] = result->forward.mean_s * MS_PER_S;
        gflops += result->throughput_estimate;
    }
    bool whole = add_spread(o, "_ms", scratch, count);
    whole &= ejki_json_set(o, "mean_gflops", ejki_json_number(count > 0 ? gflops / count : NAN));
    whole &= ejki_json_set(o, "success_rate", json_real((double)count / all->config_count));
    whole &= ejki_json_set(o, "num_configs", json_integer(count));
    if (whole) return o;
    json_decref(o);
    return NULL;
}

static json_t *summaries(const ejk_benchmark_results *all, double *scratch) {
    json_t *o = json_object();
    bool whole = true;
    for (int32_t i = 0; i < all->algorithm_count; i++)
        whole &= ejki_json_set(o, result_of(all, 0, i)->algorithm, summary_of(all, i, scratch));
    if (whole) return o;
    json_decref(o);
    return NULL;
}

/* The first algorithm that has a success; -1 = none. */
static int32_t baseline_of(const ejk_benchmark_results *all) {
    for (int32_t i = 0; i < all->algorithm_count; i++)
        for (int32_t c = 0; c < all->config_count; c++)
            if (succeeded(result_of(all, c, i))) return i;
    return -1;
}

static bool add_comparison(const ejk_benchmark_results *all, int32_t algorithm, int32_t baseline,
                           double *scratch, json_t *comparisons) {
    int32_t count = 0;
    for (int32_t c = 0; c < all->config_count; c++) {
        const ejk_benchmark_result *mine = result_of(all, c, algorithm);
        const ejk_benchmark_result *base = result_of(all, c, baseline);
        if (succeeded(mine) && succeeded(base) && mine->forward.mean_s > 0)
            scratch[count++] = base->forward.mean_s / mine->forward.mean_s;
    }
    if (count == 0) return true;
    const char *left = result_of(all, 0, algorithm)->algorithm;
    const char *right = result_of(all, 0, baseline)->algorithm;
    size_t size = strlen(left) + strlen(right) + sizeof "_vs_";
    char *name = malloc(size);
    if (name == NULL) return false;
    snprintf(name, size, "%s_vs_%s", left, right);
    json_t *o = json_object();
    bool whole = add_spread(o, "_speedup", scratch, count);
    whole &= ejki_json_set(comparisons, name, o);
    free(name);
    return whole;
}

static json_t *comparisons(const ejk_benchmark_results *all, double *scratch) {
    const int32_t baseline = baseline_of(all);
    json_t *o = json_object();
    bool whole = true;
    for (int32_t i = 0; baseline >= 0 && i < all->algorithm_count; i++)
        if (i != baseline) whole &= add_comparison(all, i, baseline, scratch, o);
    if (whole) return o;
    json_decref(o);
    return NULL;
}

static bool add_times(json_t *o, const ejk_benchmark_stats *stats, const char *suffix) {
    const struct {
        const char *name;
        double seconds;
    } members[] = {{"mean_ms", stats->mean_s},
                   {"std_ms", stats->std_s},
                   {"min_ms", stats->min_s},
                   {"max_ms", stats->max_s},
                   {"median_ms", stats->median_s}};
    bool whole = true;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%s", members[i].name, suffix);
        whole &= ejki_json_set(o, name, ejki_json_number(members[i].seconds * MS_PER_S));
    }
    return whole;
}

static json_t *raw_of(const ejk_benchmark_result *result) {
    json_t *o = json_object();
    bool whole = ejki_json_set(o, "algorithm", ejki_json_words(result->algorithm));
    whole &= ejki_json_set(o, "config", json_loads(result->config, 0, NULL));
    whole &= ejki_json_set(o, "status", json_string(ejk_status_name(result->status)));
    whole &= ejki_json_set(o, "sentence", ejki_json_words(result->sentence));
    whole &= ejki_json_set(o, "throughput_estimate", ejki_json_number(result->throughput_estimate));
    whole &= add_times(o, &result->forward, "");
    if (result->has_backward) whole &= add_times(o, &result->backward, "_bwd");
    if (whole) return o;
    json_decref(o);
    return NULL;
}

static json_t *raw_results(const ejk_benchmark_results *all, int32_t from, int32_t count) {
    json_t *list = json_array();
    bool whole = true;
    for (int32_t i = from; i < from + count; i++)
        whole &= json_array_append_new(list, raw_of(&all->results[i])) == 0;
    if (whole) return list;
    json_decref(list);
    return NULL;
}

static json_t *config_of(const ejk_benchmark_results *all, int32_t config) {
    const ejk_benchmark_result *fastest = NULL;
    for (int32_t i = 0; i < all->algorithm_count; i++) {
        const ejk_benchmark_result *result = result_of(all, config, i);
        if (succeeded(result) &&
            (fastest == NULL || result->forward.mean_s < fastest->forward.mean_s))
            fastest = result;
    }
    const int32_t from = config * all->algorithm_count;
    double time = fastest != NULL ? fastest->forward.mean_s * MS_PER_S : NAN;
    json_t *o = json_object();
    bool whole = ejki_json_set(o, "config", json_loads(result_of(all, config, 0)->config, 0, NULL));
    whole &= ejki_json_set(o, "results", raw_results(all, from, all->algorithm_count));
    whole &= ejki_json_set(o, "fastest",
                           fastest != NULL ? ejki_json_words(fastest->algorithm) : json_null());
    whole &= ejki_json_set(o, "fastest_time_ms", ejki_json_number(time));
    if (whole) return o;
    json_decref(o);
    return NULL;
}

static json_t *by_config(const ejk_benchmark_results *all) {
    json_t *o = json_object();
    bool whole = true;
    for (int32_t i = 0; i < all->config_count; i++)
        whole &= ejki_json_set(o, result_of(all, i, 0)->config, config_of(all, i));
    if (whole) return o;
    json_decref(o);
    return NULL;
}

/* ---- The whole -------------------------------------------------------------------------------------------- */

ejk_status ejk_benchmark_results_to_json(const ejk_benchmark_results *all, int flags, char **out) {
    if (all == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_benchmark_results_to_json: results or out is NULL");
    double *scratch = calloc((size_t)all->config_count + 1, sizeof *scratch);
    json_t *root = json_object(), *analysis = json_object();
    bool whole = scratch != NULL;
    if (whole) {
        whole &= ejki_json_set(analysis, "summary", summaries(all, scratch));
        whole &= ejki_json_set(analysis, "comparisons", comparisons(all, scratch));
        whole &= ejki_json_set(analysis, "by_config", by_config(all));
        whole &= ejki_json_set(analysis, "raw_results", raw_results(all, 0, all->count));
    }
    whole &= ejki_json_set(root, "analysis", analysis);
    json_t *facts = json_pack("{s:i, s:i, s:i, s:i}", "num_algorithms", (int)all->algorithm_count,
                              "num_configs", (int)all->config_count, "warmup", (int)all->warmup,
                              "iterations", (int)all->iterations);
    whole &= ejki_json_set(root, "metadata", facts);
    free(scratch);
    return ejki_json_print(root, whole, flags, out);
}

/* The folders that a path names before its last part. */
static bool make_folders(const char *path) {
    char *folder = strdup(path);
    bool made = folder != NULL;
    for (char *end = made ? strchr(folder + 1, '/') : NULL; made && end != NULL;
         end = strchr(end + 1, '/')) {
        *end = '\0';
        made = mkdir(folder, 0777) == 0 || errno == EEXIST;
        *end = '/';
    }
    free(folder);
    return made;
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
    errno = 0;
    bool saved = make_folders(path) && write_file(path, text);
    int reason = errno;
    free(text);
    if (saved) return EJK_OK;
    return ejki_fail(EJK_STATUS_IO, "%s: %s", path, strerror(reason));
}
