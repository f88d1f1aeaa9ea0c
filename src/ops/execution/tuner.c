/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner of a selector chain, and the executor with everything on. */
#include "ops/execution/executor.h"

#include "base/base.h"

#include <stdlib.h>

struct ejk_tuner {
    ejk_tuner_options options;
};

ejk_status ejk_tuner_create(const ejk_tuner_options *options, ejk_tuner **out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    ejk_tuner *tuner = calloc(1, sizeof *tuner);
    if (!tuner) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a tuner");
    if (options) tuner->options = *options;
    *out = tuner;
    return EJK_OK;
}

void ejk_tuner_destroy(ejk_tuner *tuner) {
    free(tuner);
}

/* A backward choice measures the vjp hook. A forward one is measured by itself, or with it if the policy wants
 * that and there is one. */
static ejk_tune_pass pass_of(const ejk_invocation *invocation, const ejk_autotune_policy *policy) {
    if (invocation->backward) return EJK_TUNE_BACKWARD;
    const bool both = policy->validate_backward == EJK_TRUE &&
                      ejk_hook_resolve(invocation->kernel, "vjp", invocation->method,
                                       invocation->platform, invocation->backend);
    return both ? EJK_TUNE_BOTH : EJK_TUNE_FORWARD;
}

static ejk_status tune(void *self, const ejk_invocation *invocation,
                       const ejk_autotune_policy *policy, void *config,
                       ejk_config_measurement *measurement) {
    const ejk_tuner *tuner = self;
    const ejk_autotune_options options = {.tuner = tuner->options,
                                          .pass = pass_of(invocation, policy)};
    ejk_tune_report *report;
    EJKI_TRY(ejk_autotune(invocation->context, invocation->kernel, invocation->args, &options,
                          config, &report, measurement));
    const bool settled = ejk_tune_report_is_settled(report);
    const double budget = report->budget_s;
    ejk_tune_report_destroy(report);
    if (!settled)
        return ejki_fail(
            EJK_STATUS_UNAVAILABLE,
            "%.64s: tuning ended before candidates could be compared, by its budget of "
            "%g s or because it was cancelled",
            invocation->kernel->op_id, budget);
    return EJK_OK;
}

ejk_config_tuner ejk_tuner_config_tuner(ejk_tuner *tuner) {
    return (ejk_config_tuner){tuner, tune};
}

/* ---- The documented default executor ---------------------------------------------------------------- */

static ejk_status open_parts(ejk_executor *executor, const char *path, bool autotunes,
                             const ejk_tuner_options *tuner) {
    if (path)
        EJKI_TRY(ejk_persistent_cache_open(&(ejk_persistent_options){.path = path},
                                           &executor->own_persistent));
    EJKI_TRY(ejk_tuner_create(tuner, &executor->own_tuner));
    const ejk_config_tuner measures = ejk_tuner_config_tuner(executor->own_tuner);
    const ejk_config_selector_options options = {
        .persistent = executor->own_persistent,
        .policy = {.allow_autotune = autotunes ? EJK_TRUE : EJK_FALSE},
        .tuner = &measures};
    EJKI_TRY(ejk_config_selector_chain_create(&options, &executor->own_chain));
    executor->selector = executor->own_chain;
    executor->chooser = ejk_config_selector_chain_chooser(executor->own_chain);
    return EJK_OK;
}

ejk_status ejk_create_default_executor(ejk_context *context, const char *persistent_cache_path,
                                       ejk_opt_bool enable_autotuning,
                                       ejk_opt_int warmup_iterations, ejk_opt_int timing_iterations,
                                       ejk_executor **out) {
    const int64_t warmup = warmup_iterations.set ? warmup_iterations.value : 2;
    const int64_t iters = timing_iterations.set ? timing_iterations.value : 5;
    if (warmup < 0 || warmup > 1000000)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "warmup_iterations is %lld, expected 0 to 1000000", (long long)warmup);
    if (iters < 1 || iters > 10000)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "timing_iterations is %lld, expected 1 to 10000", (long long)iters);
    ejk_executor *executor;
    EJKI_TRY(ejk_executor_create(context, NULL, &executor));
    const ejk_tuner_options tuner = {.warmup = ejk_int(warmup), .iters = (int32_t)iters};
    const ejk_status status =
        open_parts(executor, persistent_cache_path, enable_autotuning != EJK_FALSE, &tuner);
    if (status == EJK_OK && out)
        *out = executor;
    else
        ejk_executor_destroy(executor);
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    return status;
}
