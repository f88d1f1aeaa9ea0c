/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file config.h
 * Caches of configurations: one in memory, and one on disk that processes share.
 *
 * A configuration is the JSON text of a kernel's configuration record, with the fields that are set. It is
 * kept under an #ejk_config_key, together with the implementation it is for and the measurement it rests
 * on. An #ejk_config_cache lives in memory and is read without a lock. An #ejk_persistent_cache is an
 * SQLite file that any number of threads and processes read and write at once without losing anything.
 *
 * @code
 * ejk_config_key key = {.call_key = "my problem"};
 * ejk_config_entry entry = {.config = "{\"block_q\":64}"}, got;
 * bool found;
 * ejk_config_cache_put(cache, &key, &entry);
 * if (ejk_config_cache_get(cache, &key, &got, &found) == EJK_OK && found) ejk_config_entry_release(&got);
 * @endcode
 *
 * A missing entry is not a failure: the call returns OK and `*found` is false.
 *
 * The state of the disk never makes a call fail that would work without a cache. If the file is damaged, belongs
 * to another program or a later version, if the folder cannot be written or the disk is full, the persistent
 * cache keeps its entries in memory instead. Events report it; their fields are JSON objects:
 *
 * | event | fields | when |
 * |---|---|---|
 * | cache_set_aside | path, moved_to, reason, salvaged | a damaged file was renamed; `salvaged` rows were kept |
 * | cache_degraded | path, reason | from here on entries are in memory only |
 * | cache_damaged | path, reason | ejk_persistent_file_verify() found damage; nothing was changed |
 * | cache_migrated | path, from, to, rows | a file of an older schema was converted |
 * | cache_row_rejected | device, op_id, call_key, reason | an invalid row, treated as a miss |
 * | cache_row_stale | device, op_id, call_key, library_version, reason | a miss: that version gave wrong results |
 *
 * Thread-safety: all functions may be called from several threads at once, except those that destroy or close a
 * cache. Events are sent by the calling thread while no lock is held, so a handler may use the cache.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_CONFIG_H
#define EJKERNEL_CONFIG_H

#include <ejkernel/context.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Which half of an operation a configuration is for. */
typedef enum ejk_direction { EJK_FORWARD = 0, EJK_BACKWARD = 1 } ejk_direction;

/** Room of a key's text and of a configuration, in bytes with the closing zero. */
#define EJK_CONFIG_KEY_SIZE 1024
#define EJK_CONFIG_SIZE     65536

/**
 * What a configuration is kept under: the documented triple and three further columns. All six together are
 * the key. Texts are UTF-8 and borrowed; NULL is "". Only `call_key` has to be there, so that a key of one
 * text is `{.call_key = text}`.
 */
typedef struct ejk_config_key {
    const char *device;      /**< fingerprint, "cpu|intel 6.143.8; amx; 2 cores" */
    const char *op_id;       /**< with version: "flash_attention@v0" */
    const char *call_key;    /**< 16 hexadecimal digits by habit; any text but "" is accepted */
    const char *layout;      /**< class of the strides; "" = contiguous, or any */
    int32_t threads;         /**< offered to the call; 0 = any */
    ejk_direction direction; /**< forward by default */
} ejk_config_key;

/** The measurement that a configuration rests on. All zeros = none. */
typedef struct ejk_config_measurement {
    double median_s;     /**< median time of a call, in seconds */
    double spread_s;     /**< its spread: distance of the quartiles, in seconds */
    double reference_s;  /**< median of what it was compared with, in seconds */
    int64_t unix_time;   /**< when, in seconds since 1970 */
    int32_t repetitions; /**< calls that were timed */
} ejk_config_measurement;

/** A configuration that is kept. Zero but for `config` = nothing is known about it. */
typedef struct ejk_config_entry {
    char *config;                   /**< JSON text, fewer than #EJK_CONFIG_SIZE bytes */
    char implementation[64];        /**< its name, "f32/avx512/tile"; "" = whichever is chosen */
    int32_t implementation_version; /**< of that implementation; 0 = not known */
    char library_version
        [16]; /**< of the library that measured; put into a persistent cache as "", it
                                   becomes this library's */
    ejk_config_measurement measurement;
} ejk_config_entry;

/** Frees an entry that a get returned, and zeroes it. Not for entries with your own text. NULL is allowed. */
EJK_API void ejk_config_entry_release(ejk_config_entry *entry);

