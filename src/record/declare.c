/* SPDX-License-Identifier: Apache-2.0 */
/* What a tensor that does not exist yet has to be like: the symbols of its shape, its element type. */
#include "record/field.h"
#include "record/unit.h"

static ejk_status add_length(const ejki_length *length, void *axes) {
    char symbol[EJK_SYMBOL_SIZE];
    for (const char *at = length->text; ejki_length_symbol(length, &at, symbol);)
        EJKI_TRY(ejk_axes_set(axes, symbol, 0));
    return EJK_OK;
}

static ejk_status add_symbols(const ejk_record *record, const void *object, ejk_axes *axes) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        ejki_unit unit;
        if (object && !ejk_tensor_present(ejki_walk_tensor(&w, object))) continue;
        EJKI_TRY(ejki_unit_read_member(w.field, w.member, &unit));
        EJKI_TRY(ejki_unit_lengths(&unit, false, add_length, axes));
    }
    return EJK_OK;
}

ejk_status ejk_record_symbols(const ejk_record *record, const void *object, ejk_axes *out) {
    if (record == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_record_symbols: record or out is NULL");
    ejk_axes axes = {.count = 0};
    EJKI_TRY(add_symbols(record, object, &axes));
    *out = axes;
    return EJK_OK;
}

/* The type that stands for a group. */
static ejk_dtype type_of(const ejki_element *element, ejk_dtype number) {
    if (strcmp(element->word, "float") == 0) return number;
    if (strcmp(element->word, "element") == 0) return number;
    if (strcmp(element->word, "int") == 0) return EJK_DTYPE_I32;
    if (strcmp(element->word, "index") == 0) return EJK_DTYPE_I32;
    if (strcmp(element->word, "bool") == 0) return EJK_DTYPE_BOOL;
    if (strcmp(element->word, "float8") == 0) return EJK_DTYPE_F8E4M3;
    if (strcmp(element->word, "codes") == 0) return EJK_DTYPE_U32;
    if (strcmp(element->word, "words") == 0) return EJK_DTYPE_U8;
    if (strcmp(element->word, "scales") == 0 || strcmp(element->word, "zeros") == 0)
        return EJK_DTYPE_F16;
    for (uint32_t dtype = 1; dtype < 32; dtype++)
        if (element->types == UINT32_C(1) << dtype) return (ejk_dtype)dtype;
    return EJK_DTYPE_UNSET;
}

ejk_status ejk_field_dtype(const ejk_record *record, const ejk_field *field, const void *object,
                           ejk_dtype number, ejk_dtype *out) {
    const ejk_status bad = EJK_STATUS_INVALID_ARGUMENT;
    if (record == NULL || field == NULL || out == NULL)
        return ejki_fail(bad, "ejk_field_dtype: record, field or out is NULL");
    if (!ejki_is_tensor(field))
        return ejki_fail(bad, "%s: not a tensor, it has no element type", field->name);
    const ejk_field *at = field;
    for (int32_t steps = 0; steps <= record->count && at != NULL; steps++) {
        ejki_unit unit;
        EJKI_TRY(ejki_unit_read(at, &unit));
        const ejki_element *element = ejki_element_of(unit.element);
        if (element != NULL) {
            *out = type_of(element, number);
            return EJK_OK;
        }
        at = ejki_own_field(record, unit.element, strlen(unit.element));
        if (at == NULL || !ejki_is_tensor(at)) break;
        const ejk_dtype given = ejki_dtype_of(at, object);
        if (given == EJK_DTYPE_UNSET) continue;
        *out = given;
        return EJK_OK;
    }
    return ejki_fail(bad, "%s: unit of %s names no element type", field->name, record->name);
}
