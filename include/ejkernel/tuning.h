/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tuning.h
 * Measures functions, and chooses the fastest of several candidates.
 *
 * ejk_benchmark() times a function. ejk_tune() makes all tuned choices: given numbered candidates and a function
 * that runs one, it returns the candidate to use and, for each of the others, the reason against it. A wrong or
 * slower candidate cannot win: its result must agree with the default's, and the default is replaced only by a
 * candidate that is faster by more than the noise of a direct comparison (docs/howto/tuning.md).
 * The documented, simpler tools are #ejk_autotuner, which times candidates one after the other, and
 * ejk_autotune_fn(), which tunes a plain function with named hyperparameters.
 *
 * @code
 * static ejk_status run(void *user, int32_t index);                // computes by candidate `index`
 * static ejk_status keep(void *user, int32_t index);               // copies the default's result
 * static ejk_status check(void *user, int32_t index, bool *agrees, double *difference);
 *
 * ejk_tune_problem problem = {.count = 12, .run = run, .keep = keep, .check = check, .user = &mine};
 * ejk_tune_report *report;
 * if (ejk_tune(&problem, NULL, &report) == EJK_OK) use(report->chosen);
 * ejk_tune_report_destroy(report);
 * @endcode
 *
 * Times are seconds, a name ending in `_s` says so. Everything runs on the calling thread.
 *
 * Thread-safety: all functions may be called from any thread at once, but measurements that run side by
 * side disturb each other.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_TUNING_H
#define EJKERNEL_TUNING_H

#include <ejkernel/record.h>
#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Measuring ------------------------------------------------------------------------------------ */

/** A clock. `now` returns seconds and never decreases; NULL = ejk_now(). */
typedef struct ejk_clock {
    double (*now)(void *user);
    void *user;
} ejk_clock;

/** What is measured: does its work once. A status other than OK ends the measurement. */
typedef ejk_status (*ejk_bench_fn)(void *user);

/** How ejk_benchmark_ex() measures. Zero means default. */
typedef struct ejk_benchmark_options {
    ejk_opt_int warmup; /**< calls before the first that counts, ≥ 0; unset = 1 */
    int32_t iters;      /**< samples; 0 = 5 */
    ejk_opt_float
        sample_s;    /**< a sample repeats the call until it lasts this long; unset = 200 µs, well
                                above what a clock resolves; 0 = every call is a sample */
    ejk_clock clock; /**< unset = the system's */
} ejk_benchmark_options;

/** Times of one call, over all samples. */
typedef struct ejk_benchmark_stats {
    double mean_s, std_s; /**< arithmetic mean, population standard deviation */
    double median_s, min_s, max_s;
    int32_t samples;
    int64_t calls_per_sample; /**< how often each sample repeated the call */
} ejk_benchmark_stats;

/**
 * Seconds that a call of `fn` takes: the median of `num_iters` samples (the documented default is 100),
 * after one call to warm up. A fast function is called more often than `num_iters` times, see
 * ejk_benchmark_options::sample_s. Statuses: INVALID_ARGUMENT (num_iters < 1, NULL), and that of `fn`.
 */
EJK_API EJK_NODISCARD ejk_status ejk_benchmark(ejk_bench_fn fn, void *user, int32_t num_iters,
                                               double *seconds_out);

/** The same with options (NULL = defaults) and statistics. */
EJK_API EJK_NODISCARD ejk_status ejk_benchmark_ex(ejk_bench_fn fn, void *user,
                                                  const ejk_benchmark_options *options,
                                                  ejk_benchmark_stats *out);

/* ---- The engine ----------------------------------------------------------------------------------- */

/** The most candidates of one problem. */
#define EJK_TUNE_MOST_CANDIDATES 4096

/**
 * What is tuned. Candidates are numbers 0 … count - 1; earlier ones are tried first, so that a short
 * budget goes to the most promising. Functions are called one at a time.
 */
