/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache in memory: an open-addressed table of pointers to nodes that never change once they are in it.
 * Readers take no lock. A writer holds one, puts a new node into a slot in one step, and retires the old
 * one, as it retires a whole table when that has become too small.
 *
 * Retired memory is freed when no reader can see it any more. A reader counts itself among those of the
 * current epoch, and looks again whether it still is the current one. The epoch moves from e to e + 1 when
 * no reader of e - 1 is left; what was retired during e - 1 had been unlinked before any reader counted
 * itself for e, so it is freed then. Two counts, by the epoch's parity, are enough.
 */
#include "ops/config/entry.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { STRIPES = 16, FIRST_SLOTS = 16 };

/* At the start of everything that readers may still hold when it is let go. */
struct retired {
    struct retired *next;
};

struct node {
    struct retired retired;
    uint64_t hash;
    struct node *before, *after; /* in the order first put; for writers only */
    ejk_config_key key;
    ejk_config_entry entry;
    char text[]; /* of key and entry */
};

/* Stands in slots whose node was taken out; only its address counts. */
static const struct node nobody;

static struct node *removed(void) {
    return (struct node *)(uintptr_t)&nobody;
}

struct table {
    struct retired retired;
    size_t slot_count; /* a power of 2 */
    _Atomic(struct node *) slots[];
};

/* How many readers there are of epochs of each parity; several of these, so that threads seldom meet. */
struct stripe {
    _Alignas(64) atomic_uint readers[2];
};

struct ejk_config_cache {
    struct stripe stripes[STRIPES];
    _Atomic(uint64_t) epoch;
    _Atomic(uint64_t) generation;
    _Atomic(struct table *) table;
    _Atomic(int64_t) size;
    pthread_mutex_t write; /* held by writers; guards what follows */
    int64_t capacity;
    size_t used; /* slots of the table that are not NULL */
    struct node *oldest, *newest;
    struct retired *retired[2]; /* during the epochs of each parity that are not over for all */
};

/* ---- Readers ------------------------------------------------------------------------------------------ */

/* Until leave() with what this answers, nothing that is found is freed. */
static atomic_uint *enter(const ejk_config_cache *cache_) {
    ejk_config_cache *cache = (ejk_config_cache *)(uintptr_t)cache_; /* to count oneself only */
    static _Thread_local char own; /* its address tells threads apart */
    uint64_t mixed = (uint64_t)(uintptr_t)&own * UINT64_C(0x9e3779b97f4a7c15);
    struct stripe *stripe = &cache->stripes[mixed >> 60];
    for (;;) {
        uint64_t epoch = atomic_load(&cache->epoch);
        atomic_uint *readers = &stripe->readers[epoch % 2];
        atomic_fetch_add(readers, 1);
        if (atomic_load(&cache->epoch) == epoch) return readers;
        atomic_fetch_sub(readers, 1);
    }
}
_Static_assert(STRIPES == 16, "four bits pick a stripe");

static void leave(atomic_uint *readers) {
    atomic_fetch_sub(readers, 1);
}

/* A key's node, and the slot it was in; NULL if there is none. */
static struct node *find(struct table *table, const ejk_config_key *key, uint64_t hash,
                         _Atomic(struct node *) **slot) {
    for (size_t i = hash;; i++) {
        *slot = &table->slots[i & (table->slot_count - 1)];
        struct node *node = atomic_load(*slot);
        if (!node) return NULL;
        if (node != removed() && node->hash == hash && ejki_config_key_equal(&node->key, key))
            return node;
    }
}

static ejk_status missing(const char *name) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL; expected one", name);
}

/* Looks a key up, and copies its entry if `out` is given. */
static ejk_status look(const ejk_config_cache *cache, const ejk_config_key *key,
                       ejk_config_entry *out, bool *found) {
    ejk_config_key filled;
    if (!cache) return missing("cache");
    EJKI_TRY(ejki_config_key_check(key, &filled));
    uint64_t hash = ejki_config_key_hash(&filled);
    ejk_status status = EJK_OK;
    atomic_uint *readers = enter(cache);
    _Atomic(struct node *) *slot;
    const struct node *node = find(atomic_load(&cache->table), &filled, hash, &slot);
    if (node && out) status = ejki_config_entry_copy(&node->entry, out);
    leave(readers);
    if (status == EJK_OK) *found = node != NULL;
    return status;
}

ejk_status ejk_config_cache_get(const ejk_config_cache *cache, const ejk_config_key *key,
                                ejk_config_entry *out, bool *found) {
    if (!out || !found) return missing(out ? "found" : "out");
    return look(cache, key, out, found);
}

bool ejk_config_cache_contains(const ejk_config_cache *cache, const ejk_config_key *key) {
    bool found = false;
    return look(cache, key, NULL, &found) == EJK_OK && found;
}

int64_t ejk_config_cache_size(const ejk_config_cache *cache) {
    return cache ? atomic_load(&cache->size) : 0;
}

