/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a cache's file: opened, found again after somebody renamed or deleted it, set aside where it
 * is damaged, given up for memory where it cannot be used. Calls that go wrong come by here and are made
 * again; none of them fails for what is wrong with a file.
 */
#include "ops/config/persistent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { REASON = 256, MOST_ATTEMPTS = 4, EXAMINED_BYTES = 1 << 26 };

static ejk_status out_of_memory(void) {
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a persistent cache");
}

/* ---- Connections -------------------------------------------------------------------------------------- */

/* True if the file is not open, or the one that is open is no longer found under the path. */
static bool has_moved(const ejk_persistent_cache *cache) {
    int moved = 0;
    return !cache->store.db ||
           sqlite3_file_control(cache->store.db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) !=
               SQLITE_OK ||
           moved != 0;
}

/* 0 or an error: takes the lock, in folders that may have to be made again. */
static int hold(ejk_persistent_cache *cache) {
    int error = ejki_lock_take(cache->path, cache->busy_ms, &cache->lock_file);
    if (error == ENOENT && ejki_make_folders(cache->path, 0700))
        error = ejki_lock_take(cache->path, cache->busy_ms, &cache->lock_file);
    return error;
}

void ejki_persistent_disconnect(ejk_persistent_cache *cache) {
    bool is_file = cache->store.db && !cache->memory_only;
    bool held = is_file && cache->owner == getpid() && hold(cache) == 0;
    if (is_file && cache->owner != getpid())
        cache->store = (ejki_store){0}; /* the parent's: not to be touched */
    else if (is_file && !held)
        ejki_store_close_alone(&cache->store);
    else
        ejki_store_close(&cache->store);
    if (held) ejki_lock_give(cache->lock_file);
    if (cache->lock_file >= 0) close(cache->lock_file);
    cache->lock_file = -1;
}

/* ---- Giving up ---------------------------------------------------------------------------------------- */

/* Takes over the sound rows of a file of ours, if it can be opened this way. */
static int64_t rescue_opened(const char *path, bool with_log, ejki_store *into) {
    ejki_store from;
    int64_t application = 0, version = 0, rows = 0;
    if (ejki_store_open_to_read(&from, path, with_log, 0) == SQLITE_OK &&
        ejki_store_ask(&from, "PRAGMA application_id", &application) == SQLITE_OK &&
        ejki_store_ask(&from, "PRAGMA user_version", &version) == SQLITE_OK &&
        application == EJKI_APPLICATION_ID && version == EJKI_SCHEMA_VERSION)
        rows = ejki_store_rescue(&from, into);
    ejki_store_close_alone(&from);
    return rows;
}

/* The rows of a file, with those that are still in its log only where there is one and it may be used. */
static int64_t rescue_file(const char *path, bool with_log, ejki_store *into) {
    int64_t rows = 0;
    if (with_log && ejki_store_has_log(path)) rows = rescue_opened(path, true, into);
    return rows > 0 ? rows : rescue_opened(path, false, into);
}

/* What can be read of a file that is not to be written. A fork's child may not lock it either. */
static void rescue(ejk_persistent_cache *cache, ejki_store *into) {
    struct stat facts;
    if (stat(cache->path, &facts) != 0 || !S_ISREG(facts.st_mode)) return; /* a pipe would wait */
    if (cache->store.get)
        ejki_store_rescue(&cache->store, into);
    else
        rescue_file(cache->path, cache->owner == getpid(), into);
}

/* From here on in memory, with what could be read. */
static ejk_status degrade(ejk_persistent_cache *cache, const char *reason) {
    ejki_store memory;
    if (ejki_store_open_memory(&memory) != SQLITE_OK) return out_of_memory();
    rescue(cache, &memory);
    ejki_store_close_alone(&cache->store);
    if (cache->lock_file >= 0) close(cache->lock_file);
    cache->lock_file = -1;
    cache->store = memory;
    cache->memory_only = true;
    ejki_persistent_note(cache, "cache_degraded", "{s:s, s:s}", "path", cache->shown, "reason",
                         reason);
    return EJK_OK;
}

static ejk_status degrade_unlocked(ejk_persistent_cache *cache, int error) {
    char reason[REASON];
    if (error == EBUSY)
        snprintf(reason, sizeof reason, "another process holds its lock for more than %d ms",
                 (int)cache->busy_ms);
    else
        snprintf(reason, sizeof reason, "its lock cannot be had: %s", strerror(error));
    return degrade(cache, reason);
}

