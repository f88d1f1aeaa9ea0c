/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a description once, so that everything else may trust it: all other files of this room take a
 * record as it is and guard only against what the object holds.
 */
#include "record/field.h"
#include "record/symbols.h"
#include "record/unit.h"

static bool letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool identifier(const char *name) {
    if (name == NULL || !letter(*name)) return false;
    for (; *name != '\0'; name++)
        if (!letter(*name) && !(*name >= '0' && *name <= '9')) return false;
    return true;
}

/* The element type of a tensor may be that of another tensor, and so on, but has to end in a type. */
static ejk_status check_element(const ejk_record *record, const ejk_field *field) {
    const ejk_field *at = field;
    for (int32_t steps = 0; steps <= record->count; steps++) {
        ejki_unit unit;
        EJKI_TRY(ejki_unit_read(at, &unit));
        if (ejki_element_of(unit.element) != NULL) return EJK_OK;
        at = ejki_own_field(record, unit.element, strlen(unit.element));
        if (at == NULL || !ejki_is_tensor(at))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s.%s: unit \"%s\" ends in \"%s\", which is neither an element type "
                             "nor a tensor of the record",
                             record->name, field->name, field->unit, unit.element);
    }
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s.%s: unit \"%s\" takes its element type from itself", record->name,
                     field->name, field->unit);
}

/* What a field says by itself. */
static ejk_status check_words(const ejk_record *record, const ejk_field *field) {
    const ejk_status bad = EJK_STATUS_INVALID_ARGUMENT;
    if (!identifier(field->name))
        return ejki_fail(bad, "%s: field name \"%s\" is not an identifier", record->name,
                         field->name == NULL ? "NULL" : field->name);
    if (ejki_kind_of(field->kind) == NULL)
        return ejki_fail(bad, "%s.%s: kind %d does not exist", record->name, field->name,
                         (int)field->kind);
    if ((unsigned)field->role > EJK_REQUIRED_INOUT)
        return ejki_fail(bad, "%s.%s: role %d does not exist", record->name, field->name,
                         (int)field->role);
    if (ejk_field_is_output(field) && field->kind != EJK_FIELD_TENSOR)
        return ejki_fail(bad, "%s.%s: a %s cannot be an output, only a tensor can", record->name,
                         field->name, ejki_kind_of(field->kind)->word);
    if (field->fallback == NULL || field->unit == NULL || field->doc == NULL)
        return ejki_fail(bad, "%s.%s: fallback, unit or doc is NULL", record->name, field->name);
    if ((field->kind == EJK_FIELD_RECORD) != (field->record != NULL))
        return ejki_fail(bad, "%s.%s: a nested record, and only that, needs its own description",
                         record->name, field->name);
    return EJK_OK;
}

/* Where a field lies: inside the struct, aligned, and apart from the fields before it. */
static ejk_status check_place(const ejk_record *record, int32_t index, size_t base) {
    const ejk_status bad = EJK_STATUS_INVALID_ARGUMENT;
    const ejk_field *field = &record->fields[index];
    size_t size = ejk_field_size(field);
    if (size > record->size || field->offset > record->size - size)
        return ejki_fail(bad, "%s.%s: bytes %zu to %zu lie outside the struct of %zu bytes",
                         record->name, field->name, field->offset, field->offset + size,
                         record->size);
    if ((base + field->offset) % ejki_kind_of(field->kind)->alignment != 0)
        return ejki_fail(bad, "%s.%s: offset %zu is not aligned for a %s", record->name,
                         field->name, base + field->offset, ejki_kind_of(field->kind)->word);
    for (int32_t i = 0; i < index; i++) {
        const ejk_field *other = &record->fields[i];
        if (strcmp(other->name, field->name) == 0)
            return ejki_fail(bad, "%s.%s: two fields have this name", record->name, field->name);
        if (field->offset < other->offset + ejk_field_size(other) &&
            other->offset < field->offset + size)
            return ejki_fail(bad, "%s.%s: overlaps %s", record->name, field->name, other->name);
    }
    return EJK_OK;
}

static ejk_status check(const ejk_record *record, size_t base, int depth) {
    const ejk_status bad = EJK_STATUS_INVALID_ARGUMENT;
    if (record == NULL || !identifier(record->name))
        return ejki_fail(bad, "record: a description with an identifier as its name expected");
    if (record->count < 0 || (record->count > 0 && record->fields == NULL))
        return ejki_fail(bad, "%s: %d fields, but none given", record->name, (int)record->count);
    if (depth == EJKI_RECORD_DEPTH)
        return ejki_fail(bad, "%s: records are nested deeper than %d", record->name,
                         EJKI_RECORD_DEPTH);
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        EJKI_TRY(check_words(record, field));
        EJKI_TRY(check_place(record, i, base));
        if (field->kind == EJK_FIELD_RECORD)
            EJKI_TRY(check(field->record, base + field->offset, depth + 1));
    }
    for (int32_t i = 0; i < record->count; i++)
        if (ejki_is_tensor(&record->fields[i])) EJKI_TRY(check_element(record, &record->fields[i]));
    return EJK_OK;
}

/* A bound of a domain is made of what a call binds: symbols of shapes and integer fields. */
typedef struct binding {
    const ejk_record *record;
    const ejk_field *field;
    const ejk_axes *symbols;
} binding;

static ejk_status check_length(const ejki_length *length, void *user) {
    const binding *b = user;
    char symbol[EJK_SYMBOL_SIZE];
    for (const char *at = length->text; ejki_length_symbol(length, &at, symbol);) {
        const ejk_field *named = ejki_own_field(b->record, symbol, strlen(symbol));
        const bool whole =
            named && (named->kind == EJK_FIELD_INT || named->kind == EJK_FIELD_OPT_INT);
        if (!whole && ejk_axes_get(b->symbols, symbol) < 0)
            return ejki_fail(
                EJK_STATUS_INVALID_ARGUMENT,
                "%s.%s: unit \"%s\" has the bound %.*s, but %s is neither a symbol of a "
                "shape nor an integer field",
                b->record->name, b->field->name, b->field->unit, (int)length->size, length->text,
                symbol);
    }
    return EJK_OK;
}

static ejk_status check_domains(const ejk_record *record, const ejk_axes *symbols) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        binding b = {w.owner, w.field, symbols};
        ejki_unit unit;
        ejk_domain unused;
        if (w.member < 0 && strchr(w.field->unit, '#') != NULL)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s.%s: unit \"%s\" has \"#\", which only the unit of a list may",
                             w.owner->name, w.field->name, w.field->unit);
        EJKI_TRY(ejki_unit_read_member(w.field, w.member, &unit));
        EJKI_TRY(ejki_unit_lengths(&unit, true, check_length, &b));
        EJKI_TRY(ejk_field_domain(w.field, &unused));
    }
    return EJK_OK;
}

ejk_status ejk_record_check(const ejk_record *record) {
    ejk_axes symbols;
    EJKI_TRY(check(record, 0, 0));
    EJKI_TRY(ejk_record_symbols(record, NULL, &symbols));
    EJKI_TRY(ejki_symbols_check(record, &symbols));
    return check_domains(record, &symbols);
}
