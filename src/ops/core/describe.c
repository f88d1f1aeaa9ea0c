/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/core/core.h"

#include <jansson.h>
#include <stdlib.h>

const char *ejk_choice_step_name(ejk_choice_step step) {
    switch (step) {
#define EJKI_STEP_NAME(name, text)                                                                 \
    case EJK_CHOICE_##name: return text;
        EJK_CHOICE_LIST(EJKI_STEP_NAME)
#undef EJKI_STEP_NAME
    }
    return "unknown";
}

/* What runs: an implementation, or a hook that stands for one. */
static ejk_implementation runner_of(const ejk_plan *plan) {
    if (plan->step_count > 0) return *plan->steps[0].implementation;
    return (ejk_implementation){.name = plan->hook->name};
}

/* Keys keep this order in the text. NULL: out of memory, or a text that is not UTF-8. */
static json_t *describe(const ejk_plan *plan) {
    const ejk_implementation chosen = runner_of(plan);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:s, s:{}, s:{}, s:i, s:I}", "op",
                     plan->kernel->op_id, "version",
                     plan->kernel->version ? plan->kernel->version : "0", "implementation",
                     chosen.name, "platform", ejk_platform_name(chosen.platform), "backend",
                     ejk_backend_name(chosen.backend), "isa", ejk_isa_name(chosen.isa), "dtype",
                     ejk_dtype_name(plan->dtype), "implementation_version", (int)chosen.version,
                     "step", ejk_choice_step_name(plan->step), "parameters", "chosen_by", "workers",
                     (int)plan->workers, "workspace_bytes", (json_int_t)plan->workspace_bytes);
}

static bool add_parameters(const ejki_plan_step *step, json_t *object) {
    json_t *values = json_object_get(object, "parameters");
    json_t *origins = json_object_get(object, "chosen_by");
    for (int32_t i = 0; i < step->implementation->parameter_count; i++) {
        const char *name = step->implementation->parameters[i].name;
        if (json_object_set_new(values, name, json_integer(step->parameters[i])) ||
            json_object_set_new(origins, name, json_string(ejk_choice_step_name(step->sources[i]))))
            return false;
    }
    return true;
}

static json_t *describe_step(const ejki_plan_step *step) {
    const ejk_implementation *chosen = step->implementation;
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:{}, s:{}, s:i}", "algorithm",
                     step->algorithm, "implementation", chosen->name, "platform",
                     ejk_platform_name(chosen->platform), "backend",
                     ejk_backend_name(chosen->backend), "isa", ejk_isa_name(chosen->isa),
                     "implementation_version", (int)chosen->version, "parameters", "chosen_by",
                     "workers", (int)step->launch.workers);
}

/* All steps of an operation that may have several. */
static bool add_steps(const ejk_plan *plan, json_t *object) {
    if (plan->step_count > 0 && !add_parameters(&plan->steps[0], object)) return false;
    if (plan->step_count == 0 || !plan->kernel->steps) return true;
    json_t *list = json_array();
    for (int32_t i = 0; i < plan->step_count; i++) {
        json_t *step = describe_step(&plan->steps[i]);
        const bool whole = step && add_parameters(&plan->steps[i], step);
        if (json_array_append_new(list, step) || !whole) {
            json_decref(list);
            return false;
        }
    }
    return json_object_set_new(object, "steps", list) == 0;
}

/* The whole configuration, as far as it is set. */
static bool add_config(const ejk_plan *plan, json_t *object) {
    char *text = NULL;
    if (!plan->config) return true;
    if (ejk_record_to_json(plan->kernel->config, plan->config, EJK_JSON_SET_ONLY, &text) != EJK_OK)
        return false;
    const int failed = json_object_set_new(object, "config", json_loads(text, 0, NULL));
    ejk_free(text);
    return !failed;
}

/* Where it runs, unless on the CPU. */
static bool add_device(const ejk_plan *plan, json_t *object) {
    if (plan->place.device_type == EJK_DEVICE_CPU) return true;
    json_t *device = json_sprintf("cuda:%d", (int)plan->place.device_index);
    return !json_object_set_new(object, "device", device);
}

ejk_status ejk_plan_describe(const ejk_plan *plan, char **out) {
    if (!plan || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         plan ? "out" : "plan");
    json_t *object = describe(plan);
    char *text = NULL;
    if (object && add_steps(plan, object) && add_config(plan, object) && add_device(plan, object))
        text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (!text)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the description of a plan");
    *out = text;
    return EJK_OK;
}

/* ---- Why this one ------------------------------------------------------------------------------------ */

/* An implementation, and what stands against it: "" = nothing. */
static json_t *explain(const ejk_plan *plan, const char *algorithm,
                       const ejk_implementation *each) {
    char why[512];
    ejk_query query = plan->query;
    query.problem = ejki_plan_problem(plan);
    query.algorithm = algorithm;
    if (ejk_registry_explain(&query, each, why, sizeof why) != EJK_OK) return NULL;
    bool chosen = false;
    for (int32_t i = 0; i < plan->step_count; i++) chosen |= each == plan->steps[i].implementation;
    const char *verdict = chosen ? "chosen" : *why ? "does not fit" : "fits";
    const char *reason = *why || chosen ? why
                         : plan->hook   ? "a hook of the operation runs"
                                        : "another one is preferred";
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:s}", "implementation", each->name, "platform",
                  ejk_platform_name(each->platform), "verdict", verdict, "reason", reason);
    if (plan->kernel->steps && json_object_set_new(object, "algorithm", json_string(algorithm))) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* Adds those of an algorithm. */
static bool explain_all(const ejk_plan *plan, const char *algorithm, json_t *all) {
    const ejk_registry *registry = plan->context->registry;
    int32_t count;
    if (ejk_registry_list_implementations(registry, algorithm, NULL, 0, &count) != EJK_OK)
        return false;
    const ejk_implementation **list = calloc((size_t)count + 1, sizeof *list);
    bool done = list && ejk_registry_list_implementations(registry, algorithm, list, count,
                                                          &count) == EJK_OK;
    for (int32_t i = 0; i < count && done; i++)
        done = json_array_append_new(all, explain(plan, algorithm, list[i])) == 0;
    free(list);
    return done;
}

ejk_status ejk_plan_explain(const ejk_plan *plan, char **out) {
    if (!plan || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         plan ? "out" : "plan");
    json_t *all = json_array();
    bool done = all != NULL;
    for (int32_t i = 0; i < plan->step_count && done; i++)
        done = explain_all(plan, plan->steps[i].algorithm, all);
    if (plan->hook && done)
        done = explain_all(plan, ejki_kernel_step(plan->kernel, 0).algorithm, all);
    char *text = done ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    if (!text)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the explanation of a plan");
    *out = text;
    return EJK_OK;
}
