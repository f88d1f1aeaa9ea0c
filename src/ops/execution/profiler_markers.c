/* SPDX-License-Identifier: Apache-2.0 */
/* Scopes for other tools: lines of a file that `perf script` can be joined with, and ranges of NVTX. */
#define _GNU_SOURCE 1
#include "ops/execution/profiler.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A regular file only: writing to a pipe may wait, or end the process when nobody reads. */
static ejk_status open_file(const char *path, int *out) {
    const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    const int file = open(path, flags, 0666);
    struct stat facts;
    if (file >= 0 && fstat(file, &facts) == 0 && S_ISREG(facts.st_mode)) {
        *out = file;
        return EJK_OK;
    }
    const ejk_status status =
        ejki_fail(EJK_STATUS_IO, "marker_path is '%.200s', which cannot be written: %s", path,
                  file < 0 ? strerror(errno) : "it is no regular file");
    if (file >= 0) close(file);
    return status;
}

/* Symbols that the process has already; nothing is loaded for them. */
static void find_nvtx(ejki_markers *markers) {
    void *push = dlsym(RTLD_DEFAULT, "nvtxRangePushA");
    void *pop = dlsym(RTLD_DEFAULT, "nvtxRangePop");
    if (!push || !pop) return;
    memcpy(&markers->push, &push, sizeof push);
    memcpy(&markers->pop, &pop, sizeof pop);
}

ejk_status ejki_markers_open(const ejk_profiler_options *options, ejki_markers *out) {
    const char *path = options->marker_path ? options->marker_path : getenv("EJKERNEL_MARKERS");
    if (path && *path) EJKI_TRY(open_file(path, &out->file));
    if (options->nvtx != EJK_FALSE) find_nvtx(out);
    return EJK_OK;
}

void ejki_markers_close(ejki_markers *markers) {
    if (markers->file >= 0) close(markers->file);
}

/* A line in one write, so that those of several threads and processes do not mix. */
static void write_line(ejki_markers *markers, char kind, int64_t ns, int64_t thread,
                       const char *name) {
    char line[EJK_PROFILER_NAME_SIZE + 64];
    const int size = snprintf(line, sizeof line, "%lld %c %lld %s\n", (long long)ns, kind,
                              (long long)thread, name);
    ssize_t written;
    do written = write(markers->file, line, (size_t)size);
    while (written < 0 && errno == EINTR);
    if (written != size) atomic_fetch_add_explicit(&markers->lost, 1, memory_order_relaxed);
}

void ejki_markers_begin(ejki_markers *markers, int64_t thread, const char *name) {
    if (markers->file >= 0) write_line(markers, 'B', ejki_profiler_now_ns(), thread, name);
    if (markers->push) markers->push(name);
}

void ejki_markers_end(ejki_markers *markers, int64_t thread, const char *name, int64_t end_ns) {
    if (markers->pop) markers->pop();
    if (markers->file >= 0) write_line(markers, 'E', end_ns, thread, name);
}
