/* SPDX-License-Identifier: Apache-2.0 */
/* Records to JSON. Constructors of jansson answer NULL for want of memory, which what takes it notices. */
#include "record/field.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static ejk_status write_record(const ejk_record *record, const void *object, const char *prefix,
                               int flags, json_t **out);

static ejk_status out_of_memory(void) {
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a record's JSON could not be had");
}

/* The value of a field that is set, or a nested record. */
static ejk_status write_value(const ejk_field *field, const void *place, const char *prefix,
                              int flags, json_t **out) {
    const ejki_kind *kind = ejki_kind_of(field->kind);
    if (kind->write != NULL) return kind->write(field, place, prefix, out);
    char inner[EJKI_PREFIX_SIZE];
    snprintf(inner, sizeof inner, "%s%s.", prefix, field->name);
    return write_record(field->record, place, inner, flags, out);
}

static ejk_status write_record(const ejk_record *record, const void *object, const char *prefix,
                               int flags, json_t **out) {
    json_t *result = json_object();
    ejk_status status = EJK_OK;
    for (int32_t i = 0; i < record->count && status == EJK_OK; i++) {
        const ejk_field *field = &record->fields[i];
        bool set = ejk_record_is_set(field, object);
        if (!set && (flags & EJK_JSON_SET_ONLY) != 0) continue;
        json_t *value = NULL;
        if (set || field->kind == EJK_FIELD_RECORD || ejki_kind_of(field->kind)->always_set)
            status = write_value(field, ejki_field_address(field, object), prefix, flags, &value);
        else
            value = json_null();
        if (status == EJK_OK && json_object_set_new(result, field->name, value) != 0)
            status = out_of_memory();
    }
    if (status == EJK_OK && result == NULL) status = out_of_memory();
    if (status == EJK_OK)
        *out = result;
    else
        json_decref(result);
    return status;
}

/* Through a stream of our own: jansson's allocator may be the application's, ejk_free() is free(). */
static ejk_status print(const json_t *json, int flags, char **out) {
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (stream == NULL) return out_of_memory();
    size_t layout = (flags & EJK_JSON_INDENT) != 0 ? JSON_INDENT(2) : JSON_COMPACT;
    bool written = json_dumpf(json, stream, JSON_SORT_KEYS | JSON_ENSURE_ASCII | layout) == 0;
    if (fclose(stream) != 0 || !written) {
        free(text);
        return out_of_memory();
    }
    *out = text;
    return EJK_OK;
}

ejk_status ejk_record_to_json(const ejk_record *record, const void *object, int flags, char **out) {
    if (record == NULL || object == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_record_to_json: record, object or out is NULL");
    json_t *json = NULL;
    EJKI_TRY(write_record(record, object, "", flags, &json));
    ejk_status status = print(json, flags, out);
    json_decref(json);
    return status;
}
