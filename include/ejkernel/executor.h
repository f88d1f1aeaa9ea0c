/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file executor.h
 * Executors: calls with their own choice of configurations, stamps and recording; and tuning of kernels.
 *
 * A context calls operations with its own chooser, which never measures by default. An executor makes the same
 * calls with another chooser, usually a selector chain (selector.h) with caches, policy and tuner of your choice.
 * It shares threads, registry and kernels with its context, and has its own plans.
 *
 *     ejk_config_selector_chain *chain;
 *     ejk_executor *executor;
 *     ejk_config_selector_chain_create(NULL, &chain);
 *     ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor);
 *     ejk_executor_call(executor, &ejk_flash_attention_kernel, &args, NULL);
 *
 * A call checks and prepares its arguments, computes their key, chooses the configuration (an explicit one is
 * always used), looks up the implementation, and runs it. All but the last step happens once per plan; later
 * calls reuse the plan.
 *
 * Environment, read when an executor is made: EJKERNEL_OPS_RECORD=1 records calls, EJKERNEL_OPS_STAMP is
 * `hash`, `json` or `none`.
 *
 * Thread-safety: every function but ejk_executor_destroy() may be called from any thread at once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_EXECUTOR_H
#define EJKERNEL_EXECUTOR_H

#include <ejkernel/context.h>
#include <ejkernel/plan.h>
#include <ejkernel/profiler.h>
#include <ejkernel/recording.h>
#include <ejkernel/selector.h>
#include <ejkernel/status.h>
#include <ejkernel/tuning.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ejk_executor ejk_executor;

/** What is written around a call: name, number, text. */
#define EJK_STAMP_LIST(X)                                                                          \
    X(ENVIRONMENT, 0, "environment") /* what EJKERNEL_OPS_STAMP says, by default none */           \
    X(NONE, 1, "none")                                                                             \
    X(HASH, 2, "hash") /* `{prefix}#{op}@v{version}:{key}` */                                      \
    X(JSON, 3, "json") /* `{prefix}:{"args":…,"cfg":…,"kwargs":…,"op_id":…}` */

/** What is written around a call. */
typedef enum ejk_stamp {
#define EJK_STAMP_ENUM(name, number, text) EJK_STAMP_##name = number,
    EJK_STAMP_LIST(EJK_STAMP_ENUM)
#undef EJK_STAMP_ENUM
} ejk_stamp;

/** How an executor is made. Zero means default; what is pointed to must outlive it. */
typedef struct ejk_executor_options {
    ejk_config_selector_chain *selector; /**< who chooses; NULL = `chooser` */
    const ejk_config_chooser
        *chooser; /**< copied; NULL = the call's own configuration, else heuristics */
    ejk_stamp stamp;
    const char *stamp_prefix; /**< copied; NULL = "ejkernel_ops" */
    /** Where stamps go, as scopes around each call; NULL = nowhere, and then none are written. */
    ejk_profiler *profiler;
    /** Where calls are recorded; NULL = in a recording of its own if EJKERNEL_OPS_RECORD is 1. */
    ejk_recording *recording;
} ejk_executor_options;

/** NULL options = defaults. The context must outlive it. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY. */
EJK_API EJK_NODISCARD ejk_status ejk_executor_create(ejk_context *context,
                                                     const ejk_executor_options *options,
                                                     ejk_executor **out);

/**
 * The documented executor with everything on: memory, a persistent cache if `persistent_cache_path` is not
 * NULL (as in config.h: a ".db" file or a folder), a tuner with that many warm-up and timed runs (unset: 2
 * and 5), and autotuning unless `enable_autotuning` is false. What it consists of belongs to it. Deprecated
 * in the documents it comes from, in favour of ejk_executor_create(); kept for them.
 */
EJK_API EJK_NODISCARD ejk_status ejk_create_default_executor(
    ejk_context *context, const char *persistent_cache_path, ejk_opt_bool enable_autotuning,
    ejk_opt_int warmup_iterations, ejk_opt_int timing_iterations, ejk_executor **out);

/** NULL is allowed. No call may be running, none of its plans may be used afterwards. */
EJK_API void ejk_executor_destroy(ejk_executor *executor);

