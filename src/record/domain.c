/* SPDX-License-Identifier: Apache-2.0 */
/* What the values of a tensor are, as its unit says it. */
#include "record/domain.h"
#include "record/field.h"
#include "record/line.h"
#include "record/unit.h"
#include "tensor/access.h"

static ejk_status read_unit(const char *caller, const ejk_field *field, const void *out,
                            ejki_unit *unit) {
    if (field == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: field, axes or out is NULL", caller);
    if (!ejki_is_tensor(field))
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
    if (bound->size > 0) memcpy(out, bound->text, (size_t)bound->size);
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

/* The bounds as they are written. */
static ejk_status bounds_of(const ejk_field *field, const ejki_unit *unit, const ejk_axes *axes,
                            ejki_domain_rule *out) {
    *out = (ejki_domain_rule){.kind = unit->domain.kind,
                              .low_excluded = unit->domain.low_open,
                              .high_excluded = unit->domain.high_open,
                              .low = INT64_MIN,
                              .high = INT64_MAX,
                              .step = INT64_MAX};
    if (out->kind == EJK_DOMAIN_SUM) out->low = 0;
    EJKI_TRY(value_of(field, &unit->domain.low, axes, &out->low));
    EJKI_TRY(value_of(field, &unit->domain.high, axes, &out->high));
    return value_of(field, &unit->domain.step, axes, &out->step);
}

/* Bounds that are allowed themselves. */
static void close_bounds(ejki_domain_rule *rule) {
    if (rule->low_excluded && rule->low < INT64_MAX) rule->low++;
    if (rule->high_excluded && rule->high > INT64_MIN) rule->high--;
    rule->low_excluded = rule->high_excluded = false;
}

ejk_status ejk_field_domain_bounds(const ejk_field *field, const ejk_axes *axes,
                                   ejk_domain_bounds *out) {
    ejki_unit unit;
    ejki_domain_rule rule;
    EJKI_TRY(read_unit("ejk_field_domain_bounds", axes != NULL ? field : NULL, out, &unit));
    EJKI_TRY(bounds_of(field, &unit, axes, &rule));
    const ejki_element *element = ejki_element_of(unit.element);
    if (element == NULL || (element->types & EJKI_FLOAT_TYPES) == 0) close_bounds(&rule);
    *out = (ejk_domain_bounds){rule.low, rule.high, rule.step};
    return EJK_OK;
}

ejk_status ejki_domain_resolve(const ejk_record *record, const ejk_field *field, int32_t member,
                               ejk_dtype dtype, const ejk_axes *axes, ejki_domain_rule *out) {
    ejki_unit unit;
    ejk_axes complete = *axes;
    EJKI_TRY(ejki_unit_read_member(field, member, &unit));
    EJKI_TRY(ejk_record_complete(record, &complete));
    EJKI_TRY(bounds_of(field, &unit, &complete, out));
    if (!ejki_is_float(dtype)) close_bounds(out);
    return EJK_OK;
}

ejk_status ejki_domain_fill(const ejk_record *record, const ejk_field *field, int32_t member,
                            const ejk_tensor *tensor, const ejk_axes *axes, uint64_t seed,
                            int32_t index, bool *filled) {
    ejki_domain_rule rule;
    EJKI_TRY(ejki_domain_resolve(record, field, member, tensor->dtype, axes, &rule));
    *filled = rule.kind != EJK_DOMAIN_NONE;
    return *filled ? ejki_domain_generate(&rule, field->name, tensor, seed, index) : EJK_OK;
}
