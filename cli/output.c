/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "output.h"

#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool refused(const char *path) {
    return report_error("%s could not be written: %s", path, strerror(errno));
}

/* What a new file's permissions are; there is no other way to ask than to set them. */
static mode_t usual_mode(void) {
    mode_t hidden = umask(0);
    umask(hidden);
    return 0666 & ~hidden;
}

static void forget(output_file *out) {
    free(out->target);
    free(out->beside);
    *out = (output_file){.file = NULL};
}

static bool open_beside(output_file *out, mode_t mode) {
    if (asprintf(&out->beside, "%s.XXXXXX", out->target) < 0) {
        out->beside = NULL;
        return refused(out->path);
    }
    int number = mkostemp(out->beside, O_CLOEXEC);
    if (number < 0) return refused(out->path);
    out->file = fchmod(number, mode) == 0 ? fdopen(number, "wb") : NULL;
    if (out->file) return true;
    refused(out->path);
    close(number);
    unlink(out->beside);
    return false;
}

bool output_open(const char *path, output_file *out) {
    *out = (output_file){.path = path};
    if (strcmp(path, "-") == 0) {
        out->file = stdout;
        return true;
    }
    struct stat facts;
    bool exists = stat(path, &facts) == 0;
    if (exists && !S_ISREG(facts.st_mode)) {
        out->file = fopen(path, "wb");
        return out->file || refused(path);
    }
    if (exists && access(path, W_OK) != 0) return refused(path);
    out->target = exists ? realpath(path, NULL) : strdup(path);
    bool opened = out->target ? open_beside(out, exists ? facts.st_mode & 07777 : usual_mode())
                              : refused(path);
    if (!opened) forget(out);
    return opened;
}

bool output_close(output_file *out, bool keep) {
    if (out->file == stdout) return true;
    bool whole = !ferror(out->file);
    whole = fclose(out->file) == 0 && whole;
    bool done = !keep || whole;
    if (keep && whole && out->beside) done = rename(out->beside, out->target) == 0;
    if (!done) refused(out->path);
    if (out->beside && !(keep && done)) unlink(out->beside);
    forget(out);
    return done;
}
