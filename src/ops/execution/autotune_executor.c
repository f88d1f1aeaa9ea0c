/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning on behalf of an executor: one call, or all of a recording, with the choices remembered. */
#include "ops/execution/executor.h"

#include <ejkernel/problem.h>

#include "base/base.h"
#include "ops/execution/gradients.h"

#include <stdlib.h>
#include <string.h>

/* One call to be tuned. The chooser below is asked about it when its plan is made, and knows its key. */
typedef struct job {
    ejk_executor *executor;
    const ejk_autotune_options *options;
    const void *args; /* with data, if the caller gave any */
    void (*told)(void *user, const ejk_tuned_call *call);
    void *user;
    ejk_entry *entry; /* NULL, or what to fill */
} job;

static ejk_status fill_entry(const ejk_config_key *key, const ejk_record *record,
                             const void *config, ejk_entry *entry) {
    char *text;
    EJKI_TRY(ejk_record_to_json(record, config, EJK_JSON_SET_ONLY, &text));
    char *op_id = strdup(key->op_id), *call_key = strdup(key->call_key);
    if (!op_id || !call_key) {
        free(op_id);
        free(call_key);
        ejk_free(text);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a tuned call");
    }
    *entry = (ejk_entry){.op_id_v = op_id, .call_key = call_key, .config = text};
    return EJK_OK;
}

static void clear_entry(ejk_entry *entry) {
    free((char *)entry->op_id_v);
    free((char *)entry->call_key);
    ejk_free((char *)entry->config);
    *entry = (ejk_entry){0};
}

static ejk_status tune(void *self, const ejk_invocation *invocation, void *config,
                       ejk_choice_step *step) {
    const job *j = self;
    ejk_tune_report *report;
    ejk_config_measurement measurement;
    ejk_config_key_text room;
    ejk_config_key key;
    *step = EJK_CHOICE_AUTOTUNE;
    EJKI_TRY(ejk_invocation_key(invocation, &room, &key));
    EJKI_TRY(ejk_autotune(j->executor->context, invocation->kernel, j->args, j->options, config,
                          &report, &measurement));
    const bool settled = ejk_tune_report_is_settled(report);
    ejk_status status = EJK_OK;
    if (settled)
        status = ejk_config_selector_chain_remember(j->executor->selector, invocation, config,
                                                    &measurement, true);
    if (status == EJK_OK && settled && j->entry) {
        clear_entry(j->entry);
        status = fill_entry(&key, invocation->kernel->config, config, j->entry);
    }
    if (status == EJK_OK && j->told) {
        char *problem = NULL;
        if (ejk_problem_to_text(invocation->kernel, invocation->args, &problem) != EJK_OK)
            problem = NULL;
        j->told(j->user, &(ejk_tuned_call){&key, problem, config, report});
        ejk_free(problem);
    }
    ejk_tune_report_destroy(report);
    return status;
}

static ejk_status run_pass(job *j, const ejk_kernel *kernel) {
    const ejk_config_chooser chooser = {j, tune, NULL};
    const bool backward = j->options->pass == EJK_TUNE_BACKWARD;
    return ejki_plan_request_ask(&(ejki_plan_request){.context = j->executor->context,
                                                      .kernel = kernel,
                                                      .args = j->args,
                                                      .hook = backward ? "vjp" : NULL,
                                                      .backward = backward},
                                 &chooser);
}

/* The gradients of a call as a call of their own, remembered as that. */
static ejk_status run_gradients(const job *j, const ejk_kernel *gradient,
                                const ejk_kernel *kernel) {
    const ejk_autotune_options options = ejki_gradient_options(j->options);
    job own = *j;
    ejki_gradients g;
    ejk_status status = ejki_gradients_open(&g, j->executor->context, gradient, kernel, j->args);
    own.options = &options;
    own.args = g.args;
    if (status == EJK_OK) status = run_pass(&own, gradient);
    ejki_gradients_close(&g);
    return status;
}

static ejk_status run_job(job *j, const ejk_kernel *kernel) {
    static const ejk_autotune_options defaults;
    if (!j->options) j->options = &defaults;
    const ejk_kernel *gradient = j->options->pass == EJK_TUNE_FORWARD
                                     ? NULL
                                     : ejki_gradient_kernel(j->executor->context, kernel);
    if (!gradient) return run_pass(j, kernel);
    if (j->options->pass == EJK_TUNE_BOTH) {
        const ejk_autotune_options options = ejki_gradient_options(j->options);
        job forward = *j;
        forward.options = &options;
        EJKI_TRY(run_pass(&forward, kernel));
    }
    return run_gradients(j, gradient, kernel);
}

static ejk_status check(const ejk_executor *executor, const void *second, const char *name) {
    if (!executor || !second)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         executor ? name : "executor");
    if (!executor->selector)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "the executor has no selector chain that could remember what is tuned");
    return EJK_OK;
}

