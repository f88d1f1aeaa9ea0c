/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/file.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
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

static ejk_status map(const char *path, ejki_mapping *out) {
    int descriptor = -1;
    EJKI_TRY(ejki_file_open(path, &descriptor, &out->size));
    if (out->size == 0) {
        close(descriptor);
        return ejki_fail(EJK_STATUS_MALFORMED, "%s: is empty", path);
    }
    void *mapped = mmap(NULL, out->size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    int reason = errno;
    close(descriptor);
    if (mapped == MAP_FAILED)
        return ejki_fail(EJK_STATUS_IO, "%s: mapping: %s", path, strerror(reason));
    out->bytes = mapped;
    return EJK_OK;
}

ejk_status ejki_file_parse(const char *path,
                           ejk_status (*parse)(const void *bytes, size_t size, void *out),
                           void *out, ejki_mapping *mapping) {
    if (path == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", path == NULL ? "path" : "out");
    ejki_mapping mapped = {NULL, 0};
    EJKI_TRY(map(path, &mapped));
    ejk_status status = parse(mapped.bytes, mapped.size, out);
    if (status != EJK_OK) {
        ejki_mapping_close(&mapped);
        return ejki_fail(status, "%s: %s", path, ejk_last_error());
    }
    *mapping = mapped;
    return EJK_OK;
}

void ejki_mapping_close(const ejki_mapping *mapping) {
    if (mapping->bytes != NULL) munmap(mapping->bytes, mapping->size);
}

/* ---- Entries by their names ------------------------------------------------------------------------- */

int ejki_compare_entries(const void *left, const void *right) {
    const char *const *const *a = left, *const *const *b = right;
    return strcmp(**a, **b);
}

static void no_tensor(const char *name, const void *file, int64_t count,
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

const void *ejki_find_entry(const char *name, const void *in_order, int64_t count, const void *file,
                            const char *(*name_at)(const void *file, int64_t index)) {
    const char *const *key = &name;
    const void *const *found = NULL;
    if (count > 0) found = bsearch(&key, in_order, (size_t)count, sizeof key, ejki_compare_entries);
    if (found == NULL) no_tensor(name, file, count, name_at);
    return found == NULL ? NULL : *found;
}