/** Visits an entry: key and texts are valid during the call only. False ends the walk. */
typedef bool (*ejk_config_visit_fn)(void *user, const ejk_config_key *key,
                                    const ejk_config_entry *entry);

/* ---- In memory ------------------------------------------------------------------------------------- */

/** A cache in memory. Readers take no lock and never wait; writers wait for one another. */
typedef struct ejk_config_cache ejk_config_cache;

/**
 * Creates an empty cache of at most `capacity` entries; 0 = unlimited. When it is full, the entry that was
 * inserted first is evicted; replacing an entry does not change its position. Statuses: INVALID_ARGUMENT,
 * OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_config_cache_create(int64_t capacity, ejk_config_cache **out);

/** Ends it. No call of it may be running. NULL is allowed. */
EJK_API void ejk_config_cache_destroy(ejk_config_cache *cache);

/**
 * Looks a key up. Found: `*out` is a copy, to be released with ejk_config_entry_release(). Not found:
 * `*out` is untouched. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_config_cache_get(const ejk_config_cache *cache,
                                                      const ejk_config_key *key,
                                                      ejk_config_entry *out, bool *found);

/**
 * Keeps a copy of an entry, in place of the key's former one. Statuses: INVALID_ARGUMENT (key, numbers
 * that are negative or not finite, texts without end), MALFORMED (`config` is no JSON), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_config_cache_put(ejk_config_cache *cache,
                                                      const ejk_config_key *key,
                                                      const ejk_config_entry *entry);

/** True if the key is there; false also for a key that none can be. */
EJK_API bool ejk_config_cache_contains(const ejk_config_cache *cache, const ejk_config_key *key);

/** Removes a key; `*found` (may be NULL) says whether it was there. Status: INVALID_ARGUMENT. */
EJK_API EJK_NODISCARD ejk_status ejk_config_cache_remove(ejk_config_cache *cache,
                                                         const ejk_config_key *key, bool *found);

/** Removes all entries. Status: INVALID_ARGUMENT. */
EJK_API EJK_NODISCARD ejk_status ejk_config_cache_clear(ejk_config_cache *cache);

/** How many entries there are. */
EJK_API int64_t ejk_config_cache_size(const ejk_config_cache *cache);

/**
 * Visits the entries there are when the walk begins, in the order in which their keys were first put. The
 * visitor may use the cache. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_config_cache_keys(const ejk_config_cache *cache,
                                                       ejk_config_visit_fn visit, void *user);

/**
 * A number that grows with every change. To cache something derived from an entry, read this number before the
 * get and store it too: while it stays the same, nothing has changed.
 */
EJK_API uint64_t ejk_config_cache_generation(const ejk_config_cache *cache);

/* ---- On disk --------------------------------------------------------------------------------------- */

/**
 * A cache on disk. When a put has returned OK, every other process sees the entry, and it survives a crash of
 * this process. A power failure may lose the last entries, but does not damage the file.
 *
 * After fork(), a child that uses a cache of its parent gets one in memory (cache_degraded), as SQLite
 * allows no file to be used across a fork; open caches after forking.
 */
typedef struct ejk_persistent_cache ejk_persistent_cache;

/** How a persistent cache is opened. Zero means default everywhere. */
typedef struct ejk_persistent_options {
    const char *path; /**< a path that ends in ".db" is the file, any other a folder that gets
                           "configs.db"; a leading "~/" is expanded. NULL = $EJKERNEL_CACHE_DIR, else
                           $XDG_CACHE_HOME/ejkernel, else ~/.cache/ejkernel */
    int32_t busy_ms;  /**< how long a write waits for other processes, in milliseconds; 0 = 20000 */
    ejk_event_fn on_event; /**< NULL = events are dropped */
    void *on_event_user;   /**< its first argument */
} ejk_persistent_options;

/**
 * Opens a cache; folders that are missing are made with mode 0700, the file with 0600. NULL options =
 * defaults. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY; whatever is wrong with the path gives a cache in
 * memory and an event.
 */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_open(const ejk_persistent_options *options,
                                                           ejk_persistent_cache **out);

/**
 * The file that a path (as in the options; NULL = default) means, whether it is there or not. Makes nothing.
 * Freed with ejk_free(). Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_locate(const char *path, char **out);

/** Ends it. No call of it may be running. NULL is allowed. */
EJK_API void ejk_persistent_cache_close(ejk_persistent_cache *cache);

