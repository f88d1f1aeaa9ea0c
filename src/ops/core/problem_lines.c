/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of problems: one a line, read twice, so that nothing is done before all can be read. */
#include "ops/core/problem_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES (INT64_C(16) << 20)

/* One reading of a list. */
typedef struct reading {
    const ejk_context *context;
    const char *name;
    ejk_problem_fn each; /* NULL: only see whether it can be read */
    void *user;
} reading;

static bool is_nothing(const char *line) {
    const char *at = line + strspn(line, " \t");
    return *at == '\0' || *at == '#';
}

static ejk_status take_line(const reading *r, int64_t number, const char *line) {
    ejk_problem *problem;
    if (is_nothing(line)) return EJK_OK;
    ejk_status status = ejk_problem_parse(r->context, line, &problem);
    if (status != EJK_OK)
        return ejki_fail(status, "%.200s:%lld: %s", r->name, (long long)number, ejk_last_error());
    if (r->each) status = r->each(r->user, number, problem);
    ejk_problem_destroy(problem);
    return status;
}

static ejk_status take_lines(const reading *r, const char *text, size_t size) {
    char line[EJK_PROBLEM_MAX_TEXT + 1];
    int64_t number = 0;
    for (const char *at = text, *end = text + size, *next; at < end; at = next) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        next = stop ? stop + 1 : end;
        size_t length = (size_t)((stop ? stop : end) - at);
        if (length > 0 && at[length - 1] == '\r') length--;
        number++;
        if (length >= sizeof line || memchr(at, '\0', length))
            return ejki_fail(
                EJK_STATUS_MALFORMED, "%.200s:%lld: the line %s, expected text of at most %d bytes",
                r->name, (long long)number,
                length >= sizeof line ? "is too long" : "has a zero byte", EJK_PROBLEM_MAX_TEXT);
        memcpy(line, at, length);
        line[length] = '\0';
        EJKI_TRY(take_line(r, number, line));
    }
    return EJK_OK;
}

ejk_status ejk_problem_read_text(const ejk_context *context, const char *name, const char *text,
                                 size_t size, ejk_problem_fn each, void *user) {
    if (!context || !name || (!text && size > 0) || !each)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !context ? "context"
                         : !name  ? "name"
                         : !each  ? "each"
                                  : "text");
    if (size == 0) return EJK_OK;
    reading r = {context, name, NULL, NULL};
    EJKI_TRY(take_lines(&r, text, size));
    r.each = each;
    r.user = user;
    return take_lines(&r, text, size);
}

/* A regular file of a size that is sensible: opening a pipe would wait. */
static ejk_status open_list(const char *path, int *out, size_t *size) {
    struct stat facts;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return ejki_fail(EJK_STATUS_IO, "%s: %s", path, strerror(errno));
    if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size > MOST_BYTES) {
        close(file);
        return ejki_fail(EJK_STATUS_IO, "%s: expected a regular file of at most %lld bytes", path,
                         (long long)MOST_BYTES);
    }
    *out = file;
    *size = (size_t)facts.st_size;
    return EJK_OK;
}

/* Reads what there is of `size` bytes; *got is how many there were. */
static ejk_status read_bytes(int file, const char *path, char *text, size_t size, size_t *got) {
    *got = 0;
    while (*got < size) {
        const ssize_t count = read(file, text + *got, size - *got);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return ejki_fail(EJK_STATUS_IO, "%s: %s", path, strerror(errno));
        if (count == 0) break;
        *got += (size_t)count;
    }
    return EJK_OK;
}

ejk_status ejk_problem_read_file(const ejk_context *context, const char *path, ejk_problem_fn each,
                                 void *user) {
    if (!path) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "path is NULL, expected one");
    int file = -1;
    size_t size = 0, got = 0;
    EJKI_TRY(open_list(path, &file, &size));
    char *text = malloc(size + 1);
    ejk_status status =
        text ? read_bytes(file, path, text, size, &got)
             : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "%s: no memory for %zu bytes", path, size);
    close(file);
    if (status == EJK_OK) status = ejk_problem_read_text(context, path, text, got, each, user);
    free(text);
    return status;
}
