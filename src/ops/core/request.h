/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for what is more than a plain call of an operation: executors make them. */
#ifndef EJKI_OPS_CORE_REQUEST_H
#define EJKI_OPS_CORE_REQUEST_H

#include <ejkernel/plan.h>

/* What a plan is for. Zero members: a plain call with what its arguments say. */
typedef struct ejki_plan_request {
    ejk_context *context;
    const ejk_kernel *kernel;
    const void *args;
    const void *override_cfg; /* explicit configuration in place of that in the arguments */
    const char *hook;         /* method that runs, as "vjp": only hooks can; NULL = "run" */
    const char *method;       /* "shard_map": only hooks can */
    bool backward;
    bool borrows; /* no workspace of its own on a GPU: executions there bring one */
} ejki_plan_request;

/* Where the first tensor of a call lies, and with it all. Without tensors: the CPU. */
typedef struct ejki_device {
    int32_t device_type, device_index;
} ejki_device;
ejki_device ejki_device_of(const ejk_record *record, const void *args);

/* As ejk_plan_create(). */
ejk_status ejki_plan_request_create(const ejki_plan_request *request, ejk_plan **out);

/*
 * As ejk_plan_create_for_results(), or without names of results as ejk_plan_create(), of a plan that has no workspace
 * of its own on a GPU: so it holds no memory there, and any stream may run it.
 */
ejk_status ejki_plan_create_borrowing(ejk_context *context, const ejk_kernel *kernel, void *args,
                                      const char *results, ejk_plan **out);

/* Has a chooser asked about a call, by a plan that nobody keeps, in a context made from that of the request. */
ejk_status ejki_plan_request_ask(const ejki_plan_request *request,
                                 const ejk_config_chooser *chooser);

/*
 * As ejk_plan_execute_on() with arguments that are known to fit the plan, which are not compared with it, and a
 * workspace that is large enough; NULL: one of the plan's list.
 */
ejk_status ejki_plan_run(const ejk_plan *plan, const void *args, void *workspace, void *stream);

/* Calls the plan's hook: kernel, args, config and threads are filled in, the rest is the caller's. The
 * arguments have to fit the plan. */
ejk_status ejki_plan_call_hook(const ejk_plan *plan, const void *args, ejk_hook_call call);

#endif