uint64_t ejk_config_cache_generation(const ejk_config_cache *cache) {
    return cache ? atomic_load(&cache->generation) : 0;
}

/* ---- Memory that is let go, under the lock ------------------------------------------------------------ */

static void free_all(struct retired **list) {
    while (*list) {
        struct retired *next = (*list)->next;
        free(*list);
        *list = next;
    }
}

static void retire(ejk_config_cache *cache, struct retired *what) {
    struct retired **list = &cache->retired[atomic_load(&cache->epoch) % 2];
    what->next = *list;
    *list = what;
}

/* Moves the epoch on, unless somebody still reads who came in the one before. */
static void move_on(ejk_config_cache *cache) {
    uint64_t next = atomic_load(&cache->epoch) + 1;
    for (int i = 0; i < STRIPES; i++)
        if (atomic_load(&cache->stripes[i].readers[next % 2]) > 0) return;
    atomic_store(&cache->epoch, next);
    free_all(&cache->retired[next % 2]); /* retired two epochs ago */
}

/* ---- Writers, under the lock -------------------------------------------------------------------------- */

static char *append(char *end, const char *text, const char **place) {
    size_t size = strlen(text) + 1;
    *place = memcpy(end, text, size);
    return end + size;
}

static struct node *make_node(const ejk_config_key *key, const ejk_config_entry *entry) {
    size_t bytes = strlen(key->device) + strlen(key->op_id) + strlen(key->call_key) +
                   strlen(key->layout) + strlen(entry->config) + 5;
    struct node *node = malloc(sizeof *node + bytes);
    if (!node) return NULL;
    *node = (struct node){.hash = ejki_config_key_hash(key), .key = *key, .entry = *entry};
    char *end = append(node->text, key->device, &node->key.device);
    end = append(end, key->op_id, &node->key.op_id);
    end = append(end, key->call_key, &node->key.call_key);
    end = append(end, key->layout, &node->key.layout);
    node->entry.config = memcpy(end, entry->config, strlen(entry->config) + 1);
    return node;
}

static struct table *make_table(size_t slot_count) {
    struct table *table = malloc(sizeof *table + slot_count * sizeof *table->slots);
    if (!table) return NULL;
    table->slot_count = slot_count;
    for (size_t i = 0; i < slot_count; i++) atomic_init(&table->slots[i], NULL);
    return table;
}

/* The first slot on a key's way that has no node. */
static _Atomic(struct node *) *vacancy(struct table *table, uint64_t hash) {
    for (size_t i = hash;; i++) {
        _Atomic(struct node *) *slot = &table->slots[i & (table->slot_count - 1)];
        struct node *node = atomic_load(slot);
        if (!node || node == removed()) return slot;
    }
}

/* A new table for all nodes and as many again; the old one is retired. */
static bool rebuild(ejk_config_cache *cache) {
    size_t slot_count = FIRST_SLOTS;
    while (slot_count < 4 * ((size_t)atomic_load(&cache->size) + 1)) slot_count *= 2;
    struct table *table = make_table(slot_count);
    if (!table) return false;
    for (struct node *node = cache->oldest; node; node = node->after)
        atomic_store(vacancy(table, node->hash), node);
    struct table *old = atomic_exchange(&cache->table, table);
    cache->used = (size_t)atomic_load(&cache->size);
    retire(cache, &old->retired);
    return true;
}

/* Puts `node` between two others of the order, either of which may be NULL. */
static void link_between(ejk_config_cache *cache, struct node *before, struct node *node,
                         struct node *after) {
    node->before = before;
    node->after = after;
    *(before ? &before->after : &cache->oldest) = node;
    *(after ? &after->before : &cache->newest) = node;
}

/* Takes a key's node out; false if it has none. */
static bool remove_entry(ejk_config_cache *cache, const ejk_config_key *key, uint64_t hash) {
    _Atomic(struct node *) *slot;
    struct node *node = find(atomic_load(&cache->table), key, hash, &slot);
    if (!node) return false;
    atomic_store(slot, removed());
    *(node->before ? &node->before->after : &cache->oldest) = node->after;
    *(node->after ? &node->after->before : &cache->newest) = node->before;
    atomic_fetch_sub(&cache->size, 1);
    retire(cache, &node->retired);
    return true;
}

static void remove_oldest(ejk_config_cache *cache) {
    remove_entry(cache, &cache->oldest->key, cache->oldest->hash);
}

/* Puts a node in; false for want of memory. */
static bool insert(ejk_config_cache *cache, struct node *node) {
    struct table *table = atomic_load(&cache->table);
    _Atomic(struct node *) *slot;
    struct node *old = find(table, &node->key, node->hash, &slot);
    if (old) {
        link_between(cache, old->before, node, old->after);
        atomic_store(slot, node);
        retire(cache, &old->retired);
        return true;
    }
    /* A quarter of the slots stays NULL: every search ends there. */
    if ((cache->used + 1) * 4 > table->slot_count * 3 && !rebuild(cache)) return false;
    if (cache->capacity > 0 && atomic_load(&cache->size) >= cache->capacity) remove_oldest(cache);
    slot = vacancy(atomic_load(&cache->table), node->hash);
    if (!atomic_load(slot)) cache->used++;
    link_between(cache, cache->newest, node, NULL);
    atomic_fetch_add(&cache->size, 1);
    atomic_store(slot, node);
    return true;
}

