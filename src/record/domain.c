/* SPDX-License-Identifier: Apache-2.0 */
/* What the values of a tensor are, as its unit says it. */
#include "record/field.h"
#include "record/line.h"
#include "record/unit.h"

static ejk_status read_unit(const char *caller, const ejk_field *field, const void *out,
                            ejki_unit *unit) {
    if (field == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: field, axes or out is NULL", caller);
    if (field->kind != EJK_FIELD_TENSOR)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: not a tensor, it has no domain",
                         field->name);
    return ejki_unit_read(field, unit);
}

static ejk_status copy_bound(const ejk_field *field, const ejki_length *bound,
                             char out[EJK_BOUND_SIZE]) {
    if (bound->size >= EJK_BOUND_SIZE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s: bound %.*s has %d bytes, expected at most %d", field->name,
                         (int)bound->size, bound->text, (int)bound->size, EJK_BOUND_SIZE - 1);
    memcpy(out, bound->text, (size_t)bound->size);
    out[bound->size] = '\0';
    return EJK_OK;
}

ejk_status ejk_field_domain(const ejk_field *field, ejk_domain *out) {
    ejki_unit unit;
    EJKI_TRY(read_unit("ejk_field_domain", field, out, &unit));
    ejk_domain domain = {unit.domain.kind, unit.domain.low_open, unit.domain.high_open, "", "", ""};
    EJKI_TRY(copy_bound(field, &unit.domain.low, domain.low));
    EJKI_TRY(copy_bound(field, &unit.domain.high, domain.high));
    EJKI_TRY(copy_bound(field, &unit.domain.step, domain.step));
    *out = domain;
    return EJK_OK;
}

/* `*out` stays where there is no bound. */
static ejk_status value_of(const ejk_field *field, const ejki_length *bound, const ejk_axes *axes,
                           int64_t *out) {
    if (bound->size == 0) return EJK_OK;
    const ejki_value value = ejki_bound_value(bound, axes);
    if (value.state == EJKI_LENGTH_KNOWN) {
        *out = value.value;
        return EJK_OK;
    }
    if (value.state != EJKI_LENGTH_NEVER)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s: the bound %.*s needs %s, which is not bound to a length", field->name,
                         (int)bound->size, bound->text, value.symbol);
    ejki_line with = {.used = 0};
    ejki_line_add_symbols(&with, bound, axes);
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: the bound %.*s is no whole number%s",
                     field->name, (int)bound->size, bound->text, with.text);
}

ejk_status ejk_field_domain_bounds(const ejk_field *field, const ejk_axes *axes,
                                   ejk_domain_bounds *out) {
    ejki_unit unit;
    EJKI_TRY(read_unit("ejk_field_domain_bounds", axes != NULL ? field : NULL, out, &unit));
    ejk_domain_bounds bounds = {INT64_MIN, INT64_MAX, INT64_MAX};
    if (unit.domain.kind == EJK_DOMAIN_SUM) bounds.low = 0;
    EJKI_TRY(value_of(field, &unit.domain.low, axes, &bounds.low));
    EJKI_TRY(value_of(field, &unit.domain.high, axes, &bounds.high));
    EJKI_TRY(value_of(field, &unit.domain.step, axes, &bounds.step));
    const ejki_element *element = ejki_element_of(unit.element);
    const bool whole = element == NULL || (element->types & EJKI_FLOAT_TYPES) == 0;
    if (whole && unit.domain.low_open && bounds.low < INT64_MAX) bounds.low++;
    if (whole && unit.domain.high_open && bounds.high > INT64_MIN) bounds.high--;
    *out = bounds;
    return EJK_OK;
}