typedef struct ejk_tune_problem {
    int32_t count;         /**< 1 … #EJK_TUNE_MOST_CANDIDATES, the default counted */
    int32_t default_index; /**< used unless another candidate proves faster */
    /** Computes by one candidate, into memory of the user's. A failure takes the candidate out. */
    ejk_status (*run)(void *user, int32_t index);
    /** Called once, after the default's first run: keeps a copy of its result. NULL = none is needed. */
    ejk_status (*keep)(void *user, int32_t index);
    /**
     * Called after a run of the candidate: says whether its result agrees with the one kept. `*difference` is its
     * error, in a unit of your choice; NaN counts as disagreement whatever `*agrees` is. ejk_tensors_agree() does
     * this for tensors. The default is checked too: if it does not agree with itself, tuning fails.
     */
    ejk_status (*check)(void *user, int32_t index, bool *agrees, double *difference);
    /** Bytes that a run of the candidate needs; called before it runs. NULL = unknown, no limit applies. */
    int64_t (*memory_bytes)(void *user, int32_t index);
    /** A text for the report, as the candidate's configuration in JSON; copied at once. NULL = none. */
    const char *(*describe)(void *user, int32_t index);
    void *user; /**< first argument of all of them */
    /**
     * Runs the candidate `calls` times and returns their total time, for devices that work asynchronously, where
     * clock reads around the calls would not measure it. One-time work such as compilation may be excluded. NULL =
     * the clock is used.
     */
    ejk_status (*time)(void *user, int32_t index, int64_t calls, double *seconds);
    /**
     * Puts back what runs update in place, as a recurrent state. Called before the first of the runs that follow each
     * other, as those of a sample, and not timed; a result is checked after one run from there. NULL = runs update
     * nothing that they read. Since 0.1.
     */
    ejk_status (*restore)(void *user, int32_t index);
} ejk_tune_problem;

/** Phases of tuning: name, number, text. */
#define EJK_TUNE_PHASE_LIST(X)                                                                     \
    X(TRY, 0, "try")                                                                               \
    X(ROUNDS, 1, "rounds")                                                                         \
    X(GUARD, 2, "guard")                                                                           \
    X(DONE, 3, "done")

/** First runs and checks; interleaved rounds; the winner against the default; finished. */
typedef enum ejk_tune_phase {
#define EJK_TUNE_PHASE_ENUM(name, number, text) EJK_TUNE_PHASE_##name = number,
    EJK_TUNE_PHASE_LIST(EJK_TUNE_PHASE_ENUM)
#undef EJK_TUNE_PHASE_ENUM
} ejk_tune_phase;

/** Progress. Medians are NaN as long as nothing was measured. */
typedef struct ejk_tune_progress {
    ejk_tune_phase phase;
    int32_t candidates; /**< of the problem */
    int32_t tried;      /**< candidates after their first run, or refused before it */
    int32_t survivors;  /**< not yet eliminated, including the default */
    int32_t round;      /**< rounds, or pairs of the guard, that are done */
    int32_t best;       /**< lowest median so far, the default if nothing is below it */
    double best_median_s, default_median_s;
    double elapsed_s, budget_s;
} ejk_tune_progress;

/** Called after each first run, each round, each pair of the guard, and at the end. */
typedef void (*ejk_tune_progress_fn)(void *user, const ejk_tune_progress *progress);

/** Options of ejk_tune(), among them those of the documented Tuner(warmup, iters). Zero means default. */
typedef struct ejk_tuner_options {
    ejk_opt_int
        warmup; /**< runs of a candidate before the first that is timed; unset = 1; the first run,
                             whose result is checked, is one of them and never left out */
    int32_t iters;          /**< rounds at least, while time lasts; 0 = 3 */
    int32_t max_rounds;     /**< rounds at most, ≤ 10000; 0 = 30; never below `iters` */
    int32_t max_candidates; /**< of the problem's, the default counted; 0 = all */
    double time_s;          /**< budget for everything, > 0; 0 = 10 s */
    int64_t memory_bytes;   /**< candidates that take more are not run; 0 = no limit */
    ejk_opt_float sample_s; /**< as ejk_benchmark_options::sample_s */
    uint64_t seed;          /**< of the order within rounds; any number */
    /**
     * 1 = finish: no new first runs or rounds; the best candidate is compared with the default and the result
     * returned. 2 = stop at once and keep the default. Read between runs, without a lock, so a signal handler or
     * another thread may set it. A run is not interrupted; long runs should test the flag themselves. NULL = never.
     */
    const volatile int *cancel;
    ejk_tune_progress_fn progress; /**< NULL = none */
    void *progress_user;           /**< its first argument */
    ejk_clock clock;               /**< unset = the system's */
} ejk_tuner_options;

