/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file benchmark.h
 * Times several algorithms on several configurations and summarises the results.
 *
 * The documented Benchmark class without its plots and tables: every algorithm is timed on every configuration,
 * forward and optionally backward, and the times are summarised as JSON. A pair that fails gets infinite times
 * and a reason, and does not stop the others. Pairs are timed one after the other; to choose between candidates,
 * use ejk_tune(), which interleaves them.
 *
 * Thread-safety: as tuning.h.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_BENCHMARK_H
#define EJKERNEL_BENCHMARK_H

#include <ejkernel/kernel.h>
#include <ejkernel/status.h>
#include <ejkernel/tuning.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What is compared. Zero means default where one is named. */
typedef struct ejk_benchmark_suite {
    const char *const *algorithms; /**< names, each once */
    int32_t algorithm_count;       /**< ≥ 1 */
    const char *const *configs;    /**< JSON objects, each once, as {"batch":2,"seq":512} */
    int32_t config_count;          /**< ≥ 1 */
    /** Runs one algorithm on one configuration, by their numbers. */
    ejk_status (*run)(void *user, int32_t algorithm, int32_t config);
    /** The same for the backward pass, timed apart. NULL = forward only. */
    ejk_status (*run_backward)(void *user, int32_t algorithm, int32_t config);
    /**
     * What a forward run of a configuration costs, as ejk_plan_cost() or ejk_plan_cost_of() say it of a call. A failure
     * ends the suite before anything is timed. NULL = unknown.
     */
    ejk_status (*cost)(void *user, int32_t config, ejk_cost *out);
    void *user;             /**< first argument of all */
    ejk_opt_int warmup;     /**< calls before the first that counts; unset = 5 */
    int32_t iterations;     /**< samples; 0 = 50 */
    ejk_opt_float sample_s; /**< as ejk_benchmark_options::sample_s */
    ejk_clock clock;        /**< unset = the system's */
} ejk_benchmark_suite;

/** One algorithm on one configuration. Texts belong to the results. */
typedef struct ejk_benchmark_result {
    const char *algorithm;
    const char *config;           /**< compact JSON with sorted keys */
    ejk_status status;            /**< of the first run that failed; then all times are infinite */
    const char *sentence;         /**< why, "" = it succeeded */
    ejk_benchmark_stats forward;  /**< of a call */
    ejk_benchmark_stats backward; /**< zeros without `has_backward` */
    bool has_backward;
    double
        throughput_estimate; /**< GFLOP/s: the suite's `cost` / mean forward time; 0 without it */
} ejk_benchmark_result;

/** All results, configurations outside, algorithms inside. Released with ejk_benchmark_results_destroy(). */
typedef struct ejk_benchmark_results {
    ejk_benchmark_result *results;
    int32_t count;
    int32_t algorithm_count, config_count;
    int32_t warmup, iterations; /**< as used */
} ejk_benchmark_results;

/**
 * Times everything. Statuses: INVALID_ARGUMENT (nothing to run, a name or configuration that is missing or
 * given twice), MALFORMED (a configuration that is not a JSON object), OVERFLOW, OUT_OF_MEMORY, those of `cost`.
 */
EJK_API EJK_NODISCARD ejk_status ejk_benchmark_suite_run(const ejk_benchmark_suite *suite,
                                                         ejk_benchmark_results **out);

/** NULL is allowed. */
EJK_API void ejk_benchmark_results_destroy(ejk_benchmark_results *results);

/**
 * The results summed up: {"metadata": {num_algorithms, num_configs, warmup, iterations}, "analysis":
 * {"summary", "comparisons", "by_config", "raw_results"}}. Times are milliseconds, and infinite ones null.
 *
 * - summary: per algorithm mean, median, min and max of its mean times (`mean_ms` …), mean_gflops, over its
 *   successes; success_rate; num_configs, the number of these successes
 * - comparisons: "a_vs_b" for each algorithm against the first that has a success: mean, median, min and max
 *   of b's time / a's time over the configurations where both succeeded (`mean_speedup` …; 2 = twice as fast)
 * - by_config: per configuration the configuration, its results, fastest and fastest_time_ms
 * - raw_results: everything, failures too
 *
 * `flags`: 0 or #EJK_JSON_INDENT. Freed with ejk_free(). INVALID_ARGUMENT, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_benchmark_results_to_json(const ejk_benchmark_results *results,
                                                               int flags, char **out);

/**
 * Writes that JSON, indented, to a file; folders on the way are made. NULL path = "benchmark_results.json" in
 * the working directory. Statuses: as above, IO.
 */
EJK_API EJK_NODISCARD ejk_status ejk_benchmark_results_save(const ejk_benchmark_results *results,
                                                            const char *path);

#ifdef __cplusplus
}
#endif
#endif
