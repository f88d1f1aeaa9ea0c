/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/core/core.h"

#include <jansson.h>

static const char *source_name(ejki_source source) {
    switch (source) {
    case EJKI_DEFAULT: return "default";
    case EJKI_HEURISTICS: return "heuristics";
    case EJKI_OVERRIDE: return "override";
    }
    return "unknown";
}

/* Keys keep this order in the text. NULL: out of memory, or a text that is not UTF-8. */
static json_t *describe(const ejk_plan *plan) {
    const ejk_implementation *chosen = plan->implementation;
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:{}, s:{}, s:i, s:I}", "op",
                     plan->kernel->op_id, "version",
                     plan->kernel->version ? plan->kernel->version : "0", "implementation",
                     chosen->name, "platform", ejk_platform_name(chosen->platform), "backend",
                     ejk_backend_name(chosen->backend), "isa", ejk_isa_name(chosen->isa), "dtype",
                     ejk_dtype_name(plan->dtype), "implementation_version", (int)chosen->version,
                     "parameters", "chosen_by", "workers", (int)plan->launch.workers,
                     "workspace_bytes", (json_int_t)plan->launch.workspace_bytes);
}

static bool add_parameters(const ejk_plan *plan, json_t *object) {
    json_t *values = json_object_get(object, "parameters");
    json_t *origins = json_object_get(object, "chosen_by");
    for (int32_t i = 0; i < plan->implementation->parameter_count; i++) {
        const char *name = plan->implementation->parameters[i].name;
        if (json_object_set_new(values, name, json_integer(plan->parameters[i])) ||
            json_object_set_new(origins, name, json_string(source_name(plan->sources[i]))))
            return false;
    }
    return true;
}

ejk_status ejk_plan_describe(const ejk_plan *plan, char **out) {
    if (!plan || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         plan ? "out" : "plan");
    json_t *object = describe(plan);
    char *text = object && add_parameters(plan, object) ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!text)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the description of a plan");
    *out = text;
    return EJK_OK;
}
