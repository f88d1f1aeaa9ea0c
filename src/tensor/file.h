/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EJKI_TENSOR_FILE_H
#define EJKI_TENSOR_FILE_H

#include <ejkernel/status.h>

/*
 * Opens a regular file for reading and gives its size; the caller closes the descriptor. Anything else (a
 * folder, a pipe) is refused: the formats of this room are checked against the size before they are read.
 */
ejk_status ejki_file_open(const char *path, int *descriptor, size_t *size);

#endif
