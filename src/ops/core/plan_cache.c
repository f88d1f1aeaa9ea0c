/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans found again by the signature of a call: sets of a few slots, a set picked by the hash. Readers take
 * no lock. They raise a slot's pin count, and are sure of the plan unless the count's top bit says that
 * it is being replaced; whoever replaces one sets that bit where the count is 0, and only there. The plan
 * that gives way is the one of its set that is longest unused, in units of plans put in since.
 */
#include "ops/core/core.h"

#define REPLACED UINT32_C(0x80000000)

static ejki_cache_set *set_of(ejki_plan_cache *cache, uint64_t hash) {
    return &cache->sets[(hash >> 32) % EJKI_CACHE_SETS];
}

static void unpin(ejki_cache_slot *slot) {
    atomic_fetch_sub_explicit(&slot->pins, 1, memory_order_release);
}

/* Pins a slot for its plan of a kernel; false, and nothing is pinned, if it has another, an outdated one or
 * is changing. */
static bool pin(ejki_cache_slot *slot, const ejk_kernel *kernel, uint64_t generation) {
    uint32_t pins = atomic_fetch_add_explicit(&slot->pins, 1, memory_order_acquire);
    const ejk_plan *plan = pins & REPLACED ? NULL : slot->plan;
    if (plan && plan->kernel == kernel && plan->generation == generation) return true;
    unpin(slot);
    return false;
}

/* Notes that a slot's plan is used now. */
static void touch(ejki_plan_cache *cache, ejki_cache_slot *slot) {
    uint32_t now = atomic_load_explicit(&cache->clock, memory_order_relaxed);
    if (atomic_load_explicit(&slot->used, memory_order_relaxed) != now)
        atomic_store_explicit(&slot->used, now, memory_order_relaxed);
}

/* The slot of the last call, pinned, if this call is of the same signature: most calls are, and then no
 * hash is needed. */
static ejki_cache_slot *guess(ejki_plan_cache *cache, const ejk_kernel *kernel, const void *args,
                              uint64_t generation) {
    ejki_cache_slot *slot = atomic_load_explicit(&cache->latest, memory_order_relaxed);
    if (!slot || !pin(slot, kernel, generation)) return NULL;
    if (ejki_plan_fits_exactly(slot->plan, args)) {
        touch(cache, slot);
        return slot;
    }
    unpin(slot);
    return NULL;
}

/* A pinned slot with a plan that the call fits; NULL if there is none. */
static ejki_cache_slot *lookup(ejki_plan_cache *cache, uint64_t hash, const ejk_kernel *kernel,
                               const void *args, uint64_t generation) {
    ejki_cache_set *set = set_of(cache, hash);
    for (int i = 0; i < EJKI_CACHE_WAYS; i++) {
        if (atomic_load_explicit(&set->hashes[i], memory_order_relaxed) != hash) continue;
        ejki_cache_slot *slot = &set->slots[i];
        if (!pin(slot, kernel, generation)) continue;
        if (ejki_plan_fits(slot->plan, args)) {
            touch(cache, slot);
            atomic_store_explicit(&cache->latest, slot, memory_order_relaxed);
            return slot;
        }
        unpin(slot);
    }
    return NULL;
}

/* Under the lock: the slot of a set to be replaced, marked so; -1 if all are in use. */
static int claim(ejki_plan_cache *cache, ejki_cache_set *set) {
    bool tried[EJKI_CACHE_WAYS] = {false};
    uint32_t now = atomic_load_explicit(&cache->clock, memory_order_relaxed);
    for (int round = 0; round < EJKI_CACHE_WAYS; round++) {
        int oldest = -1;
        uint32_t greatest_age = 0;
        for (int i = 0; i < EJKI_CACHE_WAYS; i++) {
            uint32_t age = set->slots[i].plan ? now - set->slots[i].used : UINT32_MAX;
            if (tried[i] || (oldest >= 0 && age <= greatest_age)) continue;
            oldest = i;
            greatest_age = age;
        }
        uint32_t unused = 0;
        if (atomic_compare_exchange_strong_explicit(&set->slots[oldest].pins, &unused, REPLACED,
                                                    memory_order_acquire, memory_order_relaxed))
            return oldest;
        tried[oldest] = true;
    }
    return -1;
}