/** Verdicts on candidates: name, number (pinned), text. */
#define EJK_TUNE_VERDICT_LIST(X)                                                                   \
    X(NOT_REACHED, 0, "not reached")                                                               \
    X(WON, 1, "won")                                                                               \
    X(KEPT, 2, "kept")                                                                             \
    X(SLOWER, 3, "slower")                                                                         \
    X(UNPROVEN, 4, "unproven")                                                                     \
    X(DISAGREES, 5, "disagrees")                                                                   \
    X(FAILED, 6, "failed")                                                                         \
    X(TOO_SLOW, 7, "too slow")                                                                     \
    X(OVER_MEMORY, 8, "over memory")

/**
 * WON: chosen, faster than the default beyond the noise. KEPT: the default, chosen. SLOWER: measured, slower than
 * another. UNPROVEN: fastest in the rounds, but within the noise, or there was no time for the comparison.
 * DISAGREES: its result differs from the default's. FAILED: `run` or `check` failed. TOO_SLOW: eliminated after its
 * first runs. OVER_MEMORY: not run. NOT_REACHED: time, `max_candidates` or `cancel` ended tuning before.
 */
typedef enum ejk_tune_verdict {
#define EJK_TUNE_VERDICT_ENUM(name, number, text) EJK_TUNE_VERDICT_##name = number,
    EJK_TUNE_VERDICT_LIST(EJK_TUNE_VERDICT_ENUM)
#undef EJK_TUNE_VERDICT_ENUM
} ejk_tune_verdict;

/** Their texts, as "too slow" and "rounds"; "unknown" for none. Static text. */
EJK_API const char *ejk_tune_verdict_name(ejk_tune_verdict verdict);
EJK_API const char *ejk_tune_phase_name(ejk_tune_phase phase);

/** One candidate in a report. Texts belong to the report, "" = none; NaN = not measured. */
typedef struct ejk_tune_candidate {
    ejk_tune_verdict verdict;
    ejk_status status;       /**< of FAILED: what `run` or `check` answered; else OK */
    const char *sentence;    /**< why it was eliminated, for people */
    const char *description; /**< what `describe` said */
    double difference;       /**< the last that `check` said */
    double
        first_s; /**< the first run, with all that is done only once, unless the problem's `time` leaves it out */
    double median_s; /**< of a run; from its first runs alone if `samples` is 0 */
    double spread_s; /**< between the quartiles of the samples */
    int32_t samples; /**< rounds it took part in */
} ejk_tune_candidate;

/** What ejk_tune() found. */
typedef struct ejk_tune_report {
    ejk_tune_candidate *candidates; /**< by their numbers */
    int32_t count;
    int32_t default_index;
    int32_t chosen; /**< the candidate to use */
    double ratio;   /**< time of the guarded candidate / time of the default: median of pairs; NaN
                             if there was no such comparison, which then chose the default */
    double noise;   /**< twice the standard error of that median; the ratio had to be below
                             1 - max(0.03, noise) */
    int32_t pairs;  /**< pairs that were compared */
    int32_t rounds; /**< that were completed */
    double elapsed_s, budget_s;
    uint64_t seed;
    bool cancelled;   /**< `cancel` was set */
    bool out_of_time; /**< the budget ended first runs or rounds before they were complete */
    struct ejk_tune_report
        *backward; /**< of the gradients, where ejk_autotune() tuned both; or NULL */
} ejk_tune_report;

/**
 * Finds the fastest candidate whose result agrees with the default's.
 *
 * The default runs first; if it fails, the call fails. Then every other candidate is run, checked, warmed up and
 * checked again. It is eliminated if it fails or disagrees, if its first run takes more than both ten times the
 * default's and its share of the budget (time_s / count), or if a warm run takes more than ten times the default's.
 * This phase uses at most three fifths of the budget. The others are timed in rounds, each once per round in an
 * order drawn from `seed`; from the third round on, a candidate is dropped when its lower quartile is more than 1 %
 * above the upper quartile of the best. At last, the candidate of the lowest median, unless it is the default, is
 * compared with the default in 7 to 21 alternating pairs and checked once more. It wins if the median of the
 * pairs' ratios is below 1 by more than its noise and by at least 3 %, and if it is faster in each third of the
 * pairs. Samples last up to 10 ms here if the budget allows it (unless `sample_s` is 0).
 *
 * The budget is exceeded by at most one run and the 7 pairs, which may take another half of it; if they would take
 * longer, the default stays. Ties go to the lower number, and to the default.
 *
 * NULL options = defaults. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, MISMATCH (the default does not agree
 * with itself), and what the default's run, keep or check answered.
 */
