/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a cache on disk: what they check, and the operations on its store that they consist of. */
#include "ops/config/persistent.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ejk_status missing(const char *name) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL; expected one", name);
}

/* ---- Opening and closing ------------------------------------------------------------------------------ */

static ejki_event *take_events(ejk_persistent_cache *cache) {
    ejki_event *events = cache->events;
    cache->events = NULL;
    cache->events_end = &cache->events;
    return events;
}

static void destroy(ejk_persistent_cache *cache) {
    pthread_mutex_destroy(&cache->mutex);
    free(cache->path);
    free(cache->shown);
    free(cache->trouble);
    free(cache);
}

static ejk_status create(const ejk_persistent_options *options, ejk_persistent_cache **out) {
    ejk_persistent_cache *cache = calloc(1, sizeof *cache);
    if (!cache || pthread_mutex_init(&cache->mutex, NULL) != 0) {
        free(cache);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a persistent cache");
    }
    cache->busy_ms = options->busy_ms > 0 ? options->busy_ms : EJKI_BUSY_MS;
    cache->on_event = options->on_event;
    cache->on_event_user = options->on_event_user;
    cache->lock_file = -1;
    cache->events_end = &cache->events;
    cache->fixed = ejki_fixed_since_list;
    ejk_status status = ejki_persistent_path(options->path, &cache->path, &cache->trouble);
    if (status == EJK_OK && !(cache->shown = ejki_persistent_shown(cache->path)))
        status = ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a path");
    if (status == EJK_OK)
        *out = cache;
    else
        destroy(cache);
    return status;
}

ejk_status ejki_persistent_check_options(const ejk_persistent_options *options) {
    if (options->path && !*options->path)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "options.path is \"\"; expected a path, or NULL for the default");
    if (options->busy_ms < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "options.busy_ms is %d; expected 0 (default) or more",
                         (int)options->busy_ms);
    return EJK_OK;
}

ejk_status ejk_persistent_cache_open(const ejk_persistent_options *options,
                                     ejk_persistent_cache **out) {
    static const ejk_persistent_options defaults = {0};
    if (!options) options = &defaults;
    if (!out) return missing("out");
    EJKI_TRY(ejki_persistent_check_options(options));
    ejk_persistent_cache *cache = NULL;
    EJKI_TRY(create(options, &cache));
    ejk_status status = ejki_persistent_connect(cache);
    ejki_persistent_emit(cache, take_events(cache));
    if (status == EJK_OK)
        *out = cache;
    else
        destroy(cache);
    return status;
}

void ejk_persistent_cache_close(ejk_persistent_cache *cache) {
    if (!cache) return;
    ejki_persistent_disconnect(cache);
    destroy(cache);
}

const char *ejk_persistent_cache_path(const ejk_persistent_cache *cache) {
    return cache ? cache->path : "";
}

bool ejk_persistent_cache_is_memory_only(ejk_persistent_cache *cache) {
    if (!cache) return false;
    pthread_mutex_lock(&cache->mutex);
    bool memory_only = cache->memory_only;
    pthread_mutex_unlock(&cache->mutex);
    return memory_only;
}

void ejki_persistent_set_fixed(ejk_persistent_cache *cache, const ejki_fixed_since *fixed) {
    cache->fixed = fixed;
}

ejk_status ejki_persistent_do(ejk_persistent_cache *cache, bool writes, ejki_operation operation,
                              void *argument) {
    pthread_mutex_lock(&cache->mutex);
    ejk_status status = ejki_persistent_run(cache, writes, operation, argument);
    ejki_event *events = take_events(cache);
    pthread_mutex_unlock(&cache->mutex);
    ejki_persistent_emit(cache, events);
    return status;
}

/* ---- Single rows -------------------------------------------------------------------------------------- */

struct lookup {
    ejk_config_key key;
    ejk_config_entry *out; /* NULL: only whether it is there */
    bool found;
};

