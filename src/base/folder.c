/* SPDX-License-Identifier: Apache-2.0 */
#include "base/folder.h"

#include <errno.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

char *ejki_cache_root(const char *path) {
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

bool ejki_make_folders(char *file, unsigned mode) {
    for (char *slash = strchr(file + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool made = mkdir(file, mode) == 0 || errno == EEXIST;
        /* A folder that is there may be one that only its owner may add to. */
        struct stat facts;
        if (!made && errno != ENOENT) made = stat(file, &facts) == 0 && S_ISDIR(facts.st_mode);
        *slash = '/';
        if (!made) return false;
    }
    return true;
}