EJK_API EJK_NODISCARD ejk_status ejk_tune(const ejk_tune_problem *problem,
                                          const ejk_tuner_options *options, ejk_tune_report **out);

/**
 * True if measurements support the choice: a candidate proved faster than the default, or the default stayed after
 * the rounds were complete, or it is the only candidate; and the same for `backward`, if there is one. Other
 * choices are not stored, since another tuning may find a better one. False for NULL.
 */
EJK_API bool ejk_tune_report_is_settled(const ejk_tune_report *report);

/** NULL is allowed. */
EJK_API void ejk_tune_report_destroy(ejk_tune_report *report);

/**
 * The report as JSON: its members by name, a verdict as text, what was not measured as null; keys sorted.
 * `flags`: 0 or #EJK_JSON_INDENT. Freed with ejk_free(). OUT_OF_MEMORY, INVALID_ARGUMENT (NULL).
 */
EJK_API EJK_NODISCARD ejk_status ejk_tune_report_to_json(const ejk_tune_report *report, int flags,
                                                         char **out);

/**
 * Compares a result with the expected one, both on the CPU, of equal shapes and any element types (as f64;
 * integers beyond 2^53 are rounded). `*difference` is ‖actual - expected‖ / ‖expected‖ over the finite
 * elements (Frobenius; ‖actual‖ if `expected` is all zeros), infinite if NaN or an infinity stands where the
 * other has none or one of the other sign. `*agrees` says that it is ≤ `tolerance`. Empty tensors agree.
 * Statuses: INVALID_ARGUMENT (NULL, a tolerance that is negative or not finite), INVALID_SHAPE, those of
 * ejk_tensor_check(), UNAVAILABLE (a device other than the CPU).
 */
EJK_API EJK_NODISCARD ejk_status ejk_tensors_agree(const ejk_tensor *expected,
                                                   const ejk_tensor *actual, double tolerance,
                                                   bool *agrees, double *difference);

/* ---- Autotuner: one candidate after the other ------------------------------------------------------ */

/** One measured candidate. */
typedef struct ejk_measurement {
    int32_t candidate;
    const char *config; /**< what `describe` said, "" = nothing; belongs to the data */
    double seconds;     /**< of a call; infinite if it failed or disagreed */
} ejk_measurement;

/** All of them, in the order of candidates. Released with ejk_autotune_data_close(). */
typedef struct ejk_autotune_data {
    ejk_measurement *measurements;
    int32_t count;
} ejk_autotune_data;

/** The candidate of the fewest seconds, the first on ties. INVALID_ARGUMENT: there is none. */
EJK_API EJK_NODISCARD ejk_status ejk_autotune_data_fastest_config(const ejk_autotune_data *data,
                                                                  const ejk_measurement **out);

/** Releases the measurements and zeroes the struct. NULL and a zeroed struct are allowed. */
EJK_API void ejk_autotune_data_close(ejk_autotune_data *data);

/** The documented Autotuner(warmup, iters). Zero means default. */
typedef struct ejk_autotuner {
    ejk_opt_int warmup; /**< calls before the first that counts; unset = 1 */
    int32_t iters;      /**< calls whose mean counts; 0 = 3 */
    ejk_clock clock;    /**< unset = the system's */
} ejk_autotuner;

/**
 * Times every candidate, one after the other: simple, and open to whatever the machine does meanwhile. A
 * candidate that fails gets infinite seconds. Where the problem has a `check`, the default is run first and
 * kept, and a candidate that disagrees gets infinite seconds too. NULL tuner = defaults.
 * Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, and if no candidate succeeded the first one's failure
 * (MISMATCH if it disagreed).
 */
