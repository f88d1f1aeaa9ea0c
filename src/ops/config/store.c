/* SPDX-License-Identifier: Apache-2.0 */
#include "base/folder.h"
#include "ops/config/row.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char SELECT[] = "SELECT " EJKI_COLUMNS " FROM configs ";
#define BY_KEY                                                                                     \
    "WHERE device = ? AND op_id = ? AND call_key = ? AND layout = ? AND threads = ? AND "          \
    "direction = ?"

/* Nothing that a file brings along is run, and nobody can use us to write to its schema. */
static int harden(sqlite3 *db) {
    static const struct {
        int option, on;
    } settings[] = {
        {SQLITE_DBCONFIG_DEFENSIVE, 1},   {SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0},
        {SQLITE_DBCONFIG_ENABLE_VIEW, 0}, {SQLITE_DBCONFIG_ENABLE_TRIGGER, 0},
        {SQLITE_DBCONFIG_DQS_DML, 0},     {SQLITE_DBCONFIG_DQS_DDL, 0},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        int rc = sqlite3_db_config(db, settings[i].option, settings[i].on, NULL);
        if (rc != SQLITE_OK) return rc;
    }
    return SQLITE_OK;
}

int ejki_store_open(ejki_store *store, const char *path, int flags, int busy_ms) {
    *store = (ejki_store){0};
    /* A cache has a lock of its own around every use of its connection. */
    int rc = sqlite3_open_v2(path, &store->db, flags | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_extended_result_codes(store->db, 1);
    if (rc == SQLITE_OK) rc = harden(store->db);
    if (rc == SQLITE_OK) rc = sqlite3_busy_timeout(store->db, busy_ms);
    return rc;
}

/* "file:" and the path, with the signs that mean something there spelt out. NULL for want of memory. */
static char *immutable_name(const char *path) {
    static const char option[] = "?immutable=1";
    char *name = malloc(5 + 3 * strlen(path) + sizeof option), *end = name;
    if (!name) return NULL;
    end = stpcpy(end, "file:");
    for (; *path; path++)
        end += sprintf(end, strchr("?#%", *path) ? "%%%02X" : "%c", (unsigned char)*path);
    stpcpy(end, option);
    return name;
}

int ejki_store_open_to_read(ejki_store *store, const char *path, bool with_log, int busy_ms) {
    if (with_log) return ejki_store_open(store, path, SQLITE_OPEN_READONLY, busy_ms);
    *store = (ejki_store){0};
    char *name = immutable_name(path);
    if (!name) return SQLITE_NOMEM;
    int rc = ejki_store_open(store, name, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, busy_ms);
    free(name);
    return rc;
}

bool ejki_store_has_log(const char *path) {
    char *log = ejki_compose("%s-wal", path);
    bool there = log && access(log, F_OK) == 0;
    free(log);
    return there;
}

void ejki_store_close_alone(ejki_store *store) {
    int keep = 1;
    if (store->db) {
        sqlite3_file_control(store->db, "main", SQLITE_FCNTL_PERSIST_WAL, &keep);
        sqlite3_db_config(store->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    }
    ejki_store_close(store);
}

int ejki_store_prepare(ejki_store *store) {
    const struct {
        sqlite3_stmt **statement;
        const char *sql;
    } list[] = {
        {&store->begin, "BEGIN IMMEDIATE"},
        {&store->commit, "COMMIT"},
        {&store->get, "SELECT " EJKI_COLUMNS " FROM configs " BY_KEY},
        {&store->put, "INSERT OR REPLACE INTO configs (" EJKI_COLUMNS ") VALUES "
                      "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"},
        {&store->remove, "DELETE FROM configs " BY_KEY},
        {&store->clear, "DELETE FROM configs"},
        {&store->count, "SELECT count(*) FROM configs"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        int rc = sqlite3_prepare_v3(store->db, list[i].sql, -1, SQLITE_PREPARE_PERSISTENT,
                                    list[i].statement, NULL);
        if (rc != SQLITE_OK) return rc;
    }
    return SQLITE_OK;
}

void ejki_store_close(ejki_store *store) {
    sqlite3_stmt *const list[] = {store->begin,  store->commit, store->get,  store->put,
                                  store->remove, store->clear,  store->count};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) sqlite3_finalize(list[i]);
    sqlite3_close_v2(store->db);
    *store = (ejki_store){0};
}

int ejki_store_open_memory(ejki_store *store) {
    int rc = ejki_store_open(
        store, ":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MEMORY, 0);
    if (rc == SQLITE_OK) rc = ejki_store_create(store);
    if (rc == SQLITE_OK) rc = ejki_store_prepare(store);
    if (rc != SQLITE_OK) ejki_store_close(store);
    return rc;
}

int ejki_store_ask(ejki_store *store, const char *sql, int64_t *out) {
    sqlite3_stmt *statement;
    int rc = sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL);
    if (rc != SQLITE_OK) return rc;
    rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW) *out = sqlite3_column_int64(statement, 0);
    int end = sqlite3_finalize(statement);
    return rc == SQLITE_ROW ? SQLITE_OK : end;
}

/* ---- Single rows -------------------------------------------------------------------------------------- */

int ejki_store_get(ejki_store *store, const ejk_config_key *key, ejki_row *out) {
    int rc = ejki_row_bind_key(store->get, key);
    if (rc == SQLITE_OK) rc = sqlite3_step(store->get);
    if (rc == SQLITE_ROW)
        ejki_row_read(store->get, out);
    else
        ejki_store_reset(store);
    return rc;
}

void ejki_store_reset(ejki_store *store) {
    sqlite3_reset(store->get);
    sqlite3_clear_bindings(store->get);
}

/* Runs a statement that answers no rows. */
static int run(sqlite3_stmt *statement, int rc) {
    if (rc == SQLITE_OK) rc = sqlite3_step(statement);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int ejki_store_put(ejki_store *store, const ejk_config_key *key, const ejk_config_entry *entry) {
    return run(store->put, ejki_row_bind(store->put, key, entry));
}

int ejki_store_remove(ejki_store *store, const ejk_config_key *key, int64_t *rows) {
    int rc = run(store->remove, ejki_row_bind_key(store->remove, key));
    if (rc == SQLITE_OK) *rows = sqlite3_changes64(store->db);
    return rc;
}

int ejki_store_clear(ejki_store *store, int64_t *rows) {
    int rc = run(store->clear, SQLITE_OK);
    if (rc == SQLITE_OK) *rows = sqlite3_changes64(store->db);
    return rc;
}

int ejki_store_count(ejki_store *store, int64_t *rows) {
    int rc = sqlite3_step(store->count);
    if (rc == SQLITE_ROW) *rows = sqlite3_column_int64(store->count, 0);
    sqlite3_reset(store->count);
    return rc == SQLITE_ROW ? SQLITE_OK : rc;
}

int ejki_store_begin(ejki_store *store) {
    return run(store->begin, SQLITE_OK);
}

int ejki_store_commit(ejki_store *store) {
    return run(store->commit, SQLITE_OK);
}

void ejki_store_rollback(ejki_store *store) {
    if (!sqlite3_get_autocommit(store->db)) sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
}

/* ---- All rows ----------------------------------------------------------------------------------------- */

int ejki_store_each(ejki_store *store, bool backward, ejki_row_fn visit, void *user) {
    sqlite3_stmt *statement;
    char *sql = sqlite3_mprintf(
        backward ? "%s ORDER BY device DESC, op_id DESC, call_key DESC, layout DESC, "
                   "threads DESC, direction DESC LIMIT %d"
                 : "%s ORDER BY " EJKI_KEY_COLUMNS " LIMIT %d",
        SELECT, EJKI_MAX_ROWS);
    if (!sql) return SQLITE_NOMEM;
    int rc = sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL);
    sqlite3_free(sql);
    if (rc != SQLITE_OK) return rc;
    while ((rc = sqlite3_step(statement)) == SQLITE_ROW) {
        ejki_row row;
        ejki_row_read(statement, &row);
        if (!visit(user, &row)) break;
    }
    int end = sqlite3_finalize(statement);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : end;
}

struct rescue {
    ejki_store *into;
    int64_t rows;
};

static bool rescue_row(void *rescue_, const ejki_row *row) {
    struct rescue *rescue = rescue_;
    if (row->fault) return true;
    ejki_row there;
    int rc = ejki_store_get(rescue->into, &row->key, &there);
    ejki_store_reset(rescue->into);
    if (rc == SQLITE_ROW) return true;
    if (rc == SQLITE_DONE) rc = ejki_store_put(rescue->into, &row->key, &row->entry);
    if (rc == SQLITE_OK) rescue->rows++;
    return rc == SQLITE_OK;
}

int64_t ejki_store_rescue(ejki_store *from, ejki_store *into) {
    struct rescue rescue = {.into = into};
    if (ejki_store_begin(into) != SQLITE_OK) return 0;
    if (ejki_store_each(from, false, rescue_row, &rescue) != SQLITE_OK)
        (void)ejki_store_each(from, true, rescue_row, &rescue);
    if (ejki_store_commit(into) == SQLITE_OK) return rescue.rows;
    ejki_store_rollback(into);
    return 0;
}

int ejki_store_examine(ejki_store *store) {
    sqlite3_stmt *statement;
    int rc = sqlite3_prepare_v2(store->db, "PRAGMA integrity_check(1)", -1, &statement, NULL);
    if (rc != SQLITE_OK) return rc;
    rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW) {
        const char *answer = (const char *)sqlite3_column_text(statement, 0);
        rc = answer && strcmp(answer, "ok") == 0 ? SQLITE_OK : SQLITE_CORRUPT;
    }
    sqlite3_finalize(statement);
    return rc == SQLITE_DONE ? SQLITE_CORRUPT : rc;
}
