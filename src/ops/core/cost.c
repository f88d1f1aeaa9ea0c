/* SPDX-License-Identifier: Apache-2.0 */
/* What a call costs by its data. */
#include "ops/core/core.h"
#include "ops/core/mirror.h"
#include "ops/core/problem_text.h"

#include <stdlib.h>
#include <string.h>

/* A call whose integers and masks are on the CPU. */
typedef struct view {
    ejki_slots slots;
    char *args;
    ejki_mirror *mirrors; /* one a slot */
    bool lacks;           /* integers without data */
} view;

static ejk_status open_view(const ejk_plan *plan, const void *args, view *v) {
    const size_t size = plan->kernel->args->size;
    EJKI_TRY(ejki_slots_create(plan->kernel->args, args, &v->slots));
    v->args = malloc(size + 1);
    v->mirrors = calloc((size_t)v->slots.count + 1, sizeof *v->mirrors);
    if (!v->args || !v->mirrors)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a copy of a call");
    memcpy(v->args, args, size);
    for (int32_t i = 0; i < v->slots.count; i++) {
        ejk_tensor *tensor = ejki_slot_tensor(&v->slots.list[i], v->args);
        const bool integer = ejki_is_integer(tensor->dtype);
        if (!integer && tensor->dtype != EJK_DTYPE_BOOL) continue;
        v->lacks |= integer && !tensor->data && ejk_tensor_count(tensor) > 0;
        if (!tensor->data || tensor->device_type == EJK_DEVICE_CPU) continue;
        EJKI_TRY(ejki_mirror_open(tensor, true, &v->mirrors[i]));
        *tensor = v->mirrors[i].view;
    }
    return EJK_OK;
}

static void close_view(view *v) {
    for (int32_t i = 0; v->mirrors && i < v->slots.count; i++) free(v->mirrors[i].bytes);
    free(v->mirrors);
    free(v->args);
    free(v->slots.list);
}

/* As before a run on the CPU, wherever the call lies. */
static ejk_status check(const ejk_plan *plan, const view *v, const void *problem) {
    ejki_guards *guards = NULL;
    ejk_axes axes = {.count = 0};
    void *bare = malloc(plan->kernel->args->size + 1);
    if (!bare) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a copy of a call");
    memcpy(bare, v->args, plan->kernel->args->size);
    for (int32_t i = 0; i < v->slots.count; i++) {
        ejk_tensor *tensor = ejki_slot_tensor(&v->slots.list[i], bare);
        tensor->device_type = EJK_DEVICE_CPU; /* what is copied lies beside what is not */
        tensor->device_index = 0;
    }
    ejk_status status = ejki_slots_bind(plan->kernel->args, &v->slots, bare, true, &axes);
    free(bare);
    if (status == EJK_OK) status = ejki_guards_create(plan->kernel, v->args, &axes, &guards);
    if (status == EJK_OK && guards) status = ejki_guards_check(guards, v->args, problem);
    free(guards);
    return status;
}

static ejk_status count(const ejk_plan *plan, const view *v, ejk_cost *out) {
    _Alignas(EJKI_ALIGNMENT) unsigned char memory[EJK_MAX_PROBLEM_SIZE];
    const ejk_kernel *kernel = plan->kernel;
    const void *problem = v->args;
    if (plan->problem) {
        memcpy(memory, plan->problem, kernel->problem_size);
        kernel->bind(v->args, memory);
        problem = memory;
    }
    EJKI_TRY(check(plan, v, problem));
    kernel->cost(problem, v->args, out);
    return EJK_OK;
}

ejk_status ejk_plan_cost_of(const ejk_plan *plan, const void *args, ejk_cost *out) {
    if (!plan || !args || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !plan   ? "plan"
                         : !args ? "args"
                                 : "out");
    if (!ejki_plan_fits(plan, args))
        return ejki_signature_explain(plan->kernel->args, plan->args, args);
    view v = {.args = NULL};
    ejk_cost cost = plan->cost;
    ejk_status status = plan->kernel->cost ? open_view(plan, args, &v) : EJK_OK;
    if (status == EJK_OK && plan->kernel->cost && !v.lacks) status = count(plan, &v, &cost);
    close_view(&v);
    if (status == EJK_OK) *out = cost;
    return status;
}
