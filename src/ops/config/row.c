/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A row's checksum covers all its columns. SQLite notices damage to its pages, but not a bit that changed
 * inside a number or a text: the row would still look like a configuration, and be a wrong one.
 */
#include "ops/config/row.h"

enum {
    DEVICE,
    OP_ID,
    CALL_KEY,
    LAYOUT,
    THREADS,
    DIRECTION,
    CONFIG,
    IMPLEMENTATION,
    IMPLEMENTATION_VERSION,
    LIBRARY_VERSION,
    MEDIAN_S,
    SPREAD_S,
    REFERENCE_S,
    UNIX_TIME,
    REPETITIONS,
    CHECKSUM,
};

static uint64_t hash_seconds(uint64_t hash, double seconds) {
    uint64_t bits;
    seconds += 0.0; /* a database keeps no sign of zero */
    memcpy(&bits, &seconds, sizeof bits);
    return ejki_hash_number(hash, bits);
}

static int64_t checksum(const ejk_config_key *key, const ejk_config_entry *entry) {
    const ejk_config_measurement *m = &entry->measurement;
    uint64_t hash = ejki_hash_number(ejki_config_key_hash(key), EJKI_SCHEMA_VERSION);
    hash = ejki_hash_text(hash, entry->config);
    hash = ejki_hash_text(hash, entry->implementation);
    hash = ejki_hash_number(hash, (uint64_t)entry->implementation_version);
    hash = ejki_hash_text(hash, entry->library_version);
    hash = hash_seconds(hash, m->median_s);
    hash = hash_seconds(hash, m->spread_s);
    hash = hash_seconds(hash, m->reference_s);
    hash = ejki_hash_number(hash, (uint64_t)m->unix_time);
    hash = ejki_hash_number(hash, (uint64_t)m->repetitions);
    int64_t number;
    memcpy(&number, &hash, sizeof number);
    return number;
}

/* ---- Writing: the first failure stays ----------------------------------------------------------------- */

static void bind_text(sqlite3_stmt *statement, int column, const char *text, int *rc) {
    if (*rc == SQLITE_OK) *rc = sqlite3_bind_text(statement, column + 1, text, -1, SQLITE_STATIC);
}

static void bind_int(sqlite3_stmt *statement, int column, int64_t number, int *rc) {
    if (*rc == SQLITE_OK) *rc = sqlite3_bind_int64(statement, column + 1, number);
}

static void bind_seconds(sqlite3_stmt *statement, int column, double seconds, int *rc) {
    if (*rc == SQLITE_OK) *rc = sqlite3_bind_double(statement, column + 1, seconds + 0.0);
}

int ejki_row_bind_key(sqlite3_stmt *statement, const ejk_config_key *key) {
    int rc = SQLITE_OK;
    bind_text(statement, DEVICE, key->device, &rc);
    bind_text(statement, OP_ID, key->op_id, &rc);
    bind_text(statement, CALL_KEY, key->call_key, &rc);
    bind_text(statement, LAYOUT, key->layout, &rc);
    bind_int(statement, THREADS, key->threads, &rc);
    bind_int(statement, DIRECTION, (int64_t)key->direction, &rc);
    return rc;
}

int ejki_row_bind(sqlite3_stmt *statement, const ejk_config_key *key,
                  const ejk_config_entry *entry) {
    const ejk_config_measurement *m = &entry->measurement;
    int rc = ejki_row_bind_key(statement, key);
    bind_text(statement, CONFIG, entry->config, &rc);
    bind_text(statement, IMPLEMENTATION, entry->implementation, &rc);
    bind_int(statement, IMPLEMENTATION_VERSION, entry->implementation_version, &rc);
    bind_text(statement, LIBRARY_VERSION, entry->library_version, &rc);
    bind_seconds(statement, MEDIAN_S, m->median_s, &rc);
    bind_seconds(statement, SPREAD_S, m->spread_s, &rc);
    bind_seconds(statement, REFERENCE_S, m->reference_s, &rc);
    bind_int(statement, UNIX_TIME, m->unix_time, &rc);
    bind_int(statement, REPETITIONS, m->repetitions, &rc);
    bind_int(statement, CHECKSUM, checksum(key, entry), &rc);
    return rc;
}