static int get(ejk_persistent_cache *cache, void *lookup_) {
    struct lookup *lookup = lookup_;
    ejki_row row;
    int rc = ejki_store_get(&cache->store, &lookup->key, &row);
    if (rc == SQLITE_DONE) return SQLITE_OK;
    if (rc != SQLITE_ROW) return rc;
    rc = SQLITE_OK;
    if (ejki_persistent_accepts(cache, &row)) {
        if (lookup->out && ejki_config_entry_copy(&row.entry, lookup->out) != EJK_OK)
            rc = SQLITE_NOMEM;
        else
            lookup->found = true;
    }
    ejki_store_reset(&cache->store);
    return rc;
}

ejk_status ejk_persistent_cache_get(ejk_persistent_cache *cache, const ejk_config_key *key,
                                    ejk_config_entry *out, bool *found) {
    if (!cache || !out || !found) return missing(!cache ? "cache" : !out ? "out" : "found");
    struct lookup lookup = {.out = out};
    EJKI_TRY(ejki_config_key_check(key, &lookup.key));
    EJKI_TRY(ejki_persistent_do(cache, false, get, &lookup));
    *found = lookup.found;
    return EJK_OK;
}

bool ejk_persistent_cache_contains(ejk_persistent_cache *cache, const ejk_config_key *key) {
    struct lookup lookup = {.out = NULL};
    return cache && ejki_config_key_check(key, &lookup.key) == EJK_OK &&
           ejki_persistent_do(cache, false, get, &lookup) == EJK_OK && lookup.found;
}

struct change {
    ejk_config_key key;
    ejk_config_entry entry;
    int64_t rows;
};

static int put(ejk_persistent_cache *cache, void *change_) {
    struct change *change = change_;
    return ejki_store_put(&cache->store, &change->key, &change->entry);
}

ejk_status ejk_persistent_cache_put(ejk_persistent_cache *cache, const ejk_config_key *key,
                                    const ejk_config_entry *entry) {
    struct change change;
    if (!cache) return missing("cache");
    EJKI_TRY(ejki_config_key_check(key, &change.key));
    EJKI_TRY(ejki_config_entry_check(entry));
    change.entry = *entry;
    ejki_stamp(&change.entry);
    return ejki_persistent_do(cache, true, put, &change);
}

static int remove_entry(ejk_persistent_cache *cache, void *change_) {
    struct change *change = change_;
    return ejki_store_remove(&cache->store, &change->key, &change->rows);
}

ejk_status ejk_persistent_cache_remove(ejk_persistent_cache *cache, const ejk_config_key *key,
                                       bool *found) {
    struct change change = {.rows = 0};
    if (!cache) return missing("cache");
    EJKI_TRY(ejki_config_key_check(key, &change.key));
    EJKI_TRY(ejki_persistent_do(cache, true, remove_entry, &change));
    if (found) *found = change.rows > 0;
    return EJK_OK;
}

/* ---- All rows ----------------------------------------------------------------------------------------- */

static int clear(ejk_persistent_cache *cache, void *rows) {
    return ejki_store_clear(&cache->store, rows);
}

ejk_status ejk_persistent_cache_clear(ejk_persistent_cache *cache) {
    int64_t rows;
    if (!cache) return missing("cache");
    return ejki_persistent_do(cache, true, clear, &rows);
}

static int count(ejk_persistent_cache *cache, void *rows) {
    return ejki_store_count(&cache->store, rows);
}

ejk_status ejk_persistent_cache_size(ejk_persistent_cache *cache, int64_t *out) {
    int64_t rows = 0;
    if (!cache || !out) return missing(cache ? "out" : "cache");
    EJKI_TRY(ejki_persistent_do(cache, false, count, &rows));
    *out = rows;
    return EJK_OK;
}

static int verify(ejk_persistent_cache *cache, void *report) {
    const int rc = ejki_persistent_verify(cache, &cache->store, report);
    /* Damage is what was asked about; dealing with it is for the next call that meets it. */
    return ejki_verdict_of(rc) == EJKI_DAMAGED ? SQLITE_OK : rc;
}

