/* SPDX-License-Identifier: Apache-2.0 */
/* Values of fields, and finding a field by its name. */
#include "record/field.h"
#include "record/line.h"

ejk_opt_int ejk_int(int64_t value) {
    return (ejk_opt_int){.value = value, .set = true};
}

ejk_opt_float ejk_float(double value) {
    return (ejk_opt_float){.value = value, .set = true};
}

ejk_window ejk_window_of(int64_t left, int64_t right) {
    return (ejk_window){.left = ejk_int(left), .right = ejk_int(right)};
}

const ejk_field *ejki_own_field(const ejk_record *record, const char *name, size_t length) {
    for (int32_t i = 0; i < record->count; i++) {
        const char *own = record->fields[i].name;
        if (strncmp(own, name, length) == 0 && own[length] == '\0') return &record->fields[i];
    }
    return NULL;
}

const ejk_field *ejk_record_find(const ejk_record *record, const char *path, size_t *offset_out) {
    if (record == NULL || path == NULL) return NULL;
    for (size_t offset = 0;;) {
        size_t length = strcspn(path, ".");
        const ejk_field *field = ejki_own_field(record, path, length);
        if (field == NULL) return NULL;
        offset += field->offset;
        if (path[length] == '\0') {
            if (offset_out != NULL) *offset_out = offset;
            return field;
        }
        if (field->kind != EJK_FIELD_RECORD) return NULL;
        record = field->record;
        path += length + 1;
    }
}

bool ejk_record_is_set(const ejk_field *field, const void *object) {
    if (field == NULL || object == NULL) return false;
    const void *place = ejki_field_address(field, object);
    if (field->kind == EJK_FIELD_RECORD) {
        for (int32_t i = 0; i < field->record->count; i++)
            if (ejk_record_is_set(&field->record->fields[i], place)) return true;
        return false;
    }
    const ejki_kind *kind = ejki_kind_of(field->kind);
    uint64_t word;
    return kind->set != NULL ? kind->set(place) : ejki_scalar(field->kind, place, &word);
}

bool ejk_field_is_input(const ejk_field *field) {
    return field != NULL && field->role != EJK_OUTPUT && field->role != EJK_REQUIRED_OUTPUT;
}

bool ejk_field_is_output(const ejk_field *field) {
    return field != NULL && field->role != EJK_OPTIONAL && field->role != EJK_REQUIRED;
}

bool ejk_field_is_required(const ejk_field *field) {
    return field != NULL && (field->role == EJK_REQUIRED || field->role == EJK_REQUIRED_OUTPUT ||
                             field->role == EJK_REQUIRED_INOUT);
}

ejk_status ejki_fail_unknown(ejk_status status, const ejk_record *record, const char *path) {
    ejki_line names = {.used = 0};
    for (int32_t i = 0; i < record->count; i++) {
        ejki_line_separate(&names, ", ");
        ejki_line_add(&names, "%s", record->fields[i].name);
    }
    return ejki_fail(status, "%.80s: no such field; %s has %s", path, record->name, names.text);
}
