/* SPDX-License-Identifier: Apache-2.0 */
/* Making plans: everything that a call does not have to do again. */
#include "ops/core/core.h"

#include "device/cuda.h"
#include "record/tensors.h"

#include <stdlib.h>
#include <string.h>

/* Gives every tensor of a copy of the arguments this address. */
static void place_tensors(const ejk_record *record, void *args, void *data) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        ejk_tensor *tensor = ejki_walk_tensor(&w, args);
        if (tensor) tensor->data = data;
    }
}

/* Pointers are not looked at here, so views are checked as if each began in the middle of memory. */
static ejk_status check_tensors(const ejk_plan *plan, ejk_axes *axes) {
    const ejk_record *record = plan->kernel->args;
    place_tensors(record, plan->args, (void *)(UINTPTR_MAX / 2 + 1));
    ejk_status status = ejk_record_check_tensors(record, plan->args, axes);
    place_tensors(record, plan->args, NULL);
    return status;
}

static ejk_status prepare_problem(ejk_plan *plan, const ejk_axes *axes) {
    const ejk_kernel *kernel = plan->kernel;
    if (kernel->problem_size) {
        plan->problem = calloc(1, kernel->problem_size);
        if (!plan->problem)
            return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a plan's problem");
    }
    if (kernel->prepare) EJKI_TRY(kernel->prepare(plan->args, axes, plan->problem));
    if (kernel->cost) kernel->cost(ejki_plan_problem(plan), NULL, &plan->cost);
    return EJK_OK;
}

static ejk_status ask_launch(const ejk_plan *plan, ejki_plan_step *step) {
    const ejk_implementation *chosen = step->implementation;
    int32_t threads = ejk_threads_count(plan->context->threads);
    step->launch = (ejk_launch){.workers = 1, .device = plan->place.device_index};
    if (chosen->prepare)
        EJKI_TRY(
            chosen->prepare(ejki_plan_problem(plan), step->parameters, threads, &step->launch));
    if (step->launch.workers > 1) step->threads = plan->context->threads;
    if (step->launch.workers >= 1 && step->launch.workers <= threads) return EJK_OK;
    return ejki_fail(EJK_STATUS_INTERNAL, "%s wants %d workers, expected 1 to %d", chosen->name,
                     (int)step->launch.workers, (int)threads);
}

/* The steps run one after the other, so the largest workspace serves all; what they share lies before it. */
static ejk_status prepare_launch(ejk_plan *plan) {
    const ejk_kernel *kernel = plan->kernel;
    size_t most = 0;
    plan->workers =
        ejk_threads_count(plan->context->threads); /* a hook is given the threads itself */
    for (int32_t i = 0; i < plan->step_count; i++) {
        EJKI_TRY(ask_launch(plan, &plan->steps[i]));
        const size_t bytes = plan->steps[i].launch.workspace_bytes;
        most = bytes > most ? bytes : most;
    }
    if (plan->step_count > 0) plan->workers = plan->steps[0].launch.workers;
    const size_t shared = plan->step_count > 0 && kernel->shared_bytes
                              ? kernel->shared_bytes(ejki_plan_problem(plan))
                              : 0;
    if (shared > PTRDIFF_MAX - EJKI_DEVICE_ALIGNMENT || most > PTRDIFF_MAX - shared)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "%s: a workspace of %zu and %zu bytes",
                         kernel->op_id, shared, most);
    plan->shared_bytes =
        (shared + EJKI_DEVICE_ALIGNMENT - 1) / EJKI_DEVICE_ALIGNMENT * EJKI_DEVICE_ALIGNMENT;
    plan->workspace_bytes = plan->shared_bytes + most;
    return EJK_OK;
}

/* On a GPU memory is had now: an execution may not allocate. */
static ejk_status prepare_memory(ejk_plan *plan) {
    if (plan->place.device_type != EJK_DEVICE_CUDA || !plan->workspace_bytes ||
        plan->request->borrows || ejki_cuda_target_get())
        return EJK_OK;
    return ejki_device_memory_create(plan->place.device_index, plan->workspace_bytes,
                                     &plan->device_memory);
}

/* The device of tensors on a GPU must be one that there is. */
static ejk_status find_place(ejk_plan *plan) {
    const ejk_gpu_info *gpu;
    plan->place = ejki_device_of(plan->kernel->args, plan->args);
    return plan->place.device_type == EJK_DEVICE_CUDA
               ? ejki_cuda_gpu(plan->place.device_index, &gpu)
               : EJK_OK;
}

/* In the order in which things may be relied upon; the plan is destroyed by the caller on failure. */
static ejk_status resolve(ejk_plan *plan, const void *args) {
    const ejk_record *record = plan->kernel->args;
    plan->args = malloc(record->size + 1);
    if (!plan->args) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a plan's arguments");
    memcpy(plan->args, args, record->size);
    EJKI_TRY(ejki_values_check(record, plan->args));
    ejk_axes axes = {.count = 0};
    EJKI_TRY(check_tensors(plan, &axes));
    EJKI_TRY(find_place(plan));
    if (plan->place.device_type == EJK_DEVICE_CPU)
        EJKI_TRY(ejki_guards_create(plan->kernel, plan->args, &axes, &plan->guards));
    EJKI_TRY(ejki_operands_create(record, plan->args, &plan->operands));
    EJKI_TRY(prepare_problem(plan, &axes));
    EJKI_TRY(ejki_plan_select(plan));
    EJKI_TRY(prepare_launch(plan));
    EJKI_TRY(prepare_memory(plan));
    return ejki_signature_create(record, plan->args, plan->context->isa, &plan->signature);
}

