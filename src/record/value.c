/* SPDX-License-Identifier: Apache-2.0 */
/* Values of fields, the table of kinds, and finding a field by its name. */
#include "record/field.h"
#include "record/line.h"

#define KIND(word, expected, type)                                                                 \
    { word, expected, sizeof(type), _Alignof(type) }

static const ejki_kind kinds[] = {
    [EJK_FIELD_BOOL] = KIND("bool", "true or false", bool),
    [EJK_FIELD_INT] = KIND("int", "a whole number of 64 bits", int64_t),
    [EJK_FIELD_FLOAT] = KIND("float", "a finite number", double),
    [EJK_FIELD_OPT_BOOL] = KIND("bool", "true or false", ejk_opt_bool),
    [EJK_FIELD_OPT_INT] = KIND("int", "a whole number of 64 bits", ejk_opt_int),
    [EJK_FIELD_OPT_FLOAT] = KIND("float", "a finite number", ejk_opt_float),
    [EJK_FIELD_WINDOW] = KIND(
        "window", "two whole numbers, left and right, of which one may be left out", ejk_window),
    [EJK_FIELD_NAME] = KIND("name", "a text of fewer than 48 bytes", char[EJK_NAME_SIZE]),
    [EJK_FIELD_DTYPE] = KIND("dtype", "an element type, as \"float32\"", ejk_dtype),
    [EJK_FIELD_TENSOR] =
        KIND("tensor", "{\"dtype\": name, \"shape\": [at most 8 lengths]} of addressable size",
             ejk_tensor),
    [EJK_FIELD_RECORD] = {"record", "an object", 0, 1},
};
_Static_assert(EJK_NAME_SIZE == 48, "the sentence about names says 48");
_Static_assert(EJK_MAX_RANK == 8, "the sentence about tensors says 8");

ejk_opt_int ejk_int(int64_t value) {
    return (ejk_opt_int){.value = value, .set = true};
}

ejk_opt_float ejk_float(double value) {
    return (ejk_opt_float){.value = value, .set = true};
}

ejk_window ejk_window_of(int64_t left, int64_t right) {
    return (ejk_window){.left = ejk_int(left), .right = ejk_int(right)};
}

const ejki_kind *ejki_kind_of(ejk_field_kind kind) {
    return (size_t)kind < sizeof kinds / sizeof *kinds ? &kinds[kind] : NULL;
}

size_t ejki_field_size(const ejk_field *field) {
    return field->kind == EJK_FIELD_RECORD ? field->record->size : kinds[field->kind].size;
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
    const void *place = ejki_place(field, object);
    switch (field->kind) {
    case EJK_FIELD_WINDOW: {
        const ejk_window *window = place;
        return window->left.set || window->right.set;
    }
    case EJK_FIELD_NAME: return *(const char *)place != '\0';
    case EJK_FIELD_TENSOR: return ((const ejk_tensor *)place)->dtype != EJK_DTYPE_UNSET;
    case EJK_FIELD_RECORD:
        for (int32_t i = 0; i < field->record->count; i++)
            if (ejk_record_is_set(&field->record->fields[i], place)) return true;
        return false;
    default: {
        uint64_t word;
        return ejki_scalar(field->kind, place, &word);
    }
    }
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
