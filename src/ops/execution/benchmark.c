/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "ops/execution/measure.h"

#include <stdlib.h>

/* A function as the only candidate of itself. */
typedef struct only {
    ejk_bench_fn fn;
    void *user;
} only;

static ejk_status run_only(void *user, int32_t index) {
    (void)index;
    const only *it = user;
    return it->fn(it->user);
}

/* Sorts the samples. */
static void summarise(double *samples, int32_t count, ejk_benchmark_stats *stats) {
    ejki_mean_std(samples, count, &stats->mean_s, &stats->std_s);
    stats->median_s = ejki_quantile(samples, count, 0.5);
    stats->min_s = samples[0];
    stats->max_s = samples[count - 1];
    stats->samples = count;
}

static ejk_status measure(const ejki_subject *subject, int32_t warmup, double sample_s,
                          double *samples, int32_t iters, ejk_benchmark_stats *stats) {
    EJKI_TRY(ejki_run_calls(subject, warmup));
    /* The calls that showed how many a sample needs are a sample themselves. */
    EJKI_TRY(ejki_calibrate(subject, sample_s, &stats->calls_per_sample, &samples[0]));
    for (int32_t i = 1; i < iters; i++)
        EJKI_TRY(ejki_time_calls(subject, stats->calls_per_sample, &samples[i]));
    summarise(samples, iters, stats);
    return EJK_OK;
}

ejk_status ejk_benchmark_ex(ejk_bench_fn fn, void *user, const ejk_benchmark_options *options,
                            ejk_benchmark_stats *out) {
    static const ejk_benchmark_options defaults = {0};
    if (options == NULL) options = &defaults;
    if (fn == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_benchmark: fn or out is NULL");
    int32_t warmup, iters;
    double sample_s;
    EJKI_TRY(ejki_count_option(&options->warmup, "warmup", 1, 0, &warmup));
    EJKI_TRY(ejki_plain_option(options->iters, "iters", 5, &iters));
    EJKI_TRY(ejki_sample_option(&options->sample_s, &sample_s));
    double *samples = calloc((size_t)iters, sizeof *samples);
    if (samples == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "iters: memory for %d samples could not be had",
                         (int)iters);
    only it = {fn, user};
    ejki_subject subject = {.run = run_only, .user = &it, .clock = options->clock};
    ejk_benchmark_stats stats = {0};
    ejk_status status = measure(&subject, warmup, sample_s, samples, iters, &stats);
    free(samples);
    if (status == EJK_OK) *out = stats;
    return status;
}

ejk_status ejk_benchmark(ejk_bench_fn fn, void *user, int32_t num_iters, double *seconds_out) {
    if (num_iters < 1 || seconds_out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_benchmark: num_iters is %d or seconds_out NULL, expected ≥ 1 and a "
                         "place for the result",
                         (int)num_iters);
    ejk_benchmark_stats stats;
    EJKI_TRY(ejk_benchmark_ex(fn, user, &(ejk_benchmark_options){.iters = num_iters}, &stats));
    *seconds_out = stats.median_s;
    return EJK_OK;
}
