/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON to records. A struct is filled aside and copied when all of it was read, so that a failure
 * leaves the caller's as it was. One sentence serves all kinds.
 */
#include "record/field.h"
#include "record/line.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHOWN = 60 }; /* bytes of a wrong value that a sentence shows */

/* Takes the pieces of a value's JSON until enough is there; -1 ends the writing. */
static int take_piece(const char *piece, size_t size, void *line) {
    ejki_line *given = line;
    ejki_line_add(given, "%.*s", size > SHOWN ? SHOWN + 1 : (int)size, piece);
    return given->used > SHOWN ? -1 : 0;
}

/* "<path>: <value> given, expected <what the kind takes>" */
static ejk_status refuse(const ejk_field *field, const json_t *value, const char *prefix) {
    ejki_line given = {.used = 0};
    json_dump_callback(value, take_piece, &given,
                       JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    return ejki_fail(EJK_STATUS_MALFORMED, "%s%s: %.*s%s given, expected %s", prefix, field->name,
                     (int)SHOWN, given.text, given.used > SHOWN ? "…" : "",
                     ejki_kind_of(field->kind)->expected);
}

static ejk_status read_record(const ejk_record *record, json_t *value, const char *prefix,
                              void *object) {
    const char *key;
    json_t *member;
    json_object_foreach(value, key, member) {
        const ejk_field *field = ejki_own_field(record, key, strlen(key));
        if (field == NULL) {
            char path[EJKI_PREFIX_SIZE];
            snprintf(path, sizeof path, "%s%s", prefix, key);
            return ejki_fail_unknown(EJK_STATUS_MALFORMED, record, path);
        }
        EJKI_TRY(ejki_json_read(field, member, prefix, (char *)object + field->offset));
    }
    return EJK_OK;
}

ejk_status ejki_json_read(const ejk_field *field, json_t *value, const char *prefix, void *place) {
    if (json_is_null(value)) return EJK_OK;
    const ejki_kind *kind = ejki_kind_of(field->kind);
    if (kind->read != NULL) return kind->read(value, place) ? EJK_OK : refuse(field, value, prefix);
    if (!json_is_object(value)) return refuse(field, value, prefix);
    char inner[EJKI_PREFIX_SIZE];
    snprintf(inner, sizeof inner, "%s%s.", prefix, field->name);
    return read_record(field->record, value, inner, place);
}

ejk_status ejk_record_from_json(const ejk_record *record, const char *json, void *object) {
    if (record == NULL || json == NULL || object == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_record_from_json: record, json or object is NULL");
    json_error_t error;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        /* The parser has no words for want of memory, where it does not take it for a wrong token. */
        if (error.text[0] == '\0')
            return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %s's JSON could not be had",
                             record->name);
        return ejki_fail(EJK_STATUS_MALFORMED, "%s: JSON line %d, column %d: %s", record->name,
                         error.line, error.column, error.text);
    }
    ejk_status status;
    void *aside = ejki_aside(record->size);
    if (aside == NULL)
        status = ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "%zu bytes for a %s could not be had",
                           record->size, record->name);
    else if (!json_is_object(root))
        status =
            ejki_fail(EJK_STATUS_MALFORMED, "%s: an array given, expected an object", record->name);
    else
        status = read_record(record, root, "", aside);
    if (status == EJK_OK) memcpy(object, aside, record->size);
    free(aside);
    json_decref(root);
    return status;
}
