/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of configurations in an SQLite database: one connection with its statements, on a file or in
 * memory. Everything here answers SQLite's result codes and knows nothing of paths, locks and events.
 */
#ifndef EJKI_OPS_CONFIG_STORE_H
#define EJKI_OPS_CONFIG_STORE_H

#include "ops/config/entry.h"

#include <sqlite3.h>

/* "ejkc" in the file's header, and the version of the schema. */
#define EJKI_APPLICATION_ID 0x656a6b63
#define EJKI_SCHEMA_VERSION 1

/* The most rows that are read in one go, whatever a file claims to have. */
#define EJKI_MAX_ROWS 1000000

typedef struct ejki_store {
    sqlite3 *db;
    sqlite3_stmt *begin, *commit, *get, *put, *remove, *clear, *count;
} ejki_store;

/* A row as it is read: texts belong to the statement until its next step. */
typedef struct ejki_row {
    ejk_config_key key;
    ejk_config_entry entry;
    const char *fault; /* NULL: sound; else in words what is wrong with it */
} ejki_row;

/* Opens a database without looking into it; on failure too, ejki_store_close() ends it. */
int ejki_store_open(ejki_store *store, const char *path, int flags, int busy_ms);
/*
 * The same to be read only: with the log beside it, which takes locks and a folder that can be written to, or
 * the file as it lies there, which takes neither.
 */
int ejki_store_open_to_read(ejki_store *store, const char *path, bool with_log, int busy_ms);
bool ejki_store_has_log(const char *path);
/* Makes the table in an empty database, or brings an older one up to date, in one transaction. */
int ejki_store_create(ejki_store *store);
int ejki_store_migrate(ejki_store *store, int64_t *rows);
/* SQLITE_CORRUPT if the table is not word for word what was made: its types decide what is stored. */
int ejki_store_check(ejki_store *store);
/* Needs the table. */
int ejki_store_prepare(ejki_store *store);
void ejki_store_close(ejki_store *store);
/* Leaves the files beside its own as they are: they may be another one's by now. */
void ejki_store_close_alone(ejki_store *store);
/* A store in memory, ready for use. */
int ejki_store_open_memory(ejki_store *store);

/* The number that a statement of one row and column answers. */
int ejki_store_ask(ejki_store *store, const char *sql, int64_t *out);

/* One row by its key: SQLITE_ROW and then ejki_store_reset(), or SQLITE_DONE. */
int ejki_store_get(ejki_store *store, const ejk_config_key *key, ejki_row *out);
void ejki_store_reset(ejki_store *store);

/* Inside a transaction, or one of their own. The last two say how many rows went. */
int ejki_store_put(ejki_store *store, const ejk_config_key *key, const ejk_config_entry *entry);
int ejki_store_remove(ejki_store *store, const ejk_config_key *key, int64_t *rows);
int ejki_store_clear(ejki_store *store, int64_t *rows);
int ejki_store_count(ejki_store *store, int64_t *rows);
int ejki_store_begin(ejki_store *store);
int ejki_store_commit(ejki_store *store);
void ejki_store_rollback(ejki_store *store);

/* Visits rows in the order of their keys, the last one first if `backward`; false ends it. */
typedef bool (*ejki_row_fn)(void *user, const ejki_row *row);
int ejki_store_each(ejki_store *store, bool backward, ejki_row_fn visit, void *user);

/*
 * Puts what is sound in one store into another that lacks it, from both ends, so that a damaged page costs
 * no more than its own rows. Answers how many rows it was.
 */
int64_t ejki_store_rescue(ejki_store *from, ejki_store *into);

/* SQLITE_OK if the structure is sound, SQLITE_CORRUPT if it is not. */
int ejki_store_examine(ejki_store *store);

#endif
