/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/file.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
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