/* After a change, and only then: whoever saw the former number may have seen the former entry. */
static void announce(ejk_config_cache *cache) {
    atomic_fetch_add(&cache->generation, 1);
    move_on(cache);
}

ejk_status ejk_config_cache_put(ejk_config_cache *cache, const ejk_config_key *key,
                                const ejk_config_entry *entry) {
    ejk_config_key filled;
    if (!cache) return missing("cache");
    EJKI_TRY(ejki_config_key_check(key, &filled));
    EJKI_TRY(ejki_config_entry_check(entry));
    struct node *node = make_node(&filled, entry);
    bool done = false;
    if (node) {
        pthread_mutex_lock(&cache->write);
        done = insert(cache, node);
        if (done) announce(cache);
        pthread_mutex_unlock(&cache->write);
    }
    if (done) return EJK_OK;
    free(node);
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory to keep a configuration");
}

ejk_status ejk_config_cache_remove(ejk_config_cache *cache, const ejk_config_key *key,
                                   bool *found) {
    ejk_config_key filled;
    if (!cache) return missing("cache");
    EJKI_TRY(ejki_config_key_check(key, &filled));
    uint64_t hash = ejki_config_key_hash(&filled);
    pthread_mutex_lock(&cache->write);
    bool there = remove_entry(cache, &filled, hash);
    if (there) announce(cache);
    pthread_mutex_unlock(&cache->write);
    if (found) *found = there;
    return EJK_OK;
}

ejk_status ejk_config_cache_clear(ejk_config_cache *cache) {
    if (!cache) return missing("cache");
    pthread_mutex_lock(&cache->write);
    while (cache->oldest) remove_oldest(cache);
    announce(cache);
    pthread_mutex_unlock(&cache->write);
    return EJK_OK;
}

/* ---- The whole ---------------------------------------------------------------------------------------- */

/* The nodes in their order, for as long as the caller counts as a reader; NULL for want of memory. */
static struct node **snapshot(ejk_config_cache *cache, size_t *count) {
    pthread_mutex_lock(&cache->write);
    struct node **nodes = malloc(((size_t)atomic_load(&cache->size) + 1) * sizeof(struct node *));
    *count = 0;
    for (struct node *node = cache->oldest; nodes && node; node = node->after)
        nodes[(*count)++] = node;
    pthread_mutex_unlock(&cache->write);
    return nodes;
}

ejk_status ejk_config_cache_keys(const ejk_config_cache *cache, ejk_config_visit_fn visit,
                                 void *user) {
    if (!cache || !visit) return missing(cache ? "visit" : "cache");
    size_t count;
    atomic_uint *readers = enter(cache);
    struct node **nodes = snapshot((ejk_config_cache *)(uintptr_t)cache, &count);
    for (size_t i = 0; nodes && i < count; i++)
        if (!visit(user, &nodes[i]->key, &nodes[i]->entry)) break;
    leave(readers);
    free(nodes);
    if (nodes) return EJK_OK;
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory to list configurations");
}

ejk_status ejk_config_cache_create(int64_t capacity, ejk_config_cache **out) {
    if (capacity < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "capacity is %lld; expected 0 (unbounded) or more", (long long)capacity);
    if (!out) return missing("out");
    ejk_config_cache *cache = aligned_alloc(_Alignof(ejk_config_cache), sizeof *cache);
    struct table *table = make_table(FIRST_SLOTS);
    if (!cache || !table || pthread_mutex_init(&cache->write, NULL) != 0) {
        free(cache);
        free(table);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a cache of configurations");
    }
    for (int i = 0; i < STRIPES; i++)
        for (int parity = 0; parity < 2; parity++)
            atomic_init(&cache->stripes[i].readers[parity], 0);
    atomic_init(&cache->epoch, 0);
    atomic_init(&cache->generation, 0);
    atomic_init(&cache->table, table);
    atomic_init(&cache->size, 0);
    cache->capacity = capacity;
    cache->used = 0;
    cache->oldest = cache->newest = NULL;
    cache->retired[0] = cache->retired[1] = NULL;
    *out = cache;
    return EJK_OK;
}

void ejk_config_cache_destroy(ejk_config_cache *cache) {
    if (!cache) return;
    for (struct node *node = cache->oldest; node;) {
        struct node *next = node->after;
        free(node);
        node = next;
    }
    free_all(&cache->retired[0]);
    free_all(&cache->retired[1]);
    free(atomic_load(&cache->table));
    pthread_mutex_destroy(&cache->write);
    free(cache);
}
