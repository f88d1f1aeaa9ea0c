/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/config/persistent.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static bool ends_in_db(const char *path) {
    size_t length = strlen(path);
    return length >= 3 && strcmp(path + length - 3, ".db") == 0;
}

/* The file itself, absolute: a process may change its folder later. */
static char *file_of(const char *path) {
    char *root = ejki_cache_root(path);
    if (!root) return NULL;
    char *folder = *root == '/' ? NULL : getcwd(NULL, 0);
    char *file = ejki_compose("%s%s%s%s", folder ? folder : "", folder ? "/" : "", root,
                              ends_in_db(root) ? "" : "/configs.db");
    free(folder);
    free(root);
    return file;
}

/* The same file without symbolic links, as SQLite puts its other files beside the one that is meant. */
static char *resolved(const char *file) {
    char *whole = realpath(file, NULL);
    if (whole) return whole;
    const char *name = strrchr(file, '/') + 1;
    char *folder = strndup(file, (size_t)(name - file));
    char *real = folder ? realpath(folder, NULL) : NULL;
    char *text =
        real ? ejki_compose("%s/%s", strcmp(real, "/") == 0 ? "" : real, name) : strdup(file);
    free(real);
    free(folder);
    return text;
}

ejk_status ejk_persistent_cache_locate(const char *path, char **out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL; expected where to put it");
    if (path && !*path)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "path is \"\"; expected a path, or NULL for the default");
    char *file = file_of(path);
    if (!file) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a path");
    *out = file;
    return EJK_OK;
}

ejk_status ejki_persistent_path(const char *path, char **out, char **trouble) {
    char *problem = NULL, *file = file_of(path);
    if (file && *file != '/') {
        problem = strdup("the working folder is not there");
    } else if (file && !ejki_make_folders(file, 0700)) {
        problem = ejki_compose("its folder cannot be made: %s", strerror(errno));
    } else if (file) {
        char *given = file;
        file = resolved(given);
        free(given);
    }
    if (!file) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a path");
    *out = file;
    *trouble = problem;
    return EJK_OK;
}
