/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which implementation runs a plan's call, and with which parameters. Explicit configuration is honoured or
 * refused, never bent; a heuristic value that the implementation cannot take counts as none.
 */
#include "ops/core/core.h"

#include <stdlib.h>

/* The text of a NAME field; "" if the record has no such field or there is no record. */
static const char *text_of(const ejk_record *record, const void *object, const char *name) {
    size_t offset;
    const ejk_field *field = ejk_record_find(record, name, &offset);
    return field && field->kind == EJK_FIELD_NAME ? (const char *)object + offset : "";
}

/* The call's explicit configuration; NULL if the operation has none. */
static const void *explicit_config(const ejk_plan *plan) {
    size_t offset;
    if (!plan->kernel->config_field ||
        !ejk_record_find(plan->kernel->args, plan->kernel->config_field, &offset))
        return NULL;
    return (const char *)plan->args + offset;
}

static ejk_dtype dtype_of(const ejk_plan *plan) {
    if (plan->kernel->dtype) return plan->kernel->dtype(plan->args);
    for (int32_t i = 0; i < plan->kernel->args->count; i++) {
        const ejk_field *field = &plan->kernel->args->fields[i];
        if (field->kind == EJK_FIELD_TENSOR)
            return ((const ejk_tensor *)((const char *)plan->args + field->offset))->dtype;
    }
    return EJK_DTYPE_UNSET;
}

static ejk_status find_implementation(ejk_plan *plan) {
    const ejk_kernel *kernel = plan->kernel;
    plan->dtype = dtype_of(plan);
    const void *config = explicit_config(plan);
    const char *platform = text_of(kernel->args, plan->args, "platform");
    if (!*platform && config) platform = text_of(kernel->config, config, "platform");
    ejk_query query = {.algorithm = kernel->op_id,
                       .isa = plan->context->isa,
                       .dtype = plan->dtype,
                       .problem = ejki_plan_problem(plan)};
    EJKI_TRY(ejk_platform_from_name(platform, &query.platform));
    if (config)
        EJKI_TRY(ejk_backend_from_name(text_of(kernel->config, config, "backend"), &query.backend));
    return ejk_registry_get(plan->context->registry, &query, &plan->implementation);
}

/* A parameter's value in a configuration; unset if the configuration does not have it. */
static ejk_opt_int value_of(const ejk_kernel *kernel, const void *config, const char *name) {
    const ejk_record *record = kernel->config;
    size_t base = 0, offset;
    const ejk_field *field;
    if (!config) return (ejk_opt_int){0};
    if (kernel->parameters_field && *kernel->parameters_field) {
        field = ejk_record_find(record, kernel->parameters_field, &base);
        record = field->record;
    }
    field = ejk_record_find(record, name, &offset);
    if (!field || field->kind != EJK_FIELD_OPT_INT) return (ejk_opt_int){0};
    return *(const ejk_opt_int *)((const char *)config + base + offset);
}

static bool allowed(const ejk_parameter *parameter, int64_t value) {
    return value >= parameter->minimum && value <= parameter->maximum &&
           ((uint64_t)value - (uint64_t)parameter->minimum) % (uint64_t)parameter->step == 0;
}

static ejk_status choose_parameters(ejk_plan *plan, const void *heuristic) {
    const ejk_implementation *chosen = plan->implementation;
    for (int32_t i = 0; i < chosen->parameter_count; i++) {
        const ejk_parameter *p = &chosen->parameters[i];
        ejk_opt_int wish = value_of(plan->kernel, explicit_config(plan), p->name);
        ejk_opt_int advice = value_of(plan->kernel, heuristic, p->name);
        plan->parameters[i] = p->fallback;
        if (wish.set && !allowed(p, wish.value))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s is %lld, expected %lld to %lld in steps of %lld as %s takes it",
                             p->name, (long long)wish.value, (long long)p->minimum,
                             (long long)p->maximum, (long long)p->step, chosen->name);
        if (wish.set) {
            plan->parameters[i] = wish.value;
            plan->sources[i] = EJKI_OVERRIDE;
        } else if (advice.set && allowed(p, advice.value)) {
            plan->parameters[i] = advice.value;
            plan->sources[i] = EJKI_HEURISTICS;
        }
    }
    return EJK_OK;
}

ejk_status ejki_plan_select(ejk_plan *plan) {
    EJKI_TRY(find_implementation(plan));
    const ejk_kernel *kernel = plan->kernel;
    void *advice = NULL;
    if (kernel->heuristic_cfg) {
        advice = calloc(1, kernel->config->size + 1);
        if (!advice) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a configuration");
        const ejk_invocation invocation = {kernel, plan->args, ejki_plan_problem(plan),
                                           plan->implementation,
                                           ejk_threads_count(plan->context->threads)};
        kernel->heuristic_cfg(&invocation, advice);
    }
    ejk_status status = choose_parameters(plan, advice);
    free(advice);
    return status;
}