EJK_API EJK_NODISCARD ejk_status ejk_autotuner_autotune(const ejk_autotuner *tuner,
                                                        const ejk_tune_problem *problem,
                                                        ejk_autotune_data *out);

/** A choice under the key it is kept by. */
typedef struct ejk_entry {
    const char *op_id_v;  /**< operation and version, "flash_attention@v1" */
    const char *call_key; /**< of the call */
    const char *config;   /**< the configuration's JSON; NULL = none was found */
} ejk_entry;

/** What a tuning of several calls chose on one device. Constant once made. */
typedef struct ejk_autotuning_result {
    const char *device; /**< the fingerprint */
    const ejk_entry *entries;
    int32_t count;
} ejk_autotuning_result;

/** Copies everything. INVALID_ARGUMENT: a missing text, a config that is no JSON. OUT_OF_MEMORY. */
EJK_API EJK_NODISCARD ejk_status ejk_autotuning_result_create(const char *device,
                                                              const ejk_entry *entries,
                                                              int32_t count,
                                                              ejk_autotuning_result **out);

/** NULL is allowed. */
EJK_API void ejk_autotuning_result_destroy(ejk_autotuning_result *result);

/**
 * {"device":…,"entries":[{"call_key":…,"config":{…},"op_id_v":…},…]}; `flags` as above. Freed with
 * ejk_free(). OUT_OF_MEMORY, INVALID_ARGUMENT (a text that is not UTF-8).
 */
EJK_API EJK_NODISCARD ejk_status ejk_autotuning_result_to_json(const ejk_autotuning_result *result,
                                                               int flags, char **out);

/** Reads what the function above wrote. MALFORMED with what is wrong and where; OUT_OF_MEMORY. */
EJK_API EJK_NODISCARD ejk_status ejk_autotuning_result_from_json(const char *json,
                                                                 ejk_autotuning_result **out);

/* ---- Plain functions with hyperparameters ---------------------------------------------------------- */

/** What a hyperparameter's value is. */
typedef enum ejk_hyper_kind {
    EJK_HYPER_INT = 0,
    EJK_HYPER_FLOAT = 1,
    EJK_HYPER_TEXT = 2,
} ejk_hyper_kind;

/** A value of a hyperparameter; the member that `kind` names counts. */
typedef struct ejk_hyper_value {
    ejk_hyper_kind kind;
    int64_t integer;
    double number;
    const char *text;
} ejk_hyper_value;

/** Values for designated initialisers. */
EJK_API ejk_hyper_value ejk_hyper_int(int64_t value);
EJK_API ejk_hyper_value ejk_hyper_float(double value);
EJK_API ejk_hyper_value ejk_hyper_text(const char *value);

/** A hyperparameter and what it may be: one value or several. */
typedef struct ejk_hyperparam {
    const char *name;
    const ejk_hyper_value *values;
    int32_t count; /**< ≥ 1 */
} ejk_hyperparam;

/** The most hyperparameters of a function, and the most combinations of their values. */
#define EJK_MAX_HYPERPARAMS       16
#define EJK_MOST_HYPER_SELECTIONS 1048576

/**
 * A function to be tuned, with its hyperparameters. `run` computes one call: `args` is what the caller
 * gave for this call, `values` has one value for each hyperparameter, in their order.
 */
typedef struct ejk_hyper_function {
    ejk_status (*run)(void *user, void *args, const ejk_hyper_value *values);
    /**
     * Called after the first run of each combination: does its result agree? `first` is true for the one
     * that the others are compared with: keep its result then. NULL = all results are trusted.
     */
    ejk_status (*check)(void *user, void *args, bool first, bool *agrees);
    void *user;                        /**< first argument of both */
    const ejk_hyperparam *hyperparams; /**< NULL if there are none */
    int32_t count;                     /**< 0 … #EJK_MAX_HYPERPARAMS */
} ejk_hyper_function;

/**
 * The documented FNAutotuner. Zero means default. What its original has for the sake of JAX and XLA alone
 * does not exist here: layouts and shardings, example arguments, compilation time, the profiler with its
 * filters (times are always the clock's), detailed logging (ejk_last_error() has it).
 */