/*
 * Puts a plan in and gives back its slot, pinned, with *plan now the one that had to leave (or NULL). If
 * another thread was faster, its slot is given back and *plan is the one brought. NULL: no slot is free.
 */
static ejki_cache_slot *insert(ejki_plan_cache *cache, uint64_t hash, const void *args,
                               ejk_plan **plan) {
    pthread_mutex_lock(&cache->lock);
    ejki_cache_slot *slot = lookup(cache, hash, (*plan)->kernel, args, (*plan)->generation);
    ejki_cache_set *set = set_of(cache, hash);
    int place = slot ? -1 : claim(cache, set);
    if (place >= 0) {
        slot = &set->slots[place];
        ejk_plan *leaving = slot->plan;
        slot->plan = *plan;
        *plan = leaving;
        atomic_store_explicit(&set->hashes[place], hash, memory_order_relaxed);
        uint32_t now = atomic_fetch_add_explicit(&cache->clock, 1, memory_order_relaxed) + 1;
        atomic_store_explicit(&slot->used, now, memory_order_relaxed);
        /* In one step: the mark goes, this call's pin comes. */
        atomic_fetch_sub_explicit(&slot->pins, REPLACED - 1, memory_order_release);
    }
    pthread_mutex_unlock(&cache->lock);
    return slot;
}

static ejk_status call_new(ejk_context *context, const ejk_kernel *kernel, const void *args,
                           uint64_t hash, void *stream) {
    ejk_plan *plan;
    EJKI_TRY(ejki_plan_make(
        &(ejki_plan_request){.context = context, .kernel = kernel, .args = args}, &plan));
    ejki_plan_announce(plan);
    ejki_cache_slot *slot = insert(&context->cache, hash, args, &plan);
    ejk_status status = ejki_plan_run(slot ? slot->plan : plan, args, NULL, stream);
    if (slot) unpin(slot);
    ejk_plan_destroy(plan);
    return status;
}

static inline ejk_status call(ejk_context *context, const ejk_kernel *kernel, const void *args,
                              void *stream) {
    const uint64_t generation = ejki_context_generation(context);
    ejki_cache_slot *slot = guess(&context->cache, kernel, args, generation);
    if (!slot) {
        uint64_t hash = ejk_record_signature(kernel->args, args) ^ (uint64_t)(uintptr_t)kernel;
        if (!hash) hash = 1; /* 0 marks an empty slot */
        slot = lookup(&context->cache, hash, kernel, args, generation);
        if (!slot) return call_new(context, kernel, args, hash, stream);
    }
    ejk_status status = ejki_plan_run(slot->plan, args, NULL, stream);
    unpin(slot);
    return status;
}

static ejk_status missing(const ejk_context *context, const ejk_kernel *kernel) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                     !context  ? "context"
                     : !kernel ? "kernel"
                               : "args");
}

ejk_status ejk_call(ejk_context *context, const ejk_kernel *kernel, const void *args) {
    if (!context || !kernel || !args) return missing(context, kernel);
    return call(context, kernel, args, context->stream);
}

ejk_status ejk_call_on(ejk_context *context, const ejk_kernel *kernel, const void *args,
                       void *stream) {
    if (!context || !kernel || !args) return missing(context, kernel);
    return call(context, kernel, args, stream);
}

void ejki_plan_cache_clear(ejki_plan_cache *cache) {
    for (int s = 0; s < EJKI_CACHE_SETS; s++)
        for (int i = 0; i < EJKI_CACHE_WAYS; i++) ejk_plan_destroy(cache->sets[s].slots[i].plan);
}
