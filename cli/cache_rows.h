/* SPDX-License-Identifier: Apache-2.0 */
/* The cache on disk as the commands see it: where it lies, and its rows as JSON. */
#ifndef EJK_CLI_CACHE_ROWS_H
#define EJK_CLI_CACHE_ROWS_H

#include "cli.h"

/* A cache on disk. */
typedef struct config_store {
    char *path;                  /* of the file, absolute */
    ejk_persistent_cache *cache; /* NULL: there is no such file */
} config_store;

/* The file that --cache means; NULL stands for the default. Freed with ejk_free(); NULL after a sentence. */
char *store_path(const char *wish);

/* Opens it, or only if it is there. What happens to the file is told on stderr. */
bool store_open(const char *wish, bool create, config_store *out);
void store_close(config_store *store);

/* Checks a file by reading alone. A file that is not there is sound. */
bool store_verify(const char *path, bool *exists, ejk_persistent_report *report);

/*
 * Its entries, in the order of their keys: {"device","op_id","call_key","layout","threads","direction",
 * "config":{…},"implementation","implementation_version","library_version","measurement":{…}|null}.
 * A new reference; NULL after a sentence.
 */
json_t *store_rows(const config_store *store, const char *op_id, const char *device);

/* The key of a row; its texts belong to the row. */
ejk_config_key store_row_key(const json_t *row);

/* The columns of a key; a new reference. */
json_t *store_key_json(const ejk_config_key *key);

/* A member's text, "" if it has none. */
const char *store_text(const json_t *row, const char *name);

/* A configuration as people read it, "q_blocksize=64 kv_blocksize=128"; "-" if nothing is set. */
const char *store_config_text(const json_t *config, char *out, size_t room);

#endif
