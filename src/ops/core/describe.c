/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/core/core.h"

#include <jansson.h>

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
