/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An executor is a context of its own that shares everything but plans with its user's: its chooser wraps
 * the given one, so that what has to be done once per plan (recording) costs warm calls nothing.
 */
#include "ops/execution/executor.h"

#include <ejkernel/labels.h>

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ejk_status choose(void *self, const ejk_invocation *invocation, void *config,
                         ejk_choice_step *step) {
    const ejk_executor *executor = self;
    const ejk_config_chooser *inner = &executor->chooser;
    if (executor->recording)
        EJKI_TRY(ejk_record_invocation(executor->recording, invocation->kernel, invocation->args));
    if (inner->choose) return inner->choose(inner->self, invocation, config, step);
    *step = invocation->override_cfg ? EJK_CHOICE_OVERRIDE : EJK_CHOICE_HEURISTICS;
    return ejk_invocation_heuristics(invocation, config);
}

static uint64_t generation(void *self) {
    const ejk_config_chooser *inner = &((const ejk_executor *)self)->chooser;
    return inner->generation ? inner->generation(inner->self) : 0;
}

static ejk_stamp stamp_of(ejk_stamp wish) {
    const char *text = getenv("EJKERNEL_OPS_STAMP");
    if (wish != EJK_STAMP_ENVIRONMENT || !text) return wish;
    return strcasecmp(text, "hash") == 0   ? EJK_STAMP_HASH
           : strcasecmp(text, "json") == 0 ? EJK_STAMP_JSON
                                           : EJK_STAMP_NONE;
}

static ejk_status open_parts(ejk_executor *executor, const ejk_executor_options *options) {
    const char *record = getenv("EJKERNEL_OPS_RECORD");
    const char *prefix = options->stamp_prefix ? options->stamp_prefix : EJK_STAMP_PREFIX;
    executor->selector = options->selector;
    if (options->selector)
        executor->chooser = ejk_config_selector_chain_chooser(options->selector);
    else if (options->chooser)
        executor->chooser = *options->chooser;
    executor->stamp = stamp_of(options->stamp);
    executor->profiler = options->profiler;
    executor->stamp_prefix = strdup(prefix);
    if (!executor->stamp_prefix)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for an executor");
    executor->recording = options->recording;
    if (executor->recording || !record || strcmp(record, "1") != 0) return EJK_OK;
    EJKI_TRY(ejk_recording_create(&executor->own_recording));
    executor->recording = executor->own_recording;
    return EJK_OK;
}

ejk_status ejk_executor_create(ejk_context *context, const ejk_executor_options *options,
                               ejk_executor **out) {
    if (!context || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         context ? "out" : "context");
    ejk_executor *executor = calloc(1, sizeof *executor);
    if (!executor) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for an executor");
    ejk_status status =
        open_parts(executor, options ? options : &(ejk_executor_options){.selector = NULL});
    const ejk_config_chooser chooser = {executor, choose, generation};
    if (status == EJK_OK) status = ejki_context_derive(context, &chooser, &executor->context);
    if (status == EJK_OK)
        *out = executor;
    else
        ejk_executor_destroy(executor);
    return status;
}

void ejk_executor_destroy(ejk_executor *executor) {
    if (!executor) return;
    ejk_context_destroy(executor->context);
    ejk_recording_destroy(executor->own_recording);
    ejk_config_selector_chain_destroy(executor->own_chain);
    ejk_tuner_destroy(executor->own_tuner);
    ejk_persistent_cache_close(executor->own_persistent);
    free(executor->stamp_prefix);
    free(executor);
}

ejk_recording *ejk_executor_recording(ejk_executor *executor) {
    return executor ? executor->recording : NULL;
}

ejk_config_selector_chain *ejk_executor_selector(ejk_executor *executor) {
    return executor ? executor->selector : NULL;
}

ejk_status ejki_executor_single(const ejk_executor *executor, ejk_executor **out) {
    ejk_executor *single;
    EJKI_TRY(ejk_executor_create(executor->context,
                                 &(ejk_executor_options){.selector = executor->selector,
                                                         .chooser = &executor->chooser,
                                                         .stamp = EJK_STAMP_NONE,
                                                         .recording = executor->recording},
                                 &single));
    const ejk_status status = ejki_context_use_one_thread(single->context);
    if (status == EJK_OK)
        *out = single;
    else
        ejk_executor_destroy(single);
    return status;
}

/* ---- Calls ------------------------------------------------------------------------------------------ */

static ejk_status check_options(const ejk_call_options *options) {
    if (!options || !options->method) return EJK_OK;
    if (strcmp(options->method, "shard_map") != 0)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "method is '%.64s', expected shard_map or none",
                         options->method);
    const char *missing = !options->mesh        ? "mesh"
                          : !options->in_specs  ? "in_specs"
                          : !options->out_specs ? "out_specs"
                                                : NULL;
    if (missing)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is missing, which shard_map needs",
                         missing);
    return EJK_OK;
}

