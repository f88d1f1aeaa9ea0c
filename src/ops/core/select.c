/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs a plan's call, and with which configuration. An explicit configuration is honoured or refused,
 * never bent; a value from elsewhere that the implementation cannot take counts as none.
 */
#include "ops/core/core.h"

#include "device/cuda.h"
#include "record/tensors.h"

#include <stdlib.h>
#include <string.h>

/* The text of a NAME field; "" if the record has no such field or there is no record. */
static const char *text_of(const ejk_record *record, const void *object, const char *name) {
    size_t offset;
    const ejk_field *field = ejk_record_find(record, name, &offset);
    return field && field->kind == EJK_FIELD_NAME ? (const char *)object + offset : "";
}

static bool any_set(const ejk_record *record, const void *object) {
    for (int32_t i = 0; i < record->count; i++)
        if (ejk_record_is_set(&record->fields[i], object)) return true;
    return false;
}

/* The call's explicit configuration; NULL if the operation has none or nothing in it is set. */
static const void *explicit_config(const ejk_plan *plan) {
    const ejk_kernel *kernel = plan->kernel;
    const void *given = plan->request->override_cfg;
    if (given && kernel->config && any_set(kernel->config, given)) return given;
    const ejk_field *field =
        kernel->config_field ? ejk_record_find(kernel->args, kernel->config_field, NULL) : NULL;
    return field && ejk_record_is_set(field, plan->args) ? (const char *)plan->args + field->offset
                                                         : NULL;
}

static ejk_dtype dtype_of(const ejk_plan *plan) {
    if (plan->kernel->dtype) return plan->kernel->dtype(plan->args);
    for (int32_t i = 0; i < plan->kernel->args->count; i++) {
        const ejk_field *field = &plan->kernel->args->fields[i];
        if (ejki_is_tensor(field)) return ejki_dtype_of(field, plan->args);
    }
    return EJK_DTYPE_UNSET;
}

ejki_device ejki_device_of(const ejk_record *record, const void *args) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        const ejk_tensor *tensor = ejki_walk_tensor(&w, args);
        if (ejk_tensor_present(tensor))
            return (ejki_device){tensor->device_type, tensor->device_index};
    }
    return (ejki_device){EJK_DEVICE_CPU, 0};
}

/* True unless the tensors lie on a GPU, of which the hook's name does not tell that it knows. */
static bool reaches(const ejk_hook *hook, ejki_device place) {
    static const char *const ends[] = {"_gpu", "_cuda", "_triton", "_pallas", "_xla"};
    if (place.device_type == EJK_DEVICE_CPU) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t length = strlen(hook->name), rest = strlen(ends[i]);
        if (length > rest && strcmp(hook->name + length - rest, ends[i]) == 0) return true;
    }
    return false;
}

/* The field that a name of a list of names is of, and where the list goes on; NULL at its end or without a field. */
const ejk_field *ejki_next_type(const ejk_record *record, const char **at) {
    char name[EJK_NAME_SIZE];
    const size_t length = strcspn(*at, ",");
    if (length == 0 || length >= sizeof name) return NULL;
    memcpy(name, *at, length);
    name[length] = 0;
    *at += length + ((*at)[length] == ',');
    const ejk_field *field = ejk_record_find(record, name, NULL);
    return field && ejki_is_tensor(field) && !strchr(name, '.') ? field : NULL;
}

/* Adds to a query the element types of the further tensors that the kernel names. */
static void ask_types(const ejk_plan *plan, ejk_query *query) {
    const char *at = plan->kernel->further_types;
    for (int32_t i = 0; at && i < EJK_MAX_FURTHER_TYPES; i++) {
        const ejk_field *field = ejki_next_type(plan->kernel->args, &at);
        if (!field) return;
        query->further_dtypes[i] = ejki_dtype_of(field, plan->args);
    }
}

/* Adds to a query what follows from where the tensors lie. */
static ejk_status ask_place(const ejk_plan *plan, ejk_query *query) {
    const ejk_gpu_info *gpu;
    query->place = EJK_BACKEND_CPU;
    if (plan->place.device_type == EJK_DEVICE_CPU) return EJK_OK;
    EJKI_TRY(ejki_cuda_gpu(plan->place.device_index, &gpu));
    query->place = EJK_BACKEND_GPU;
    query->capability = gpu->capability;
    return EJK_OK;
}

int32_t ejki_kernel_steps(const ejk_kernel *kernel) {
    return kernel->steps ? kernel->step_count : 1;
}

ejk_step ejki_kernel_step(const ejk_kernel *kernel, int32_t index) {
    if (kernel->steps) return kernel->steps[index];
    return (ejk_step){.algorithm = kernel->algorithm ? kernel->algorithm : kernel->op_id};
}

/* An implementation for each step that is wanted. */
static ejk_status find_steps(ejk_plan *plan) {
    const ejk_kernel *kernel = plan->kernel;
    ejk_query query = plan->query;
    query.problem = ejki_plan_problem(plan);
    for (int32_t i = 0; i < ejki_kernel_steps(kernel); i++) {
        const ejk_step step = ejki_kernel_step(kernel, i);
        if (step.wanted && !step.wanted(query.problem)) continue;
        ejki_plan_step *own = &plan->steps[plan->step_count];
        query.algorithm = own->algorithm = step.algorithm;
        EJKI_TRY(ejk_registry_get(plan->context->registry, &query, &own->implementation));
        plan->step_count++;
    }
    if (plan->step_count > 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INTERNAL, "%.64s wants none of its %d steps for this call",
                     kernel->op_id, (int)kernel->step_count);
}

