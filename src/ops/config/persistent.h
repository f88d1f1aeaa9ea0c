/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The struct behind ejk_persistent_cache, and what its files share.
 *
 * A cache is a store under a mutex. Beside the file lies another, "<file>-lock": whoever opens, writes,
 * closes or renames the file holds a lock on it. SQLite locks for itself, but does not expect its file to
 * be renamed: whoever still had the old one open would store rows where nobody looks, and as the parts
 * beside a database are found by name, might take those of the new one for its own. With the lock held, a
 * look whether the file still is the one that was opened stays true.
 */
#ifndef EJKI_OPS_CONFIG_PERSISTENT_H
#define EJKI_OPS_CONFIG_PERSISTENT_H

#include "base/folder.h"
#include "ops/config/fixed_since.h"
#include "ops/config/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* An event that is told once the cache's mutex is no longer held. */
typedef struct ejki_event {
    struct ejki_event *next;
    const char *name;
    char *fields;
} ejki_event;

struct ejk_persistent_cache {
    char *path;    /* of the file, absolute */
    char *shown;   /* the same for events: what is not UTF-8 replaced */
    char *trouble; /* what is wrong with the path; NULL: nothing, as far as is known */
    int32_t busy_ms;
    ejk_event_fn on_event;
    void *on_event_user;
    pthread_mutex_t mutex; /* guards what follows */
    pid_t owner;           /* the process that opened the store */
    ejki_store store;
    int lock_file; /* -1: none */
    bool memory_only;
    ejki_event *events, **events_end;
    const ejki_fixed_since *fixed; /* ends with an op_id of NULL */
};

/* How long a write waits for others where the options do not say. */
#define EJKI_BUSY_MS 20000

/* ---- persistent_path.c -------------------------------------------------------------------------------- */

/*
 * The file that a path (NULL = default) means, and its folders made. *trouble: what stands against using
 * it, or NULL. Both are to be freed. OUT_OF_MEMORY.
 */
ejk_status ejki_persistent_path(const char *path, char **out, char **trouble);

/* ---- persistent_lock.c -------------------------------------------------------------------------------- */

/*
 * Takes the lock of a database's file, and opens its file first where *file is -1 or no longer the one that
 * others find. Waits for at most busy_ms. 0, EBUSY, or the error why there can be no lock.
 */
int ejki_lock_take(const char *path, int busy_ms, int *file);
void ejki_lock_give(int file);

/* ---- persistent_events.c: all of these under the mutex, but the last --------------------------------- */

/* A text with what is not UTF-8 replaced, to be freed; NULL for want of memory. */
char *ejki_persistent_shown(const char *text);
/* Keeps an event with fields by json_pack()'s rules; without memory for it, it is dropped. */
void ejki_persistent_note(ejk_persistent_cache *cache, const char *name, const char *format, ...);
void ejki_persistent_note_row(ejk_persistent_cache *cache, const ejki_row *row);
/* True if a row is of use; else notes why not. */
bool ejki_persistent_accepts(ejk_persistent_cache *cache, const ejki_row *row);
/* Tells what was noted: `events` was taken from the cache before the mutex was let go. */
void ejki_persistent_emit(const ejk_persistent_cache *cache, ejki_event *events);

/* ---- persistent_inspect.c: what is there under the path, while the lock is held ----------------------- */

typedef enum ejki_verdict {
    EJKI_SOUND,       /* the store is ready */
    EJKI_DAMAGED,     /* ours, and broken */
    EJKI_REFUSED,     /* not ours, or not to be used */
    EJKI_NO_DATABASE, /* neither: whoever it was of */
    EJKI_NO_MEMORY,
} ejki_verdict;

/* What an SQLite result code other than success means for the file; EJKI_SOUND: it was busy. */
ejki_verdict ejki_verdict_of(int rc);

/*
 * Whose an open database is: SOUND if it is ours, of a version that we know, or empty. `bytes` is the file's
 * size; `ours` says whether damage that is found later is of our concern.
 */
ejki_verdict ejki_persistent_identify(ejki_store *store, int64_t bytes, int64_t *version,
                                      bool *is_new, bool *ours, char *reason, size_t size);

/*
 * Opens the store on the cache's file; makes a new one's table, and brings an older one up to date. Where
 * it is not sound, `reason` says why, and the store is open as far as it came.
 */
ejki_verdict ejki_persistent_inspect(ejk_persistent_cache *cache, char *reason, size_t size);

/* ---- persistent_verify.c ------------------------------------------------------------------------------ */

/* Reads every row of a store, noting those of no use, and examines its structure. SQLite's result code. */
int ejki_persistent_verify(ejk_persistent_cache *cache, ejki_store *store,
                           ejk_persistent_report *report);

/* ---- persistent_file.c: from opening to giving up; under the mutex ----------------------------------- */

/* What went wrong, in words of SQLite and of the system. */
void ejki_persistent_describe(const ejki_store *store, int rc, char *reason, size_t size);

/* Opens the file, or memory in its place. OUT_OF_MEMORY. */
ejk_status ejki_persistent_connect(ejk_persistent_cache *cache);
void ejki_persistent_disconnect(ejk_persistent_cache *cache);

/*
 * Calls an operation on the store, in a transaction if it writes, and again after what went wrong with the
 * file was dealt with. An operation may thus be called more than once. OUT_OF_MEMORY, IO.
 */
typedef int (*ejki_operation)(ejk_persistent_cache *cache, void *argument);
ejk_status ejki_persistent_run(ejk_persistent_cache *cache, bool writes, ejki_operation operation,
                               void *argument);

/* ---- persistent.c ------------------------------------------------------------------------------------- */

ejk_status ejki_persistent_check_options(const ejk_persistent_options *options);

/* The above under the mutex, with events told afterwards. */
ejk_status ejki_persistent_do(ejk_persistent_cache *cache, bool writes, ejki_operation operation,
                              void *argument);

/* Copies of the rows that are of use and pass a filter (may be NULL). */
typedef struct ejki_rows {
    struct ejki_kept_row {
        ejk_config_key key; /* texts behind the configuration's */
        ejk_config_entry entry;
    } * rows;
    size_t count, room;
} ejki_rows;

ejk_status ejki_persistent_collect(ejk_persistent_cache *cache, const ejk_config_filter *filter,
                                   ejki_rows *out);
void ejki_rows_free(ejki_rows *rows);

/* An entry that does not say which library it is of is of this one. */
static inline void ejki_stamp(ejk_config_entry *entry) {
    if (*entry->library_version == '\0')
        strncpy(entry->library_version, ejk_version(), sizeof entry->library_version - 1);
}

/* Replaces the library's own rules, for tests. */
void ejki_persistent_set_fixed(ejk_persistent_cache *cache, const ejki_fixed_since *fixed);

#endif
