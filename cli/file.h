/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EJK_CLI_FILE_H
#define EJK_CLI_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* Reads a whole file, "-" for standard input, and closes it by a zero byte. Freed with free(). */
bool file_read(const char *path, char **out, size_t *size);

/* Writes a line of text to a file. */
bool file_write(const char *path, const char *text);

#endif
