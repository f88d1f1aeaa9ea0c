/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/config/persistent.h"

#include <errno.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The user's folder, a copy; NULL if there is none. */
static char *home(void) {
    const char *value = variable("HOME");
    if (value) return strdup(value);
    char room[4096];
    struct passwd entry, *found = NULL;
    if (getpwuid_r(getuid(), &entry, room, sizeof room, &found) != 0 || !found) return NULL;
    return entry.pw_dir && *entry.pw_dir ? strdup(entry.pw_dir) : NULL;
}

char *ejki_compose(const char *format, ...) {
    va_list values;
    va_start(values, format);
    int length = vsnprintf(NULL, 0, format, values);
    va_end(values);
    char *text = length < 0 ? NULL : malloc((size_t)length + 1);
    if (!text) return NULL;
    va_start(values, format);
    vsnprintf(text, (size_t)length + 1, format, values);
    va_end(values);
    return text;
}

/* What stands before everything else in the path: the default folder, or the user's in place of "~". */
static char *rooted(const char *path) {
    const char *folder = path ? path : variable("EJKERNEL_CACHE_DIR");
    if (folder && strncmp(folder, "~/", 2) != 0 && strcmp(folder, "~") != 0) return strdup(folder);
    const char *xdg = variable("XDG_CACHE_HOME");
    if (!folder && xdg && *xdg == '/') return ejki_compose("%s/ejkernel", xdg);
    char *start = home();
    char *text =
        ejki_compose("%s%s", start ? start : "~", folder ? folder + 1 : "/.cache/ejkernel");
    free(start);
    return text;
}

static bool ends_in_db(const char *path) {
    size_t length = strlen(path);
    return length >= 3 && strcmp(path + length - 3, ".db") == 0;
}

/* The file itself, absolute: a process may change its folder later. */
static char *file_of(const char *path) {
    char *root = rooted(path);
    if (!root) return NULL;
    char *folder = *root == '/' ? NULL : getcwd(NULL, 0);
    char *file = ejki_compose("%s%s%s%s", folder ? folder : "", folder ? "/" : "", root,
                              ends_in_db(root) ? "" : "/configs.db");
    free(folder);
    free(root);
    return file;
}

bool ejki_persistent_make_folders(char *file) {
    for (char *slash = strchr(file + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool made = mkdir(file, 0700) == 0 || errno == EEXIST;
        /* A folder that is there may be one that only its owner may add to. */
        struct stat facts;
        if (!made && errno != ENOENT) made = stat(file, &facts) == 0 && S_ISDIR(facts.st_mode);
        *slash = '/';
        if (!made) return false;
    }
    return true;
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
    } else if (file && !ejki_persistent_make_folders(file)) {
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
