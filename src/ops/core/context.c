/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The list is only ever appended to, so that reading it needs no lock. */
struct ejki_kernel_node {
    const ejk_kernel *kernel;
    _Atomic(ejki_kernel_node *) next;
};

/* Operations that later versions bring. */
static const char *const later[] = {
    "ring_attention",
    "mla_attention",
};

const char *const *ejki_later_operations(int32_t *count) {
    *count = (int32_t)(sizeof later / sizeof *later);
    return later;
}

static ejk_status make_threads(const ejk_context_options *options, ejk_threads **out) {
    if (!options->parallel_for) return ejk_threads_create(options->threads, out);
    int32_t count = options->threads ? options->threads : ejk_threads_default();
    return ejk_threads_wrap(options->parallel_for, options->parallel_for_user, count, out);
}

static ejk_status pick_isa(const char *name, ejk_isa *out) {
    if (!name) {
        EJKI_TRY(ejk_isa_environment());
        *out = ejk_isa_default();
        return EJK_OK;
    }
    ejk_isa isa;
    EJKI_TRY(ejk_isa_from_name(name, &isa));
    if (!ejk_cpu()->tiers[isa])
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "isa is %.32s, which this processor lacks; its highest tier is %s", name,
                         ejk_isa_name(ejk_cpu()->isa));
    *out = isa;
    return EJK_OK;
}

/* What ejk_context_destroy() can undo, whichever step failed. */
static ejk_status open_parts(ejk_context *context, const ejk_context_options *options) {
    EJKI_TRY(pick_isa(options->isa, &context->isa));
    EJKI_TRY(make_threads(options, &context->threads));
    return ejk_registry_create(&context->registry);
}

ejk_status ejki_context_create(const ejk_context_options *options, ejk_context **out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    ejk_context_options given = options ? *options : (ejk_context_options){0};
    ejk_context *context = aligned_alloc(_Alignof(ejk_context), sizeof *context);
    if (!context) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a context");
    memset(context, 0, sizeof *context);
    context->on_event = given.on_event;
    context->on_event_user = given.on_event_user;
    context->stream = given.stream;
    if (given.chooser) context->chooser = *given.chooser;
    pthread_mutex_init(&context->kernels_lock, NULL);
    pthread_mutex_init(&context->cache.lock, NULL);
    ejk_status status = open_parts(context, &given);
    if (status == EJK_OK)
        *out = context;
    else
        ejk_context_destroy(context);
    return status;
}

ejk_status ejki_context_derive(ejk_context *base, const ejk_config_chooser *chooser,
                               ejk_context **out) {
    ejk_context *context = aligned_alloc(_Alignof(ejk_context), sizeof *context);
    if (!context) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a context");
    memset(context, 0, sizeof *context);
    context->base = base->base ? base->base : base;
    context->threads = base->threads;
    context->registry = base->registry;
    context->isa = base->isa;
    context->on_event = base->on_event;
    context->on_event_user = base->on_event_user;
    context->stream = base->stream;
    if (chooser) context->chooser = *chooser;
    pthread_mutex_init(&context->kernels_lock, NULL);
    pthread_mutex_init(&context->cache.lock, NULL);
    *out = context;
    return EJK_OK;
}

void ejki_context_own(ejk_context *context, void *object, void (*destroy)(void *object)) {
    context->adopted = object;
    context->destroy_adopted = destroy;
}

ejk_status ejki_context_use_one_thread(ejk_context *context) {
    ejk_threads *threads;
    EJKI_TRY(ejk_threads_create(1, &threads));
    context->threads = threads;
    return EJK_OK;
}

void *ejki_context_stream(const ejk_context *context) {
    return context->stream;
}

void ejki_context_event(const ejk_context *context, const char *event, const char *fields) {
    if (context->on_event) context->on_event(context->on_event_user, event, fields);
}

/* Whose list of kernels counts. */
static ejk_context *owner(const ejk_context *context) {
    return context->base ? context->base : (ejk_context *)context;
}