/* The kernel's own hook if it has one for this call, else an implementation of the registry. */
static ejk_status find_runner(ejk_plan *plan, ejk_invocation *invocation) {
    const ejk_kernel *kernel = plan->kernel;
    const void *config = invocation->override_cfg;
    plan->dtype = dtype_of(plan);
    const char *platform = text_of(kernel->args, plan->args, "platform");
    if (!*platform && config) platform = text_of(kernel->config, config, "platform");
    EJKI_TRY(ejk_platform_from_name(platform, &invocation->platform));
    if (config)
        EJKI_TRY(ejk_backend_from_name(text_of(kernel->config, config, "backend"),
                                       &invocation->backend));
    if (plan->place.device_type == EJK_DEVICE_CUDA && invocation->backend == EJK_BACKEND_ANY)
        invocation->backend = EJK_BACKEND_GPU;
    const char *method = plan->request->hook ? plan->request->hook : "run";
    plan->hook = ejk_hook_resolve(kernel, method, invocation->method, invocation->platform,
                                  invocation->backend);
    if (plan->hook && !reaches(plan->hook, plan->place)) plan->hook = NULL;
    invocation->run = plan->hook;
    plan->query = (ejk_query){.platform = invocation->platform,
                              .backend = invocation->backend,
                              .isa = plan->context->isa,
                              .dtype = plan->dtype};
    ask_types(plan, &plan->query);
    EJKI_TRY(ask_place(plan, &plan->query));
    if (plan->hook) return EJK_OK;
    if (plan->request->hook || invocation->method)
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "%.64s has no hook %s%s%s for this call",
                         kernel->op_id, method, invocation->method ? "_" : "",
                         invocation->method ? invocation->method : "");
    return find_steps(plan);
}

/* What a context without a chooser does. */
static ejk_status choose_plainly(const ejk_invocation *invocation, void *config,
                                 ejk_choice_step *step) {
    *step = invocation->override_cfg ? EJK_CHOICE_OVERRIDE : EJK_CHOICE_HEURISTICS;
    return ejk_invocation_heuristics(invocation, config);
}

/* Asks the chooser, and lays the call's own configuration over its answer. */
static ejk_status choose_config(ejk_plan *plan, const ejk_invocation *invocation) {
    const ejk_record *record = plan->kernel->config;
    const ejk_config_chooser *chooser = &plan->context->chooser;
    plan->generation = ejki_context_generation(plan->context);
    plan->step = EJK_CHOICE_DEFAULT;
    if (!record) return EJK_OK;
    plan->config = calloc(1, record->size + 1);
    if (!plan->config) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a configuration");
    EJKI_TRY(chooser->choose ? chooser->choose(chooser->self, invocation, plan->config, &plan->step)
                             : choose_plainly(invocation, plan->config, &plan->step));
    return EJK_OK;
}

/* Values of a step's parameters, and where each came from. */
static void resolve_step(const ejk_plan *plan, const void *override, ejki_plan_step *step) {
    /* Beside an explicit configuration, the chooser can only have used heuristics. */
    const ejk_choice_step others =
        plan->step == EJK_CHOICE_OVERRIDE ? EJK_CHOICE_HEURISTICS : plan->step;
    for (int32_t i = 0; i < step->implementation->parameter_count; i++) {
        const ejk_parameter *p = &step->implementation->parameters[i];
        const ejk_opt_int wish = ejki_parameter_of(plan->kernel, override, p->name);
        const ejk_opt_int advice = ejki_parameter_of(plan->kernel, plan->config, p->name);
        step->parameters[i] = p->fallback;
        step->sources[i] = EJK_CHOICE_DEFAULT;
        if (wish.set) {
            step->parameters[i] = wish.value;
            step->sources[i] = EJK_CHOICE_OVERRIDE;
        } else if (advice.set && ejki_parameter_allowed(p, advice.value)) {
            step->parameters[i] = advice.value;
            step->sources[i] = others;
        }
    }
}

ejk_status ejki_plan_select(ejk_plan *plan) {
    const void *override = explicit_config(plan);
    const ejk_implementation *chosen[EJK_MAX_STEPS];
    ejk_invocation invocation = {.kernel = plan->kernel,
                                 .args = plan->args,
                                 .problem = ejki_plan_problem(plan),
                                 .threads = ejk_threads_count(plan->context->threads),
                                 .context = plan->context,
                                 .override_cfg = override,
                                 .method = plan->request->method,
                                 .backward = plan->request->backward,
                                 .device_type = plan->place.device_type,
                                 .device_index = plan->place.device_index};
    EJKI_TRY(find_runner(plan, &invocation));
    for (int32_t i = 0; i < plan->step_count; i++) chosen[i] = plan->steps[i].implementation;
    invocation.implementation = plan->step_count > 0 ? chosen[0] : NULL;
    invocation.steps = chosen;
    invocation.step_count = plan->step_count;
    if (override) EJKI_TRY(ejk_invocation_check_config(&invocation, override));
    EJKI_TRY(choose_config(plan, &invocation));
    for (int32_t i = 0; i < plan->step_count; i++) resolve_step(plan, override, &plan->steps[i]);
    if (override) ejk_record_merge(plan->kernel->config, plan->config, override, plan->config);
    return EJK_OK;
}