/* ---- Setting aside ------------------------------------------------------------------------------------ */

static bool rename_part(const char *from, const char *to, const char *part) {
    char *old = ejki_compose("%s%s", from, part), *new = ejki_compose("%s%s", to, part);
    bool done = old && new &&rename(old, new) == 0;
    free(old);
    free(new);
    return done;
}

/* A name that nothing has yet; NULL for want of memory. */
static char *new_name(const char *path) {
    long long now = (long long)time(NULL);
    char *name = ejki_compose("%s.corrupt-%lld-%ld", path, now, (long)getpid());
    for (int count = 2; name && access(name, F_OK) == 0; count++) {
        free(name);
        name = ejki_compose("%s.corrupt-%lld-%ld-%d", path, now, (long)getpid(), count);
    }
    return name;
}

/*
 * Renames the file, and then what SQLite keeps beside it. In this order: whoever is killed in between leaves
 * parts without a database, and SQLite deletes those when it begins one. The new name, or NULL.
 */
static char *set_aside(const char *path) {
    char *name = new_name(path);
    if (name && !rename_part(path, name, "")) {
        free(name);
        return NULL;
    }
    static const char *const parts[] = {"-wal", "-shm", "-journal"};
    for (int i = 0; name && i < 3; i++) (void)rename_part(path, name, parts[i]);
    return name;
}

/* What SQLite made beside a file that was set aside, and holds nothing. */
static void tidy(const char *name) {
    struct stat facts;
    char *log = ejki_compose("%s-wal", name), *index = ejki_compose("%s-shm", name);
    if (log && stat(log, &facts) == 0 && facts.st_size == 0) unlink(log);
    if (index) unlink(index);
    free(log);
    free(index);
}

static void note_set_aside(ejk_persistent_cache *cache, const char *moved_to, const char *reason,
                           int64_t rows) {
    char *shown = ejki_compose("%s%s", cache->shown, moved_to + strlen(cache->path));
    if (!shown) return;
    ejki_persistent_note(cache, "cache_set_aside", "{s:s, s:s, s:s, s:I}", "path", cache->shown,
                         "moved_to", shown, "reason", reason, "salvaged", (long long)rows);
    free(shown);
}

/* ---- Connecting, while the lock is held --------------------------------------------------------------- */

/* Puts a new file in a damaged one's place. */
static ejk_status begin_anew(ejk_persistent_cache *cache, const char *why) {
    char reason[REASON];
    ejki_store_close_alone(&cache->store);
    char *moved_to = set_aside(cache->path);
    if (!moved_to) {
        snprintf(reason, sizeof reason, "it is damaged and cannot be renamed: %s", strerror(errno));
        return degrade(cache, reason);
    }
    ejki_verdict verdict = ejki_persistent_inspect(cache, reason, sizeof reason);
    int64_t rows = 0;
    if (verdict == EJKI_SOUND) rows = rescue_file(moved_to, true, &cache->store);
    tidy(moved_to);
    note_set_aside(cache, moved_to, why, rows);
    free(moved_to);
    if (verdict == EJKI_NO_MEMORY) return out_of_memory();
    return verdict == EJKI_SOUND ? EJK_OK : degrade(cache, reason);
}

/* Whether it takes no more than moments to examine a file's structure: 5 ms for 10,000 rows. */
static bool is_small(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && facts.st_size <= EXAMINED_BYTES;
}

/* Opens what is there; `suspect`: something was wrong with it, so it is examined whatever its size. */
static ejk_status resolve(ejk_persistent_cache *cache, bool suspect) {
    char reason[REASON];
    ejki_store_close_alone(&cache->store);
    ejki_verdict verdict = ejki_persistent_inspect(cache, reason, sizeof reason);
    if (verdict == EJKI_SOUND && (suspect || is_small(cache->path))) {
        int rc = ejki_store_examine(&cache->store);
        if (rc != SQLITE_OK) verdict = ejki_verdict_of(rc);
        snprintf(reason, sizeof reason, "%s", sqlite3_errstr(rc));
    }
    switch (verdict) {
    case EJKI_SOUND: return EJK_OK;
    case EJKI_DAMAGED: return begin_anew(cache, reason);
    case EJKI_NO_DATABASE:
    case EJKI_REFUSED: return degrade(cache, reason);
    case EJKI_NO_MEMORY: break;
    }
    ejki_store_close_alone(&cache->store);
    return out_of_memory();
}