void ejk_context_destroy(ejk_context *context) {
    if (!context) return;
    ejki_plan_cache_clear(&context->cache);
    ejki_workspaces_close(&context->workspaces);
    if (context->destroy_adopted) context->destroy_adopted(context->adopted);
    if (!context->base || context->threads != context->base->threads)
        ejk_threads_destroy(context->threads);
    if (!context->base) ejk_registry_destroy(context->registry);
    for (ejki_kernel_node *node = context->kernels, *next; node; node = next) {
        next = node->next;
        free(node);
    }
    pthread_mutex_destroy(&context->cache.lock);
    pthread_mutex_destroy(&context->kernels_lock);
    free(context);
}

ejk_registry *ejk_context_registry(ejk_context *context) {
    return context ? context->registry : NULL;
}

ejk_threads *ejk_context_threads(ejk_context *context) {
    return context ? context->threads : NULL;
}

ejk_isa ejk_context_isa(const ejk_context *context) {
    return context ? context->isa : EJK_ISA_SCALAR;
}

static const ejk_kernel *find(const ejk_context *context, const char *op_id) {
    for (const ejki_kernel_node *node = owner(context)->kernels; node; node = node->next)
        if (strcasecmp(node->kernel->op_id, op_id) == 0) return node->kernel;
    return NULL;
}

/* Under the lock: names stay unique, and nobody else appends. */
static ejk_status append(ejk_context *context, ejki_kernel_node *node) {
    if (find(context, node->kernel->op_id))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "kernel: op_id '%.64s' is taken, expected a new name",
                         node->kernel->op_id);
    _Atomic(ejki_kernel_node *) *end = &context->kernels;
    for (ejki_kernel_node *last; (last = *end) != NULL;) end = &last->next;
    *end = node;
    return EJK_OK;
}

ejk_status ejk_context_add_kernel(ejk_context *context, const ejk_kernel *kernel) {
    if (!context || !kernel)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         context ? "kernel" : "context");
    EJKI_TRY(ejki_kernel_check(kernel));
    ejki_kernel_node *node = calloc(1, sizeof *node);
    if (!node) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a kernel's entry");
    node->kernel = kernel;
    context = owner(context);
    pthread_mutex_lock(&context->kernels_lock);
    ejk_status status = append(context, node);
    pthread_mutex_unlock(&context->kernels_lock);
    if (status != EJK_OK) free(node);
    return status;
}

/* "first_operation, second_one"; what does not fit is cut. */
static void list_names(const ejk_context *context, char *text, size_t size) {
    const ejki_kernel_node *first = owner(context)->kernels;
    size_t used = (size_t)snprintf(text, size, "%s", first ? "" : "none");
    for (const ejki_kernel_node *node = first; node && used < size; node = node->next)
        used += (size_t)snprintf(text + used, size - used, "%s%.64s", used ? ", " : "",
                                 node->kernel->op_id);
}

ejk_status ejk_context_find_kernel(const ejk_context *context, const char *op_id,
                                   const ejk_kernel **out) {
    if (!context || !op_id || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !context ? "context"
                         : !op_id ? "op_id"
                                  : "out");
    const ejk_kernel *found = find(context, op_id);
    if (found) {
        *out = found;
        return EJK_OK;
    }
    char names[512];
    list_names(context, names, sizeof names);
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (strcasecmp(later[i], op_id) == 0)
            return ejki_fail(EJK_STATUS_UNAVAILABLE, "%s is not in this version, these are: %s",
                             later[i], names);
    return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "'%.64s' is no operation; these exist: %s", op_id,
                     names);
}

const ejk_kernel *ejk_context_kernel(const ejk_context *context, int32_t index) {
    if (!context || index < 0) return NULL;
    const ejki_kernel_node *node = owner(context)->kernels;
    while (node && index-- > 0) node = node->next;
    return node ? node->kernel : NULL;
}