/* ---- Reading: the first fault stays, and what is read stays readable ---------------------------------- */

static const char *read_text(sqlite3_stmt *statement, int column, int size, ejki_row *row) {
    const char *text = NULL;
    if (sqlite3_column_type(statement, column) == SQLITE_TEXT)
        text = (const char *)sqlite3_column_text(statement, column);
    int bytes = sqlite3_column_bytes(statement, column);
    if (text && bytes < size && strlen(text) == (size_t)bytes) return text;
    if (!row->fault) row->fault = text ? "a text that is too long or has a zero" : "no text";
    return "";
}

static void read_words(sqlite3_stmt *statement, int column, char *out, size_t size, ejki_row *row) {
    const char *text = read_text(statement, column, (int)size, row);
    memcpy(out, text, strlen(text) + 1);
}

static int64_t read_int(sqlite3_stmt *statement, int column, int64_t most, ejki_row *row) {
    int64_t number = sqlite3_column_int64(statement, column);
    if (sqlite3_column_type(statement, column) == SQLITE_INTEGER && number >= 0 && number <= most)
        return number;
    if (!row->fault) row->fault = "a number that is none or out of range";
    return 0;
}

static double read_seconds(sqlite3_stmt *statement, int column, ejki_row *row) {
    if (sqlite3_column_type(statement, column) == SQLITE_FLOAT)
        return sqlite3_column_double(statement, column);
    if (!row->fault) row->fault = "a time that is no number";
    return 0;
}

void ejki_row_read(sqlite3_stmt *statement, ejki_row *out) {
    *out = (ejki_row){0};
    ejk_config_key *key = &out->key;
    ejk_config_entry *entry = &out->entry;
    ejk_config_measurement *m = &entry->measurement;
    key->device = read_text(statement, DEVICE, EJK_CONFIG_KEY_SIZE, out);
    key->op_id = read_text(statement, OP_ID, EJK_CONFIG_KEY_SIZE, out);
    key->call_key = read_text(statement, CALL_KEY, EJK_CONFIG_KEY_SIZE, out);
    key->layout = read_text(statement, LAYOUT, EJK_CONFIG_KEY_SIZE, out);
    key->threads = (int32_t)read_int(statement, THREADS, INT32_MAX, out);
    key->direction = (ejk_direction)read_int(statement, DIRECTION, EJK_BACKWARD, out);
    /* Borrowed like the key's texts; entries own theirs elsewhere, and so have no const. */
    entry->config = (char *)(uintptr_t)read_text(statement, CONFIG, EJK_CONFIG_SIZE, out);
    read_words(statement, IMPLEMENTATION, entry->implementation, sizeof entry->implementation, out);
    entry->implementation_version =
        (int32_t)read_int(statement, IMPLEMENTATION_VERSION, INT32_MAX, out);
    read_words(statement, LIBRARY_VERSION, entry->library_version, sizeof entry->library_version,
               out);
    m->median_s = read_seconds(statement, MEDIAN_S, out);
    m->spread_s = read_seconds(statement, SPREAD_S, out);
    m->reference_s = read_seconds(statement, REFERENCE_S, out);
    m->unix_time = read_int(statement, UNIX_TIME, INT64_MAX, out);
    m->repetitions = (int32_t)read_int(statement, REPETITIONS, INT32_MAX, out);
    if (out->fault) return;
    if (sqlite3_column_type(statement, CHECKSUM) != SQLITE_INTEGER ||
        sqlite3_column_int64(statement, CHECKSUM) != checksum(key, entry))
        out->fault = "the row does not match its checksum";
    /* A checksum is no proof: who writes a wrong row can write a right one. */
    else if (ejki_config_key_check(key, key) != EJK_OK || ejki_config_entry_check(entry) != EJK_OK)
        out->fault = ejk_last_error();
}
