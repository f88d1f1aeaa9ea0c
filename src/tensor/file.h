/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EJKI_TENSOR_FILE_H
#define EJKI_TENSOR_FILE_H

#include <ejkernel/status.h>

/*
 * Opens a regular file for reading and gives its size; the caller closes the descriptor. Anything else (a
 * folder, a pipe) is refused: the formats of this room are checked against the size before they are read.
 */
ejk_status ejki_file_open(const char *path, int *descriptor, size_t *size);

/* Maps a regular file for reading; an empty one is MALFORMED. The caller unmaps. */
ejk_status ejki_file_map(const char *path, void **mapping, size_t *size);

/* UNKNOWN_NAME: a sentence that no tensor `name` is among the `count` of a file, with as many names as have room. */
void ejki_no_tensor(const char *name, const void *file, int64_t count,
                    const char *(*name_at)(const void *file, int64_t index));

#endif
