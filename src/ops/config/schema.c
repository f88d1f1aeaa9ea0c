/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table, and how an older one becomes it. The version is in the database's user_version:
 *
 *   0   configs(key TEXT PRIMARY KEY, config TEXT): the documented file's form as a table, with keys
 *       "<device>|<op_id>|<call_key>"
 *   1   one column for each part of the key, and what a configuration rests on
 */
#include "ops/config/document.h"
#include "ops/config/row.h"

#include <stdlib.h>

#define TEXT(number)  #number
#define SPELL(number) TEXT(number)

static const char CREATE[] =
    "CREATE TABLE configs ("
    "device TEXT NOT NULL, op_id TEXT NOT NULL, call_key TEXT NOT NULL, layout TEXT NOT NULL, "
    "threads INTEGER NOT NULL, direction INTEGER NOT NULL, config TEXT NOT NULL, "
    "implementation TEXT NOT NULL, implementation_version INTEGER NOT NULL, "
    "library_version TEXT NOT NULL, median_s REAL NOT NULL, spread_s REAL NOT NULL, "
    "reference_s REAL NOT NULL, unix_time INTEGER NOT NULL, repetitions INTEGER NOT NULL, "
    "checksum INTEGER NOT NULL, "
    "PRIMARY KEY (" EJKI_KEY_COLUMNS ")) WITHOUT ROWID";
static const char STAMP[] = "PRAGMA application_id = " SPELL(
    EJKI_APPLICATION_ID) ";"
                         "PRAGMA user_version = " SPELL(EJKI_SCHEMA_VERSION);

static int execute(ejki_store *store, const char *sql, int rc) {
    return rc == SQLITE_OK ? sqlite3_exec(store->db, sql, NULL, NULL, NULL) : rc;
}

/* Ends a transaction the way it went. */
static int finish(ejki_store *store, int rc) {
    rc = execute(store, "COMMIT", rc);
    if (rc != SQLITE_OK) ejki_store_rollback(store);
    return rc;
}

int ejki_store_check(ejki_store *store) {
    sqlite3_stmt *statement;
    int rc = sqlite3_prepare_v2(
        store->db,
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'configs' AND sql = ?",
        -1, &statement, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_bind_text(statement, 1, CREATE, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK) rc = sqlite3_step(statement);
    bool same = rc == SQLITE_ROW && sqlite3_column_int64(statement, 0) == 1;
    sqlite3_finalize(statement);
    if (rc == SQLITE_ROW) return same ? SQLITE_OK : SQLITE_CORRUPT;
    return rc;
}

int ejki_store_create(ejki_store *store) {
    int rc = execute(store, "BEGIN IMMEDIATE", SQLITE_OK);
    rc = execute(store, CREATE, rc);
    rc = execute(store, STAMP, rc);
    return finish(store, rc);
}

/* One row of version 0; what makes no sense is left behind. */
static int migrate_row(sqlite3_stmt *old, sqlite3_stmt *put, int64_t *rows) {
    char parts[EJKI_DOCUMENT_KEY_SIZE];
    ejk_config_key key;
    const char *text = (const char *)sqlite3_column_text(old, 0);
    ejk_config_entry entry = {.config = (char *)(uintptr_t)sqlite3_column_text(old, 1)};
    if (!text || ejki_document_key_split(text, parts, &key) != EJK_OK ||
        ejki_config_key_check(&key, &key) != EJK_OK || ejki_config_entry_check(&entry) != EJK_OK)
        return SQLITE_OK;
    int rc = ejki_row_bind(put, &key, &entry);
    if (rc == SQLITE_OK) rc = sqlite3_step(put);
    sqlite3_reset(put);
    if (rc == SQLITE_DONE) ++*rows;
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int migrate_rows(ejki_store *store, int64_t *rows) {
    sqlite3_stmt *old = NULL, *put = NULL;
    int rc = sqlite3_prepare_v2(store->db, "SELECT key, config FROM configs_0 ORDER BY key", -1,
                                &old, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(store->db,
                                "INSERT OR REPLACE INTO configs (" EJKI_COLUMNS ") VALUES "
                                "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                                -1, &put, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(old)) == SQLITE_ROW)
        rc = migrate_row(old, put, rows);
    sqlite3_finalize(old);
    sqlite3_finalize(put);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int ejki_store_migrate(ejki_store *store, int64_t *rows) {
    *rows = 0;
    int rc = execute(store, "BEGIN IMMEDIATE", SQLITE_OK);
    rc = execute(store, "ALTER TABLE configs RENAME TO configs_0", rc);
    rc = execute(store, CREATE, rc);
    if (rc == SQLITE_OK) rc = migrate_rows(store, rows);
    rc = execute(store, "DROP TABLE configs_0", rc);
    rc = execute(store, STAMP, rc);
    return finish(store, rc);
}