/** The recording calls go to; NULL if they are not recorded. */
EJK_API ejk_recording *ejk_executor_recording(ejk_executor *executor);
/** The chain that chooses; NULL if something else does. */
EJK_API ejk_config_selector_chain *ejk_executor_selector(ejk_executor *executor);

/** Options of one call. Zero-initialised = defaults. */
typedef struct ejk_call_options {
    const void *cfg; /**< explicit configuration, of kernel->config; before that in the arguments */
    ejk_opt_bool stamp; /**< false: no stamp around this call */
    /** NULL, or "shard_map": the kernel's hooks of that context run; needs the three texts below. */
    const char *method;
    const char *mesh, *in_specs, *out_specs; /**< opaque to the library */
} ejk_call_options;

/**
 * Calls a kernel. NULL options = defaults. Statuses: those of ejk_call(); INVALID_ARGUMENT (shard_map without
 * mesh, in_specs or out_specs, checked in this order), UNKNOWN_NAME (another method).
 */
EJK_API EJK_NODISCARD ejk_status ejk_executor_call(ejk_executor *executor, const ejk_kernel *kernel,
                                                   const void *args,
                                                   const ejk_call_options *options);

/** Chooses as a call would, without running: fills `config` (of kernel->config) and, if not NULL, `step`. */
EJK_API EJK_NODISCARD ejk_status ejk_executor_choose_config(ejk_executor *executor,
                                                            const ejk_kernel *kernel,
                                                            const void *args,
                                                            const ejk_call_options *options,
                                                            void *config, ejk_choice_step *step);

/** The plan of a call: choosing once, for many executions. To be destroyed before the executor. */
EJK_API EJK_NODISCARD ejk_status ejk_executor_compile(ejk_executor *executor,
                                                      const ejk_kernel *kernel, const void *args,
                                                      const ejk_call_options *options,
                                                      ejk_plan **out);

/**
 * Runs the kernel's fwd_with_residuals hook: results as a call's, and what the backward pass needs into
 * `residuals`, a struct of kernel->residuals (NULL if the kernel has none). UNAVAILABLE: no such hook.
 *
 * An operation whose gradients are an operation of the context (ejk_kernel.forward), as those of the library
 * are, has no hooks: it is called, and its results are the residuals. INVALID_ARGUMENT: one that the gradients
 * need, as lse, is not given.
 */
EJK_API EJK_NODISCARD ejk_status ejk_executor_fwd(ejk_executor *executor, const ejk_kernel *kernel,
                                                  const void *args, void *residuals,
                                                  const ejk_call_options *options);

/** Gradients of a call. */
typedef struct ejk_vjp_call {
    void *residuals; /**< what ejk_executor_fwd() wrote; NULL if the kernel keeps nothing */
    const ejk_tensor
        *cotangents; /**< one per output tensor given in the arguments, in their order */
    int32_t cotangent_count;
    /**
     * One per input tensor given in the arguments, in their order, each of its input's shape; a zeroed one is
     * not wanted.
     */
    const ejk_tensor *gradients;
    int32_t gradient_count;
} ejk_vjp_call;

/**
 * Runs the kernel's vjp hook. Its configuration is chosen for the backward pass. Statuses: those of a call;
 * INVALID_ARGUMENT (another number of cotangents or gradients than tensors), INVALID_SHAPE (a cotangent or
 * gradient of another shape than its tensor's), UNAVAILABLE (no such hook).
 *
 * If the gradients are an operation of their own, that operation is called, with the arguments of the same names.
 * The results in `args` must be those of the forward call; residuals are ignored; a zeroed cotangent counts as
 * zeros where it is optional, as that of lse. INVALID_ARGUMENT: a cotangent or gradient that the operation does not
 * have, as that of a mask.
 */
EJK_API EJK_NODISCARD ejk_status ejk_executor_vjp(ejk_executor *executor, const ejk_kernel *kernel,
                                                  const void *args, const ejk_vjp_call *vjp,
                                                  const ejk_call_options *options);

/* ---- Tuning of kernels ------------------------------------------------------------------------------ */

/** What is measured: the call, its gradients, or both one after the other. */
typedef enum ejk_tune_pass {
    EJK_TUNE_FORWARD = 0,
    EJK_TUNE_BACKWARD = 1,
    EJK_TUNE_BOTH = 2,
} ejk_tune_pass;

