/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry is a list that only grows at its end: adding takes a mutex, reading takes none, because a
 * node is complete before the pointer to it is published, and stays where it is until the end.
 */
#include "kernels/registry/registry.h"
#include "base/base.h"
#include "kernels/registry/builtin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct node {
    ejk_implementation implementation; /* first, so that an entry leads to its node */
    _Atomic(struct node *) next;
};

struct ejk_registry {
    pthread_mutex_t adding;
    _Atomic(struct node *) first;
    _Atomic(struct node *) *end; /* where the next node is published; guarded by `adding` */
};

static struct node *load(const _Atomic(struct node *) *pointer) {
    return atomic_load_explicit((_Atomic(struct node *) *)pointer, memory_order_acquire);
}

ejk_status ejk_registry_create(ejk_registry **out) {
    if (!out) return ejki_missing("out");
    ejk_registry *registry = calloc(1, sizeof *registry);
    if (!registry || pthread_mutex_init(&registry->adding, NULL) != 0) {
        free(registry);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a registry");
    }
    registry->end = &registry->first;
    *out = registry;
    return EJK_OK;
}

static void free_chain(struct node *node) {
    while (node) {
        struct node *next = load(&node->next);
        free(node);
        node = next;
    }
}

void ejk_registry_destroy(ejk_registry *registry) {
    if (!registry) return;
    free_chain(load(&registry->first));
    pthread_mutex_destroy(&registry->adding);
    free(registry);
}

const ejk_implementation *ejki_registry_next(const ejk_registry *registry,
                                             const ejk_implementation *previous) {
    struct node *node =
        load(previous ? &((const struct node *)(const void *)previous)->next : &registry->first);
    return node ? &node->implementation : NULL;
}

int32_t ejk_registry_count(const ejk_registry *registry) {
    int32_t count = 0;
    if (registry) EJKI_REGISTRY_EACH(e, registry) count++;
    return count;
}

const ejk_implementation *ejk_registry_entry(const ejk_registry *registry, int32_t index) {
    if (!registry || index < 0) return NULL;
    EJKI_REGISTRY_EACH(e, registry)
    if (index-- == 0) return e;
    return NULL;
}

/* ---- Adding --------------------------------------------------------------------------------------- */

/* Distances from the minimum are unsigned: they fit even where signed ones overflow. */
static bool takes(const ejk_parameter *p, int64_t value) {
    return value >= p->minimum && value <= p->maximum &&
           ((uint64_t)value - (uint64_t)p->minimum) % (uint64_t)p->step == 0;
}

static ejk_status check_candidates(const ejk_implementation *e) {
    if (e->candidate_count < 0 || (e->candidate_count > 0 && !e->candidates))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "'%.64s' has %d candidates%s; expected 0 or more, with their list",
                         e->name, (int)e->candidate_count, e->candidates ? "" : " and no list");
    for (int32_t n = 0; n < e->candidate_count; n++)
        for (int32_t i = 0; i < e->parameter_count; i++) {
            const int64_t value = e->candidates[n].value[i];
            if (value != 0 && !takes(&e->parameters[i], value))
                return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                                 "candidate %d of '%.64s' has %s = %lld; expected 0, or one of "
                                 "%lld to %lld in steps of %lld",
                                 (int)n, e->name, e->parameters[i].name, (long long)value,
                                 (long long)e->parameters[i].minimum,
                                 (long long)e->parameters[i].maximum,
                                 (long long)e->parameters[i].step);
        }
    return EJK_OK;
}

static ejk_status check_parameter(const ejk_implementation *e, int32_t index) {
    const ejk_parameter *p = e->parameters + index;
    if (!p->name || !*p->name)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "parameter %d of '%.64s' has no name",
                         (int)index, e->name);
    if (p->minimum > p->maximum || p->step < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "parameter '%.64s' of '%.64s' has minimum %lld, maximum %lld, step %lld; "
                         "expected minimum <= maximum and step >= 1",
                         p->name, e->name, (long long)p->minimum, (long long)p->maximum,
                         (long long)p->step);
    if (!takes(p, p->fallback))
        return ejki_fail(
            EJK_STATUS_INVALID_ARGUMENT,
            "parameter '%.64s' of '%.64s' has fallback %lld; expected one of %lld to %lld "
            "in steps of %lld",
            p->name, e->name, (long long)p->fallback, (long long)p->minimum, (long long)p->maximum,
            (long long)p->step);
    for (int32_t i = 0; i < index; i++)
        if (ejki_same_name(e->parameters[i].name, p->name))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "'%.64s' has two parameters named '%.64s'", e->name, p->name);
    return EJK_OK;
}