/**
 * Looks a key up, as ejk_config_cache_get(). A row that is damaged or stale counts as not there, with an
 * event. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, IO (the file stays locked for longer than `busy_ms`).
 */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_get(ejk_persistent_cache *cache,
                                                          const ejk_config_key *key,
                                                          ejk_config_entry *out, bool *found);

/**
 * Stores an entry in place of the key's former one: the last writer of a key wins. Statuses: those of
 * ejk_config_cache_put(), and IO as above.
 */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_put(ejk_persistent_cache *cache,
                                                          const ejk_config_key *key,
                                                          const ejk_config_entry *entry);

/** True if a get would find the key. */
EJK_API bool ejk_persistent_cache_contains(ejk_persistent_cache *cache, const ejk_config_key *key);

/** Takes a key out; `*found` (may be NULL) says whether it was there. Statuses: as for a get. */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_remove(ejk_persistent_cache *cache,
                                                             const ejk_config_key *key,
                                                             bool *found);

/** Takes all rows out. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, IO. */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_clear(ejk_persistent_cache *cache);

/** How many rows there are, good or not. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, IO. */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_size(ejk_persistent_cache *cache,
                                                           int64_t *out);

/** Which entries are meant. Zero means all. */
typedef struct ejk_config_filter {
    const char *device; /**< the whole text */
    const char *op_id;  /**< the whole text, or without "@v…" for every version */
} ejk_config_filter;

/**
 * Visits the entries that a get would find, in the order of their keys, as they are when the walk begins.
 * NULL filter = all. The visitor may use the cache. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, IO.
 */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_each(ejk_persistent_cache *cache,
                                                           const ejk_config_filter *filter,
                                                           ejk_config_visit_fn visit, void *user);

/** The file, as an absolute path; also where it cannot be used. Owned by the cache. */
EJK_API const char *ejk_persistent_cache_path(const ejk_persistent_cache *cache);

/** True once entries are kept in memory only. */
EJK_API bool ejk_persistent_cache_is_memory_only(ejk_persistent_cache *cache);

/** What ejk_persistent_cache_verify() found. */
typedef struct ejk_persistent_report {
    int64_t rows;     /**< there are */
    int64_t rejected; /**< of these, damaged */
    int64_t stale;    /**< of these, sound but of no use */
    bool sound;       /**< the file's structure is as it should be, and no row was rejected */
} ejk_persistent_report;

/** Checks the file of an open cache and reads every row. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, IO. */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_verify(ejk_persistent_cache *cache,
                                                             ejk_persistent_report *out);

/**
 * The same of a file that is not opened as a cache, which would set a damaged one aside: it is only read, also
 * where its folder cannot be written to or the disk is full. Damage is an answer, OK with `sound` false, and
 * the event cache_damaged says what it is; a file that is no database counts as such, rows of an older schema
 * are counted but not checked. NULL options = defaults. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, IO: the file
 * cannot be read, as it is not there, may not be, belongs to another program or to a later version, or stays
 * locked for longer than `busy_ms`. Since 0.1.
 */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_file_verify(const ejk_persistent_options *options,
                                                            ejk_persistent_report *out);

/**
 * Writes entries as one JSON object, `{"<device>|<op_id>|<call_key>": <configuration>, …}`, on one line
 * with its keys sorted. What that form has no place for follows under the key "$ejkernel"; see
 * docs/format/config-json.md. `*out` is freed with ejk_free(). Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY,
 * IO.
 */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_export_json(ejk_persistent_cache *cache,
                                                                  const ejk_config_filter *filter,
                                                                  char **out);

/** What became of the entries of a text. */
typedef struct ejk_config_import {
    int64_t added;    /**< had no row before */
    int64_t replaced; /**< took the place of a row */
    int64_t kept;     /**< left out: the row there was measured later */
    int64_t rejected; /**< invalid; an event reports each */
} ejk_config_import;

/**
 * Reads entries from a text of that form, with or without "$ejkernel", all or none. `out` may be NULL.
 * Statuses: INVALID_ARGUMENT, MALFORMED (no JSON object, or of a later form), OUT_OF_MEMORY, IO.
 */
EJK_API EJK_NODISCARD ejk_status ejk_persistent_cache_import_json(ejk_persistent_cache *cache,
                                                                  const char *text,
                                                                  ejk_config_import *out);

#ifdef __cplusplus
}
#endif
#endif