ejk_status ejk_executor_autotune(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                                 const ejk_autotune_options *options,
                                 void (*told)(void *user, const ejk_tuned_call *call), void *user) {
    EJKI_TRY(check(executor, kernel, "kernel"));
    if (!args) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "args is NULL, expected one");
    if (!kernel->config)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "kernel '%.64s' has no configuration to be tuned", kernel->op_id);
    return run_job(
        &(job){.executor = executor, .options = options, .args = args, .told = told, .user = user},
        kernel);
}

/* ---- Recordings ------------------------------------------------------------------------------------- */

typedef struct series {
    const ejki_autotune_series *what;
    job job;
    int32_t repetitions;
    ejk_entry *entries;
    int32_t count, capacity;
} series;

static bool is_fatal(ejk_status status) {
    return status == EJK_STATUS_INTERNAL;
}

static ejk_status tune_problem(series *s, const ejk_problem *problem) {
    for (int32_t i = 0; i < s->repetitions; i++) {
        s->job.args = ejk_problem_args(problem);
        s->job.entry = &s->entries[s->count];
        EJKI_TRY(run_job(&s->job, ejk_problem_kernel(problem)));
    }
    if (s->entries[s->count].config) s->count++; /* it was settled */
    return EJK_OK;
}

static bool is_cancelled(const ejk_autotune_options *options) {
    return options && options->tuner.cancel && *options->tuner.cancel;
}

static ejk_status tune_recorded(void *user, const ejk_recorded_invocation *invocation) {
    series *s = user;
    const ejki_autotune_series *what = s->what;
    if (s->count == s->capacity) return EJK_OK; /* added while this ran */
    if (is_cancelled(what->options)) return EJK_OK;
    if (what->wanted && !what->wanted(what->wanted_user, invocation)) return EJK_OK;
    ejk_problem *problem;
    ejk_status status = ejk_problem_parse(s->job.executor->context, invocation->problem, &problem);
    if (status == EJK_OK) {
        status = tune_problem(s, problem);
        if (status != EJK_OK) clear_entry(&s->entries[s->count]);
        ejk_problem_destroy(problem);
    }
    if (status == EJK_OK || is_fatal(status)) return status;
    if (what->skipped) what->skipped(what->user, invocation->problem, ejk_last_error());
    return EJK_OK;
}

ejk_status ejki_autotune_series_run(const ejki_autotune_series *what, ejk_autotuning_result **out) {
    EJKI_TRY(check(what->executor, what->recording, "recording"));
    const int32_t repetitions = what->repetition_count;
    if (repetitions < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "repetition_count is %d, expected 0 or more",
                         (int)repetitions);
    series s = {.what = what,
                .job = {.executor = what->executor,
                        .options = what->options,
                        .told = what->told,
                        .user = what->user},
                .repetitions = repetitions ? repetitions : 1,
                .capacity = (int32_t)ejki_min(ejk_recording_count(what->recording), INT32_MAX)};
    s.entries = calloc((size_t)s.capacity + 1, sizeof *s.entries);
    if (!s.entries) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for tuned calls");
    ejk_status status = ejk_get_invocations(what->recording, NULL, tune_recorded, &s);
    if (status == EJK_OK && out)
        status = ejk_autotuning_result_create(ejk_device_fingerprint(), s.entries, s.count, out);
    for (int32_t i = 0; i < s.capacity; i++) clear_entry(&s.entries[i]);
    free(s.entries);
    return status;
}

ejk_status ejk_autotune_recorded(ejk_executor *executor, ejk_recording *recording,
                                 const ejk_autotune_options *options, int32_t repetition_count,
                                 void (*told)(void *user, const ejk_tuned_call *call),
                                 void (*skipped)(void *user, const char *problem,
                                                 const char *sentence),
                                 void *user, ejk_autotuning_result **out) {
    return ejki_autotune_series_run(&(ejki_autotune_series){.executor = executor,
                                                            .recording = recording,
                                                            .options = options,
                                                            .repetition_count = repetition_count,
                                                            .told = told,
                                                            .skipped = skipped,
                                                            .user = user},
                                    out);
}

ejk_status ejk_autotuning_result_as_overlay(const ejk_autotuning_result *result,
                                            ejk_config_cache **out) {
    if (!result || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         result ? "out" : "result");
    ejk_config_cache *cache;
    EJKI_TRY(ejk_config_cache_create(0, &cache));
    for (int32_t i = 0; i < result->count; i++) {
        const ejk_entry *entry = &result->entries[i];
        if (!entry->config) continue;
        const ejk_config_key key = {
            .device = result->device, .op_id = entry->op_id_v, .call_key = entry->call_key};
        ejk_config_entry own = {.config = (char *)entry->config};
        const ejk_status status = ejk_config_cache_put(cache, &key, &own);
        if (status == EJK_OK) continue;
        ejk_config_cache_destroy(cache);
        return status;
    }
    *out = cache;
    return EJK_OK;
}
