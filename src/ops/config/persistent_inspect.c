/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a file is. Ours bears our number in its header; anything else that is not empty belongs to somebody
 * and is left alone, whatever its state. Only what is ours can be damaged.
 */
#include "ops/config/persistent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER = 100, MAGIC = 16, APPLICATION_AT = 68 };

static const char magic[MAGIC] = "SQLite format 3";

ejki_verdict ejki_verdict_of(int rc) {
    if (rc == SQLITE_IOERR_NOMEM) return EJKI_NO_MEMORY;
    switch (rc & 0xff) {
    case SQLITE_NOMEM: return EJKI_NO_MEMORY;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL: return EJKI_SOUND;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR: /* a statement that no longer fits the table */
    case SQLITE_SCHEMA:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_FORMAT:
    case SQLITE_TOOBIG: return EJKI_DAMAGED;
    default: return EJKI_REFUSED;
    }
}

/* Reads through SQLite: closing a file of our own would end the locks that it holds on the same one. */
static void read_header(sqlite3 *db, unsigned char header[HEADER]) {
    sqlite3_file *file = NULL;
    memset(header, 0, HEADER);
    if (sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file) == SQLITE_OK && file &&
        file->pMethods)
        (void)file->pMethods->xRead(file, header, HEADER, 0);
}

static bool bears_our_number(const unsigned char header[HEADER]) {
    const unsigned char *at = header + APPLICATION_AT;
    return ((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]) ==
           EJKI_APPLICATION_ID;
}

/* Looks at the file before SQLite does, and makes it if it is missing. */
static ejki_verdict look_at_file(const char *path, int64_t *bytes, char *reason, size_t size) {
    int made = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (made >= 0) close(made);
    struct stat facts;
    if ((made < 0 && errno != EEXIST) || stat(path, &facts) != 0) {
        snprintf(reason, size, "it cannot be made: %s", strerror(errno));
        return EJKI_REFUSED;
    }
    if (!S_ISREG(facts.st_mode)) {
        snprintf(reason, size, "it is %s", S_ISDIR(facts.st_mode) ? "a folder" : "no regular file");
        return EJKI_REFUSED;
    }
    *bytes = facts.st_size;
    return EJKI_SOUND;
}

/* A step that SQLite refused. What is wrong with a file that is not ours is none of our business. */
static ejki_verdict refused(const ejki_store *store, int rc, bool ours, char *reason, size_t size) {
    int error = sqlite3_system_errno(store->db);
    snprintf(reason, size, "%s%s%s%s", sqlite3_errstr(rc), error ? ": " : "",
             error ? strerror(error) : "", ours ? "" : " (a file of another program)");
    ejki_verdict verdict = ejki_verdict_of(rc);
    if (verdict == EJKI_NO_MEMORY) return verdict;
    return verdict == EJKI_DAMAGED && ours ? EJKI_DAMAGED : EJKI_REFUSED;
}

/* The settings of every connection. Where the file system cannot do WAL, the journal stays as it is. */
static int configure(ejki_store *store) {
    static const char *const settings[] = {"PRAGMA mmap_size = 0", "PRAGMA cell_size_check = ON",
                                           "PRAGMA journal_mode = WAL",
                                           "PRAGMA synchronous = NORMAL"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        int rc = sqlite3_exec(store->db, settings[i], NULL, NULL, NULL);
        if (rc != SQLITE_OK && ejki_verdict_of(rc) != EJKI_SOUND) return rc;
    }
    return SQLITE_OK;
}

static int identify(ejki_store *store, int64_t *application, int64_t *version, int64_t *objects) {
    int rc = ejki_store_ask(store, "PRAGMA application_id", application);
    if (rc == SQLITE_OK) rc = ejki_store_ask(store, "PRAGMA user_version", version);
    if (rc == SQLITE_OK) rc = ejki_store_ask(store, "SELECT count(*) FROM sqlite_schema", objects);
    return rc;
}