ejk_status ejk_persistent_cache_verify(ejk_persistent_cache *cache, ejk_persistent_report *out) {
    if (!cache || !out) return missing(cache ? "out" : "cache");
    ejk_persistent_report report;
    EJKI_TRY(ejki_persistent_do(cache, false, verify, &report));
    *out = report;
    return EJK_OK;
}

/* ---- Copies of rows ----------------------------------------------------------------------------------- */

struct collection {
    ejk_persistent_cache *cache;
    const ejk_config_filter *filter;
    ejki_rows *rows;
    bool out_of_memory;
};

static bool passes(const ejk_config_filter *filter, const ejk_config_key *key) {
    if (filter && filter->device && strcmp(filter->device, key->device) != 0) return false;
    if (!filter || !filter->op_id) return true;
    size_t length = strlen(filter->op_id);
    bool begins = strncmp(filter->op_id, key->op_id, length) == 0;
    return begins && (key->op_id[length] == '\0' ||
                      (key->op_id[length] == '@' && !strchr(filter->op_id, '@')));
}

static char *append(char *end, const char *text, const char **place) {
    *place = end;
    return stpcpy(end, text) + 1;
}

/* One allocation holds all texts; the configuration comes first. */
static bool copy_row(const ejki_row *row, struct ejki_kept_row *out) {
    const ejk_config_key *key = &row->key;
    char *text = malloc(strlen(row->entry.config) + strlen(key->device) + strlen(key->op_id) +
                        strlen(key->call_key) + strlen(key->layout) + 5);
    if (!text) return false;
    *out = (struct ejki_kept_row){.key = *key, .entry = row->entry};
    out->entry.config = text;
    char *end = stpcpy(text, row->entry.config) + 1;
    end = append(end, key->device, &out->key.device);
    end = append(end, key->op_id, &out->key.op_id);
    end = append(end, key->call_key, &out->key.call_key);
    append(end, key->layout, &out->key.layout);
    return true;
}

static bool keep_row(void *collection_, const ejki_row *row) {
    struct collection *collection = collection_;
    ejki_rows *rows = collection->rows;
    if (!passes(collection->filter, &row->key) || !ejki_persistent_accepts(collection->cache, row))
        return true;
    if (rows->count == rows->room) {
        size_t room = rows->room ? 2 * rows->room : 64;
        void *larger = realloc(rows->rows, room * sizeof *rows->rows);
        if (larger) {
            rows->rows = larger;
            rows->room = room;
        }
    }
    collection->out_of_memory =
        rows->count == rows->room || !copy_row(row, &rows->rows[rows->count]);
    if (!collection->out_of_memory) rows->count++;
    return !collection->out_of_memory;
}

void ejki_rows_free(ejki_rows *rows) {
    for (size_t i = 0; i < rows->count; i++) free(rows->rows[i].entry.config);
    free(rows->rows);
    *rows = (ejki_rows){0};
}

static int collect(ejk_persistent_cache *cache, void *collection_) {
    struct collection *collection = collection_;
    ejki_rows_free(collection->rows);
    int rc = ejki_store_each(&cache->store, false, keep_row, collection);
    return collection->out_of_memory ? SQLITE_NOMEM : rc;
}

ejk_status ejki_persistent_collect(ejk_persistent_cache *cache, const ejk_config_filter *filter,
                                   ejki_rows *out) {
    *out = (ejki_rows){0};
    struct collection collection = {.cache = cache, .filter = filter, .rows = out};
    ejk_status status = ejki_persistent_do(cache, false, collect, &collection);
    if (status != EJK_OK) ejki_rows_free(out);
    return status;
}

ejk_status ejk_persistent_cache_each(ejk_persistent_cache *cache, const ejk_config_filter *filter,
                                     ejk_config_visit_fn visit, void *user) {
    ejki_rows rows;
    if (!cache || !visit) return missing(cache ? "visit" : "cache");
    EJKI_TRY(ejki_persistent_collect(cache, filter, &rows));
    for (size_t i = 0; i < rows.count; i++)
        if (!visit(user, &rows.rows[i].key, &rows.rows[i].entry)) break;
    ejki_rows_free(&rows);
    return EJK_OK;
}
