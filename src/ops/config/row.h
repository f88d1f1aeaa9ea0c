/* SPDX-License-Identifier: Apache-2.0 */
/* A row of the table: its columns in their order, written from a key and an entry and read back. */
#ifndef EJKI_OPS_CONFIG_ROW_H
#define EJKI_OPS_CONFIG_ROW_H

#include "ops/config/store.h"

#define EJKI_KEY_COLUMNS "device, op_id, call_key, layout, threads, direction"
#define EJKI_COLUMNS                                                                               \
    EJKI_KEY_COLUMNS                                                                               \
    ", config, implementation, implementation_version, library_version, median_s, spread_s, "      \
    "reference_s, unix_time, repetitions, checksum"

/* Binds the first 6 parameters of a statement, and all 16. */
int ejki_row_bind_key(sqlite3_stmt *statement, const ejk_config_key *key);
int ejki_row_bind(sqlite3_stmt *statement, const ejk_config_key *key,
                  const ejk_config_entry *entry);

/* Reads the row a statement stands on, whose columns are EJKI_COLUMNS. Whatever is there is hostile. */
void ejki_row_read(sqlite3_stmt *statement, ejki_row *out);

#endif