/* Whether there is a header of a database, or nothing yet. */
static ejki_verdict look_at_header(ejki_store *store, int64_t bytes, bool *ours, char *reason,
                                   size_t size) {
    unsigned char header[HEADER];
    read_header(store->db, header);
    *ours = bears_our_number(header);
    if (bytes == 0 || memcmp(header, magic, MAGIC) == 0) {
        *ours = *ours || bytes < APPLICATION_AT + 4;
        return EJKI_SOUND;
    }
    /* The beginning of a database, cut off before our number. */
    if (bytes < APPLICATION_AT + 4 && memcmp(header, magic, (size_t)ejki_min(bytes, MAGIC)) == 0)
        *ours = true;
    snprintf(reason, size, "it is no database");
    return *ours ? EJKI_DAMAGED : EJKI_NO_DATABASE;
}

ejki_verdict ejki_persistent_identify(ejki_store *store, int64_t bytes, int64_t *version,
                                      bool *is_new, bool *ours, char *reason, size_t size) {
    int64_t application = 0, objects = 0;
    *version = 0;
    ejki_verdict verdict = look_at_header(store, bytes, ours, reason, size);
    if (verdict != EJKI_SOUND) return verdict;
    int rc = identify(store, &application, version, &objects);
    if (rc != SQLITE_OK) return refused(store, rc, *ours, reason, size);
    *is_new = objects == 0;
    if (application != EJKI_APPLICATION_ID && (application != 0 || *version != 0 || !*is_new)) {
        snprintf(reason, size, "it is a database of another program (application_id %lld)",
                 (long long)application);
        return EJKI_REFUSED;
    }
    if (*version >= 0 && *version <= EJKI_SCHEMA_VERSION) return EJKI_SOUND;
    snprintf(reason, size, "its schema is version %lld; this library knows versions up to %d",
             (long long)*version, EJKI_SCHEMA_VERSION);
    return EJKI_REFUSED;
}

/* Makes the table of an empty file, or that of an older version anew. */
static int bring_up_to_date(ejk_persistent_cache *cache, int64_t version, bool is_new) {
    if (is_new) return ejki_store_create(&cache->store);
    if (version == EJKI_SCHEMA_VERSION) return SQLITE_OK;
    int64_t rows;
    int rc = ejki_store_migrate(&cache->store, &rows);
    if (rc == SQLITE_OK)
        ejki_persistent_note(cache, "cache_migrated", "{s:s, s:I, s:i, s:I}", "path", cache->shown,
                             "from", (long long)version, "to", EJKI_SCHEMA_VERSION, "rows",
                             (long long)rows);
    return rc;
}

ejki_verdict ejki_persistent_inspect(ejk_persistent_cache *cache, char *reason, size_t size) {
    int64_t bytes = 0, version = 0;
    bool ours = false, is_new = false;
    ejki_verdict verdict = look_at_file(cache->path, &bytes, reason, size);
    if (verdict != EJKI_SOUND) return verdict;
    ejki_store *store = &cache->store;
    int rc = ejki_store_open(store, cache->path, SQLITE_OPEN_READWRITE, cache->busy_ms);
    if (rc != SQLITE_OK) return refused(store, rc, true, reason, size);
    if (sqlite3_db_readonly(store->db, "main") == 1) {
        snprintf(reason, size, "it cannot be written");
        return EJKI_REFUSED;
    }
    verdict = ejki_persistent_identify(store, bytes, &version, &is_new, &ours, reason, size);
    if (verdict != EJKI_SOUND) return verdict;
    rc = bring_up_to_date(cache, version, is_new);
    if (rc == SQLITE_OK) rc = ejki_store_check(store);
    if (rc == SQLITE_OK) rc = configure(store);
    if (rc == SQLITE_OK) rc = ejki_store_prepare(store);
    return rc == SQLITE_OK ? EJKI_SOUND : refused(store, rc, true, reason, size);
}
