/* SPDX-License-Identifier: Apache-2.0 */
/* The way of every call: no allocation, no lock, no look at a description. */
#include "ops/core/core.h"

#include <string.h>

/* The plan's problem with the call's pointers, in memory that the caller has; or the arguments, if they are it. */
static inline const void *bound(const ejk_plan *plan, const void *args, void *problem) {
    if (!plan->problem) return args;
    memcpy(problem, plan->problem, plan->kernel->problem_size);
    plan->kernel->bind(args, problem);
    return problem;
}

static ejk_status check_data(const ejk_plan *plan, const void *args) {
    _Alignas(EJKI_ALIGNMENT) unsigned char problem[EJK_MAX_PROBLEM_SIZE];
    return ejki_guards_check(plan->guards, args, bound(plan, args, problem));
}

ejk_status ejki_plan_call_hook(const ejk_plan *plan, const void *args, ejk_hook_call call) {
    if (plan->guards) EJKI_TRY(check_data(plan, args));
    call.kernel = plan->kernel;
    call.args = args;
    call.config = plan->config;
    call.threads = plan->context->threads;
    return plan->hook->call(&call);
}

static ejk_status run(const ejk_plan *plan, const void *args, void *workspace, void *stream) {
    _Alignas(EJKI_ALIGNMENT) unsigned char problem[EJK_MAX_PROBLEM_SIZE];
    ejk_run call = {.problem = bound(plan, args, problem),
                    .workspace = workspace,
                    .device = plan->place.device_index,
                    .stream = stream};
    if (plan->guards) EJKI_TRY(ejki_guards_check(plan->guards, args, call.problem));
    if (plan->shared_bytes) {
        call.shared = workspace;
        call.workspace = (char *)workspace + plan->shared_bytes;
        if (plan->kernel->bind_shared) plan->kernel->bind_shared(problem, workspace);
    }
    for (int32_t i = 0; i < plan->step_count; i++) {
        const ejki_plan_step *step = &plan->steps[i];
        call.parameters = step->parameters;
        call.threads = step->threads;
        call.workers = step->launch.workers;
        call.prepared = step->launch.prepared;
        EJKI_TRY(step->implementation->run(&call));
    }
    return EJK_OK;
}

/* Work on one stream is done in the order in which it is enqueued, so that its executions can share memory. */
static ejk_status run_with_own(const ejk_plan *plan, const void *args, void *stream) {
    if (stream != plan->context->stream)
        return ejki_fail(
            EJK_STATUS_INVALID_ARGUMENT,
            "stream is %p and no workspace is given, expected the context's stream %p or "
            "a workspace of %zu bytes",
            stream, plan->context->stream, plan->workspace_bytes);
    void *workspace = ejki_device_memory_take(plan->device_memory);
    const ejk_status status = run(plan, args, workspace, stream);
    ejki_device_memory_give(plan->device_memory);
    return status;
}

ejk_status ejki_plan_run(const ejk_plan *plan, const void *args, void *workspace, void *stream) {
    EJKI_TRY(ejki_operands_check(&plan->operands, args));
    if (plan->operands.idle) return EJK_OK;
    if (plan->hook) return ejki_plan_call_hook(plan, args, (ejk_hook_call){.stream = stream});
    if (workspace || !plan->workspace_bytes) return run(plan, args, workspace, stream);
    if (plan->device_memory) return run_with_own(plan, args, stream);
    EJKI_TRY(ejki_workspaces_take(plan->workspaces, plan->workspace_bytes, &workspace));
    ejk_status status = run(plan, args, workspace, stream);
    ejki_workspaces_give(plan->workspaces, workspace);
    return status;
}

static ejk_status check_workspace(const ejk_plan *plan, const void *workspace,
                                  size_t workspace_bytes) {
    const uintptr_t alignment =
        plan->place.device_type == EJK_DEVICE_CPU ? EJKI_ALIGNMENT : EJKI_DEVICE_ALIGNMENT;
    if (workspace && workspace_bytes < plan->workspace_bytes)
        return ejki_fail(EJK_STATUS_WORKSPACE_TOO_SMALL,
                         "workspace_bytes is %zu, expected at least %zu", workspace_bytes,
                         plan->workspace_bytes);
    if (plan->workspace_bytes && (uintptr_t)workspace % alignment)
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                         "workspace is %p, expected an address aligned to %d", workspace,
                         (int)alignment);
    return EJK_OK;
}

static inline ejk_status execute(const ejk_plan *plan, const void *args, void *workspace,
                                 size_t workspace_bytes, void *stream) {
    if (!ejki_plan_fits(plan, args))
        return ejki_signature_explain(plan->kernel->args, plan->args, args);
    if (workspace) EJKI_TRY(check_workspace(plan, workspace, workspace_bytes));
    return ejki_plan_run(plan, args, workspace, stream);
}

static ejk_status missing(const ejk_plan *plan) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                     plan ? "args" : "plan");
}

ejk_status ejk_plan_execute(const ejk_plan *plan, const void *args, void *workspace,
                            size_t workspace_bytes) {
    if (!plan || !args) return missing(plan);
    return execute(plan, args, workspace, workspace_bytes, plan->context->stream);
}

ejk_status ejk_plan_execute_on(const ejk_plan *plan, const void *args, void *workspace,
                               size_t workspace_bytes, void *stream) {
    if (!plan || !args) return missing(plan);
    return execute(plan, args, workspace, workspace_bytes, stream);
}
