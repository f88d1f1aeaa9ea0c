/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/file.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

ejk_status ejki_file_open(const char *path, int *descriptor, size_t *size) {
    /* Opening a pipe without a writer would wait for one. */
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0) return ejki_fail(EJK_STATUS_IO, "%s: %s", path, strerror(errno));
    struct stat facts;
    bool known = fstat(opened, &facts) == 0;
    if (!known || !S_ISREG(facts.st_mode)) {
        ejk_status status = ejki_fail(EJK_STATUS_IO, "%s: %s", path,
                                      known ? "is no regular file" : strerror(errno));
        close(opened);
        return status;
    }
    *descriptor = opened;
    *size = (size_t)facts.st_size;
    return EJK_OK;
}

ejk_status ejki_file_map(const char *path, void **mapping, size_t *size) {
    int descriptor = -1;
    EJKI_TRY(ejki_file_open(path, &descriptor, size));
    if (*size == 0) {
        close(descriptor);
        return ejki_fail(EJK_STATUS_MALFORMED, "%s: is empty", path);
    }
    void *mapped = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    int reason = errno;
    close(descriptor);
    if (mapped == MAP_FAILED) {
        return ejki_fail(EJK_STATUS_IO, "%s: mapping: %s", path, strerror(reason));
    }
    *mapping = mapped;
    return EJK_OK;
}

void ejki_no_tensor(const char *name, const void *file, int64_t count,
                    const char *(*name_at)(const void *file, int64_t index)) {
    enum { RESERVE = 16 }; /* for separators and the dots */
    char names[600] = "";
    size_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *next = name_at(file, i);
        bool fits = strlen(next) + RESERVE <= sizeof names - used;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "",
                                 fits ? next : "…");
        if (!fits) break;
    }
    (void)ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                    "no tensor '%.200s' among the %" PRId64 " of the file: %s", name, count, names);
}