ejk_status ejki_plan_make(const ejki_plan_request *request, ejk_plan **out) {
    EJKI_TRY(ejki_kernel_check(request->kernel));
    ejk_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a plan");
    plan->context = request->context;
    plan->kernel = request->kernel;
    plan->workspaces = &request->context->workspaces;
    plan->request = request;
    const ejki_cuda_listener before = ejki_cuda_listen(
        (ejki_cuda_listener){request->context->on_event, request->context->on_event_user});
    ejk_status status = resolve(plan, request->args);
    ejki_cuda_listen(before);
    plan->request = NULL;
    if (status == EJK_OK)
        *out = plan;
    else
        ejk_plan_destroy(plan);
    return status;
}

void ejki_plan_announce(const ejk_plan *plan) {
    const ejk_context *context = plan->context;
    char *fields;
    if (!context->on_event || ejk_plan_describe(plan, &fields) != EJK_OK) return;
    context->on_event(context->on_event_user, "plan_created", fields);
    ejk_free(fields);
}

/* A list of the plan's own with one buffer in it, so that the first execution allocates nothing. */
static ejk_status own_workspaces(ejk_plan *plan) {
    if (!plan->workspace_bytes || plan->place.device_type != EJK_DEVICE_CPU) return EJK_OK;
    ejki_workspaces *list = calloc(1, sizeof *list);
    if (!list) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a plan's workspaces");
    plan->workspaces = list;
    plan->owns_workspaces = true;
    void *first;
    EJKI_TRY(ejki_workspaces_take(list, plan->workspace_bytes, &first));
    ejki_workspaces_give(list, first);
    return EJK_OK;
}

ejk_status ejk_plan_create(ejk_context *context, const ejk_kernel *kernel, const void *args,
                           ejk_plan **out) {
    return ejki_plan_request_create(
        &(ejki_plan_request){.context = context, .kernel = kernel, .args = args}, out);
}

ejk_status ejki_plan_request_create(const ejki_plan_request *request, ejk_plan **out) {
    if (!request->context || !request->kernel || !request->args || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !request->context  ? "context"
                         : !request->kernel ? "kernel"
                         : !request->args   ? "args"
                                            : "out");
    ejk_plan *plan;
    EJKI_TRY(ejki_plan_make(request, &plan));
    ejk_status status = own_workspaces(plan);
    if (status != EJK_OK) {
        ejk_plan_destroy(plan);
        return status;
    }
    ejki_plan_announce(plan);
    *out = plan;
    return EJK_OK;
}

ejk_status ejki_plan_request_ask(const ejki_plan_request *request,
                                 const ejk_config_chooser *chooser) {
    ejki_plan_request own = *request;
    ejk_plan *plan;
    EJKI_TRY(ejki_context_derive(request->context, chooser, &own.context));
    const ejk_status status = ejki_plan_request_create(&own, &plan);
    if (status == EJK_OK) ejk_plan_destroy(plan);
    ejk_context_destroy(own.context);
    return status;
}

void ejk_plan_destroy(ejk_plan *plan) {
    if (!plan) return;
    if (plan->owns_workspaces) {
        ejki_workspaces_close(plan->workspaces);
        free(plan->workspaces);
    }
    ejki_device_memory_destroy(plan->device_memory);
    ejki_operands_close(&plan->operands);
    free(plan->signature.blocks);
    free(plan->guards);
    free(plan->config);
    free(plan->problem);
    free(plan->args);
    free(plan);
}

size_t ejk_plan_workspace(const ejk_plan *plan) {
    return plan ? plan->workspace_bytes : 0;
}

const ejk_kernel *ejk_plan_kernel(const ejk_plan *plan) {
    return plan ? plan->kernel : NULL;
}

const ejk_implementation *ejk_plan_implementation(const ejk_plan *plan) {
    return plan && plan->step_count > 0 ? plan->steps[0].implementation : NULL;
}

int32_t ejk_plan_workers(const ejk_plan *plan) {
    return plan ? plan->workers : 0;
}

ejk_choice_step ejk_plan_step(const ejk_plan *plan) {
    return plan ? plan->step : EJK_CHOICE_DEFAULT;
}

const void *ejk_plan_config(const ejk_plan *plan) {
    return plan ? plan->config : NULL;
}

ejk_cost ejk_plan_cost(const ejk_plan *plan) {
    return plan ? plan->cost : (ejk_cost){0};
}

/* Floating-point operations per byte. */
#define MEMORY_BOUND 8.0

bool ejk_plan_is_memory_bound(const ejk_plan *plan) {
    const ejk_cost cost = ejk_plan_cost(plan);
    return cost.bytes > 0 && cost.flops < MEMORY_BOUND * cost.bytes;
}
