/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel's description as JSON: what bindings to other languages are generated from. */
#include "ops/core/core.h"
#include "ops/core/json_text.h"

#include <jansson.h>

static const char *const kinds[] = {
#define EJKI_KIND_NAME(name, type) #name,
    EJK_FIELD_LIST(EJKI_KIND_NAME)
#undef EJKI_KIND_NAME
};

static const char *const roles[] = {
    [EJK_OPTIONAL] = "optional", [EJK_REQUIRED] = "required",
    [EJK_OUTPUT] = "output",     [EJK_REQUIRED_OUTPUT] = "required output",
    [EJK_INOUT] = "inout",       [EJK_REQUIRED_INOUT] = "required inout"};

static json_t *record_json(const ejk_record *record);

/* A text that may be missing. */
static const char *text_of(const char *text) {
    return text ? text : "";
}

static json_t *field_json(const ejk_field *field) {
    json_t *object = json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:s}", "name", field->name,
                               "kind", kinds[field->kind], "role", roles[field->role], "offset",
                               (json_int_t)field->offset, "size", (json_int_t)ejk_field_size(field),
                               "default", text_of(field->fallback), "unit", text_of(field->unit),
                               "doc", text_of(field->doc));
    if (!object || !field->record) return object;
    if (json_object_set_new(object, "record", record_json(field->record)) == 0) return object;
    json_decref(object);
    return NULL;
}

static json_t *record_json(const ejk_record *record) {
    json_t *fields = json_array();
    for (int32_t i = 0; i < record->count; i++)
        if (json_array_append_new(fields, field_json(&record->fields[i])) != 0) {
            json_decref(fields);
            return NULL;
        }
    return json_pack("{s:s, s:I, s:s, s:s, s:o}", "name", record->name, "size",
                     (json_int_t)record->size, "symbols", text_of(record->symbols), "orders",
                     text_of(record->orders), "fields", fields);
}

ejk_status ejk_kernel_describe(const ejk_kernel *kernel, char **out) {
    if (!kernel || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         kernel ? "out" : "kernel");
    EJKI_TRY(ejk_record_check(kernel->args));
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:o}", "op", kernel->op_id, "version",
                  kernel->version ? kernel->version : "0", "doc", text_of(kernel->doc),
                  "config_field", text_of(kernel->config_field), "parameters_field",
                  text_of(kernel->parameters_field), "forward",
                  kernel->forward ? kernel->forward->op_id : "", "args", record_json(kernel->args));
    const ejk_status status = ejki_json_text(object, JSON_COMPACT, out);
    json_decref(object);
    return status;
}