static ejk_status check_enumerators(const ejk_implementation *e) {
    if (e->platform == EJK_PLATFORM_AUTO ||
        ejki_same_name(ejk_platform_name(e->platform), "unknown"))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "platform of '%.64s' is %d; expected one that an implementation can have",
                         e->name, (int)e->platform);
    if (ejki_same_name(ejk_backend_name(e->backend), "unknown"))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "backend of '%.64s' is %d, which is none",
                         e->name, (int)e->backend);
    if (ejki_same_name(ejk_isa_name(e->isa), "unknown"))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "isa of '%.64s' is %d, which is no tier",
                         e->name, (int)e->isa);
    if (e->dtype != EJK_DTYPE_UNSET && ejk_dtype_bits(e->dtype) == 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "dtype of '%.64s' is %d, which is none",
                         e->name, (int)e->dtype);
    for (int i = 0; i < EJK_MAX_FURTHER_TYPES; i++)
        if (e->further_dtypes[i] != EJK_DTYPE_UNSET && ejk_dtype_bits(e->further_dtypes[i]) == 0)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "further_dtypes[%d] of '%.64s' is %d, which is none", i, e->name,
                             (int)e->further_dtypes[i]);
    return EJK_OK;
}

static ejk_status check(const ejk_implementation *e) {
    if (!e) return ejki_missing("implementation");
    if (!e->algorithm || !*e->algorithm)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "implementation has no algorithm");
    if (!e->name || !*e->name)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "implementation of '%.64s' has no name",
                         e->algorithm);
    if (!e->run)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "'%.64s' of '%.64s' has no function run",
                         e->name, e->algorithm);
    EJKI_TRY(check_enumerators(e));
    if (e->parameter_count < 0 || e->parameter_count > EJK_MAX_PARAMETERS ||
        (e->parameter_count > 0 && !e->parameters))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "'%.64s' has %d parameters%s; expected 0 to %d, with their list", e->name,
                         (int)e->parameter_count, e->parameters ? "" : " and no list",
                         EJK_MAX_PARAMETERS);
    for (int32_t i = 0; i < e->parameter_count; i++) EJKI_TRY(check_parameter(e, i));
    EJKI_TRY(check_candidates(e));
    return EJK_OK;
}

static bool has(const struct node *node, const ejk_implementation *e) {
    for (; node; node = load(&node->next))
        if (ejki_same_name(node->implementation.algorithm, e->algorithm) &&
            ejki_same_name(node->implementation.name, e->name))
            return true;
    return false;
}

/* Publishes a chain if all its names are new. */
static ejk_status append(ejk_registry *registry, struct node *chain) {
    ejk_status status = EJK_OK;
    pthread_mutex_lock(&registry->adding);
    for (struct node *node = chain; node && status == EJK_OK; node = load(&node->next)) {
        const ejk_implementation *e = &node->implementation;
        if (has(load(&registry->first), e) || has(load(&node->next), e))
            status = ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                               "'%.64s' already has an implementation named '%.64s'", e->algorithm,
                               e->name);
    }
    if (status == EJK_OK && chain) {
        _Atomic(struct node *) *end = &chain->next;
        while (load(end)) end = &load(end)->next;
        atomic_store_explicit(registry->end, chain, memory_order_release);
        registry->end = end;
    }
    pthread_mutex_unlock(&registry->adding);
    return status;
}

/* Adds all or none. */
static ejk_status add(ejk_registry *registry, const ejk_implementation *const *list,
                      int32_t count) {
    if (!registry) return ejki_missing("registry");
    for (int32_t i = 0; i < count; i++) EJKI_TRY(check(list[i]));
    struct node *chain = NULL;
    ejk_status status = EJK_OK;
    for (int32_t i = count - 1; i >= 0 && status == EJK_OK; i--) {
        struct node *node = malloc(sizeof *node);
        if (node) {
            node->implementation = *list[i];
            atomic_init(&node->next, chain);
            chain = node;
        } else {
            status =
                ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory to register '%.64s'", list[i]->name);
        }
    }
    if (status == EJK_OK) status = append(registry, chain);
    if (status != EJK_OK) free_chain(chain);
    return status;
}

ejk_status ejk_registry_register(ejk_registry *registry, const ejk_implementation *implementation) {
    return add(registry, &implementation, 1);
}

ejk_status ejk_registry_add_builtin(ejk_registry *registry) {
    return add(registry, ejki_builtin_implementations, ejki_builtin_implementation_count);
}
