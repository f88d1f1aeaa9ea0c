/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EJKI_TENSOR_FILE_H
#define EJKI_TENSOR_FILE_H

#include <ejkernel/status.h>

/*
 * Opens a regular file for reading and gives its size; the caller closes the descriptor. Anything else (a
 * folder, a pipe) is refused: the formats of this room are checked against the size before they are read.
 */
ejk_status ejki_file_open(const char *path, int *descriptor, size_t *size);

/* A file in memory, for as long as what was read of it. */
typedef struct ejki_mapping {
    void *bytes; /* NULL if there is none */
    size_t size;
} ejki_mapping;

/*
 * Maps a regular file and has it parsed: `parse` gives what it made to `out`, and says nothing of the path, which leads
 * the sentence of a failure. Statuses: those of `parse`, INVALID_ARGUMENT (NULL), MALFORMED (an empty file), IO.
 */
ejk_status ejki_file_parse(const char *path,
                           ejk_status (*parse)(const void *bytes, size_t size, void *out),
                           void *out, ejki_mapping *mapping);
void ejki_mapping_close(const ejki_mapping *mapping);

/* Orders entries of a file, pointers to structs that begin with their name, for qsort(). */
int ejki_compare_entries(const void *left, const void *right);

/* The entry of a name among those in order. NULL: UNKNOWN_NAME, with as many names as the sentence has room for. */
const void *ejki_find_entry(const char *name, const void *in_order, int64_t count, const void *file,
                            const char *(*name_at)(const void *file, int64_t index));

#endif
