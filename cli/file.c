/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"

#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* True at the end of the file; false with errno. */
static bool read_all(FILE *file, char **text, size_t *size) {
    size_t room = 0;
    for (;;) {
        if (room - *size < 2) {
            room = room ? 2 * room : 65536;
            char *larger = realloc(*text, room);
            if (!larger) return false;
            *text = larger;
        }
        size_t count = fread(*text + *size, 1, room - *size - 1, file);
        *size += count;
        if (count == 0) break;
    }
    (*text)[*size] = '\0';
    return !ferror(file);
}

bool file_read(const char *path, char **out, size_t *size) {
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    char *text = NULL;
    size_t length = 0;
    bool read = file && read_all(file, &text, &length);
    if (!read) report_error("%s could not be read: %s", path, strerror(errno));
    if (file && !standard) fclose(file);
    if (!read) {
        free(text);
        return false;
    }
    *out = text;
    *size = length;
    return true;
}

bool file_write(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    bool written = file && fprintf(file, "%s\n", text) >= 0;
    if (file && fclose(file) != 0) written = false;
    return written || report_error("%s could not be written: %s", path, strerror(errno));
}
