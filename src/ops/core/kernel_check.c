/* SPDX-License-Identifier: Apache-2.0 */
/* What a description of an operation, and the structs handed to it, must hold before they are trusted. */
#include "ops/core/core.h"
#include "record/kinds.h"

#include <string.h>

static ejk_status wrong(const ejk_kernel *kernel, const char *what) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "kernel '%.64s': %s",
                     kernel->op_id ? kernel->op_id : "", what);
}

static const ejk_field *own_record(const ejk_record *record, const char *name) {
    const ejk_field *field = ejk_record_find(record, name, NULL);
    return field && field->kind == EJK_FIELD_RECORD ? field : NULL;
}

static ejk_status check_config(const ejk_kernel *kernel) {
    if (kernel->config) EJKI_TRY(ejk_record_check(kernel->config));
    if (kernel->config_field) {
        const ejk_field *field = own_record(kernel->args, kernel->config_field);
        if (!field) return wrong(kernel, "config_field names no nested record of its arguments");
        if (field->record != kernel->config)
            return wrong(kernel, "config_field names another record than config");
    }
    if (kernel->parameters_field && kernel->parameters_field[0]) {
        if (!kernel->config || !own_record(kernel->config, kernel->parameters_field))
            return wrong(kernel, "parameters_field names no nested record of its configuration");
    }
    if ((kernel->heuristic_cfg || kernel->candidate_cfgs) && !kernel->config)
        return wrong(kernel, "a function that fills configurations is given, but no config");
    return EJK_OK;
}

static ejk_status check_steps(const ejk_kernel *kernel) {
    if (kernel->bind_shared && (!kernel->steps || !kernel->shared_bytes || !kernel->problem_size))
        return wrong(kernel, "bind_shared needs steps, a problem and shared_bytes");
    if (!kernel->steps) return EJK_OK;
    if (kernel->algorithm) return wrong(kernel, "it has both steps and algorithm, expected one");
    if (kernel->step_count < 1 || kernel->step_count > EJK_MAX_STEPS)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "kernel '%.64s': step_count is %d, expected 1 to %d", kernel->op_id,
                         (int)kernel->step_count, EJK_MAX_STEPS);
    for (int32_t i = 0; i < kernel->step_count; i++)
        if (!kernel->steps[i].algorithm || !kernel->steps[i].algorithm[0])
            return wrong(kernel, "a step has no algorithm, expected a name");
    return EJK_OK;
}

static ejk_status check_types(const ejk_kernel *kernel) {
    const char *at = kernel->further_types;
    int32_t count = 0;
    for (; at && *at; count++)
        if (!ejki_next_type(kernel->args, &at))
            return wrong(kernel, "further_types names what is no tensor of its arguments");
    if (count <= EJK_MAX_FURTHER_TYPES) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "kernel '%.64s': further_types names %d tensors, expected at most %d",
                     kernel->op_id, (int)count, EJK_MAX_FURTHER_TYPES);
}

ejk_status ejki_kernel_check(const ejk_kernel *kernel) {
    if (!kernel->op_id || !kernel->op_id[0])
        return wrong(kernel, "op_id is missing, expected a name");
    if (!kernel->args) return wrong(kernel, "args is NULL, expected the record of its arguments");
    EJKI_TRY(ejk_record_check(kernel->args));
    EJKI_TRY(check_types(kernel));
    if (kernel->problem_size > EJK_MAX_PROBLEM_SIZE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "kernel '%.64s': problem_size is %zu, expected at most %d", kernel->op_id,
                         kernel->problem_size, EJK_MAX_PROBLEM_SIZE);
    if (kernel->problem_size && (!kernel->prepare || !kernel->bind))
        return wrong(kernel, "it has a problem, so prepare and bind must be given");
    EJKI_TRY(check_steps(kernel));
    if (kernel->input_option_count > 0 && (!kernel->input_options || !kernel->inputs))
        return wrong(kernel,
                     "it has options of its inputs, so inputs and input_options must be given");
    if (kernel->residuals) EJKI_TRY(ejk_record_check(kernel->residuals));
    EJKI_TRY(check_config(kernel));
    return ejki_hooks_check(kernel);
}

static ejk_status impossible(const char *name, const char *expected) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s holds no value of its kind, expected %s",
                     name, expected);
}

ejk_status ejki_values_check(const ejk_record *record, const void *object) {
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        const char *place = (const char *)object + field->offset;
        const ejki_kind *kind = ejki_kind_of(field->kind);
        if (field->kind == EJK_FIELD_RECORD) EJKI_TRY(ejki_values_check(field->record, place));
        const char *expected = kind->fault ? kind->fault(place) : NULL;
        if (expected) return impossible(field->name, expected);
    }
    return EJK_OK;
}
