/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/core/core.h"
#include "ops/core/problem_text.h"

#include <stdlib.h>

bool ejki_is_integer(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_I64 || dtype == EJK_DTYPE_I32 || dtype == EJK_DTYPE_I16 ||
           dtype == EJK_DTYPE_I8 || dtype == EJK_DTYPE_U8;
}

static bool has_integers(const ejk_record *record, const void *args) {
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        const void *place = (const char *)args + field->offset;
        if (field->kind == EJK_FIELD_RECORD && has_integers(field->record, place)) return true;
        const ejk_tensor *tensor = place;
        if (field->kind == EJK_FIELD_TENSOR && ejki_is_integer(tensor->dtype)) return true;
    }
    return false;
}

/* Values of inputs that units speak of. */
static ejk_status list_rules(const ejki_slots *slots, const void *args, const ejk_axes *axes,
                             ejki_guards *out) {
    for (int32_t i = 0; i < slots->count; i++) {
        const ejki_slot *slot = &slots->list[i];
        const ejk_tensor *tensor = (const void *)((const char *)args + slot->offset);
        ejki_guard *guard = &out->list[out->count];
        if (!ejki_is_integer(tensor->dtype) || !ejk_field_is_input(slot->field)) continue;
        EJKI_TRY(ejki_domain_resolve(slot->owner, slot->field, tensor->dtype, axes, &guard->rule));
        if (guard->rule.kind == EJK_DOMAIN_NONE) continue;
        guard->name = slot->field->name;
        guard->offset = slot->offset;
        out->count++;
    }
    return EJK_OK;
}

static ejk_status create(const ejk_kernel *kernel, const void *args, const ejk_axes *axes,
                         const ejki_slots *slots, ejki_guards **out) {
    ejki_guards *guards = calloc(1, sizeof *guards + (size_t)slots->count * sizeof *guards->list);
    if (!guards) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the checks of a plan");
    guards->validate = kernel->validate;
    const ejk_status status = guards->validate ? EJK_OK : list_rules(slots, args, axes, guards);
    if (status == EJK_OK && (guards->validate || guards->count > 0))
        *out = guards;
    else
        free(guards);
    return status;
}

ejk_status ejki_guards_create(const ejk_kernel *kernel, const void *args, const ejk_axes *axes,
                              ejki_guards **out) {
    ejki_slots slots;
    *out = NULL;
    if (!has_integers(kernel->args, args)) return EJK_OK;
    EJKI_TRY(ejki_slots_create(kernel->args, &slots));
    const ejk_status status = create(kernel, args, axes, &slots, out);
    free(slots.list);
    return status;
}

ejk_status ejki_guards_check(const ejki_guards *guards, const void *args, const void *problem) {
    if (guards->validate) return guards->validate(problem);
    for (int32_t i = 0; i < guards->count; i++) {
        const ejki_guard *guard = &guards->list[i];
        EJKI_TRY(ejki_domain_verify(&guard->rule, guard->name,
                                    (const void *)((const char *)args + guard->offset)));
    }
    return EJK_OK;
}