typedef struct ejk_fn_autotuner {
    ejk_opt_int timing_warmup_iterations; /**< ≥ 0; unset = 2 */
    int32_t timing_rounds;                /**< 0 = 5 */
    int32_t calls_per_round;              /**< 0 = 3 */
    int32_t
        cache_size_limit; /**< results a tuned function keeps, the oldest insertion gives way; 0 = 1000 */
    ejk_opt_int max_workers; /**< > 0; unset = 32. An upper bound: timings that run side by side
                                   disturb each other, so one worker is used */
    ejk_opt_int sample_num;  /**< try a random part of the combinations, > 0; unset = all */
    const char *cache_key;   /**< put before the keys of calls; NULL = nothing */
    uint64_t seed;           /**< of the random part and of the order within rounds */
    ejk_clock clock;         /**< unset = the system's */
} ejk_fn_autotuner;

/** One combination's times, of a call. Infinite if it failed or disagreed. */
typedef struct ejk_timing_result {
    const ejk_hyper_value *hyperparams; /**< in the order of the function's */
    double t_mean, t_std;               /**< seconds; population standard deviation */
} ejk_timing_result;

/**
 * What a tuning found: results[0] is the best. Constant, and with copies of all texts; released with
 * ejk_fn_tuning_destroy().
 */
typedef struct ejk_fn_tuning {
    const ejk_timing_result
        *results;  /**< by score, t_mean + 0.1 t_std; ties in the order of combinations */
    int32_t count; /**< of results */
    int32_t hyperparam_count;
} ejk_fn_tuning;

/**
 * Tries the combinations of the values (the cartesian product, the last hyperparameter fastest). Each is
 * warmed up, then there are rounds: in each every combination is called `calls_per_round` times, in an order
 * drawn from `seed`. Of a combination's rounds those that failed are left out, then, if more than 2 are left,
 * the fastest and the slowest. Ties go to the earlier combination, where the original leaves it to chance.
 * Statuses: INVALID_ARGUMENT, OVERFLOW (too many combinations), OUT_OF_MEMORY, and if none succeeded the
 * first one's failure (MISMATCH if it disagreed). NULL tuner = defaults.
 */
EJK_API EJK_NODISCARD ejk_status ejk_fn_autotuner_tune(const ejk_fn_autotuner *tuner,
                                                       const ejk_hyper_function *function,
                                                       void *args, ejk_fn_tuning **out);

/** NULL is allowed. */
EJK_API void ejk_fn_tuning_destroy(ejk_fn_tuning *tuning);

/** A function that tunes itself when it is called. */
typedef struct ejk_tuned_fn ejk_tuned_fn;

/**
 * The documented `autotune`: wraps a function, which is copied with its hyperparameters. NULL tuner =
 * defaults. Statuses: INVALID_ARGUMENT, OVERFLOW, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_autotune_fn(const ejk_fn_autotuner *tuner,
                                                 const ejk_hyper_function *function,
                                                 ejk_tuned_fn **out);

/** No call of it may be running. NULL is allowed. */
EJK_API void ejk_tuned_fn_destroy(ejk_tuned_fn *tuned);

/**
 * Calls the function with the best values for `key`, a text that says what the call's speed depends on
 * (shapes, types, options). A key not seen before is tuned first, on these `args`; one tuning runs at a time,
 * calls whose key is known do not wait for it. NULL key: nothing is tuned, the values found last are used, or
 * the first of each hyperparameter. The function must not call its own wrapper.
 * Statuses: those of ejk_fn_autotuner_tune() and of the function.
 */
EJK_API EJK_NODISCARD ejk_status ejk_tuned_fn_call(ejk_tuned_fn *tuned, const char *key,
                                                   void *args);

/**
 * The results of the last tuning, for the caller to destroy; the best values are results[0].hyperparams.
 * INVALID_ARGUMENT: nothing was tuned yet. OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_tuned_fn_timing_results(ejk_tuned_fn *tuned,
                                                             ejk_fn_tuning **out);

/**
 * The values that the last tuning found best, one for each hyperparameter, written to `values`, which has
 * room for them; texts belong to the tuned function. INVALID_ARGUMENT: nothing was tuned yet.
 */
EJK_API EJK_NODISCARD ejk_status ejk_tuned_fn_optimal_hyperparams(ejk_tuned_fn *tuned,
                                                                  ejk_hyper_value *values);

#ifdef __cplusplus
}
#endif
#endif
