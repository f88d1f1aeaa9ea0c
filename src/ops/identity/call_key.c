/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of calls: what the arguments are, as stable JSON, and its hash. */
#include "ops/identity/write.h"
#include "record/tensors.h"

#include <string.h>

static bool is_arg(const ejk_field *field) {
    return ejk_field_is_input(field) && ejk_field_is_required(field) && ejki_is_tensor(field);
}

static bool is_kwarg(const ejk_kernel *kernel, const ejk_field *field, const void *args) {
    bool config = kernel->config_field && strcmp(field->name, kernel->config_field) == 0;
    return ejk_field_is_input(field) && !is_arg(field) && !config && ejk_record_is_set(field, args);
}

ejk_status ejki_call_check(const ejk_kernel *kernel, const void *args, const char *function) {
    if (kernel == NULL || kernel->op_id == NULL || kernel->args == NULL || args == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s: args or kernel is NULL, or lacks op_id or args", function);
    return EJK_OK;
}

ejk_status ejki_write_args(FILE *stream, const ejk_kernel *kernel, const void *args) {
    const char *separator = "";
    putc('[', stream);
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        if (!is_arg(field)) continue;
        fputs(separator, stream);
        EJKI_TRY(ejki_write_field(stream, field, args, EJK_JSON_PLAIN, 0));
        separator = ",";
    }
    putc(']', stream);
    return EJK_OK;
}

static ejk_status write_key(FILE *stream, const ejk_field *field, const char **separator) {
    fputs(*separator, stream);
    *separator = ",";
    EJKI_TRY(ejki_write_string(stream, field->name, strlen(field->name), field->name));
    putc(':', stream);
    return EJK_OK;
}

ejk_status ejki_write_kwargs(FILE *stream, const ejk_kernel *kernel, const void *args) {
    const char *separator = "";
    const ejk_field *field = NULL;
    putc('{', stream);
    while ((field = ejki_next_field(kernel->args, field)) != NULL) {
        if (!is_kwarg(kernel, field, args)) continue;
        EJKI_TRY(write_key(stream, field, &separator));
        EJKI_TRY(ejki_write_field(stream, field, args, EJK_JSON_PLAIN, EJKI_WRITE_SET_ONLY));
    }
    putc('}', stream);
    return EJK_OK;
}

/* What both kinds of keys begin with, without the closing brace. */
static ejk_status write_spec(FILE *stream, const ejk_kernel *kernel, const void *args,
                             const char *batch_axes) {
    fputs("{\"args_spec\":", stream);
    EJKI_TRY(ejki_write_args(stream, kernel, args));
    fputs(",\"batch_axes\":", stream);
    EJKI_TRY(ejki_write_json(stream, batch_axes ? batch_axes : "null", "batch_axes"));
    fputs(",\"kwargs_spec\":", stream);
    return ejki_write_kwargs(stream, kernel, args);
}

static ejk_status write_call(FILE *stream, const ejk_kernel *kernel, const void *args,
                             const char *method, const char *batch_axes) {
    if (method && strcmp(method, "shard_map") != 0)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                         "method '%.60s' given, expected NULL or shard_map", method);
    EJKI_TRY(write_spec(stream, kernel, args, batch_axes));
    fputs(method ? ",\"method\":\"shard_map\"}" : ",\"method\":null}", stream);
    return EJK_OK;
}

ejk_status ejk_call_spec(const ejk_kernel *kernel, const void *args, const char *method,
                         const char *batch_axes, char **out) {
    EJKI_TRY(ejki_call_check(kernel, args, "ejk_call_spec"));
    if (out == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_call_spec: out is NULL");
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    return ejki_text_close(&text, write_call(text.stream, kernel, args, method, batch_axes), out);
}

ejk_status ejk_call_key(const ejk_kernel *kernel, const void *args, const char *method,
                        const char *batch_axes, char out[EJK_SHORT_HASH_SIZE]) {
    EJKI_TRY(ejki_call_check(kernel, args, "ejk_call_key"));
    if (out == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_call_key: out is NULL");
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    return ejki_text_hash(&text, write_call(text.stream, kernel, args, method, batch_axes), out);
}

/* ---- With shardings -------------------------------------------------------------------------------- */

static ejk_status write_sharding(FILE *stream, const ejk_kernel *kernel, const ejk_field *field,
                                 const void *args, const char *const *shardings) {
    const char *sharding = NULL;
    if (shardings && field->kind == EJK_FIELD_TENSOR)
        sharding = ejk_sharding_fingerprint(
            (const ejk_tensor *)(const void *)((const char *)args + field->offset),
            shardings[field - kernel->args->fields]);
    if (sharding) return ejki_write_string(stream, sharding, strlen(sharding), field->name);
    fputs("null", stream);
    return EJK_OK;
}

static ejk_status write_shardings(FILE *stream, const ejk_kernel *kernel, const void *args,
                                  const char *const *shardings) {
    const ejk_field *field = NULL;
    const char *separator = "";
    fputs("{\"args\":[", stream);
    for (int32_t i = 0; i < kernel->args->count; i++) {
        field = &kernel->args->fields[i];
        if (!is_arg(field)) continue;
        fputs(separator, stream);
        EJKI_TRY(write_sharding(stream, kernel, field, args, shardings));
        separator = ",";
    }
    fputs("],\"kwargs\":{", stream);
    field = NULL;
    separator = "";
    while ((field = ejki_next_field(kernel->args, field)) != NULL) {
        if (!is_kwarg(kernel, field, args)) continue;
        EJKI_TRY(write_key(stream, field, &separator));
        EJKI_TRY(write_sharding(stream, kernel, field, args, shardings));
    }
    fputs("}}", stream);
    return EJK_OK;
}

static ejk_status write_sharded(FILE *stream, const ejk_kernel *kernel, const void *args,
                                const char *const *shardings, const char *batch_axes) {
    EJKI_TRY(write_spec(stream, kernel, args, batch_axes));
    fputs(",\"sharding\":", stream);
    EJKI_TRY(write_shardings(stream, kernel, args, shardings));
    putc('}', stream);
    return EJK_OK;
}

ejk_status ejk_default_key_builder_with_sharding(const ejk_kernel *kernel, const void *args,
                                                 const char *const *shardings,
                                                 const char *batch_axes,
                                                 char out[EJK_SHORT_HASH_SIZE]) {
    EJKI_TRY(ejki_call_check(kernel, args, "ejk_default_key_builder_with_sharding"));
    if (out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_default_key_builder_with_sharding: out is NULL");
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    return ejki_text_hash(&text, write_sharded(text.stream, kernel, args, shardings, batch_axes),
                          out);
}

ejk_status ejk_versioned_op_id(const ejk_kernel *kernel, char **out) {
    if (kernel == NULL || kernel->op_id == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_versioned_op_id: kernel, its op_id or out is NULL");
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    fprintf(text.stream, "%s@v%s", kernel->op_id, ejki_version_of(kernel));
    return ejki_text_close(&text, EJK_OK, out);
}
