/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A field from a command line's text: the text is turned into the JSON it stands for and read by what
 * reads JSON, so that both take and refuse the same values, whatever the locale.
 */
#include "record/field.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* NULL for a text that is no JSON. */
static json_t *parse(const char *text) {
    return json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
}

static json_t *json_of(ejk_field_kind kind, const char *text) {
    const ejki_kind *known = ejki_kind_of(kind);
    return known->parse != NULL ? known->parse(text) : parse(text);
}

static ejk_status set(const ejk_field *field, const char *path, const char *text, void *place) {
    json_t *json = json_of(field->kind, text);
    if (json == NULL)
        return ejki_fail(EJK_STATUS_MALFORMED, "%s: \"%.60s\" given, expected %s", path, text,
                         ejki_kind_of(field->kind)->expected);
    size_t size = ejk_field_size(field);
    void *aside = ejki_aside(size);
    ejk_status status = EJK_STATUS_OUT_OF_MEMORY;
    if (aside == NULL) {
        ejki_fail(status, "%s: %zu bytes could not be had", path, size);
    } else {
        char outer[EJKI_PREFIX_SIZE];
        snprintf(outer, sizeof outer, "%.*s", (int)(strlen(path) - strlen(field->name)), path);
        status = ejki_json_read(field, json, outer, aside);
    }
    if (status == EJK_OK) memcpy(place, aside, size);
    free(aside);
    json_decref(json);
    return status;
}

ejk_status ejk_record_set_text(const ejk_record *record, void *object, const char *path,
                               const char *text) {
    if (record == NULL || object == NULL || path == NULL || text == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_record_set_text: record, object, path or text is NULL");
    char name[EJKI_PREFIX_SIZE];
    if (snprintf(name, sizeof name, "%s", path) >= (int)sizeof name)
        return ejki_fail_unknown(EJK_STATUS_UNKNOWN_NAME, record, path);
    for (char *c = name; *c != '\0'; c++)
        if (*c == '-') *c = '_';
    size_t offset;
    const ejk_field *field = ejk_record_find(record, name, &offset);
    if (field == NULL) return ejki_fail_unknown(EJK_STATUS_UNKNOWN_NAME, record, name);
    if (ejki_is_tensor(field))
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "%s: \"%.60s\" given, but a tensor cannot be set from text; load it from "
                         "a file",
                         name, text);
    return set(field, name, text, (char *)object + offset);
}