ejk_status ejki_executor_plan(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                              const ejk_call_options *options, const char *hook, ejk_plan **out) {
    if (!executor || !kernel || !args || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !executor ? "executor"
                         : !kernel ? "kernel"
                         : !args   ? "args"
                                   : "out");
    EJKI_TRY(check_options(options));
    return ejki_plan_request_create(
        &(ejki_plan_request){.context = executor->context,
                             .kernel = kernel,
                             .args = args,
                             .override_cfg = options ? options->cfg : NULL,
                             .hook = hook,
                             .method = options ? options->method : NULL,
                             .backward = hook && strcmp(hook, "vjp") == 0},
        out);
}

ejk_status ejk_executor_compile(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                                const ejk_call_options *options, ejk_plan **out) {
    return ejki_executor_plan(executor, kernel, args, options, NULL, out);
}

ejk_status ejk_executor_choose_config(ejk_executor *executor, const ejk_kernel *kernel,
                                      const void *args, const ejk_call_options *options,
                                      void *config, ejk_choice_step *step) {
    if (!config)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "config is NULL, expected where to put it");
    ejk_plan *plan;
    EJKI_TRY(ejki_executor_plan(executor, kernel, args, options, NULL, &plan));
    if (kernel->config) memcpy(config, ejk_plan_config(plan), kernel->config->size);
    if (step) *step = ejk_plan_step(plan);
    ejk_plan_destroy(plan);
    return EJK_OK;
}

/* The text of a call's stamp; NULL in *out if none is wanted. */
static ejk_status make_stamp(const ejk_executor *executor, const ejk_kernel *kernel,
                             const void *args, const ejk_call_options *options, char **out) {
    *out = NULL;
    if (!executor->profiler || executor->stamp <= EJK_STAMP_NONE ||
        (options && options->stamp == EJK_FALSE))
        return EJK_OK;
    if (executor->stamp == EJK_STAMP_JSON)
        return ejk_json_stamp(kernel, args, options ? options->cfg : NULL, executor->stamp_prefix,
                              out);
    char key[EJK_SHORT_HASH_SIZE];
    EJKI_TRY(ejk_call_key(kernel, args, options ? options->method : NULL, NULL, key));
    return ejk_hash_stamp(kernel, key, executor->stamp_prefix, out);
}

/* A call that brings a configuration or a method: a plan for this once. */
static ejk_status call_specially(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                                 const ejk_call_options *options) {
    ejk_plan *plan;
    EJKI_TRY(ejki_executor_plan(executor, kernel, args, options, NULL, &plan));
    const ejk_status status = ejk_plan_execute(plan, args, NULL, 0);
    ejk_plan_destroy(plan);
    return status;
}

/* A configuration that the arguments have room for makes a plan that is found again. */
static ejk_status call_with_config(ejk_executor *executor, const ejk_kernel *kernel,
                                   const void *args, const ejk_call_options *options) {
    size_t offset;
    char room[4096];
    if (!kernel->config_field || !kernel->config || options->method ||
        kernel->args->size > sizeof room ||
        !ejk_record_find(kernel->args, kernel->config_field, &offset))
        return call_specially(executor, kernel, args, options);
    memcpy(room, args, kernel->args->size);
    memcpy(room + offset, options->cfg, kernel->config->size);
    return ejk_call(executor->context, kernel, room);
}

static ejk_status run(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                      const ejk_call_options *options) {
    if (!options || (!options->cfg && !options->method))
        return ejk_call(executor->context, kernel, args);
    EJKI_TRY(check_options(options));
    if (options->cfg) return call_with_config(executor, kernel, args, options);
    return call_specially(executor, kernel, args, options);
}

ejk_status ejk_executor_call(ejk_executor *executor, const ejk_kernel *kernel, const void *args,
                             const ejk_call_options *options) {
    if (!executor || !kernel || !args)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !executor ? "executor"
                         : !kernel ? "kernel"
                                   : "args");
    if (!executor->profiler) return run(executor, kernel, args, options);
    char *stamp;
    EJKI_TRY(make_stamp(executor, kernel, args, options, &stamp));
    /* A scope that could not be opened is counted by the profiler; the call goes on. */
    if (stamp) (void)ejk_profiler_begin(executor->profiler, stamp);
    const ejk_status status = run(executor, kernel, args, options);
    if (stamp) (void)ejk_profiler_end(executor->profiler, NULL);
    ejk_free(stamp);
    return status;
}
