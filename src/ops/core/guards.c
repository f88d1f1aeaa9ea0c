/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/core/core.h"
#include "record/tensors.h"

#include <stdlib.h>

bool ejki_is_integer(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_I64 || dtype == EJK_DTYPE_I32 || dtype == EJK_DTYPE_I16 ||
           dtype == EJK_DTYPE_I8 || dtype == EJK_DTYPE_U8;
}

static int32_t count_integers(const ejk_record *record, const void *args) {
    int32_t count = 0;
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        const ejk_tensor *tensor = ejki_walk_tensor(&w, args);
        count += tensor && ejki_is_integer(tensor->dtype);
    }
    return count;
}

/* Values of inputs that units speak of. */
static ejk_status list_rules(const ejk_record *record, const void *args, const ejk_axes *axes,
                             ejki_guards *out) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        const ejk_tensor *tensor = ejki_walk_tensor(&w, args);
        if (!tensor || !ejki_is_integer(tensor->dtype) || !ejk_field_is_input(w.field)) continue;
        ejki_guard *guard = &out->list[out->count];
        *guard = (ejki_guard){.name = w.field->name, .member = w.member, .offset = w.offset};
        EJKI_TRY(
            ejki_domain_resolve(w.owner, w.field, w.member, tensor->dtype, axes, &guard->rule));
        out->count += guard->rule.kind != EJK_DOMAIN_NONE;
    }
    return EJK_OK;
}

ejk_status ejki_guards_create(const ejk_kernel *kernel, const void *args, const ejk_axes *axes,
                              ejki_guards **out) {
    const int32_t integers = count_integers(kernel->args, args);
    *out = NULL;
    if (integers == 0) return EJK_OK;
    ejki_guards *guards = calloc(1, sizeof *guards + (size_t)integers * sizeof *guards->list);
    if (!guards) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the checks of a plan");
    guards->validate = kernel->validate;
    const ejk_status status = list_rules(kernel->args, args, axes, guards);
    if (status == EJK_OK && (guards->validate || guards->count > 0))
        *out = guards;
    else
        free(guards);
    return status;
}

static ejk_status check_member(const ejki_guard *guard, const ejk_tensor *tensor) {
    char name[EJKI_PREFIX_SIZE];
    if (guard->member < 0) return ejki_domain_verify(&guard->rule, guard->name, tensor);
    ejki_member_name(guard->name, guard->member, name);
    return ejki_domain_verify(&guard->rule, name, tensor);
}

ejk_status ejki_guards_check(const ejki_guards *guards, const void *args, const void *problem) {
    for (int32_t i = 0; i < guards->count; i++)
        EJKI_TRY(check_member(&guards->list[i],
                              (const void *)((const char *)args + guards->list[i].offset)));
    return guards->validate ? guards->validate(problem) : EJK_OK;
}
