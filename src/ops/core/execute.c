/* SPDX-License-Identifier: Apache-2.0 */
/* The way of every call: no allocation, no lock, no look at a description. */
#include "ops/core/core.h"

#include <string.h>

ejk_status ejki_plan_call_hook(const ejk_plan *plan, const void *args, ejk_hook_call call) {
    call.kernel = plan->kernel;
    call.args = args;
    call.config = plan->config;
    call.threads = plan->context->threads;
    return plan->hook->call(&call);
}

static ejk_status run(const ejk_plan *plan, const void *args, void *workspace) {
    _Alignas(EJKI_ALIGNMENT) unsigned char problem[EJK_MAX_PROBLEM_SIZE];
    ejk_run call = {.problem = args,
                    .parameters = plan->parameters,
                    .workspace = workspace,
                    .threads = plan->threads,
                    .workers = plan->launch.workers};
    if (plan->problem) {
        memcpy(problem, plan->problem, plan->kernel->problem_size);
        plan->kernel->bind(args, problem);
        call.problem = problem;
    }
    EJKI_TRY(plan->implementation->run(&call));
    if (!plan->after) return EJK_OK;
    call.parameters = plan->after_parameters;
    call.threads = plan->after_threads;
    call.workers = plan->after_workers;
    return plan->after->run(&call);
}

ejk_status ejki_plan_run(const ejk_plan *plan, const void *args, void *workspace) {
    EJKI_TRY(ejki_operands_check(&plan->operands, args));
    if (plan->operands.idle) return EJK_OK;
    if (plan->hook) return ejki_plan_call_hook(plan, args, (ejk_hook_call){0});
    if (workspace || !plan->launch.workspace_bytes) return run(plan, args, workspace);
    EJKI_TRY(ejki_workspaces_take(plan->workspaces, plan->launch.workspace_bytes, &workspace));
    ejk_status status = run(plan, args, workspace);
    ejki_workspaces_give(plan->workspaces, workspace);
    return status;
}

ejk_status ejk_plan_execute(const ejk_plan *plan, const void *args, void *workspace,
                            size_t workspace_bytes) {
    if (!plan || !args)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         plan ? "args" : "plan");
    if (!ejki_plan_fits(plan, args))
        return ejki_signature_explain(plan->kernel->args, plan->args, args);
    if (workspace && workspace_bytes < plan->launch.workspace_bytes)
        return ejki_fail(EJK_STATUS_WORKSPACE_TOO_SMALL,
                         "workspace_bytes is %zu, expected at least %zu", workspace_bytes,
                         plan->launch.workspace_bytes);
    if (plan->launch.workspace_bytes && (uintptr_t)workspace % EJKI_ALIGNMENT)
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                         "workspace is %p, expected an address aligned to %d", workspace,
                         EJKI_ALIGNMENT);
    return ejki_plan_run(plan, args, workspace);
}
