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
    if (plan->implementation) return *plan->implementation;
    return (ejk_implementation){.name = plan->hook->name};
}

/* Keys keep this order in the text. NULL: out of memory, or a text that is not UTF-8. */
static json_t *describe(const ejk_plan *plan) {
    const ejk_implementation chosen = runner_of(plan);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:s, s:{}, s:{}, s:i, s:I}", "op",
        plan->kernel->op_id, "version", plan->kernel->version ? plan->kernel->version : "0",
        "implementation", chosen.name, "platform", ejk_platform_name(chosen.platform), "backend",
        ejk_backend_name(chosen.backend), "isa", ejk_isa_name(chosen.isa), "dtype",
        ejk_dtype_name(plan->dtype), "implementation_version", (int)chosen.version, "step",
        ejk_choice_step_name(plan->step), "parameters", "chosen_by", "workers",
        (int)plan->launch.workers, "workspace_bytes", (json_int_t)plan->launch.workspace_bytes);
}

static bool add_parameters(const ejk_plan *plan, json_t *object) {
    json_t *values = json_object_get(object, "parameters");
    json_t *origins = json_object_get(object, "chosen_by");
    for (int32_t i = 0; plan->implementation && i < plan->implementation->parameter_count; i++) {
        const char *name = plan->implementation->parameters[i].name;
        if (json_object_set_new(values, name, json_integer(plan->parameters[i])) ||
            json_object_set_new(origins, name, json_string(ejk_choice_step_name(plan->sources[i]))))
            return false;
    }
    return true;
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
    if (object && add_parameters(plan, object) && add_config(plan, object) &&
        add_device(plan, object))
        text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (!text)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the description of a plan");
    *out = text;
    return EJK_OK;
}

/* ---- Why this one ------------------------------------------------------------------------------------ */

/* An implementation, and what stands against it: "" = nothing. */
static json_t *explain(const ejk_plan *plan, const ejk_implementation *each) {
    char why[512];
    ejk_query query = plan->query;
    query.problem = ejki_plan_problem(plan);
    if (ejk_registry_explain(&query, each, why, sizeof why) != EJK_OK) return NULL;
    const bool chosen = each == plan->implementation;
    const char *verdict = chosen ? "chosen" : *why ? "does not fit" : "fits";
    const char *reason = *why || chosen ? why
                         : plan->hook   ? "a hook of the operation runs"
                                        : "another one is preferred";
    return json_pack("{s:s, s:s, s:s, s:s}", "implementation", each->name, "platform",
                     ejk_platform_name(each->platform), "verdict", verdict, "reason", reason);
}

ejk_status ejk_plan_explain(const ejk_plan *plan, char **out) {
    const ejk_registry *registry;
    int32_t count;
    if (!plan || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         plan ? "out" : "plan");
    registry = plan->context->registry;
    EJKI_TRY(ejk_registry_list_implementations(registry, plan->query.algorithm, NULL, 0, &count));
    const ejk_implementation **list = calloc((size_t)count + 1, sizeof *list);
    json_t *all = json_array();
    bool done = all && list &&
                ejk_registry_list_implementations(registry, plan->query.algorithm, list, count,
                                                  &count) == EJK_OK;
    for (int32_t i = 0; i < count && done; i++)
        done = json_array_append_new(all, explain(plan, list[i])) == 0;
    char *text = done ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    free(list);
    if (!text)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the explanation of a plan");
    *out = text;
    return EJK_OK;
}