static ejk_status connect_again(ejk_persistent_cache *cache, bool suspect) {
    int error = hold(cache);
    if (error != 0) return degrade_unlocked(cache, error);
    /* Somebody else may have put a good file in the damaged one's place. */
    ejk_status status = resolve(cache, suspect && !has_moved(cache));
    if (cache->lock_file >= 0) ejki_lock_give(cache->lock_file);
    return status;
}

ejk_status ejki_persistent_connect(ejk_persistent_cache *cache) {
    cache->owner = getpid();
    if (cache->trouble) return degrade(cache, cache->trouble);
    return connect_again(cache, false);
}

/* ---- Operations --------------------------------------------------------------------------------------- */

/* After a fork: what was opened before is not ours to touch, not even to close. */
static ejk_status leave_to_parent(ejk_persistent_cache *cache) {
    if (cache->memory_only) {
        cache->owner = getpid();
        return EJK_OK;
    }
    cache->store = (ejki_store){0};
    ejk_status status = degrade(cache, "it was opened before a fork");
    cache->owner = getpid();
    return status;
}

static int transact(ejk_persistent_cache *cache, ejki_operation operation, void *argument) {
    int rc = ejki_store_begin(&cache->store);
    if (rc == SQLITE_OK) rc = operation(cache, argument);
    if (rc == SQLITE_OK) rc = ejki_store_commit(&cache->store);
    if (rc != SQLITE_OK) ejki_store_rollback(&cache->store);
    return rc;
}

/* Writes under the lock, into the file that is there now. */
static ejk_status write_locked(ejk_persistent_cache *cache, ejki_operation operation,
                               void *argument, int *rc) {
    int error = hold(cache);
    if (error == EBUSY) {
        *rc = SQLITE_BUSY;
        return EJK_OK;
    }
    if (error != 0) EJKI_TRY(degrade_unlocked(cache, error));
    ejk_status status = EJK_OK;
    if (!cache->memory_only && has_moved(cache)) status = resolve(cache, false);
    if (status == EJK_OK) *rc = transact(cache, operation, argument);
    if (cache->lock_file >= 0) ejki_lock_give(cache->lock_file);
    return status;
}

static ejk_status call(ejk_persistent_cache *cache, bool writes, ejki_operation operation,
                       void *argument, int *rc) {
    if (cache->owner != getpid()) EJKI_TRY(leave_to_parent(cache));
    if (!cache->memory_only && writes) return write_locked(cache, operation, argument, rc);
    if (!cache->memory_only && has_moved(cache)) EJKI_TRY(connect_again(cache, false));
    *rc = writes ? transact(cache, operation, argument) : operation(cache, argument);
    return EJK_OK;
}

void ejki_persistent_describe(const ejki_store *store, int rc, char *reason, size_t size) {
    int error = sqlite3_system_errno(store->db);
    bool by_system = (rc & 0xff) == SQLITE_IOERR || (rc & 0xff) == SQLITE_CANTOPEN;
    snprintf(reason, size, "%s%s%s", sqlite3_errstr(rc), by_system && error ? ": " : "",
             by_system && error ? strerror(error) : "");
}

ejk_status ejki_persistent_run(ejk_persistent_cache *cache, bool writes, ejki_operation operation,
                               void *argument) {
    char reason[REASON] = "";
    for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
        int rc = SQLITE_OK;
        EJKI_TRY(call(cache, writes, operation, argument, &rc));
        if (rc == SQLITE_OK) return EJK_OK;
        ejki_verdict verdict = ejki_verdict_of(rc);
        if (verdict == EJKI_NO_MEMORY) return out_of_memory();
        if (verdict == EJKI_SOUND)
            return ejki_fail(EJK_STATUS_IO, "%s is in use by others for more than %d ms",
                             cache->path, (int)cache->busy_ms);
        ejki_persistent_describe(&cache->store, rc, reason, sizeof reason);
        if (cache->memory_only) break;
        if (verdict == EJKI_DAMAGED && attempt == 0)
            EJKI_TRY(connect_again(cache, true));
        else
            EJKI_TRY(degrade(cache, reason));
    }
    return ejki_fail(EJK_STATUS_INTERNAL, "a cache in memory failed: %s", reason);
}