/** How ejk_autotune() works. Zero means default. */
typedef struct ejk_autotune_options {
    const void *configs; /**< array of candidates; NULL = ejk_invocation_candidates() */
    int32_t config_count;
    ejk_tuner_options tuner;
    double
        tolerance; /**< by which a result may differ from the default's; 0 = by the element type */
    /**
     * BACKWARD and BOTH need a kernel with a vjp hook. The choice for BOTH is stored as forward.
     * If the gradients are an operation of the context, BACKWARD tunes that operation, on the results of the
     * forward call and with all gradients requested. BOTH then tunes one after the other, each with the whole
     * budget: an executor stores two choices and reports both; ejk_autotune() returns one configuration, that of
     * the call with the gradients' parameters added (as bwd_params), a report with `backward` set, and the call's
     * measurement.
     */
    ejk_tune_pass pass;
} ejk_autotune_options;

/**
 * Finds the fastest configuration of a call (tuning.h says how) and writes it to `best`, of kernel->config.
 * Inputs without data are filled with random numbers, or with the results of the forward call when gradients are
 * tuned; results are written to the tuner's own memory. Nothing is stored. `report` may be NULL, else it is freed
 * with ejk_tune_report_destroy(). If the tensors are on a GPU, calls run there, on the context's stream, and are
 * timed by events. The candidates' kernels are compiled first, on the context's threads, for at most another
 * `time_s`; a candidate that does not compile is reported as failed. Results are compared on the CPU.
 * `measurement` may be NULL. Statuses: those of ejk_tune() and of the default's plan.
 */
EJK_API EJK_NODISCARD ejk_status ejk_autotune(ejk_context *context, const ejk_kernel *kernel,
                                              const void *args, const ejk_autotune_options *options,
                                              void *best, ejk_tune_report **report,
                                              ejk_config_measurement *measurement);

/** One call that ejk_executor_autotune() or ejk_autotune_recorded() has tuned; passed to their callback. */
typedef struct ejk_tuned_call {
    const ejk_config_key *key;
    const char *problem; /**< problem.h; NULL where it has no text */
    const void *config;  /**< of the kernel's config record */
    const ejk_tune_report *report;
} ejk_tuned_call;

/**
 * Tunes a call as ejk_autotune() does and has the executor's selector remember the choice: in memory, and on
 * disk if it has a persistent cache, unless the measurements do not support it (ejk_tune_report_is_settled()).
 * `told` (may be NULL) is called with the result. UNAVAILABLE: no selector.
 */
EJK_API EJK_NODISCARD ejk_status
ejk_executor_autotune(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                      const ejk_autotune_options *options,
                      void (*told)(void *user, const ejk_tuned_call *call), void *user);

/**
 * Tunes every call of a recording, each `repetition_count` times (0 = 1; the last choice counts), and has
 * the selector remember them. `out` (may be NULL) holds what was chosen and is freed with
 * ejk_autotuning_result_destroy(). Calls that cannot be tuned here (another ISA, too little memory) are
 * skipped, and `skipped` is called with the reason. Setting the tuner's `cancel` stops before the next call.
 * Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, UNAVAILABLE (no selector).
 */
EJK_API EJK_NODISCARD ejk_status ejk_autotune_recorded(
    ejk_executor *executor, ejk_recording *recording, const ejk_autotune_options *options,
    int32_t repetition_count, void (*told)(void *user, const ejk_tuned_call *call),
    void (*skipped)(void *user, const char *problem, const char *sentence), void *user,
    ejk_autotuning_result **out);

/**
 * What was chosen, as an overlay: a cache to begin a scope with (selector.h), destroyed by the caller.
 * Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status
ejk_autotuning_result_as_overlay(const ejk_autotuning_result *result, ejk_config_cache **out);

/** What tunes for a selector chain. */
typedef struct ejk_tuner ejk_tuner;

/** The documented Tuner(warmup, iters), and all else that tunes. NULL options = defaults. OUT_OF_MEMORY. */
EJK_API EJK_NODISCARD ejk_status ejk_tuner_create(const ejk_tuner_options *options,
                                                  ejk_tuner **out);
/** NULL is allowed. */
EJK_API void ejk_tuner_destroy(ejk_tuner *tuner);
/** The tuner as what a chain takes. */
EJK_API ejk_config_tuner ejk_tuner_config_tuner(ejk_tuner *tuner);

#ifdef __cplusplus
}
#endif
#endif
